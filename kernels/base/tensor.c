#include "kernels/base/tensor.h"

#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {[DTX_F64] = {"f64", 8}, [DTX_F32] = {"f32", 4}, [DTX_BF16] = {"bf16", 2},
              [DTX_I32] = {"i32", 4}, [DTX_I64] = {"i64", 8}, [DTX_U8] = {"u8", 1}};

size_t dtx_dtype_bytes(enum dtx_dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *dtx_dtype_name(enum dtx_dtype dtype)
{
    return dtypes[dtype].name;
}

bool dtx_dtype_parse(const char *name, enum dtx_dtype *out)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            *out = (enum dtx_dtype)i;
            return true;
        }
    return false;
}

enum dtx_dtype dtx_dtype_master(enum dtx_dtype act)
{
    return act == DTX_F64 ? DTX_F64 : DTX_F32;
}

struct dtx_tensor dtx_tensor_1d(void *data, enum dtx_dtype dtype, int64_t n)
{
    return (struct dtx_tensor){data, dtype, 1, {n}};
}

struct dtx_tensor dtx_tensor_2d(void *data, enum dtx_dtype dtype, int64_t rows, int64_t columns)
{
    return (struct dtx_tensor){data, dtype, 2, {rows, columns}};
}

struct dtx_tensor dtx_tensor_3d(void *data, enum dtx_dtype dtype, int64_t a, int64_t b, int64_t c)
{
    return (struct dtx_tensor){data, dtype, 3, {a, b, c}};
}

struct dtx_tensor dtx_tensor_4d(void *data, enum dtx_dtype dtype, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (struct dtx_tensor){data, dtype, 4, {a, b, c, d}};
}

int64_t dtx_tensor_count(const struct dtx_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        n *= t->dim[i];
    return n;
}

size_t dtx_tensor_bytes(const struct dtx_tensor *t)
{
    return (size_t)dtx_tensor_count(t) * dtx_dtype_bytes(t->dtype);
}

struct dtx_tensor dtx_tensor_view_2d(const struct dtx_tensor *t, int64_t rows, int64_t columns)
{
    return dtx_tensor_2d(t->data, t->dtype, rows, columns);
}

struct dtx_tensor dtx_tensor_view_4d(const struct dtx_tensor *t, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return dtx_tensor_4d(t->data, t->dtype, a, b, c, d);
}

struct dtx_tensor dtx_tensor_rows(const struct dtx_tensor *t, int64_t first, int64_t rows)
{
    struct dtx_tensor r = *t;
    int64_t row_count = t->dim[0] ? dtx_tensor_count(t) / t->dim[0] : 0;
    if (t->data)
        r.data = (char *)t->data + (size_t)(first * row_count) * dtx_dtype_bytes(t->dtype);
    r.dim[0] = rows;
    return r;
}
