/* attn_merge, attn_finish, attn_dots: rows of outputs, one warp each. */
#include "kernels/cuda/attn.h"
#include "kernels/cuda/impl.h"

static const int WARPS = THREADS / WARP;

template <class T> using wide = typename dtx_wide<T>::type;

struct rows_job {
    const void *o, *o2, *do_, *lambda, *lse;
    void *into_o, *into_o2, *into_lse, *dsum, *dlambda;
    int64_t rows; /* b·tq·heads, in that order */
    int tq, heads, width, maps;
    attn_norm norm; /* attn_finish */
};

/* Where the statistics of row's map m stand: [b, maps·heads, tq]. */
DTX_FN int64_t stat_of(const rows_job &p, int64_t row, int m)
{
    int64_t head = row % p.heads, i = row / p.heads % p.tq, b = row / p.heads / p.tq;
    return ((b * p.heads + head) * p.maps + m) * p.tq + i;
}

template <class T> DTX_KERNEL(THREADS, 1) merge_kernel(DTX_ARGUMENT(rows_job) p)
{
    const int64_t row = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    const int lane = (int)threadIdx.x & 31;
    if (row >= p.rows)
        return;
    for (int m = 0; m < p.maps; m++) {
        const int64_t at = stat_of(p, row, m);
        T *into_lse = (T *)p.into_lse + at;
        const T a = *into_lse, b = ((const T *)p.lse)[at], top = a > b ? a : b;
        /* NaN stays NaN: −∞ is the only value whose exponential needs care. */
        const T wa = a == -INFINITY ? T(0) : T(exp(a - top)), wb = b == -INFINITY ? T(0) : T(exp(b - top));
        const T sum = wa + wb, inverse = sum == 0 ? T(0) : 1 / sum;
        T *into = (T *)(m ? p.into_o2 : p.into_o) + row * p.width;
        const T *part = (const T *)(m ? p.o2 : p.o) + row * p.width;
        for (int c = lane; c < p.width; c += 32)
            into[c] = (wa * into[c] + wb * part[c]) * inverse;
        if (!DTX_MUTANT(cuda_attn_merge_unsynced))
            dtx_warp_sync(); /* all lanes have read the old sum */
        if (lane == 0)
            *into_lse = sum == 0 ? T(-INFINITY) : T(top + log(sum));
    }
}

/* T: act. o, o2 of the job: parts (master). */
template <class T> DTX_KERNEL(THREADS, 1) finish_kernel(DTX_ARGUMENT(rows_job) p)
{
    typedef wide<T> real;
    const int64_t row = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    const real lambda = p.maps == 2 ? *(const real *)p.lambda : real(0);
    if (row >= p.rows)
        return;
    for (int64_t x = row * p.width + (threadIdx.x & 31); x < (row + 1) * p.width; x += 32) {
        real o = ((const real *)p.o)[x];
        if (p.maps == 2) {
            real o2 = ((const real *)p.o2)[x];
            dtx_store((T *)p.into_o2 + x, o2);
            o -= lambda * o2;
        }
        dtx_store((T *)p.into_o + x, o);
    }
    if (p.norm.y)
        attn_norm_row(p.norm, (const T *)p.into_o, row, p.width);
}

/* dsum of map 1 = r, of map 2 = s: what dots_sum_kernel makes the result of. */
template <class T> DTX_KERNEL(THREADS, 1) dots_kernel(DTX_ARGUMENT(rows_job) p)
{
    typedef wide<T> real;
    const int64_t row = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    const int lane = (int)threadIdx.x & 31;
    if (row >= p.rows)
        return;
    for (int m = 0; m < p.maps; m++) {
        const T *do_ = (const T *)p.do_ + row * p.width, *o = (const T *)(m ? p.o2 : p.o) + row * p.width;
        real sum = 0;
        for (int c = lane; c < p.width; c += 32)
            sum += dtx_load(do_ + c) * dtx_load(o + c);
        sum = dtx_warp_sum(sum);
        if (lane == 0)
            ((real *)p.dsum)[stat_of(p, row, m)] = sum;
    }
}

