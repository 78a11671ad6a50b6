/* xent_max, xent_sum, xent_bwd. Included per dtype by loops_act.h; logits are always M. Unit: a row. */

static void FN(xent_max)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_xent_max_args *args = a;
    int64_t columns = args->logits.dim[1], valid = args->valid;
    for (int64_t r = first; r < last; r++) {
        const M *x = (const M *)args->logits.data + r * columns;
        V most = SPLAT((M)-INFINITY);
        int64_t i = 0;
        for (; i + W <= valid; i += W)
            most = MAXV(most, LOADM(x + i, W));
        M result = (M)-INFINITY;
        for (int64_t l = 0; l < W; l++)
            result = most[l] > result ? most[l] : result;
        for (; i < valid; i++)
            result = x[i] > result ? x[i] : result;
        ((M *)args->max.data)[r] = result;
    }
}

/* exp(x − most) of the columns from i on; lanes from `valid` on are 0. */
INLINE V FN(xent_exp)(const M *x, int64_t i, int64_t valid, M most)
{
    V e = CAT(expneg, MST)(LOADM(x + i, valid - i) - most);
    for (int64_t l = dtx_max64(0, valid - i); l < W; l++)
        e[l] = 0;
    return e;
}

static void FN(xent_sum)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_xent_sum_args *args = a;
    int64_t columns = args->logits.dim[1], valid = DTX_MUTANT(xent_padded_column) ? columns : args->valid;
    for (int64_t r = first; r < last; r++) {
        const M *x = (const M *)args->logits.data + r * columns;
        M most = ((const M *)args->max.data)[r];
        V sum[4] = {{0}};
        int64_t i = 0;
        for (; i + 4 * W <= valid; i += 4 * W)
            for (int64_t v = 0; v < 4; v++)
                sum[v] += CAT(expneg, MST)(LOADM(x + i + v * W, W) - most);
        for (; i < valid; i += W)
            sum[0] += FN(xent_exp)(x, i, valid, most);
        int32_t target = ((const int32_t *)args->targets.data)[r];
        int64_t column = target - args->first;
        bool here = target >= 0 && column >= 0 && column < valid;
        M *sums = (M *)args->sums.data + 2 * r;
        sums[0] = SUMV((sum[0] + sum[1]) + (sum[2] + sum[3]));
        sums[1] = here ? x[column] : 0;
    }
}

/* x and dlogits may be the same memory. */
static void FN(xent_row)(const M *x, void *dlogits, bool master, int64_t columns, int64_t valid, M most, M factor)
{
    M *wide = dlogits;
    T *narrow = dlogits;
    int64_t i = 0;
    for (; master && i + W <= valid; i += W)
        STOREM(wide + i, CAT(expneg, MST)(LOADM(x + i, W) - most) * factor, W);
    for (; !master && i + W <= valid; i += W)
        STORE(narrow + i, CAT(expneg, MST)(LOADM(x + i, W) - most) * factor, W);
    for (; i < columns; i += W) {
        V e = i < valid ? FN(xent_exp)(x, i, valid, most) * factor : (V){0};
        if (master)
            STOREM(wide + i, e, columns - i);
        else
            STORE(narrow + i, e, columns - i);
    }
}

static void FN(xent_bwd)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_xent_bwd_args *args = a;
    int64_t columns = args->logits.dim[1], valid = args->valid;
    bool master = args->dlogits.dtype != DTX_BF16;
    M scale = *(const M *)args->scale.data;
    for (int64_t r = first; r < last; r++) {
        const M *x = (const M *)args->logits.data + r * columns, *sums = (const M *)args->sums.data + 2 * r;
        M most = ((const M *)args->max.data)[r], at_target = 0;
        int32_t target = ((const int32_t *)args->targets.data)[r];
        int64_t column = target - args->first;
        ((double *)args->loss.data)[r] = target < 0 ? 0 : log((double)sums[0]) + ((double)most - (double)sums[1]);
        if (!args->dlogits.data)
            continue;
        bool here = target >= 0 && column >= 0 && column < valid;
        if (here)
            at_target = (EXP(SPLAT(x[column] - most))[0] / sums[0] - 1) * scale;
        void *dlogits =
            master ? (void *)((M *)args->dlogits.data + r * columns) : (void *)((T *)args->dlogits.data + r * columns);
        if (target < 0)
            memset(dlogits, 0, (size_t)columns * dtx_dtype_bytes(args->dlogits.dtype));
        else
            FN(xent_row)(x, dlogits, master, columns, valid, most, scale / sums[0]);
        if (here && master)
            ((M *)dlogits)[column] = at_target;
        if (here && !master)
            STORE((T *)dlogits + column, SPLAT(at_target), 1);
    }
}
