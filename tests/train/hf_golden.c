/* test: label=train timeout=60 */
/*
 * Small models as Hugging Face transformers saved them (tests/golden/hf_*, one in several files, one in bf16):
 * imported, they give the logits that transformers computed; exported again, every tensor has the same bits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <math.h>
#include <unistd.h>

#include "checkpoints/convert.h"
#include "checkpoints/disk.h"
#include "checkpoints/hf/safetensors.h"
#include "kernels/base/mem.h"
#include "tests/harness/ckpt_state.h"

enum { VOCAB = 37, POSITIONS = 36 };
/* fp32 on both sides, summed in different orders, and two layers: some ulp (6e-8) of the largest logit. A wrong row,
 * gain or angle is thousands of times larger. */
static const double bound = 5e-6;

static void command(const char *format, ...)
{
    char line[4096];
    va_list ap;
    va_start(ap, format);
    vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    if (system(line) != 0)
        fail_msg("this fails: %s", line);
}

static void read_file(const char *path, void *data, size_t bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f || fread(data, 1, bytes, f) != bytes || fgetc(f) != EOF)
        fail_msg("%s has not %zu bytes", path, bytes);
    fclose(f);
}

static void join(char out[DTX_DISK_PATH], const char *folder, const char *name)
{
    assert_true(snprintf(out, DTX_DISK_PATH, "%s/%s", folder, name) < DTX_DISK_PATH);
}

static void compare_logits(const char *golden, const char *folder)
{
    static double got[POSITIONS * VOCAB];
    static float expected[POSITIONS * VOCAB];
    char path[DTX_DISK_PATH];
    double largest = 0, difference = 0;
    join(path, folder, "logits");
    read_file(path, got, sizeof got);
    join(path, golden, "logits.f32");
    read_file(path, expected, sizeof expected);
    for (int i = 0; i < POSITIONS * VOCAB; i++) {
        largest = fmax(largest, fabs((double)expected[i]));
        difference = fmax(difference, isfinite(got[i]) ? fabs(got[i] - (double)expected[i]) : INFINITY);
    }
    print_message("%s: largest logit %.3f, largest difference %.2e\n", golden, largest, difference);
    if (!(difference <= bound * largest))
        fail_msg("%s: logits differ by %g of %g", golden, difference, largest);
}

/* Every tensor of file `name` of one folder, in model.safetensors of the other. Returns their number. */
static int64_t compare_file(const char *golden, const char *name, const char *exported)
{
    struct dtx_ctx ctx;
    struct dtx_st_header a, b;
    int fd_a, fd_b;
    int64_t data_a, data_b;
    char path[2][DTX_DISK_PATH];
    dtx_ctx_init(&ctx);
    join(path[0], golden, name);
    join(path[1], exported, "model.safetensors");
    assert_int_equal(dtx_st_open(&ctx, path[0], &fd_a, &data_a, &a), DTX_OK);
    assert_int_equal(dtx_st_open(&ctx, path[1], &fd_b, &data_b, &b), DTX_OK);
    for (int64_t i = 0; i < a.n; i++) {
        const struct dtx_st_tensor *x = &a.tensors[i], *y = b.tensors;
        while (y < b.tensors + b.n && strcmp(y->name, x->name) != 0)
            y++;
        int64_t n = x->bytes / (int64_t)dtx_st_dtype_bytes(x->dtype);
        assert_true(y < b.tensors + b.n && y->ndim == x->ndim);
        void *raw = malloc((size_t)n * 4), *other = malloc((size_t)n * 4);
        float *p = malloc((size_t)n * 4), *q = malloc((size_t)n * 4);
        assert_int_equal(dtx_disk_read_at(&ctx, fd_a, path[0], raw, x->bytes, data_a + x->offset), DTX_OK);
        assert_int_equal(dtx_disk_read_at(&ctx, fd_b, path[1], other, y->bytes, data_b + y->offset), DTX_OK);
        dtx_st_to_f32(x->dtype, raw, n, p);
        dtx_st_to_f32(y->dtype, other, n, q);
        if (memcmp(p, q, (size_t)n * 4) != 0)
            fail_msg("%s: %s is not what it was", exported, x->name);
        free(raw);
        free(other);
        free(p);
        free(q);
    }
    int64_t n = a.n;
    dtx_mem_free(a.tensors);
    dtx_mem_free(b.tensors);
    close(fd_a);
    close(fd_b);
    return n;
}

static void check(const char *name, const char *dtype, const char *const *files)
{
    char golden[DTX_DISK_PATH], folder[256], exported[DTX_DISK_PATH];
    int64_t tensors = 0;
    snprintf(golden, sizeof golden, "%s/tests/golden/%s", getenv("DTX_SOURCE"), name);
    ckpt_temp_make(folder);
    command("$DTX ckpt import --out %s/dtx %s 2>%s/log || { cat %s/log; false; }", folder, golden, folder, folder);
    command("$DTX_BUILD/tests/dump_logits --resume %s/dtx --ids %s/ids.txt --logits %s/logits --log.peak_seconds 0",
            folder, golden, folder);
    compare_logits(golden, folder);
    command("$DTX ckpt export --dtype %s --out %s/hf %s/dtx 2>%s/log || { cat %s/log; false; }", dtype, folder, folder,
            folder, folder);
    join(exported, folder, "hf");
    for (; *files; files++)
        tensors += compare_file(golden, *files, exported);
    assert_in_range(tensors, 20, 100);
    ckpt_temp_remove(folder);
}

static void test_diffllama(void **state)
{
    (void)state;
    check("hf_diffllama", "f32",
          (const char *[]){"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", NULL});
}

static void test_llama(void **state)
{
    (void)state;
    check("hf_llama", "bf16", (const char *[]){"model.safetensors", NULL});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_diffllama), cmocka_unit_test(test_llama)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
