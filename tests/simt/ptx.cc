/* test: label=unit timeout=60 */
/* The emulator runs PTX: instructions against what the host computes, and faults with their lines. Needs no nvcc. */
#include <csetjmp>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include "kernels/device/launch.h"

enum { THREADS = 32, WORDS = 64 };

/* What the PTX below stands for: the names must agree, the code is never run. */
DTX_KERNEL(THREADS, 1) probe(const uint32_t *in, uint32_t *out)
{
    out[threadIdx.x] = in[threadIdx.x] + 1;
}

static const char head[] = ".version 9.0\n.target sm_80\n.address_size 64\n"
                           ".extern .shared .align 1024 .b8 memory[];\n"
                           ".entry _Z5probePKjPj(\n.param .u64 in,\n.param .u64 out\n)\n{\n"
                           ".reg .pred %p<9>;\n.reg .b16 %rs<9>;\n.reg .b32 %r<40>;\n.reg .b64 %rd<20>;\n"
                           ".reg .f32 %f<20>;\n.reg .f64 %fd<9>;\n"
                           ".shared .align 4 .b8 kept[128];\n.local .align 8 .b8 stack[16];\n"
                           "ld.param.u64 %rd1, [in];\nld.param.u64 %rd2, [out];\nmov.u32 %r1, %tid.x;\n"
                           "mul.wide.u32 %rd3, %r1, 4;\nadd.s64 %rd4, %rd1, %rd3;\nadd.s64 %rd5, %rd2, %rd3;\n"
                           "ld.global.u32 %r2, [%rd4];\nld.global.u32 %r3, [%rd4+128];\n";
static const char tail[] = "st.global.u32 [%rd5], %r9;\nret;\n}\n";

struct outcome {
    int code;
    std::string text; /* of the fault, or why the PTX was not taken */
    uint32_t in[WORDS], out[THREADS];
};

/* Runs head, body, tail; the body makes r9 of r2 = in[i] and r3 = in[i + 32]. */
static outcome run(const std::string &body, const uint32_t *words)
{
    outcome o = {};
    char folder[] = "/tmp/dtx-ptx-XXXXXX", why[512] = "";
    assert_non_null(mkdtemp(folder));
    const std::string path = std::string(folder) + "/probe.o";
    FILE *file = fopen(path.c_str(), "w");
    assert_non_null(file);
    fprintf(file, "%s%s%s", head, body.c_str(), tail);
    assert_int_equal(fclose(file), 0);
    dtx_simt_settings settings = {};
    settings.ptx = dtx_ptx_load(folder, 80, why, sizeof why);
    unlink(path.c_str());
    rmdir(folder);
    if (!settings.ptx) {
        o.code = -1;
        o.text = why;
        return o;
    }
    dtx_simt_set(&settings);
    uint32_t *in = (uint32_t *)dtx_simt_alloc(sizeof o.in), *out = (uint32_t *)dtx_simt_alloc(sizeof o.out);
    for (int i = 0; i < WORDS; i++)
        o.in[i] = in[i] = words ? words[i] : (uint32_t)i * 0x9E3779B9u + 12345;
    o.code = dtx_launch(nullptr, probe, 1, THREADS, 256, (const uint32_t *)in, out);
    o.text = dtx_simt_fault_text();
    memcpy(o.out, out, sizeof o.out);
    dtx_simt_free(in);
    dtx_simt_free(out);
    return o;
}

