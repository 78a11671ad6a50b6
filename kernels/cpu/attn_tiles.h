/*
 * What the tiled forward and backward share: a small product on packed operands, packing, masks. Included per dtype by
 * loops_act.h with PAIRS 1 where bf16 is multiplied as it is (two neighbours in k make one 32-bit word, vdpbf16ps) and
 * 0 where elements are first widened to M. Operands are arrays of words of M's size; a word holds PER steps of k.
 */
#undef PER
#undef TILE_FMA
#if PAIRS
#define PER                 2
#define TILE_FMA(sum, a, b) ((V)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(a), (__m512bh)(b)))
#else
#define PER                 1
#define TILE_FMA(sum, a, b) ((sum) + (a) * (b))
#endif

#ifndef TILE_VECTORS
#if DTX_VECTOR_BYTES == 64
#define TILE_VECTORS 4
#else
#define TILE_VECTORS 2
#endif
enum { TILE_ROWS = 4 };
#endif

/* c[TILE_ROWS, vectors·W] (+)= a·b over k words; a(r, p) = a[r·a_row + p·a_step], b(p, ·) = b[p·ldb + ·]. */
INLINE void FN(tile_block)(const M *a, int64_t a_row, int64_t a_step, const M *b, int64_t ldb, M *c, int64_t ldc,
                           int64_t k, bool add, const int vectors)
{
    V sum[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[r][v] = add ? LOADM(c + r * ldc + v * W, W) : (V){0};
    for (int64_t p = 0; p < k; p++) {
        V y[TILE_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            y[v] = LOADM(b + p * ldb + v * W, W);
#pragma GCC unroll 4
        for (int r = 0; r < TILE_ROWS; r++) {
            V x = CAT(repeat, MST)(a + r * a_row + p * a_step);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sum[r][v] = TILE_FMA(sum[r][v], x, y[v]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < TILE_ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            STOREM(c + r * ldc + v * W, sum[r][v], W);
}

/* c[m, n] (+)= a·b; m a multiple of TILE_ROWS, n of TILE_WIDTH. */
static void FN(tile_product)(int64_t m, int64_t n, int64_t k, const M *a, int64_t a_row, int64_t a_step, const M *b,
                             int64_t ldb, M *c, int64_t ldc, bool add)
{
    int64_t j = 0;
    for (; j + TILE_VECTORS * W <= n; j += TILE_VECTORS * W)
        for (int64_t i = 0; i < m; i += TILE_ROWS)
            FN(tile_block)(a + i * a_row, a_row, a_step, b + j, ldb, c + i * ldc + j, ldc, k, add, TILE_VECTORS);
    for (; j < n; j += W)
        for (int64_t i = 0; i < m; i += TILE_ROWS)
            FN(tile_block)(a + i * a_row, a_row, a_step, b + j, ldb, c + i * ldc + j, ldc, k, add, 1);
}

/* to[r] = row r of x in words, padded with zeros to width; rows beyond `rows` are 0, up to `all`. */
static void FN(tile_pack)(const T *x, int64_t step, int64_t rows, int64_t n, int64_t width, int64_t all, M *to)
{
    for (int64_t r = 0; r < all; r++) {
        M *out = to + r * (width / PER);
        if (r >= rows) {
            memset(out, 0, (size_t)(width / PER) * sizeof *out);
        } else if (PER == 2) {
            memcpy(out, x + r * step, (size_t)n * sizeof *x);
            memset((T *)out + n, 0, (size_t)(width - n) * sizeof *x);
        } else {
            for (int64_t i = 0; i < width; i += W)
                STOREM(out + i, LOAD(x + r * step + i, n - i), W);
        }
    }
}

/* The operand b of products over the rows of x: to[p][i] holds rows p·PER … of column i. */
static void FN(tile_pack_rows)(const T *x, int64_t step, int64_t rows, int64_t n, int64_t width, int64_t all, M *to)
{
#if PAIRS
    for (int64_t p = 0; p < all / 2; p++)
        for (int64_t i = 0; i < width; i += W) {
            const T *even = x + 2 * p * step + i, *odd = even + step;
            __m512i low = (__m512i)(2 * p < rows ? LOAD(even, n - i) : (V){0});
            __m512i high = (__m512i)(2 * p + 1 < rows ? LOAD(odd, n - i) : (V){0});
            STOREM(to + p * width + i, (V)_mm512_or_si512(_mm512_srli_epi32(low, 16), high), W);
        }
#else
    FN(tile_pack)(x, step, rows, n, width, all, to);
#endif
}

/* The operand b of products over the columns of x: to[p][r] holds columns p·PER … of row r. */
static void FN(tile_pack_columns)(const T *x, int64_t step, int64_t rows, int64_t n, int64_t width, int64_t all, M *to)
{
    enum { SIDE = 16 };
    M block[SIDE][SIDE];
    for (int64_t r0 = 0; r0 < all; r0 += SIDE)
        for (int64_t c0 = 0; c0 < width / PER; c0 += SIDE) {
            int64_t columns = dtx_min64(SIDE, width / PER - c0), left = dtx_max64(0, n - c0 * PER);
            int64_t here = dtx_max64(0, dtx_min64(SIDE, rows - r0));
            memset(block, 0, sizeof block);
            for (int64_t r = 0; r < here; r++) {
                const T *from = x + (r0 + r) * step + c0 * PER;
                if (PER == 2)
                    memcpy(block[r], from, (size_t)dtx_min64(left, SIDE * PER) * sizeof *x);
                else
                    for (int64_t i = 0; i < dtx_min64(left, SIDE); i += W)
                        STOREM(block[r] + i, LOAD(from + i, left - i), W);
            }
            for (int64_t c = 0; c < columns; c++)
                for (int64_t r = 0; r < SIDE; r++)
                    to[(c0 + c) * all + r0 + r] = block[r][c];
        }
}

/* x where the key is visible, −inf elsewhere; `key` is the tile's key of lane 0. */
INLINE V FN(tile_mask)(V x, int64_t key, int64_t first, int64_t last)
{
    for (int64_t l = 0; l < W; l++)
        if (key + l < first || key + l >= last)
            x[l] = (M)-INFINITY;
    return x;
}
