/* lambda_fwd, lambda_bwd: d elements, so one warp and double arithmetic for every dtype. */
#include "kernels/cuda/impl.h"

template <class M> DTX_FN double exp_dot(const M *q, const M *k, int64_t d)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < d; i += WARP)
        sum += (double)q[i] * (double)k[i];
    return dtx_exp(dtx_warp_sum(sum));
}

template <class M>
DTX_KERNEL(WARP, 1)
lambda_fwd_kernel(const M *q1, const M *k1, const M *q2, const M *k2, int64_t d, double init, M *lambda)
{
    double first = exp_dot(q1, k1, d), second = exp_dot(q2, k2, d);
    if (threadIdx.x == 0)
        *lambda = (M)(first - second + init);
}

template <class M> struct lambda_job {
    const M *q1, *k1, *q2, *k2, *dlambda;
    M *dq1, *dk1, *dq2, *dk2;
    int64_t d, heads;
};

template <class M> DTX_KERNEL(WARP, 1) lambda_bwd_kernel(DTX_ARGUMENT(struct lambda_job<M>) job)
{
    double dlambda = 0;
    for (int64_t h = 0; h < job.heads; h++)
        dlambda += (double)job.dlambda[h];
    double d1 = dlambda * exp_dot(job.q1, job.k1, job.d), d2 = -dlambda * exp_dot(job.q2, job.k2, job.d);
    if (DTX_MUTANT(cuda_lambda_sign))
        d2 = -d2;
    for (int64_t i = threadIdx.x; i < job.d; i += WARP) {
        job.dq1[i] = (M)((double)job.dq1[i] + d1 * (double)job.k1[i]);
        job.dk1[i] = (M)((double)job.dk1[i] + d1 * (double)job.q1[i]);
        job.dq2[i] = (M)((double)job.dq2[i] + d2 * (double)job.k2[i]);
        job.dk2[i] = (M)((double)job.dk2[i] + d2 * (double)job.q2[i]);
    }
}

template <class M> static enum dtx_status forward(struct dtx_queue *queue, const struct dtx_lambda_fwd_args *args)
{
    return launch(queue, "lambda_fwd", lambda_fwd_kernel<M>, 1, WARP, 0, (const M *)args->q1.data,
                  (const M *)args->k1.data, (const M *)args->q2.data, (const M *)args->k2.data, args->q1.dim[0],
                  args->lambda_init, (M *)args->lambda.data);
}

template <class M> static enum dtx_status backward(struct dtx_queue *queue, const struct dtx_lambda_bwd_args *args)
{
    lambda_job<M> job = {(const M *)args->q1.data, (const M *)args->k1.data,      (const M *)args->q2.data,
                         (const M *)args->k2.data, (const M *)args->dlambda.data, (M *)args->dq1.data,
                         (M *)args->dk1.data,      (M *)args->dq2.data,           (M *)args->dk2.data,
                         args->q1.dim[0],          args->dlambda.dim[0]};
    return launch(queue, "lambda_bwd", lambda_bwd_kernel<M>, 1, WARP, 0, job);
}

enum dtx_status DTX_DEVICE(lambda_fwd)(struct dtx_queue *queue, const struct dtx_lambda_fwd_args *args)
{
    return args->q1.dtype == DTX_F64 ? forward<double>(queue, args) : forward<float>(queue, args);
}

enum dtx_status DTX_DEVICE(lambda_bwd)(struct dtx_queue *queue, const struct dtx_lambda_bwd_args *args)
{
    return args->q1.dtype == DTX_F64 ? backward<double>(queue, args) : backward<float>(queue, args);
}
