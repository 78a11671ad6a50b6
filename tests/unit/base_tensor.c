/* test: label=unit timeout=60 */
/* Tensor helpers, and bfloat16 over all of its values, every tie, NaN and infinity. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/base/tensor.h"

static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t to_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* Every bf16 value, and the floats just below, at and just above each middle between two neighbours. */
static void bf16_rounding(void **state)
{
    (void)state;
    for (uint32_t b = 0; b < 0x10000; b++) {
        float exact = dtx_bf16_to_f32((uint16_t)b);
        assert_int_equal(to_bits(exact), b << 16);
        if (isnan(exact)) {
            assert_true(isnan(dtx_bf16_to_f32(dtx_f32_to_bf16(exact))));
            continue;
        }
        assert_int_equal(dtx_f32_to_bf16(exact), b);
        if (isinf(exact))
            continue;
        uint32_t even = b & 1 ? b + 1 : b; /* past the largest finite value lies infinity */
        assert_int_equal(dtx_f32_to_bf16(from_bits(b << 16 | 0x0001)), b);
        assert_int_equal(dtx_f32_to_bf16(from_bits(b << 16 | 0x7fff)), b);
        assert_int_equal(dtx_f32_to_bf16(from_bits(b << 16 | 0x8000)), even);
        assert_int_equal(dtx_f32_to_bf16(from_bits(b << 16 | 0x8001)), b + 1);
        assert_int_equal(dtx_f32_to_bf16(from_bits(b << 16 | 0xffff)), b + 1);
    }
}

/* NaN stays NaN with its sign wherever its payload lies (also in the low half only). */
static void bf16_nan(void **state)
{
    (void)state;
    for (uint32_t bit = 0; bit < 23; bit++)
        for (uint32_t sign = 0; sign < 2; sign++) {
            uint16_t b = dtx_f32_to_bf16(from_bits(sign << 31 | 0x7f800000u | 1u << bit));
            assert_true(isnan(dtx_bf16_to_f32(b)));
            assert_int_equal(b >> 15, sign);
        }
    assert_true(isnan(dtx_bf16_to_f32(dtx_f32_to_bf16(from_bits(0x7fffffff)))));
    assert_true(isnan(dtx_bf16_to_f32(dtx_f32_to_bf16(from_bits(0xffffffff)))));
}

static void bf16_limits(void **state)
{
    (void)state;
    assert_true(isinf(dtx_bf16_to_f32(dtx_f32_to_bf16(3.4028235e38f)))); /* the largest float rounds up */
    assert_int_equal(dtx_f32_to_bf16(-0.0f), 0x8000);
    assert_int_equal(dtx_f32_to_bf16(1e-45f), 0); /* half of the smallest subnormal and less */
    assert_true(dtx_bf16_to_f32(dtx_f32_to_bf16(257.0f)) == 256.0f);
    assert_true(dtx_bf16_to_f32(dtx_f32_to_bf16(259.0f)) == 260.0f);
}

static void dtypes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum dtx_dtype dtype, master;
        size_t bytes;
    } rows[] = {{"f64", DTX_F64, DTX_F64, 8}, {"f32", DTX_F32, DTX_F32, 4}, {"bf16", DTX_BF16, DTX_F32, 2},
                {"i32", DTX_I32, DTX_F32, 4}, {"i64", DTX_I64, DTX_F32, 8}, {"u8", DTX_U8, DTX_F32, 1}};
    for (int i = 0; i < 6; i++) {
        enum dtx_dtype dtype = DTX_U8;
        assert_true(dtx_dtype_parse(rows[i].name, &dtype));
        assert_int_equal(dtype, rows[i].dtype);
        assert_string_equal(dtx_dtype_name(dtype), rows[i].name);
        assert_int_equal(dtx_dtype_bytes(dtype), rows[i].bytes);
        assert_int_equal(dtx_dtype_master(dtype), rows[i].master);
    }
    enum dtx_dtype untouched = DTX_I64;
    assert_false(dtx_dtype_parse("fp32", &untouched));
    assert_false(dtx_dtype_parse("", &untouched));
    assert_int_equal(untouched, DTX_I64);
}

static void shapes(void **state)
{
    (void)state;
    float data[24];
    struct dtx_tensor t = dtx_tensor_3d(data, DTX_F32, 2, 3, 4);
    assert_int_equal(dtx_tensor_count(&t), 24);
    assert_int_equal(dtx_tensor_bytes(&t), 96);
    struct dtx_tensor flat = dtx_tensor_view_2d(&t, 6, 4), four = dtx_tensor_view_4d(&t, 1, 2, 3, 4);
    assert_ptr_equal(flat.data, data);
    assert_int_equal(flat.ndim, 2);
    assert_int_equal(four.ndim, 4);
    assert_int_equal(dtx_tensor_count(&four), 24);
    struct dtx_tensor rows = dtx_tensor_rows(&flat, 2, 3);
    assert_ptr_equal(rows.data, data + 8);
    assert_int_equal(rows.dim[0], 3);
    assert_int_equal(rows.dim[1], 4);
    struct dtx_tensor outer = dtx_tensor_rows(&t, 1, 1);
    assert_ptr_equal(outer.data, data + 12);
    struct dtx_tensor one = dtx_tensor_1d(data, DTX_U8, 7);
    assert_ptr_equal(dtx_tensor_rows(&one, 5, 2).data, (char *)data + 5);
    struct dtx_tensor absent = dtx_tensor_2d(NULL, DTX_F32, 4, 4);
    assert_null(dtx_tensor_rows(&absent, 1, 1).data);
    struct dtx_tensor none = dtx_tensor_2d(data, DTX_F32, 0, 4);
    assert_int_equal(dtx_tensor_count(&none), 0);
    assert_int_equal(dtx_tensor_bytes(&none), 0);
}

/* Counts and offsets beyond 2^32. */
static void large(void **state)
{
    (void)state;
    struct dtx_tensor t = dtx_tensor_4d(NULL, DTX_BF16, 1 << 12, 1 << 12, 1 << 12, 1 << 12);
    assert_true(dtx_tensor_count(&t) == (int64_t)1 << 48);
    assert_true(dtx_tensor_bytes(&t) == (size_t)1 << 49);
    struct dtx_tensor based = dtx_tensor_2d((void *)64, DTX_F32, 1 << 20, 1 << 20);
    assert_true((uintptr_t)dtx_tensor_rows(&based, 1 << 19, 1).data == 64 + ((uintptr_t)1 << 41));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bf16_rounding), cmocka_unit_test(bf16_nan),
                                       cmocka_unit_test(bf16_limits),   cmocka_unit_test(dtypes),
                                       cmocka_unit_test(shapes),        cmocka_unit_test(large)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
