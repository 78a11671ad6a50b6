/* add, sqnorm, amax. Included per dtype by loops_act.h. */

/* Unit: an element. Each of x, y, z is T or M. */
static void FN(add)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_add_args *args = a;
    bool xm = args->x.dtype != DTX_BF16, ym = args->y.dtype != DTX_BF16, zm = args->z.dtype != DTX_BF16;
    bool y_there = args->y.data != NULL;
    M alpha = (M)args->alpha;
    for (int64_t i = first; i < last; i += W) {
        V x = xm ? LOADM((const M *)args->x.data + i, last - i) : LOAD((const T *)args->x.data + i, last - i);
        V z = alpha * x;
        if (y_there)
            z += ym ? LOADM((const M *)args->y.data + i, last - i) : LOAD((const T *)args->y.data + i, last - i);
        if (zm)
            STOREM((M *)args->z.data + i, z, last - i);
        else
            STORE((T *)args->z.data + i, args->stochastic ? ROUND(z) : z, last - i);
    }
}

/* Unit: a block of 1,024 elements, summed in index order; eight blocks side by side hide the additions' latency. */
static void FN(sqnorm)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_sqnorm_args *args = a;
    const M *x = args->x.data;
    double *blocks = args->blocks.data;
    enum { SIDE = 8, BLOCK = DTX_CPU_SQNORM_BLOCK };
    int64_t n = args->x.dim[0], block = first;
    for (; block + SIDE <= last && (block + SIDE) * BLOCK <= n; block += SIDE) {
        double sum[SIDE] = {0};
        for (int64_t i = 0; i < BLOCK; i++)
            for (int64_t s = 0; s < SIDE; s++) {
                double value = (double)x[(block + s) * BLOCK + i];
                sum[s] += value * value;
            }
        memcpy(blocks + block, sum, sizeof sum);
    }
    for (; block < last; block++) {
        double sum = 0;
        for (int64_t i = block * BLOCK; i < dtx_min64((block + 1) * BLOCK, n); i++)
            sum += (double)x[i] * (double)x[i];
        blocks[block] = sum;
    }
}

/* max |x| of T elements [first, last) into ((struct dtx_tensor *)a)[1]; x is ((struct dtx_tensor *)a)[0]. */
static void FN(amax)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_tensor *tensors = a;
    const T *x = tensors[0].data;
    V most = {0};
    for (int64_t i = first; i < last; i += W) {
        V v = LOAD(x + i, last - i);
        most = MAXV(most, MAXV(v, -v));
    }
    M result = 0;
    for (int64_t i = 0; i < W; i++)
        result = most[i] > result ? most[i] : result;
    *(M *)tensors[1].data = result;
}
