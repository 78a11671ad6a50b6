/* rope. Included per dtype by loops_act.h. */

/* Unit: a row (b, t). */
static void FN(rope)(const void *a, int64_t first, int64_t last)
{
    const struct dtx_rope_args *args = a;
    int64_t t = args->x.dim[1], heads = args->x.dim[2], d = args->x.dim[3];
    const int32_t *positions = args->positions.data;
    for (int64_t r = first; r < last; r++) {
        int64_t position = positions
                               ? positions[r]
                               : args->first + r % t + (DTX_MUTANT(rope_position_off_by_one) && args->first ? -1 : 0);
        const M *table = (const M *)args->table.data + position * d;
        for (int64_t h = 0; h < heads; h++) {
            const T *x = (const T *)args->x.data + (r * heads + h) * d;
            T *y = (T *)args->y.data + (r * heads + h) * d;
            for (int64_t i = 0; i < d; i += W) {
                V angle = LOADM(table + i, d - i), v = LOAD(x + i, d - i);
                V c = CAT(even, MST)(angle), s = CAT(odd, MST)(angle);
                V minus = CAT(signs, MST)(args->inverse ? (M)-1 : (M)1);
                STORE(y + i, v * c + CAT(swap, MST)(v) * (s * minus), d - i);
            }
        }
    }
}
