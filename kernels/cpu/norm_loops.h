/* rmsnorm_fwd, rmsnorm_bwd. Included per dtype by loops_act.h. */

/* y of one row; returns rstd. Never inlined, so that rmsnorm_fwd and attention's norm have the same bits. */
__attribute__((noinline)) static M FN(norm_row)(const T *x, const M *gain, int64_t width, double eps, double out_scale,
                                                T *y)
{
    V squares = {0};
    for (int64_t i = 0; i < width; i += W) {
        V v = LOAD(x + i, width - i);
        squares += v * v;
    }
    double mean = (double)SUMV(squares) / (double)width;
    M rstd = (M)(1.0 / sqrt(mean + eps)), factor = (M)((double)rstd * out_scale);
    for (int64_t i = 0; i < width; i += W) {
        V v = LOAD(x + i, width - i) * factor;
        STORE(y + i, gain ? v * LOADM(gain + i, width - i) : v, width - i);
    }
    return rstd;
}

/* Unit: a row. */
static void FN(rmsnorm_fwd)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_rmsnorm_fwd_args *args = a;
    int64_t width = args->x.dim[1];
    for (int64_t r = first; r < last; r++) {
        int64_t at = DTX_MUTANT(row_offset_32) ? (int32_t)(r * width) : r * width;
        ((M *)args->rstd.data)[r] = FN(norm_row)((const T *)args->x.data + at, args->gain.data, width, args->eps,
                                                 args->out_scale, (T *)args->y.data + at);
    }
}

/* Unit: a block of DTX_CPU_NORM_ROWS rows. With x̂ = x·rstd and e = out_scale·gain ⊙ dy:
 * dx = rstd·(e − x̂·mean(e ⊙ x̂)), dgain += out_scale·Σ dy ⊙ x̂. */
static void FN(rmsnorm_bwd)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_cpu_rmsnorm_bwd *job = a;
    const struct dtx_rmsnorm_bwd_args *args = job->args;
    int64_t width = args->x.dim[1], rows = args->x.dim[0];
    const M *gain = args->gain.data;
    const T *residual = args->residual.data;
    M scale = (M)args->out_scale;
    for (int64_t r = first * DTX_CPU_NORM_ROWS; r < dtx_min64(last * DTX_CPU_NORM_ROWS, rows); r++) {
        const T *x = (const T *)args->x.data + r * width, *dy = (const T *)args->dy.data + r * width;
        T *dx = (T *)args->dx.data + r * width;
        M *partial = job->partial ? (M *)job->partial + r / DTX_CPU_NORM_ROWS * width : NULL;
        bool fresh = r % DTX_CPU_NORM_ROWS == 0;
        M rstd = ((const M *)args->rstd.data)[r];
        V dot = {0};
        for (int64_t i = 0; i < width; i += W) {
            V xhat = LOAD(x + i, width - i) * rstd, e = LOAD(dy + i, width - i) * scale;
            if (partial)
                STOREM(partial + i, (fresh ? SPLAT(0) : LOADM(partial + i, width - i)) + e * xhat, width - i);
            if (gain)
                e *= LOADM(gain + i, width - i);
            dot += e * xhat;
        }
        M mean = SUMV(dot) / (M)width;
        for (int64_t i = 0; i < width; i += W) {
            V xhat = LOAD(x + i, width - i) * rstd, e = LOAD(dy + i, width - i) * scale;
            if (gain)
                e *= LOADM(gain + i, width - i);
            V v = (e - xhat * mean) * rstd;
            if (residual)
                v += LOAD(residual + r * width + i, width - i);
            STORE(dx + i, v, width - i);
        }
    }
}
