/* test: label=unit timeout=60 */
/* Headers of safetensors files and config.json: what is wrong is refused and named; damaged text never gets through. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <math.h>
#include <unistd.h>

#include "checkpoints/hf/config.h"
#include "checkpoints/hf/safetensors.h"
#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "tests/harness/ckpt_state.h"

#define GOOD                                                                                                           \
    "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"        \
    "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}   "

static enum dtx_status parse(struct dtx_ctx *ctx, const char *text, int64_t data_bytes, struct dtx_st_header *h)
{
    dtx_ctx_init(ctx);
    return dtx_st_parse(ctx, "x.safetensors", text, (int64_t)strlen(text), data_bytes, h);
}

static void test_header(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_st_header h;
    assert_int_equal(parse(&ctx, GOOD, 20, &h), DTX_OK);
    assert_int_equal(h.n, 2);
    assert_string_equal(h.tensors[0].name, "a");
    assert_int_equal(h.tensors[1].dtype, DTX_ST_BF16);
    assert_int_equal(h.tensors[1].shape[1], 3);
    dtx_mem_free(h.tensors);
    assert_int_equal(parse(&ctx, "{}", 0, &h), DTX_OK);
    assert_int_equal(h.n, 0);
    dtx_mem_free(h.tensors);
}

static void test_header_faults(void **state)
{
    (void)state;
#define T(shape, offsets) "{\"t\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
    static const struct {
        const char *text;
        int64_t bytes;
        const char *why;
    } faults[] = {
        {"", 0, "column"},
        {"[]", 0, "no JSON object"},
        {"{\"t\":", 0, "column"},
        {GOOD, 24, "end at byte 20 of the data, which has 24"},
        {GOOD, 16, "bytes 8 to 20 of 16"},
        {"{\"t\":1}", 0, "unknown dtype ''"},
        {"{\"t\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype 'F33'"},
        {T("[1]", "[0,8]"), 8, "takes 4 bytes by its shape"},
        {T("[3]", "[4,16]"), 16, "begins at byte 4"},
        {T("[-1]", "[0,4]"), 4, "wrong number"},
        {T("[1.0]", "[0,4]"), 4, "wrong number"},
        {T("[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "at most 8"},
        {T("[4611686018427387904]", "[0,0]"), 0, "2^63"},
        {T("[9223372036854775807,9223372036854775807]", "[0,0]"), 0, "2^63"},
        {T("[99999999999999999999]", "[0,0]"), 0, "column"},
        {T("\"x\"", "[0,4]"), 4, "no list"},
        {T("[1]", "[0]"), 4, "not two numbers"},
        {T("[1]", "[-4,0]"), 4, "not two numbers"},
        {T("[1]", "[8,4]"), 12, "takes 4 bytes"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         8, "duplicate"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"u\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         8, "u begins at byte 4 of the data, but the one before ends at 8"},
        {"{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"u\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
         12, "u begins at byte 8"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct dtx_ctx ctx;
        struct dtx_st_header h;
        if (parse(&ctx, faults[i].text, faults[i].bytes, &h) != DTX_E_FORMAT || !strstr(ctx.error.text, faults[i].why))
            fail_msg("%s: not '%s' but '%s'", faults[i].text, faults[i].why, ctx.error.text);
    }
}

struct draws {
    uint64_t key, at;
};
static int64_t draw(struct draws *d, int64_t n)
{
    return (int64_t)((double)n * dtx_rng_uniform(d->key, d->at++));
}

/* Whatever a damaged header says, what is accepted lies in the data, end to end. */
static void test_damaged_headers(void **state)
{
    (void)state;
    static const char letters[] = "0123456789[]{}\",:-eBF ";
    struct draws d = {.key = dtx_rng_key(1, "damage")};
    int accepted = 0;
    for (int round = 0; round < 20000; round++) {
        char text[sizeof GOOD];
        struct dtx_ctx ctx;
        struct dtx_st_header h;
        int64_t n = (int64_t)strlen(GOOD), end = 0;
        memcpy(text, GOOD, sizeof text);
        for (int k = 1 + (int)draw(&d, 3); k > 0; k--) {
            char *letter = &text[draw(&d, n)];
            *letter = letters[draw(&d, (int64_t)sizeof letters - 1)];
        }
        if (round % 8 == 0)
            n = draw(&d, n);
        dtx_ctx_init(&ctx);
        if (dtx_st_parse(&ctx, "x", text, n, 20, &h) != DTX_OK)
            continue;
        accepted++;
        for (int64_t i = 0; i < h.n; i++) {
            assert_int_equal(h.tensors[i].offset, end);
            end += h.tensors[i].bytes;
        }
        assert_int_equal(end, 20);
        dtx_mem_free(h.tensors);
    }
    assert_in_range(accepted, 100, 15000);
}