static float as_float(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static uint32_t as_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

struct row {
    const char *body;
    uint32_t (*want)(uint32_t a, uint32_t b);
};

static void compare(const struct row *rows, size_t count, const uint32_t *words)
{
    for (size_t n = 0; n < count; n++) {
        outcome o = run(rows[n].body, words);
        if (o.code)
            fail_msg("%s: %s", rows[n].body, o.text.c_str());
        for (int i = 0; i < THREADS; i++)
            if (o.out[i] != rows[n].want(o.in[i], o.in[i + THREADS]))
                fail_msg("%s of %08x, %08x: %08x, must be %08x", rows[n].body, o.in[i], o.in[i + THREADS], o.out[i],
                         rows[n].want(o.in[i], o.in[i + THREADS]));
    }
}

static void whole_numbers(void **)
{
    static const struct row rows[] = {
        {"sub.s32 %r9, %r2, %r3;", [](uint32_t a, uint32_t b) { return a - b; }},
        {"mad.lo.s32 %r9, %r2, %r3, 7;", [](uint32_t a, uint32_t b) { return a * b + 7; }},
        {"mul.hi.s32 %r9, %r2, %r3;",
         [](uint32_t a, uint32_t b) { return (uint32_t)((int64_t)(int32_t)a * (int32_t)b >> 32); }},
        {"mul.wide.s32 %rd6, %r2, %r3;\nshr.u64 %rd7, %rd6, 20;\ncvt.u32.u64 %r9, %rd7;",
         [](uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)((int64_t)(int32_t)a * (int32_t)b) >> 20); }},
        {"div.s32 %r9, %r2, %r3;", [](uint32_t a, uint32_t b) { return (uint32_t)((int32_t)a / (int32_t)b); }},
        {"rem.u32 %r9, %r2, %r3;", [](uint32_t a, uint32_t b) { return a % b; }},
        {"shr.s32 %r9, %r2, 40;", [](uint32_t a, uint32_t) { return a >> 31 ? ~0u : 0u; }},
        {"shl.b32 %r9, %r2, 32;", [](uint32_t, uint32_t) { return 0u; }},
        {"max.s32 %r9, %r2, %r3;", [](uint32_t a, uint32_t b) { return (int32_t)a > (int32_t)b ? a : b; }},
        {"setp.lt.s32 %p1, %r2, %r3;\nsetp.lt.u32 %p2, %r2, %r3;\nand.pred %p3, %p1, %p2;\nselp.b32 %r9, 3, 4, %p3;",
         [](uint32_t a, uint32_t b) { return (int32_t)a < (int32_t)b && a < b ? 3u : 4u; }},
        {"prmt.b32 %r9, %r2, %r3, 29954;", /* 7502 */
         [](uint32_t a, uint32_t b) {
             return (a >> 16 & 255) | (a & 255) << 8 | (b >> 8 & 255) << 16 | (b >> 24) << 24;
         }},
        {"bfi.b32 %r9, %r2, %r3, 16, 8;", [](uint32_t a, uint32_t b) { return (b & 0xff00ffffu) | (a & 255) << 16; }},
        {"mov.b32 {%rs1, %rs2}, %r2;\ncvt.s32.s16 %r9, %rs2;",
         [](uint32_t a, uint32_t) { return (uint32_t)((int32_t)a >> 16); }},
        {"mov.b64 %rd6, {%r2, %r3};\nshr.u64 %rd7, %rd6, 16;\ncvt.u32.u64 %r9, %rd7;",
         [](uint32_t a, uint32_t b) { return a >> 16 | b << 16; }},
        {"ld.global.s8 %rs1, [%rd4+1];\ncvt.s32.s16 %r9, %rs1;",
         [](uint32_t a, uint32_t) { return (uint32_t)(int32_t)(int8_t)(a >> 8); }},
        {"mov.u32 %r9, 0;\nmov.u32 %r4, 5;\nAGAIN:\nadd.s32 %r9, %r9, %r2;\nadd.s32 %r4, %r4, -1;\n"
         "setp.ne.s32 %p1, %r4, 0;\n@%p1 bra AGAIN;",
         [](uint32_t a, uint32_t) { return 5 * a; }},
        {"mov.u64 %rd6, stack;\ncvta.local.u64 %rd7, %rd6;\nst.local.v2.u32 [%rd6], {%r2, %r3};\nld.u32 %r9, [%rd7+4];",
         [](uint32_t, uint32_t b) { return b; }},
        {"{\n.reg .b32 t;\nadd.u32 t, %r2, 1;\nmov.u32 %r9, t;\n}", [](uint32_t a, uint32_t) { return a + 1; }},
    };
    compare(rows, sizeof rows / sizeof *rows, nullptr);
}