/* One block a head: dλ of the head −= Σ s; r, s → r + λs, −λs. */
template <class real> DTX_KERNEL(THREADS, 1) dots_sum_kernel(DTX_ARGUMENT(rows_job) p)
{
    DTX_SHARED(real, scratch, 32);
    const int head = (int)blockIdx.x;
    const int64_t n = p.rows / p.heads; /* b·tq */
    const real lambda = *(const real *)p.lambda;
    real total = 0;
    for (int64_t x = threadIdx.x; x < n; x += THREADS) {
        real *r = (real *)p.dsum + ((x / p.tq * p.heads + head) * 2) * p.tq + x % p.tq, *s = r + p.tq;
        total += *s;
        *r += DTX_MUTANT(cuda_attn_dots_no_lambda) ? 0 : lambda * *s;
        *s = -lambda * *s;
    }
    total = dtx_block_sum(total, scratch);
    if (threadIdx.x == 0)
        ((real *)p.dlambda)[head] -= total;
}

static rows_job job_of(const struct dtx_tensor *o, int maps)
{
    rows_job job = {};
    job.rows = o->dim[0] * o->dim[1] * o->dim[2];
    job.tq = (int)o->dim[1];
    job.heads = (int)o->dim[2];
    job.width = (int)o->dim[3];
    job.maps = maps;
    return job;
}

enum dtx_status DTX_DEVICE(attn_merge)(struct dtx_queue *queue, const struct dtx_attn_merge_args *args)
{
    rows_job job = job_of(&args->o, args->maps);
    job.o = args->o.data;
    job.o2 = args->o2.data;
    job.lse = args->lse.data;
    job.into_o = args->into_o.data;
    job.into_o2 = args->into_o2.data;
    job.into_lse = args->into_lse.data;
    auto kernel = args->o.dtype == DTX_F64 ? merge_kernel<double> : merge_kernel<float>;
    return launch(queue, "attn_merge", kernel, dtx_div_up(job.rows, WARPS), THREADS, 0, job);
}

enum dtx_status DTX_DEVICE(attn_finish)(struct dtx_queue *queue, const struct dtx_attn_finish_args *args)
{
    rows_job job = job_of(&args->o, args->maps);
    job.o = args->o1.data;
    job.o2 = args->part_o2.data;
    job.lambda = args->lambda.data;
    job.into_o = args->o.data;
    job.into_o2 = args->o2.data;
    job.norm = attn_norm_of(args->norm);
    auto kernel = args->o.dtype == DTX_F64   ? finish_kernel<double>
                  : args->o.dtype == DTX_F32 ? finish_kernel<float>
                                             : finish_kernel<dtx_bf16>;
    return launch(queue, "attn_finish", kernel, dtx_div_up(job.rows, WARPS), THREADS, 0, job);
}

enum dtx_status DTX_DEVICE(attn_dots)(struct dtx_queue *queue, const struct dtx_attn_dots_args *args)
{
    rows_job job = job_of(&args->do_, args->maps);
    job.do_ = args->do_.data;
    job.o = args->o.data;
    job.o2 = args->o2.data;
    job.lambda = args->lambda.data;
    job.dsum = args->dsum.data;
    job.dlambda = args->dlambda.data;
    if (job.rows == 0)
        return DTX_OK;
    enum dtx_dtype act = args->do_.dtype;
    auto dots = act == DTX_F64 ? dots_kernel<double> : act == DTX_F32 ? dots_kernel<float> : dots_kernel<dtx_bf16>;
    auto sum = act == DTX_F64 ? dots_sum_kernel<double> : dots_sum_kernel<float>;
    DTX_TRY(queue->backend->ctx, launch(queue, "attn_dots", dots, dtx_div_up(job.rows, WARPS), THREADS, 0, job));
    return job.maps == 2 ? launch(queue, "attn_dots", sum, job.heads, THREADS, 0, job) : DTX_OK;
}
