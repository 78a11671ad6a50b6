/* swiglu_fwd, swiglu_bwd. */
#include "kernels/cuda/impl.h"

/* sigmoid(g) and 1 − sigmoid(g), both without overflow or cancellation: from e = exp(−|g|). */
template <class M> DTX_FN void sigmoid(M g, M *low, M *rest)
{
    M e = dtx_exp(g < 0 ? g : -g), inverse = 1 / (1 + e), other = e * inverse;
    *low = g < 0 ? other : inverse;
    *rest = g < 0 ? inverse : other;
}

/* A thread: PACK elements. */
template <class T, class M>
DTX_KERNEL(THREADS, 1)
swiglu_fwd_kernel(const T *gs, const T *us, T *h, int64_t n, bool aligned)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * PACK, left = n - at;
    if (left <= 0)
        return;
    if (DTX_MUTANT(cuda_element_32))
        at = (int32_t)at;
    M g[PACK], u[PACK], low, rest;
    load(gs + at, left, aligned, g);
    load(us + at, left, aligned, u);
    for (int i = 0; i < PACK; i++) {
        sigmoid(g[i], &low, &rest);
        g[i] = g[i] * low * u[i];
    }
    store(h + at, left, aligned, g);
}

template <class T> struct swiglu_job {
    const T *dh, *g, *u;
    T *dg, *du;
    int64_t n;
    bool aligned;
};

/* A thread: PACK elements. With σ = sigmoid(g): du = dh·g·σ, dg = dh·u·σ·(1 + g·(1 − σ)). */
template <class T, class M> DTX_KERNEL(THREADS, 1) swiglu_bwd_kernel(DTX_ARGUMENT(struct swiglu_job<T>) job)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * PACK, left = job.n - at;
    if (left <= 0)
        return;
    M g[PACK], u[PACK], dh[PACK], low, rest;
    load(job.g + at, left, job.aligned, g);
    load(job.u + at, left, job.aligned, u);
    load(job.dh + at, left, job.aligned, dh);
    for (int i = 0; i < PACK; i++) {
        sigmoid(g[i], &low, &rest);
        M du = dh[i] * (g[i] * low);
        g[i] = dh[i] * u[i] * (low * (1 + g[i] * rest));
        u[i] = du;
    }
    store(job.du + at, left, job.aligned, u);
    store(job.dg + at, left, job.aligned, g);
}

template <class T, class M>
static enum dtx_status forward(struct dtx_queue *queue, const struct dtx_swiglu_fwd_args *args)
{
    int64_t n = dtx_tensor_count(&args->g);
    bool aligned = is_aligned(args->g.data) && is_aligned(args->u.data) && is_aligned(args->h.data);
    return launch(queue, "swiglu_fwd", swiglu_fwd_kernel<T, M>, dtx_div_up(n, THREADS * PACK), THREADS, 0,
                  (const T *)args->g.data, (const T *)args->u.data, (T *)args->h.data, n, aligned);
}

template <class T, class M>
static enum dtx_status backward(struct dtx_queue *queue, const struct dtx_swiglu_bwd_args *args)
{
    swiglu_job<T> job = {(const T *)args->dh.data,
                         (const T *)args->g.data,
                         (const T *)args->u.data,
                         (T *)args->dg.data,
                         (T *)args->du.data,
                         dtx_tensor_count(&args->g),
                         true};
    job.aligned =
        is_aligned(job.dh) && is_aligned(job.g) && is_aligned(job.u) && is_aligned(job.dg) && is_aligned(job.du);
    return launch(queue, "swiglu_bwd", swiglu_bwd_kernel<T, M>, dtx_div_up(job.n, THREADS * PACK), THREADS, 0, job);
}

enum dtx_status DTX_DEVICE(swiglu_fwd)(struct dtx_queue *queue, const struct dtx_swiglu_fwd_args *args)
{
#define CALL(T, M) forward<T, M>(queue, args)
    return BY_ACT(args->g.dtype, CALL);
#undef CALL
}

enum dtx_status DTX_DEVICE(swiglu_bwd)(struct dtx_queue *queue, const struct dtx_swiglu_bwd_args *args)
{
#define CALL(T, M) backward<T, M>(queue, args)
    return BY_ACT(args->g.dtype, CALL);
#undef CALL
}
