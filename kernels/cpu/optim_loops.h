/* adamw. Included per dtype by loops_act.h; T is the dtype of `weight`. Unit: an element. */

static void FN(adamw)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_adamw_args *args = a;
    const double *hyper = args->hyper.data;
    double lr = hyper[0] * args->lr_mult, correct1 = 1 / hyper[2], correct2 = 1 / hyper[3];
    if (DTX_MUTANT(adamw_no_bias_correction))
        correct1 = correct2 = 1;
    M clip = (M)hyper[1], beta1 = (M)args->beta1, beta2 = (M)args->beta2, eps = (M)args->eps;
    M rest1 = (M)(1 - args->beta1), rest2 = (M)(1 - args->beta2), step = (M)(lr * correct1), root = (M)correct2;
    M decay = (M)(lr * args->decay);
    M *master = args->master.data, *m = args->m.data, *v = args->v.data;
    const M *grad = args->grad.data;
    T *weight = args->weight.data;
    for (int64_t i = first; i < last; i += W) {
        int64_t left = last - i;
        V g = LOADM(grad + i, left) * clip, w = LOADM(master + i, left);
        V m1 = LOADM(m + i, left) * beta1 + g * rest1;
        V v1 = LOADM(v + i, left) * beta2 + g * g * rest2;
        w -= step * m1 / (SQRT(v1 * root) + eps) + decay * w;
        STOREM(m + i, m1, left);
        STOREM(v + i, v1, left);
        STOREM(master + i, w, left);
        if (weight)
            STORE(weight + i, args->stochastic ? ROUND(w) : w, left);
    }
}