static void write_bytes(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static void test_files(void **state)
{
    (void)state;
    char folder[256], path[DTX_DISK_PATH], bytes[8 + sizeof GOOD - 1 + 20] = {0};
    struct dtx_ctx ctx;
    struct dtx_st_header h;
    int fd;
    int64_t data;
    ckpt_temp_make(folder);
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    bytes[0] = (char)(sizeof GOOD - 1);
    memcpy(bytes + 8, GOOD, sizeof GOOD - 1);
    for (size_t n = 0; n <= sizeof bytes; n++) { /* cut anywhere */
        dtx_ctx_init(&ctx);
        write_bytes(path, bytes, n);
        enum dtx_status status = dtx_st_open(&ctx, path, &fd, &data, &h);
        assert_int_equal(status, n == sizeof bytes ? DTX_OK : DTX_E_FORMAT);
    }
    assert_int_equal(data, 8 + (int64_t)sizeof GOOD - 1);
    close(fd);
    dtx_mem_free(h.tensors);
    for (int i = 1; i < 8; i++) { /* a header of up to 2^64 bytes */
        bytes[i] = (char)0xff;
        write_bytes(path, bytes, sizeof bytes);
        dtx_ctx_init(&ctx);
        assert_int_equal(dtx_st_open(&ctx, path, &fd, &data, &h), DTX_E_FORMAT);
        assert_non_null(strstr(ctx.error.text, "does not fit"));
    }
    ckpt_temp_remove(folder);
}

static void test_numbers(void **state)
{
    (void)state;
    static const uint16_t half[] = {0x0000, 0x8000, 0x3c00, 0xc000, 0x7bff, 0x0400,
                                    0x0001, 0x83ff, 0x7c00, 0xfc00, 0x3555};
    static const float values[] = {
        0.0f, -0.0f, 1.0f, -2.0f, 65504.0f, 0x1p-14f, 0x1p-24f, -1023 * 0x1p-24f, INFINITY, -INFINITY, 0x1.554p-2f};
    float got[11];
    uint16_t bf16[2];
    dtx_st_to_f32(DTX_ST_F16, half, 11, got);
    assert_memory_equal(got, values, sizeof got);
    dtx_st_from_f32(DTX_ST_BF16, (const float[]){1.0f, 1.00390625f}, 2, bf16); /* the second is a tie: to even */
    assert_int_equal(bf16[0], 0x3f80);
    assert_int_equal(bf16[1], 0x3f80);
}

#define CONFIG(more)                                                                                                   \
    "{\"model_type\":\"diffllama\",\"vocab_size\":10,\"hidden_size\":32,\"intermediate_size\":48,"                     \
    "\"num_hidden_layers\":2,\"num_attention_heads\":8" more "}"

static void test_config(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_ckpt_model m;
    const char *text = CONFIG(",\"num_key_value_heads\":4,\"rope_parameters\":{\"rope_theta\":500.0,"
                              "\"rope_type\":\"default\"},\"tie_word_embeddings\":true,\"rope_scaling\":null");
    dtx_ctx_init(&ctx);
    assert_int_equal(dtx_hf_parse_config(&ctx, "config.json", text, (int64_t)strlen(text), &m), DTX_OK);
    assert_true(m.diff && m.tied && m.heads == 4 && m.kv_heads == 2 && m.head_dim == 4 && m.rope_theta == 500);
    assert_true(m.norm_eps == 1e-5 && m.length == 2048);
    assert_string_equal(m.subnorm, "affine");
    text = CONFIG(",\"rope_theta\":7");
    assert_int_equal(dtx_hf_parse_config(&ctx, "config.json", text, (int64_t)strlen(text), &m), DTX_OK);
    assert_true(!m.tied && m.kv_heads == 4 && m.rope_theta == 7);
}

static void test_config_faults(void **state)
{
    (void)state;
    static const struct {
        const char *text, *why;
    } faults[] = {
        {"", "column"},
        {"[7]", "no JSON object"},
        {"{}", "model_type"},
        {"{\"model_type\":\"mistral\"}", "model_type = \"mistral\""},
        {"{\"model_type\":\"llama\"}", "vocab_size = (missing)"},
        {CONFIG(",\"num_attention_heads\":8"), "duplicate"},
        {CONFIG(",\"attention_bias\":true"), "attention_bias = true"},
        {CONFIG(",\"mlp_bias\":true"), "mlp_bias = true"},
        {CONFIG(",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2.0}"), "rope_scaling"},
        {CONFIG(",\"rope_parameters\":{\"rope_type\":\"default\",\"partial_rotary_factor\":0.5}"), "rope_parameters"},
        {CONFIG(",\"rope_parameters\":3"), "rope_parameters"},
        {CONFIG(",\"rope_theta\":\"x\""), "rope_theta"},
        {CONFIG(",\"hidden_act\":\"gelu\""), "hidden_act = \"gelu\""},
        {CONFIG(",\"sliding_window\":512"), "sliding_window = 512"},
        {CONFIG(",\"quantization_config\":{}"), "quantization_config"},
        {CONFIG(",\"architectures\":[\"DiffLlamaForTokenClassification\"]"), "architectures"},
        {CONFIG(",\"tie_word_embeddings\":1"), "tie_word_embeddings"},
        {CONFIG(",\"num_key_value_heads\":3"), "num_key_value_heads = 3"},
        {CONFIG(",\"num_key_value_heads\":6"), "num_key_value_heads = 6"},
        {CONFIG(",\"head_dim\":8"), "head_dim = 8"},
        {CONFIG(",\"head_dim\":0"), "head_dim = 0"},
        {CONFIG(",\"head_dim\":4.0"), "head_dim = 4.0"},
        {CONFIG(",\"rms_norm_eps\":1e-6"), "rms_norm_eps"},
        {CONFIG(",\"max_position_embeddings\":-1"), "max_position_embeddings = -1"},
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct dtx_ctx ctx;
        struct dtx_ckpt_model m;
        dtx_ctx_init(&ctx);
        if (dtx_hf_parse_config(&ctx, "config.json", faults[i].text, (int64_t)strlen(faults[i].text), &m) == DTX_OK ||
            !strstr(ctx.error.text, faults[i].why))
            fail_msg("%s: not '%s' but '%s'", faults[i].text, faults[i].why, ctx.error.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_header),          cmocka_unit_test(test_header_faults),
                                       cmocka_unit_test(test_damaged_headers), cmocka_unit_test(test_files),
                                       cmocka_unit_test(test_numbers),         cmocka_unit_test(test_config),
                                       cmocka_unit_test(test_config_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
