/* adamw. */
#include "kernels/cuda/impl.h"

template <class M> struct adamw_job {
    M *master, *m, *v;
    const M *grad;
    void *weight;
    const double *hyper; /* lr, clip, 1 − β1^step, 1 − β2^step */
    double lr_mult, decay;
    M beta1, beta2, rest1, rest2, eps;
    int64_t n;
    bool narrow_weight, aligned, stochastic;
};

/* A thread: PACK elements. */
template <class M> DTX_KERNEL(THREADS, 1) adamw_kernel(DTX_ARGUMENT(struct adamw_job<M>) job)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * PACK, left = job.n - at;
    if (left <= 0)
        return;
    double lr = job.hyper[0] * job.lr_mult;
    M clip = DTX_MUTANT(cuda_adamw_no_clip) ? (M)1 : (M)job.hyper[1];
    M step = (M)(lr / job.hyper[2]), root = (M)(1 / job.hyper[3]), decay = (M)(lr * job.decay);
    M w[PACK], m[PACK], v[PACK], g[PACK];
    load(job.master + at, left, job.aligned, w);
    load(job.m + at, left, job.aligned, m);
    load(job.v + at, left, job.aligned, v);
    load(job.grad + at, left, job.aligned, g);
    for (int i = 0; i < PACK; i++) {
        M gi = g[i] * clip;
        m[i] = m[i] * job.beta1 + gi * job.rest1;
        v[i] = v[i] * job.beta2 + gi * gi * job.rest2;
        w[i] -= step * m[i] / (dtx_sqrt(v[i] * root) + job.eps) + decay * w[i];
    }
    store(job.master + at, left, job.aligned, w);
    store(job.m + at, left, job.aligned, m);
    store(job.v + at, left, job.aligned, v);
    if (job.stochastic && job.narrow_weight && !DTX_MUTANT(cuda_adamw_nearest))
        round_all(w);
    if (job.weight)
        store_at(job.weight, job.narrow_weight, at, left, job.aligned, w);
}

template <class M> static enum dtx_status adamw(struct dtx_queue *queue, const struct dtx_adamw_args *args)
{
    adamw_job<M> job = {.master = (M *)args->master.data,
                        .m = (M *)args->m.data,
                        .v = (M *)args->v.data,
                        .grad = (const M *)args->grad.data,
                        .weight = args->weight.data,
                        .hyper = (const double *)args->hyper.data,
                        .lr_mult = args->lr_mult,
                        .decay = args->decay,
                        .beta1 = (M)args->beta1,
                        .beta2 = (M)args->beta2,
                        .rest1 = (M)(1 - args->beta1),
                        .rest2 = (M)(1 - args->beta2),
                        .eps = (M)args->eps,
                        .n = args->master.dim[0],
                        .narrow_weight = args->weight.dtype == DTX_BF16,
                        .stochastic = args->stochastic};
    job.aligned = is_aligned(job.master) && is_aligned(job.m) && is_aligned(job.v) && is_aligned(job.grad) &&
                  is_aligned(job.weight);
    return launch(queue, "adamw", adamw_kernel<M>, dtx_div_up(job.n, THREADS * PACK), THREADS, 0, job);
}

enum dtx_status DTX_DEVICE(adamw)(struct dtx_queue *queue, const struct dtx_adamw_args *args)
{
    return args->master.dtype == DTX_F64 ? adamw<double>(queue, args) : adamw<float>(queue, args);
}
