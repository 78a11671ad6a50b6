/* swiglu_fwd, swiglu_bwd. Included per dtype by loops_act.h. */

/* Unit: an element. */
static void FN(swiglu_fwd)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_swiglu_fwd_args *args = a;
    for (int64_t i = first; i < last; i += W) {
        V g = LOAD((const T *)args->g.data + i, last - i), u = LOAD((const T *)args->u.data + i, last - i);
        STORE((T *)args->h.data + i, g / ((M)1 + EXP(-g)) * u, last - i);
    }
}

/* Unit: an element. With σ = sigmoid(g): du = dh·g·σ, dg = dh·u·σ·(1 + g·(1 − σ)). */
static void FN(swiglu_bwd)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_swiglu_bwd_args *args = a;
    for (int64_t i = first; i < last; i += W) {
        int64_t left = last - i;
        V g = LOAD((const T *)args->g.data + i, left), u = LOAD((const T *)args->u.data + i, left);
        V dh = LOAD((const T *)args->dh.data + i, left);
        V e = EXP(-g), sigmoid = (M)1 / ((M)1 + e);
        /* 1 − σ = e·σ, without cancellation; e = inf would give inf·0. */
        V rest = CAT(select, MST)(e > SPLAT((M)1e30), SPLAT(1), e * sigmoid);
        STORE((T *)args->du.data + i, dh * (g * sigmoid), left);
        STORE((T *)args->dg.data + i, dh * u * (sigmoid * ((M)1 + g * rest)), left);
    }
}
