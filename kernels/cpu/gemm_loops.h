/* gemm: products in plain loops, for f64 and where oneDNN has no fast product. Included per dtype by loops_act.h. */

/* panel[p][j] = op(b)[k0 + p, j0 + j]; columns beyond n are 0. */
static void FN(gemm_pack)(const struct dtx_cpu_gemm *g, int64_t k0, int64_t depth, int64_t j0, M *panel)
{
    const T *b = g->b;
    int64_t columns = dtx_min64(DTX_CPU_GEMM_COLUMNS, g->n - j0);
    for (int64_t p = 0; p < depth; p++)
        for (int64_t j = 0; j < DTX_CPU_GEMM_COLUMNS; j++) {
            M *to = panel + p * DTX_CPU_GEMM_COLUMNS + j;
            if (j >= columns)
                *to = 0;
            else
                *to = LOAD(b + (g->transpose_b ? (j0 + j) * g->k + k0 + p : (k0 + p) * g->n + j0 + j), 1)[0];
        }
}

/* Rows [i0, i0 + rows) × the panel's columns. */
static void FN(gemm_tile)(const struct dtx_cpu_gemm *g, int64_t i0, int64_t rows, int64_t k0, int64_t depth, int64_t j0,
                          const M *panel)
{
    enum { VECTORS = DTX_CPU_GEMM_COLUMNS / CAT(lanes, MST) };
    V sum[GEMM_TILE][VECTORS];
    M *c = (M *)g->c + i0 * g->n + j0;
    int64_t columns = dtx_min64(DTX_CPU_GEMM_COLUMNS, g->n - j0);
    bool add = k0 > 0 || g->accumulate;
    for (int64_t r = 0; r < GEMM_TILE; r++)
        for (int64_t v = 0; v < VECTORS; v++)
            sum[r][v] = (V){0};
    const T *a = g->a;
    int64_t row_step = g->transpose_a ? 1 : g->k, k_step = g->transpose_a ? g->m : 1;
    for (int64_t p = 0; p < depth; p++)
        for (int64_t r = 0; r < GEMM_TILE; r++) {
            V x = SPLAT(r < rows ? LOAD(a + (i0 + r) * row_step + (k0 + p) * k_step, 1)[0] : 0);
            for (int64_t v = 0; v < VECTORS; v++)
                sum[r][v] += x * LOADM(panel + p * DTX_CPU_GEMM_COLUMNS + v * W, W);
        }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t v = 0; v * W < columns; v++) {
            M *to = c + r * g->n + v * W;
            STOREM(to, add ? LOADM(to, columns - v * W) + sum[r][v] : sum[r][v], columns - v * W);
        }
}

/* Unit: a block of c; blocks of one column panel follow each other. */
static void FN(gemm)(const void *job, int64_t first, int64_t last)
{
    const struct dtx_cpu_gemm *g = job;
    M panel[GEMM_DEPTH * DTX_CPU_GEMM_COLUMNS];
    int64_t row_blocks = dtx_div_up(g->m, DTX_CPU_GEMM_ROWS);
    for (int64_t unit = first; unit < last; unit++) {
        int64_t i0 = unit % row_blocks * DTX_CPU_GEMM_ROWS, j0 = unit / row_blocks * DTX_CPU_GEMM_COLUMNS;
        int64_t i1 = dtx_min64(g->m, i0 + DTX_CPU_GEMM_ROWS);
        for (int64_t k0 = 0; k0 < g->k || k0 == 0; k0 += GEMM_DEPTH) {
            int64_t depth = dtx_min64(GEMM_DEPTH, g->k - k0);
            FN(gemm_pack)(g, k0, depth, j0, panel);
            for (int64_t i = i0; i < i1; i += GEMM_TILE)
                FN(gemm_tile)(g, i, dtx_min64(GEMM_TILE, i1 - i), k0, depth, j0, panel);
        }
    }
}
