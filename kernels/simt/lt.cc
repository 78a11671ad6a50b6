/*
 * A stand-in for cuBLASLt (kernels/cuda/lt.h): column-major products in plain loops, in stream order, with sums in
 * double. Its only algorithm is number 7, for at most MOST_K of k, so that the way without the library is walked too.
 */
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define DTX_EMU
#include "kernels/cuda/lt.h"
#include "kernels/device/device.h"
#include "kernels/simt/runtime.h"

enum { ALGORITHM = 7, MOST_K = 6000, FAILED = 7 };

struct desc {
    int32_t transpose_a, transpose_b;
    const float *scale_a, *scale_b; /* on the device */
};

struct preference {
    bool splits = true;                           /* of k, as long as nobody forbids it */
    uint32_t alignment[4] = {256, 256, 256, 256}; /* which A, B, C, D will have, in bytes */
};

struct layout {
    int type;
    int64_t rows, columns, step;
};

static size_t version()
{
    return 130100;
}

static int create(void **handle)
{
    *handle = new char;
    return 0;
}

static int destroy(void *handle)
{
    delete (char *)handle;
    return 0;
}

static int desc_create(void **out, int compute, int scale)
{
    *out = new desc();
    return compute == LT_COMPUTE_32F && scale == LT_R_32F ? 0 : LT_NOT_SUPPORTED;
}

static int desc_destroy(void *d)
{
    delete (desc *)d;
    return 0;
}

static int desc_set(void *handle, int attribute, const void *value, size_t bytes)
{
    desc *d = (desc *)handle;
    if (bytes == sizeof(float *) && (attribute == LT_DESC_SCALE_A || attribute == LT_DESC_SCALE_B)) {
        memcpy(attribute == LT_DESC_SCALE_A ? &d->scale_a : &d->scale_b, value, bytes);
        return 0;
    }
    if (bytes != sizeof(int32_t) || (attribute != LT_DESC_TRANSPOSE_A && attribute != LT_DESC_TRANSPOSE_B))
        return FAILED;
    memcpy(attribute == LT_DESC_TRANSPOSE_A ? &d->transpose_a : &d->transpose_b, value, bytes);
    return 0;
}

static int layout_create(void **out, int type, uint64_t rows, uint64_t columns, int64_t step)
{
    *out = new layout{type, (int64_t)rows, (int64_t)columns, step};
    return step >= (int64_t)rows ? 0 : FAILED;
}

static int layout_destroy(void *l)
{
    delete (layout *)l;
    return 0;
}

static int prefer_create(void **out)
{
    *out = new preference();
    return 0;
}

static int prefer_destroy(void *p)
{
    delete (preference *)p;
    return 0;
}

static int prefer_set(void *handle, int attribute, const void *value, size_t bytes)
{
    preference *p = (preference *)handle;
    if (attribute == LT_PREFER_WORK_BYTES)
        return bytes == sizeof(uint64_t) ? 0 : FAILED;
    uint32_t number = 0;
    if (bytes != sizeof number)
        return FAILED;
    memcpy(&number, value, bytes);
    if (attribute == LT_PREFER_REDUCTION)
        p->splits = number != 0;
    else if (attribute >= LT_PREFER_ALIGNMENT_A && attribute <= LT_PREFER_ALIGNMENT_D)
        p->alignment[attribute - LT_PREFER_ALIGNMENT_A] = number;
    return 0;
}

static bool is_fp8(int type)
{
    return type == LT_R_8F_E4M3 || type == LT_R_8F_E5M2;
}

static int check(void *, void *handle, void *a_, void *b_, void *, void *d_, const struct lt_algorithm *algorithm,
                 struct lt_choice *out)
{
    const desc *d = (const desc *)handle;
    const layout *a = (const layout *)a_, *b = (const layout *)b_, *c = (const layout *)d_;
    int64_t m = d->transpose_a ? a->columns : a->rows, k = d->transpose_a ? a->rows : a->columns;
    int64_t n = d->transpose_b ? b->rows : b->columns, depth = d->transpose_b ? b->columns : b->rows;
    *out = {};
    out->algorithm = *algorithm;
    if (algorithm->data[0] != ALGORITHM || depth != k || c->rows != m || c->columns != n)
        return FAILED;
    if (is_fp8(a->type) || is_fp8(b->type)) { /* Hopper; rows along k, 16 bytes at once; not two of E5M2 */
        const char *arch = getenv("DTX_EMU_ARCH");
        if (!arch || atoi(arch) < 90 || !d->transpose_a || d->transpose_b || m % 16 || k % 16 || !is_fp8(a->type) ||
            !is_fp8(b->type) || (a->type == LT_R_8F_E5M2 && b->type == LT_R_8F_E5M2))
            return LT_NOT_SUPPORTED;
    }
    return k > MOST_K ? LT_NOT_SUPPORTED : 0;
}