static void floats(void **)
{
    uint32_t words[WORDS];
    for (int i = 0; i < WORDS; i++)
        words[i] = as_bits((float)(i * 37 % 29 - 14) * 0.37f + (float)(i + 1) * 1e-7f);
    words[3] = as_bits(NAN);
    words[5] = as_bits(INFINITY);
    static const struct row rows[] = {
        {"mov.b32 %f1, %r2;\nmov.b32 %f2, %r3;\nfma.rn.f32 %f3, %f1, %f2, 0f3F800000;\nabs.f32 %f4, %f3;\n"
         "setp.nan.f32 %p1, %f4, %f4;\nmov.b32 %r9, %f4;\n@%p1 mov.u32 %r9, 1;",
         [](uint32_t a, uint32_t b) {
             float f = fabsf(fmaf(as_float(a), as_float(b), 1));
             return f != f ? 1u : as_bits(f);
         }},
        {"mov.b32 %f1, %r2;\nmov.b32 %f2, %r3;\nmov.u32 %r9, 0;\nsetp.ltu.f32 %p1, %f1, %f2;\nsetp.ge.f32 %p2, %f1, "
         "%f2;\n"
         "setp.ne.f32 %p3, %f1, %f2;\n@%p1 add.s32 %r9, %r9, 1;\n@%p2 add.s32 %r9, %r9, 2;\n@%p3 add.s32 %r9, %r9, 4;\n"
         "@!%p3 add.s32 %r9, %r9, 8;",
         [](uint32_t a, uint32_t b) {
             float x = as_float(a), y = as_float(b);
             bool ordered = x == x && y == y;
             return (!(x >= y) ? 1u : 0) + (x >= y ? 2u : 0) + (ordered && x != y ? 4u : 8u);
         }},
        {"mov.b32 %f1, %r2;\nmov.b32 %f2, %r3;\ncvt.rn.bf16x2.f32 %r9, %f1, %f2;",
         [](uint32_t a, uint32_t b) { return dtx_pack_bf16(as_float(b), as_float(a)); }},
        {"mov.b32 %f1, %r2;\ncvt.f64.f32 %fd1, %f1;\nmul.f64 %fd2, %fd1, 0d3FD5555555555555;\ncvt.rn.f32.f64 %f2, "
         "%fd2;\n"
         "mov.b32 %r9, %f2;\nsetp.nan.f32 %p1, %f2, %f2;\n@%p1 mov.u32 %r9, 1;",
         [](uint32_t a, uint32_t) {
             float f = (float)((double)as_float(a) * 0x1.5555555555555p-2);
             return f != f ? 1u : as_bits(f);
         }},
        {"mov.b32 %f1, %r2;\ncvt.sat.f32.f32 %f2, %f1;\nmov.b32 %r9, %f2;",
         [](uint32_t a, uint32_t) {
             float f = as_float(a);
             return as_bits(f > 0 ? fminf(f, 1) : 0);
         }},
        {"mov.b32 %f1, %r2;\ncvt.rni.f32.f32 %f2, %f1;\ncvt.rzi.u32.f32 %r9, %f2;",
         [](uint32_t a, uint32_t) {
             float f = rintf(as_float(a));
             return f > 0 ? f < 4e9f ? (uint32_t)f : UINT32_MAX : 0u;
         }},
        /* 3·2^-30 below 1, towards −∞ */
        {"mov.f32 %f1, 0f30400000;\nmov.f32 %f2, 0fBF800000;\nfma.rm.f32 %f3, %f1, %f2, 0f3F800000;\nmov.b32 %r9, %f3;",
         [](uint32_t, uint32_t) { return as_bits(nextafterf(1, 0)); }},
    };
    compare(rows, sizeof rows / sizeof *rows, words);
}

