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

static void FN(xent_sum)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_xent_sum_args *args = a;
    int64_t columns = args->logits.dim[1], valid = DTX_MUTANT(xent_padded_column) ? columns : args->valid;
    for (int64_t r = first; r < last; r++) {
        const M *x = (const M *)args->logits.data + r * columns;
        M most = ((const M *)args->max.data)[r];
        V sum = {0};
        int64_t i = 0;
        for (; i + W <= valid; i += W)
            sum += EXP(LOADM(x + i, W) - most);
        if (i < valid) {
            V e = EXP(LOADM(x + i, valid - i) - most);
            for (int64_t l = valid - i; l < W; l++)
                e[l] = 0;
            sum += e;
        }
        int32_t target = ((const int32_t *)args->targets.data)[r];
        int64_t column = target - args->first;
        bool here = target >= 0 && column >= 0 && column < valid;
        M *sums = (M *)args->sums.data + 2 * r;
        sums[0] = SUMV(sum);
        sums[1] = here ? x[column] : 0;
    }
}

static void FN(xent_bwd)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_xent_bwd_args *args = a;
    int64_t columns = args->logits.dim[1], valid = args->valid;
    bool master = args->dlogits.dtype != DTX_BF16;
    M scale = *(const M *)args->scale.data;
    for (int64_t r = first; r < last; r++) {
        const M *x = (const M *)args->logits.data + r * columns;
        const M *sums = (const M *)args->sums.data + 2 * r;
        M most = ((const M *)args->max.data)[r];
        int32_t target = ((const int32_t *)args->targets.data)[r];
        int64_t column = target - args->first;
        ((double *)args->loss.data)[r] = target < 0 ? 0 : log((double)sums[0]) + ((double)most - (double)sums[1]);
        if (!args->dlogits.data)
            continue;
        M factor = target < 0 ? 0 : scale / sums[0];
        M at_target = 0;
        bool here = target >= 0 && column >= 0 && column < valid;
        if (here)
            at_target = (EXP(SPLAT(x[column] - most))[0] / sums[0] - 1) * scale;
        for (int64_t i = 0; i < columns; i += W) {
            int64_t left = columns - i;
            V e = {0};
            if (target >= 0 && i < valid) {
                e = EXP(LOADM(x + i, valid - i) - most) * factor;
                for (int64_t l = valid - i; l < W; l++)
                    e[l] = 0;
            }
            if (here && column >= i && column < i + W)
                e[column - i] = at_target;
            if (master)
                STOREM((M *)args->dlogits.data + r * columns + i, e, left);
            else
                STORE((T *)args->dlogits.data + r * columns + i, e, left);
        }
    }
}
