/*
 * Attention of every dtype and width, one warp a row: lanes take keys for the scores, then columns for the sums. For
 * f64, f32 and odd widths; two passes over the keys, so that nothing is rescaled.
 */
#include "kernels/cuda/attn.h"
#include "kernels/cuda/impl.h"

enum { WARPS = 4, COLUMNS = 256, SLOTS = COLUMNS / WARP };

template <class T> using wide = typename dtx_wide<T>::type;

template <class T> DTX_FN wide<T> dot(const T *a, const T *b, int n)
{
    wide<T> sum = 0;
    for (int i = 0; i < n; i++)
        sum += dtx_load(a + i) * dtx_load(b + i);
    return sum;
}

/* acc[s] += Σ_i weight[i]·row_i[first + lane + 32 s] over the n rows of a chunk. */
template <class T>
DTX_FN void add_rows(wide<T> (&acc)[SLOTS], const wide<T> *weight, int n, const T *rows, int64_t stride, int columns)
{
    for (int i = 0; i < n; i++)
        for (int s = 0, c = (int)threadIdx.x & 31; s < SLOTS && c < columns; s++, c += 32)
            acc[s] += weight[i] * dtx_load(rows + i * stride + c);
}

/* A row of results: rounded, or added to master values with `add`. */
template <class T>
DTX_FN void put_row(void *out, int64_t at, const wide<T> (&acc)[SLOTS], wide<T> scale, int columns, bool master,
                    bool add)
{
    if (DTX_MUTANT(cuda_attn_any_row_32))
        at = (int32_t)at;
    for (int s = 0, c = (int)threadIdx.x & 31; s < SLOTS && c < columns; s++, c += 32) {
        wide<T> x = acc[s] * scale;
        if (master) {
            wide<T> *to = (wide<T> *)out + at + c;
            *to = add ? *to + x : x;
        } else {
            dtx_store((T *)out + at + c, x);
        }
    }
}

