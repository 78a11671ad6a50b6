/* lambda_fwd, lambda_bwd: d elements, so plain double arithmetic for every dtype. */
#include <math.h>

#include "kernels/cpu/impl.h"

static double get(const struct dtx_tensor *t, int64_t i)
{
    return t->dtype == DTX_F64 ? ((const double *)t->data)[i] : (double)((const float *)t->data)[i];
}

static void put(const struct dtx_tensor *t, int64_t i, double value)
{
    if (t->dtype == DTX_F64)
        ((double *)t->data)[i] = value;
    else
        ((float *)t->data)[i] = (float)value;
}

static double exp_dot(const struct dtx_tensor *q, const struct dtx_tensor *k)
{
    double sum = 0;
    for (int64_t i = 0; i < q->dim[0]; i++)
        sum += get(q, i) * get(k, i);
    return exp(sum);
}

enum dtx_status dtx_cpu_lambda_fwd(struct dtx_queue *queue, const struct dtx_lambda_fwd_args *args)
{
    (void)queue;
    put(&args->lambda, 0, exp_dot(&args->q1, &args->k1) - exp_dot(&args->q2, &args->k2) + args->lambda_init);
    return DTX_OK;
}

enum dtx_status dtx_cpu_lambda_bwd(struct dtx_queue *queue, const struct dtx_lambda_bwd_args *args)
{
    (void)queue;
    double dlambda = 0;
    for (int64_t h = 0; h < args->dlambda.dim[0]; h++)
        dlambda += get(&args->dlambda, h);
    double d1 = dlambda * exp_dot(&args->q1, &args->k1), d2 = -dlambda * exp_dot(&args->q2, &args->k2);
    if (DTX_MUTANT(lambda_bwd_sign))
        d2 = -d2;
    for (int64_t i = 0; i < args->q1.dim[0]; i++) {
        put(&args->dq1, i, get(&args->dq1, i) + d1 * get(&args->k1, i));
        put(&args->dk1, i, get(&args->dk1, i) + d1 * get(&args->q1, i));
        put(&args->dq2, i, get(&args->dq2, i) + d2 * get(&args->k2, i));
        put(&args->dk2, i, get(&args->dk2, i) + d2 * get(&args->q2, i));
    }
    return DTX_OK;
}