static int choose(void *handle, void *d, void *a, void *b, void *c, void *out_layout, void *p, int,
                  struct lt_choice *out, int *found)
{
    if (((const preference *)p)->splits)
        return FAILED; /* a result would depend on how k is split */
    const uint32_t *alignment = ((const preference *)p)->alignment;
    struct lt_algorithm algorithm = {{ALGORITHM, *std::max_element(alignment, alignment + 4)}};
    int code = check(handle, d, a, b, c, out_layout, &algorithm, out);
    *found = code == 0;
    return code;
}

/* An 8-bit float of `mantissa` bits and this bias. E5M2 has infinities, E4M3 has not. */
static float from_fp8(uint8_t code, int mantissa, int bias)
{
    int exponent = code >> mantissa & ((1 << (7 - mantissa)) - 1), rest = code & ((1 << mantissa) - 1);
    float sign = code & 0x80 ? -1.f : 1.f;
    if (mantissa == 3 ? (code & 0x7f) == 0x7f : exponent == 31)
        return mantissa == 2 && rest == 0 ? sign * INFINITY : NAN;
    return sign * (exponent ? ldexpf((float)(rest + (1 << mantissa)), exponent - bias - mantissa)
                            : ldexpf((float)rest, 1 - bias - mantissa));
}

static float get(const void *p, int type, int64_t i)
{
    if (is_fp8(type))
        return from_fp8(((const uint8_t *)p)[i], type == LT_R_8F_E4M3 ? 3 : 2, type == LT_R_8F_E4M3 ? 7 : 15);
    return type == LT_R_16BF ? dtx_load((const dtx_bf16 *)p + i) : ((const float *)p)[i];
}

static void run(const desc &d, const layout &la, const layout &lb, const layout &lc, const void *a, const void *b,
                void *c, float alpha, float beta)
{
    int64_t k = d.transpose_a ? la.rows : la.columns;
    alpha *= (d.scale_a ? *d.scale_a : 1) * (d.scale_b ? *d.scale_b : 1);
    for (int64_t j = 0; j < lc.columns; j++)
        for (int64_t i = 0; i < lc.rows; i++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += (double)get(a, la.type, d.transpose_a ? i * la.step + l : l * la.step + i) *
                       (double)get(b, lb.type, d.transpose_b ? l * lb.step + j : j * lb.step + l);
            int64_t at = j * lc.step + i;
            double value = alpha * sum + (beta ? (double)beta * (double)get(c, lc.type, at) : 0);
            if (lc.type == LT_R_16BF)
                dtx_store((dtx_bf16 *)c + at, (float)value);
            else
                ((float *)c)[at] = (float)value;
        }
}

static int product(void *handle, void *d_, const void *alpha, const void *a, void *a_, const void *b, void *b_,
                   const void *beta, const void *c, void *, void *d, void *out_layout,
                   const struct lt_algorithm *algorithm, void *work, size_t work_bytes, void *stream)
{
    struct lt_choice unused;
    int code = check(handle, d_, a_, b_, NULL, out_layout, algorithm, &unused);
    if (code || c != d)
        return code ? code : LT_NOT_SUPPORTED;
    if (((uintptr_t)a | (uintptr_t)b | (uintptr_t)d) % algorithm->data[1])
        return FAILED; /* the algorithm was chosen for operands that are better aligned */
    desc description = *(desc *)d_;
    layout la = *(layout *)a_, lb = *(layout *)b_, lc = *(layout *)out_layout;
    float by = *(const float *)alpha, keep = *(const float *)beta;
    auto product = [=] {
        memset(work, 0xFF, work_bytes); /* the library may write all of it */
        run(description, la, lb, lc, a, b, d, by, keep);
        return 0;
    };
    return dtx_emu_submit(stream, product, {a, b, d, work, description.scale_a, description.scale_b});
}

bool dtx_emu_lt_load(struct dtx_cuda_lt *out, char *why, size_t size)
{
    const char *missing = getenv("DTX_EMU_NO_LT");
    if (missing)
        snprintf(why, size, "libcublasLt.so.13: left out by DTX_EMU_NO_LT");
    *out = {version,        create,        destroy,        desc_create, desc_destroy, desc_set, layout_create,
            layout_destroy, prefer_create, prefer_destroy, prefer_set,  choose,       check,    product};
    return !missing;
}