/* This warp's unit of work and the memory it shares among its lanes. */
DTX_FN int64_t unit_of_warp()
{
    return (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
}

template <class T> DTX_KERNEL(WARPS * 32, 1) fwd_kernel(DTX_ARGUMENT(attn_job) p)
{
    typedef wide<T> real;
    DTX_SHARED(real, memory, 2 * 32 * WARPS);
    const int lane = (int)threadIdx.x & 31;
    real *weight = memory + (threadIdx.x >> 5) * 64, *weight2 = weight + 32;
    const int64_t row = unit_of_warp(), rows = (int64_t)p.b * p.tq * p.heads; /* b, position, head */
    if (row >= rows)
        return;
    const int head = (int)(row % p.heads), i = (int)(row / p.heads % p.tq), b = (int)(row / p.heads / p.tq);
    const int kv_head = head / (p.heads / p.kv_heads), first = attn_first_key(p, b, i), last = attn_last_key(p, i);
    const int64_t k_stride = (int64_t)p.kv_heads * p.maps * p.d, v_stride = (int64_t)p.kv_heads * p.dv_width;
    const T *q = (const T *)p.q + row * p.maps * p.d;
    const T *k = (const T *)p.k + b * p.tk * k_stride + (int64_t)kv_head * p.maps * p.d;
    const T *v = (const T *)p.v + b * p.tk * v_stride + (int64_t)kv_head * p.dv_width;
    const real scale = (real)p.scale, lambda = p.maps == 2 ? *(const real *)p.lambda : real(0);
    real max[2], inverse[2];
    for (int m = 0; m < p.maps; m++) {
        real top = -INFINITY, sum = 0;
        for (int j = first + lane; j <= last; j += 32)
            top = fmax(top, dot(q + m * p.d, k + j * k_stride + m * p.d, p.d) * scale);
        top = dtx_warp_max(top);
        for (int j = first + lane; j <= last; j += 32)
            sum += dtx_exp(dot(q + m * p.d, k + j * k_stride + m * p.d, p.d) * scale - top);
        sum = dtx_warp_sum(sum);
        max[m] = top;
        inverse[m] = first <= last ? 1 / sum : real(0);
        if (lane == 0)
            ((real *)p.lse)[((int64_t)b * p.heads * p.maps + head * p.maps + m) * p.tq + i] =
                first <= last ? top + log(sum) : real(-INFINITY);
    }
    for (int c = 0; c < p.dv_width; c += COLUMNS) {
        real acc[2][SLOTS] = {};
        const int columns = p.dv_width - c;
        for (int j0 = first; j0 <= last; j0 += 32) {
            const int j = j0 + lane, n = last - j0 + 1 < 32 ? last - j0 + 1 : 32;
            for (int m = 0; m < p.maps && j <= last; m++)
                (m ? weight2 : weight)[lane] =
                    dtx_exp(dot(q + m * p.d, k + j * k_stride + m * p.d, p.d) * scale - max[m]) * inverse[m];
            dtx_warp_sync();
            add_rows<T>(acc[0], weight, n, v + j0 * v_stride + c, v_stride, columns);
            if (p.maps == 2)
                add_rows<T>(acc[1], weight2, n, v + j0 * v_stride + c, v_stride, columns);
            dtx_warp_sync();
        }
        if (p.maps == 2)
            put_row<T>(p.o2, row * p.dv_width + c, acc[1], 1, columns, p.parts, false);
        if (p.maps == 2 && !p.parts)
            for (int s = 0; s < SLOTS; s++)
                acc[0][s] -= lambda * acc[1][s];
        put_row<T>(p.o, row * p.dv_width + c, acc[0], 1, columns, p.parts, false);
    }
    if (p.norm.y)
        attn_norm_row(p.norm, (const T *)p.o, row, p.dv_width);
}

/* What the backward kernels need of one (query, key) pair: p of each map, and ds. */
template <class T> struct pair_terms {
    wide<T> p[2], ds[2];
};
template <class T>
DTX_FN pair_terms<T> pair_of(const attn_job &p, const T *q, const T *k, const T *v, const T *do_, int64_t stat,
                             wide<T> lambda)
{
    typedef wide<T> real;
    pair_terms<T> t;
    const real dp = dot(do_, v, p.dv_width);
    for (int m = 0; m < p.maps; m++) {
        const real lse = ((const real *)p.lse_in)[stat + (int64_t)m * p.tq];
        const real dsum = ((const real *)p.dsum)[stat + (int64_t)m * p.tq];
        t.p[m] = dtx_exp(dot(q + m * p.d, k + m * p.d, p.d) * (real)p.scale - lse);
        t.ds[m] = t.p[m] * ((m ? -lambda : real(1)) * dp - dsum);
    }
    return t;
}

template <class T> DTX_KERNEL(WARPS * 32, 1) bwd_queries_kernel(DTX_ARGUMENT(attn_job) p)
{
    typedef wide<T> real;
    DTX_SHARED(real, memory, 2 * 32 * WARPS);
    const int lane = (int)threadIdx.x & 31;
    real *ds = memory + (threadIdx.x >> 5) * 64; /* [2][32] */
    const int64_t row = unit_of_warp(), rows = (int64_t)p.b * p.tq * p.heads;
    if (row >= rows)
        return;
    const int head = (int)(row % p.heads), i = (int)(row / p.heads % p.tq), b = (int)(row / p.heads / p.tq);
    const int kv_head = head / (p.heads / p.kv_heads), first = attn_first_key(p, b, i), last = attn_last_key(p, i);
    const int64_t k_stride = (int64_t)p.kv_heads * p.maps * p.d, v_stride = (int64_t)p.kv_heads * p.dv_width;
    const T *q = (const T *)p.q + row * p.maps * p.d, *do_ = (const T *)p.do_ + row * p.dv_width;
    const T *k = (const T *)p.k + b * p.tk * k_stride + (int64_t)kv_head * p.maps * p.d;
    const T *v = (const T *)p.v + b * p.tk * v_stride + (int64_t)kv_head * p.dv_width;
    const real lambda = p.maps == 2 ? *(const real *)p.lambda : real(0);
    const int64_t stat = ((int64_t)b * p.heads * p.maps + head * p.maps) * p.tq + i;
    for (int c = 0; c < p.d; c += COLUMNS) {
        real acc[2][SLOTS] = {};
        for (int j0 = first; j0 <= last; j0 += 32) {
            const int j = j0 + lane, n = last - j0 + 1 < 32 ? last - j0 + 1 : 32;
            if (j <= last) {
                pair_terms<T> t = pair_of<T>(p, q, k + j * k_stride, v + j * v_stride, do_, stat, lambda);
                for (int m = 0; m < p.maps; m++)
                    ds[m * 32 + lane] = t.ds[m];
            }
            dtx_warp_sync();
            for (int m = 0; m < p.maps; m++)
                add_rows<T>(acc[m], ds + m * 32, n, k + j0 * k_stride + m * p.d + c, k_stride, p.d - c);
            dtx_warp_sync();
        }
        for (int m = 0; m < p.maps; m++)
            put_row<T>(p.dq, (row * p.maps + m) * p.d + c, acc[m], (real)p.scale, p.d - c, p.parts, p.parts);
    }
}

/* One warp a key and kv head; pass `c` covers columns c … of dk (both maps) and dv. */
template <class T> DTX_KERNEL(WARPS * 32, 1) bwd_keys_kernel(DTX_ARGUMENT(attn_job) p)
{
    typedef wide<T> real;
    DTX_SHARED(real, memory, 3 * 32 * WARPS);
    const int lane = (int)threadIdx.x & 31;
    real *ds = memory + (threadIdx.x >> 5) * 96, *combined = ds + 64; /* ds [2][32] */
    const int64_t row = unit_of_warp(), rows = (int64_t)p.b * p.tk * p.kv_heads;
    if (row >= rows)
        return;
    const int kv_head = (int)(row % p.kv_heads), j = (int)(row / p.kv_heads % p.tk), b = (int)(row / p.kv_heads / p.tk);
    const int group = p.heads / p.kv_heads, wider = p.d > p.dv_width ? p.d : p.dv_width;
    const int64_t q_stride = (int64_t)p.heads * p.maps * p.d, o_stride = (int64_t)p.heads * p.dv_width;
    const T *k = (const T *)p.k + row * p.maps * p.d, *v = (const T *)p.v + row * p.dv_width;
    const real lambda = p.maps == 2 ? *(const real *)p.lambda : real(0);
    const int from = j - p.shift > 0 ? j - p.shift : 0;
    for (int c = 0; c < wider; c += COLUMNS) {
        real dk[2][SLOTS] = {}, dv[SLOTS] = {};
        for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
            const T *q = (const T *)p.q + b * p.tq * q_stride + (int64_t)head * p.maps * p.d;
            const T *do_ = (const T *)p.do_ + b * p.tq * o_stride + (int64_t)head * p.dv_width;
            const int64_t stats = ((int64_t)b * p.heads * p.maps + head * p.maps) * p.tq;
            for (int i0 = from; i0 < p.tq; i0 += 32) {
                const int i = i0 + lane, n = p.tq - i0 < 32 ? p.tq - i0 : 32;
                pair_terms<T> t = {};
                if (i < p.tq && attn_first_key(p, b, i) <= j)
                    t = pair_of<T>(p, q + i * q_stride, k, v, do_ + i * o_stride, stats + i, lambda);
                for (int m = 0; m < p.maps; m++)
                    ds[m * 32 + lane] = t.ds[m];
                combined[lane] = p.maps == 2 ? t.p[0] - lambda * t.p[1] : t.p[0];
                dtx_warp_sync();
                for (int m = 0; m < p.maps; m++)
                    add_rows<T>(dk[m], ds + m * 32, n, q + i0 * q_stride + m * p.d + c, q_stride, p.d - c);
                add_rows<T>(dv, combined, n, do_ + i0 * o_stride + c, o_stride, p.dv_width - c);
                dtx_warp_sync();
            }
        }
        for (int m = 0; m < p.maps; m++)
            put_row<T>(p.dk, (row * p.maps + m) * p.d + c, dk[m], (real)p.scale, p.d - c, p.parts, p.parts);
        put_row<T>(p.dv, row * p.dv_width + c, dv, 1, p.dv_width - c, p.parts, p.parts);
    }
}

