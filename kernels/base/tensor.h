/*
 * Tensors: a pointer into a backend's memory, a dtype and a shape. Always contiguous, last dimension fastest.
 * A tensor owns nothing. data == NULL means "absent" for optional arguments. Counts are int64_t elements, bytes size_t.
 */
#ifndef DTX_KERNELS_BASE_TENSOR_H
#define DTX_KERNELS_BASE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtx_dtype { DTX_F64, DTX_F32, DTX_BF16, DTX_I32, DTX_I64, DTX_U8 };
enum { DTX_MAX_DIMS = 4 };

struct dtx_tensor {
    void *data;
    enum dtx_dtype dtype;
    int ndim;
    int64_t dim[DTX_MAX_DIMS];
};

size_t dtx_dtype_bytes(enum dtx_dtype dtype);
const char *dtx_dtype_name(enum dtx_dtype dtype);
/* "f64", "f32", "bf16", …; false when the name is unknown. */
bool dtx_dtype_parse(const char *name, enum dtx_dtype *out);
/* The dtype of master weights, gradients, norms' gains, λ and softmax statistics beside activations of `act`. */
enum dtx_dtype dtx_dtype_master(enum dtx_dtype act);

struct dtx_tensor dtx_tensor_1d(void *data, enum dtx_dtype dtype, int64_t n);
struct dtx_tensor dtx_tensor_2d(void *data, enum dtx_dtype dtype, int64_t rows, int64_t columns);
struct dtx_tensor dtx_tensor_3d(void *data, enum dtx_dtype dtype, int64_t a, int64_t b, int64_t c);
struct dtx_tensor dtx_tensor_4d(void *data, enum dtx_dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d);
int64_t dtx_tensor_count(const struct dtx_tensor *t);
size_t dtx_tensor_bytes(const struct dtx_tensor *t);
/* The same memory under another shape of equal count. */
struct dtx_tensor dtx_tensor_view_2d(const struct dtx_tensor *t, int64_t rows, int64_t columns);
struct dtx_tensor dtx_tensor_view_4d(const struct dtx_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d);
/* Rows [first, first + rows) of the outermost dimension. */
struct dtx_tensor dtx_tensor_rows(const struct dtx_tensor *t, int64_t first, int64_t rows);

/* bfloat16 ↔ float: round to nearest even; NaN stays NaN. */
static inline float dtx_bf16_to_f32(uint16_t b)
{
    union {
        uint32_t u;
        float f;
    } x = {(uint32_t)b << 16};
    return x.f;
}
static inline uint16_t dtx_f32_to_bf16(float f)
{
    union {
        float f;
        uint32_t u;
    } x = {f};
    if ((x.u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((x.u >> 16) | 0x40u);
    return (uint16_t)((x.u + 0x7fffu + ((x.u >> 16) & 1u)) >> 16);
}

#endif
