#include <math.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/comm_impl.h"

/* Elements of `to` that stay in the first-level cache while the rows pass over them. */
enum { FOLD_BLOCK = 2048 };

/* Every row is added by itself, so that each partial sum is rounded to the dtype: the sum of a plain loop over ranks.
 */
#define FOLD(suffix, type, unsigned_type, is_nan)                                                                      \
    static void sum_##suffix(unsigned_type *restrict to, const unsigned_type *restrict row, int64_t n)                 \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            to[i] += row[i];                                                                                           \
    }                                                                                                                  \
    static void max_##suffix(type *restrict to, const type *restrict row, int64_t n)                                   \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++)                                                                                \
            to[i] = is_nan(to[i]) || to[i] >= row[i] ? to[i] : row[i];                                                 \
    }                                                                                                                  \
    static void fold_##suffix(enum dtx_fold fold, int rows, int64_t count, const type *from, type *to)                 \
    {                                                                                                                  \
        int first_row = DTX_MUTANT(sum_not_in_rank_order) ? rows - 1 : 0;                                              \
        for (int64_t i = 0; i < count; i += FOLD_BLOCK) {                                                              \
            int64_t n = dtx_min64(FOLD_BLOCK, count - i);                                                              \
            memcpy(to + i, from + first_row * count + i, (size_t)n * sizeof *to);                                      \
            for (int r = 1; r < rows; r++) {                                                                           \
                const type *row = from + (first_row ? r - 1 : r) * count + i;                                          \
                if (fold == DTX_FOLD_SUM)                                                                              \
                    sum_##suffix((unsigned_type *)(to + i), (const unsigned_type *)row, n);                            \
                else                                                                                                   \
                    max_##suffix(to + i, row, n);                                                                      \
            }                                                                                                          \
        }                                                                                                              \
    }
#define NEVER_NAN(x) 0
FOLD(f32, float, float, isnan)
FOLD(f64, double, double, isnan)
FOLD(i64, int64_t, uint64_t, NEVER_NAN)

void dtx_comm_fold(enum dtx_fold fold, enum dtx_dtype dtype, int rows, int64_t count, const void *from, void *to)
{
    if (dtype == DTX_F32)
        fold_f32(fold, rows, count, from, to);
    else if (dtype == DTX_F64)
        fold_f64(fold, rows, count, from, to);
    else
        fold_i64(fold, rows, count, from, to);
}