static void together(void **)
{
    static const struct row rows[] = {
        {"shfl.sync.bfly.b32 %r9|%p1, %r2, 0, 31, -1;", [](uint32_t a, uint32_t) { return a; }},
        {"mov.u32 %r4, kept;\nshl.b32 %r5, %r1, 2;\nadd.s32 %r6, %r4, %r5;\nxor.b32 %r7, %r5, 4;\nadd.s32 %r7, %r4, "
         "%r7;\n"
         "st.shared.u32 [%r7], %r2;\nbar.sync 0;\nld.shared.u32 %r8, [%r6];\n"
         "shfl.sync.bfly.b32 %r9|%p1, %r8, 1, 31, -1;",
         [](uint32_t a, uint32_t) { return a; }},
        {"mov.u32 %r4, memory;\nshl.b32 %r5, %r1, 2;\nadd.s32 %r6, %r4, %r5;\nst.shared.u32 [%r6+128], %r3;\n"
         "ld.shared.u32 %r9, [%r6+128];",
         [](uint32_t, uint32_t b) { return b; }},
    };
    compare(rows, sizeof rows / sizeof *rows, nullptr);
}

static void faults(void **)
{
    static const struct {
        const char *body, *words;
    } list[] = {
        {"ld.global.u32 %r9, [%rd4+256];", "4 bytes outside shared and device memory"},
        {"ld.global.u32 %r9, [%rd4+2];", "not a multiple of 4"},
        {"st.global.u32 [%rd4+-4], %r2;", "4 bytes outside shared and device memory"},
        {"mov.u32 %r4, kept;\nld.shared.u32 %r9, [%r4+128];", "bytes 128 to 132 of kept[128]"},
        {"mov.u32 %r4, memory;\nld.shared.u32 %r9, [%r4+256];", "bytes 256 to 260 of 256"},
        {"mov.u32 %r4, memory;\nld.shared.u32 %r9, [%r4+-4];", "shared address -4"},
        {"mov.u64 %rd6, stack;\nld.local.u32 %r9, [%rd6+16];", "byte 16 of local memory"},
        {"ld.param.u32 %r9, [out+8];", "byte 16 of local memory or parameters"},
        {"div.s32 %r9, %r2, 0;", "division by zero"},
        {"setp.lt.u32 %p1, %r1, 5;\n@%p1 bar.sync 0;\n@!%p1 bar.sync 0;", "while others wait in the one at"},
        {"setp.lt.u32 %p1, %r1, 5;\n@%p1 shfl.sync.bfly.b32 %r9|%p2, %r2, 1, 31, -1;", "wait in shuffle by bits at"},
        {"nonsense.f8 %r9, %r2;", "probe.o, line 26 of its PTX: instruction nonsense.f8 is not known"},
        {"add.s32 %r9, %r99, 1;", "'%r99' is not declared"},
        {"setp.lt.s32 %p1|%p2, %r2, %r3;", "line 26 of its PTX: setp.lt.s32 with two results"},
        {"mov.b64 %rd6, {%rs1, %rs2, %rs3, %rs4};", "mov.b64 {} of 4 parts"},
        {"mov.b32 %r9;", "something is missing"},
        {"HERE:\nHERE:", "a second label HERE"},
        {"bra NOWHERE;", "label NOWHERE"},
        {"ld.constant.u32 %r9, [%rd4];", "instruction ld.constant.u32 is not known"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        outcome o = run(list[i].body, nullptr);
        if (o.code == 0 || o.text.find(list[i].words) == std::string::npos)
            fail_msg("%s: code %d, '%s' without '%s'", list[i].body, o.code, o.text.c_str(), list[i].words);
    }
}

int main()
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole_numbers), cmocka_unit_test(floats),
                                       cmocka_unit_test(together), cmocka_unit_test(faults)};
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