static dim3 warps_for(int64_t units)
{
    return dim3((unsigned)((units + WARPS - 1) / WARPS));
}

template <class T> static int fwd(void *stream, const attn_job &job)
{
    return dtx_launch(stream, fwd_kernel<T>, warps_for((int64_t)job.b * job.tq * job.heads), WARPS * 32, 0, job);
}

template <class T> static int bwd(void *stream, const attn_job &job)
{
    int code =
        dtx_launch(stream, bwd_queries_kernel<T>, warps_for((int64_t)job.b * job.tq * job.heads), WARPS * 32, 0, job);
    if (!code)
        code = dtx_launch(stream, bwd_keys_kernel<T>, warps_for((int64_t)job.b * job.tk * job.kv_heads), WARPS * 32, 0,
                          job);
    return code;
}

int DTX_DEVICE(attn_any_fwd)(void *stream, enum dtx_dtype act, const attn_job &job)
{
    return act == DTX_F64   ? fwd<double>(stream, job)
           : act == DTX_F32 ? fwd<float>(stream, job)
                            : fwd<dtx_bf16>(stream, job);
}

int DTX_DEVICE(attn_any_bwd)(void *stream, enum dtx_dtype act, const attn_job &job)
{
    return act == DTX_F64   ? bwd<double>(stream, job)
           : act == DTX_F32 ? bwd<float>(stream, job)
                            : bwd<dtx_bf16>(stream, job);
}
