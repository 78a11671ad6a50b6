/* swiglu_fwd, swiglu_bwd. Included per dtype by loops_act.h. */

/* sigmoid(g) and 1 − sigmoid(g), both without overflow or cancellation: from e = exp(−|g|). */
INLINE void FN(sigmoid)(V g, V *sigmoid, V *rest)
{
    V e = CAT(expneg, MST)(-MAXV(g, -g)), inverse = (M)1 / ((M)1 + e), other = e * inverse;
    *sigmoid = CAT(select, MST)(g < (V){0}, other, inverse);
    *rest = CAT(select, MST)(g < (V){0}, inverse, other);
}

/* Unit: an element. */
static void FN(swiglu_fwd)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_swiglu_fwd_args *args = a;
    for (int64_t i = first; i < last; i += W) {
        V g = LOAD((const T *)args->g.data + i, last - i), u = LOAD((const T *)args->u.data + i, last - i);
        V sigmoid, rest;
        FN(sigmoid)(g, &sigmoid, &rest);
        STORE((T *)args->h.data + i, g * sigmoid * u, last - i);
    }
}

/* Unit: an element. With σ = sigmoid(g): du = dh·g·σ, dg = dh·u·σ·(1 + g·(1 − σ)). */
static void FN(swiglu_bwd)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_swiglu_bwd_args *args = a;
    for (int64_t i = first; i < last; i += W) {
        int64_t left = last - i;
        V g = LOAD((const T *)args->g.data + i, left), u = LOAD((const T *)args->u.data + i, left);
        V dh = LOAD((const T *)args->dh.data + i, left), sigmoid, rest;
        FN(sigmoid)(g, &sigmoid, &rest);
        STORE((T *)args->du.data + i, dh * (g * sigmoid), left);
        STORE((T *)args->dg.data + i,
              dh * u * (sigmoid * ((M)1 + (DTX_MUTANT(swiglu_derivative) ? sigmoid : g * rest))), left);
    }
}
