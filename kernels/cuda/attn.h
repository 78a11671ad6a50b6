/*
 * What the attention kernels share: one job, who sees whom, and the choice of a kernel. Equations: README.md.
 *
 * Query i of the piece stands at global position q_first + i, key j at k_first + j. Query i sees key j when
 * doc_start[i] − k_first ≤ j ≤ i + shift, shift = q_first − k_first.
 */
#ifndef DTX_KERNELS_CUDA_ATTN_H
#define DTX_KERNELS_CUDA_ATTN_H

#include "kernels/device/launch.h"
#include "kernels/device/warp.h"

/* dtx_attn_norm; y NULL: no norm. */
struct attn_norm {
    const void *gain; /* or NULL */
    void *y, *rstd;
    double eps, out_scale;
};

struct attn_job {
    const void *q, *k, *v, *do_;
    const void *lambda, *lse_in, *dsum; /* master */
    const int32_t *doc_start;           /* or NULL */
    int32_t *tile_first;                /* backward, with doc_start: min of doc_start by tile of queries */
    void *o, *o2, *lse, *dq, *dk, *dv;
    int b, tq, tk, heads, kv_heads, maps, d, dv_width, shift, k_first;
    double scale;
    bool parts;
    attn_norm norm;
};

enum { ATTN_TILE_QUERIES = 32 }; /* of tile_first */

/* The first and the last key of the piece that query i of sample b may see; first > last when none. */
DTX_FN int attn_first_key(const attn_job &p, int b, int i)
{
    int first = p.doc_start && i < p.tq ? p.doc_start[(int64_t)b * p.tq + i] - p.k_first : 0;
    return first > 0 ? first : 0;
}
DTX_FN int attn_last_key(const attn_job &p, int i)
{
    return i + p.shift < p.tk ? i + p.shift : p.tk - 1;
}

static inline attn_norm attn_norm_of(const struct dtx_attn_norm &norm)
{
    return {norm.gain.data, norm.y.data, norm.rstd.data, norm.eps, norm.out_scale};
}

/* The norm of row `row` of o by the warp whose lane l has written columns l, l + 32, … of it. */
template <class T> DTX_FN void attn_norm_row(const attn_norm &norm, const T *o, int64_t row, int width)
{
    typedef typename dtx_wide<T>::type real;
    const int lane = (int)threadIdx.x & 31;
    const real *gain = (const real *)norm.gain;
    const T *x = o + row * width;
    real squares = 0;
    for (int c = lane; c < width; c += 32)
        squares += dtx_load(x + c) * dtx_load(x + c);
    squares = dtx_warp_sum(squares, DTX_MUTANT(cuda_attn_norm_half) ? 16 : 32);
    const real rstd = real(1) / (real)sqrt(squares / (real)width + (real)norm.eps);
    if (lane == 0)
        ((real *)norm.rstd)[row] = rstd;
    for (int c = lane; c < width; c += 32)
        dtx_store((T *)norm.y + row * width + c,
                  dtx_load(x + c) * (rstd * (real)norm.out_scale) * (gain ? gain[c] : 1));
}

/* Kernels with tensor cores for bf16, head width D, v as wide as all maps of q. Names differ by build: both are in one
 * program. With mma.sync (sm_80 and later), and with wgmma and tile loads (sm_90a; tq, tk > 0). */
template <int D, int MAPS> struct DTX_DEVICE(attn_mma) {
    static int fwd(void *stream, const attn_job &job);
    static int bwd(void *stream, const attn_job &job);
};
template <int D, int MAPS> struct DTX_DEVICE(attn_tma) {
    static int fwd(void *stream, const attn_job &job);
    static int bwd(void *stream, const attn_job &job);
};

/* Every dtype and width, without tensor cores. */
int DTX_DEVICE(attn_any_fwd)(void *stream, enum dtx_dtype act, const attn_job &job);
int DTX_DEVICE(attn_any_bwd)(void *stream, enum dtx_dtype act, const attn_job &job);

#endif
