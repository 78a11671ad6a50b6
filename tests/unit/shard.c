/* test: label=unit ranks=1 timeout=60 */
/* Placement: the boxes of all ranks cover the whole array exactly once, lie inside the local arrays, leave padding
 * alone, and cut each segment by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "parallel/shard.h"

static int64_t product(int ndim, const int64_t *dim)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++)
        n *= dim[i];
    return n;
}

static int64_t index_of(int ndim, const int64_t *shape, const int64_t *at)
{
    int64_t index = 0;
    for (int i = 0; i < ndim; i++)
        index = index * shape[i] + at[i];
    return index;
}

/* Steps through a box; false after the last element. */
static bool next_in(int ndim, const int64_t *extent, int64_t *at)
{
    for (int i = ndim - 1; i >= 0; i--) {
        if (++at[i] < extent[i])
            return true;
        at[i] = 0;
    }
    return false;
}

/* Cuts an array of the numbers 1, 2, …, for every rank: through the boxes into a local array of −1, and back. */
static void cut_and_join(const struct dtx_placement *place, int ndim, const int64_t *whole, int64_t padded, int size)
{
    int64_t n = product(ndim, whole), local_shape[DTX_MAX_DIMS];
    int32_t *array = calloc((size_t)n, sizeof *array), *joined = calloc((size_t)n, sizeof *joined);
    char *seen = calloc((size_t)n, 1);
    for (int64_t i = 0; i < n; i++)
        array[i] = (int32_t)i + 1;
    for (int rank = 0; rank < size; rank++) {
        dtx_shard_shape(place, ndim, whole, padded, size, local_shape);
        int64_t local_n = product(ndim, local_shape);
        int32_t *local = malloc((size_t)local_n * sizeof *local), *dense = malloc((size_t)n * sizeof *dense);
        memset(local, 0xff, (size_t)local_n * sizeof *local);
        struct dtx_box boxes[DTX_MAX_BOXES];
        int n_boxes = dtx_shard_boxes(place, ndim, whole, padded, rank, size, boxes);
        int64_t filled = 0;
        for (int b = 0; b < n_boxes; b++) {
            int64_t at[DTX_MAX_DIMS] = {0}, k = 0;
            assert_true(product(ndim, boxes[b].extent) > 0);
            do {
                int64_t global[DTX_MAX_DIMS];
                for (int i = 0; i < ndim; i++) {
                    global[i] = boxes[b].global[i] + at[i];
                    assert_in_range(global[i], 0, whole[i] - 1);
                    assert_in_range(boxes[b].local[i] + at[i], 0, local_shape[i] - 1);
                }
                int64_t index = index_of(ndim, whole, global);
                assert_true(place->kind != DTX_SPLIT || !seen[index]);
                seen[index] = 1;
                dense[k++] = array[index];
            } while (next_in(ndim, boxes[b].extent, at));
            dtx_box_scatter(&boxes[b], ndim, local_shape, sizeof *local, dense, local);
            filled += k;
            memset(dense, 0, (size_t)k * sizeof *dense);
            dtx_box_gather(&boxes[b], ndim, local_shape, sizeof *local, local, dense);
            memset(at, 0, sizeof at);
            k = 0;
            do {
                int64_t global[DTX_MAX_DIMS];
                for (int i = 0; i < ndim; i++)
                    global[i] = boxes[b].global[i] + at[i];
                joined[index_of(ndim, whole, global)] = dense[k++];
            } while (next_in(ndim, boxes[b].extent, at));
        }
        int64_t untouched = 0;
        for (int64_t i = 0; i < local_n; i++)
            untouched += local[i] == -1;
        assert_int_equal(filled + untouched, local_n);
        free(local);
        free(dense);
    }
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(joined[i], array[i]);
    free(array);
    free(joined);
    free(seen);
}

static void every_element_once(void **state)
{
    (void)state;
    const int64_t shapes[][DTX_MAX_DIMS] = {{24}, {13}, {6, 5}, {7, 12}, {2, 6, 4}, {4, 3, 9}, {3, 6, 2, 5}};
    const int ndims[] = {1, 1, 2, 2, 3, 3, 4};
    for (size_t s = 0; s < sizeof ndims / sizeof *ndims; s++)
        for (int size = 1; size <= 5; size++) {
            cut_and_join(&(struct dtx_placement){DTX_REPLICATED, 0, 0}, ndims[s], shapes[s], 0, size);
            cut_and_join(&(struct dtx_placement){DTX_PARTIAL, 0, 0}, ndims[s], shapes[s], 0, size);
            for (int dim = 0; dim < ndims[s]; dim++)
                for (int segments = 0; segments <= 6; segments++) {
                    int parts = segments ? segments : 1;
                    if (shapes[s][dim] % parts != 0)
                        continue;
                    struct dtx_placement place = {DTX_SPLIT, dim, segments};
                    cut_and_join(&place, ndims[s], shapes[s], 0, size);
                    int64_t unit = (int64_t)parts * size, least = (shapes[s][dim] + unit - 1) / unit * unit;
                    cut_and_join(&place, ndims[s], shapes[s], least + 2 * unit, size);
                }
        }
}

/* A fused gate|up matrix [10, 3] for 2 ranks padded to segments of 6: by hand. */
static void fused_by_hand(void **state)
{
    (void)state;
    struct dtx_placement place = {DTX_SPLIT, 0, 2};
    const int64_t whole[2] = {10, 3};
    int64_t local[2];
    dtx_shard_shape(&place, 2, whole, 12, 2, local);
    assert_int_equal(local[0], 6);
    assert_int_equal(local[1], 3);
    struct dtx_box box[DTX_MAX_BOXES];
    assert_int_equal(dtx_shard_boxes(&place, 2, whole, 12, 1, 2, box), 2);
    const int64_t global[] = {3, 8}, at[] = {0, 3};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(box[i].global[0], global[i]);
        assert_int_equal(box[i].local[0], at[i]);
        assert_int_equal(box[i].extent[0], 2);
        assert_int_equal(box[i].global[1], 0);
        assert_int_equal(box[i].extent[1], 3);
    }
}

/* One rank without padding: one box whatever the segments. Only padding: none. */
static void box_counts(void **state)
{
    (void)state;
    struct dtx_box box[DTX_MAX_BOXES];
    const int64_t whole[1] = {8}, small[1] = {2};
    assert_int_equal(dtx_shard_boxes(&(struct dtx_placement){DTX_SPLIT, 0, 4}, 1, whole, 0, 0, 1, box), 1);
    assert_int_equal(box[0].extent[0], 8);
    assert_int_equal(dtx_shard_boxes(&(struct dtx_placement){DTX_SPLIT, 0, 1}, 1, small, 0, 3, 4, box), 0);
    assert_int_equal(dtx_shard_boxes(&(struct dtx_placement){DTX_SPLIT, 0, 1}, 1, small, 0, 1, 4, box), 1);
}

/* Every way of cutting a local array into pieces of `piece` elements: the boxes of the pieces of all ranks cover the
 * whole array once, lie in the rows their range touches, and name the elements of the range. */
static void cut_in_ranges(const struct dtx_placement *place, int ndim, const int64_t *whole, int64_t padded, int size,
                          int64_t piece)
{
    int64_t n = product(ndim, whole), local[DTX_MAX_DIMS];
    int32_t *array = malloc((size_t)n * sizeof *array), *times = calloc((size_t)n, sizeof *times);
    for (int64_t i = 0; i < n; i++)
        array[i] = (int32_t)i + 1;
    dtx_shard_shape(place, ndim, whole, padded, size, local);
    int64_t local_n = product(ndim, local);
    for (int rank = 0; rank < size; rank++) {
        /* The local array as dtx_shard_boxes cuts it is what the ranges are compared with. */
        int32_t *filled = calloc((size_t)local_n, sizeof *filled), *dense = malloc((size_t)n * sizeof *dense);
        struct dtx_box boxes[DTX_MAX_BOXES];
        int n_boxes = dtx_shard_boxes(place, ndim, whole, padded, rank, size, boxes);
        for (int b = 0; b < n_boxes; b++) {
            struct dtx_box from = boxes[b];
            memcpy(from.local, from.global, sizeof from.local);
            dtx_box_gather(&from, ndim, whole, sizeof *array, array, dense);
            dtx_box_scatter(&boxes[b], ndim, local, sizeof *array, dense, filled);
        }
        for (int64_t first = 0; first < local_n; first += piece) {
            int64_t count = piece < local_n - first ? piece : local_n - first;
            struct dtx_shard_rows rows;
            int n_parts = dtx_shard_range_boxes(place, ndim, whole, padded, rank, size, first, count, &rows, boxes);
            assert_true(n_parts <= 3 * n_boxes);
            int64_t rows_n = product(ndim, rows.shape);
            assert_true(rows.skip + count <= rows_n);
            int32_t *touched = calloc((size_t)rows_n, sizeof *touched);
            for (int b = 0; b < n_parts; b++) {
                struct dtx_box from = boxes[b];
                for (int d = 0; d < ndim; d++) {
                    assert_true(boxes[b].extent[d] > 0 && boxes[b].local[d] >= 0);
                    assert_true(boxes[b].local[d] + boxes[b].extent[d] <= rows.shape[d]);
                }
                memcpy(from.local, from.global, sizeof from.local);
                dtx_box_gather(&from, ndim, whole, sizeof *array, array, dense);
                for (int64_t i = 0; i < product(ndim, boxes[b].extent); i++)
                    times[dense[i] - 1]++;
                dtx_box_scatter(&boxes[b], ndim, rows.shape, sizeof *array, dense, touched);
            }
            assert_memory_equal(touched + rows.skip, filled + first, (size_t)count * sizeof *touched);
            for (int64_t i = 0; i < rows_n; i++)
                assert_true(touched[i] == 0 || (i >= rows.skip && i < rows.skip + count));
            free(touched);
        }
        free(filled);
        free(dense);
    }
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(times[i], place->kind == DTX_SPLIT ? 1 : size);
    free(array);
    free(times);
}

static void ranges_cover_once(void **state)
{
    (void)state;
    const int64_t shapes[][DTX_MAX_DIMS] = {{24}, {13}, {6, 5}, {7, 12}, {1, 9}, {9, 1}};
    const int ndims[] = {1, 1, 2, 2, 2, 2};
    for (size_t s = 0; s < sizeof ndims / sizeof *ndims; s++)
        for (int size = 1; size <= 4; size++)
            for (int64_t piece = 1; piece <= 40; piece += piece < 8 ? 1 : 5) {
                cut_in_ranges(&(struct dtx_placement){DTX_REPLICATED, 0, 0}, ndims[s], shapes[s], 0, size, piece);
                for (int dim = 0; dim < ndims[s]; dim++)
                    for (int segments = 1; segments <= 3; segments++)
                        if (shapes[s][dim] % segments == 0)
                            cut_in_ranges(&(struct dtx_placement){DTX_SPLIT, dim, segments}, ndims[s], shapes[s], 0,
                                          size, piece);
            }
}

/* Elements 10 … 18 of a [4,6] array: two of row 1, all of row 2, one of row 3; and the whole range: one box. */
static void range_by_hand(void **state)
{
    (void)state;
    struct dtx_placement place = {DTX_REPLICATED, 0, 0};
    const int64_t whole[2] = {4, 6};
    struct dtx_box box[DTX_MAX_BOXES];
    struct dtx_shard_rows rows;
    assert_int_equal(dtx_shard_range_boxes(&place, 2, whole, 0, 0, 1, 10, 9, &rows, box), 3);
    assert_int_equal(rows.shape[0], 3);
    assert_int_equal(rows.shape[1], 6);
    assert_int_equal(rows.skip, 4);
    const int64_t global[3][2] = {{1, 4}, {2, 0}, {3, 0}}, extent[3][2] = {{1, 2}, {1, 6}, {1, 1}};
    for (int b = 0; b < 3; b++)
        for (int d = 0; d < 2; d++) {
            assert_int_equal(box[b].global[d], global[b][d]);
            assert_int_equal(box[b].extent[d], extent[b][d]);
            assert_int_equal(box[b].local[d], global[b][d] - (d == 0));
        }
    assert_int_equal(dtx_shard_range_boxes(&place, 2, whole, 0, 0, 1, 0, 24, &rows, box), 1);
    assert_int_equal(dtx_shard_range_boxes(&place, 2, whole, 0, 0, 1, 24, 0, &rows, box), 0);
    assert_int_equal(dtx_shard_range_boxes(&place, 2, whole, 0, 0, 1, 13, 3, &rows, box), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_element_once), cmocka_unit_test(fused_by_hand),
                                       cmocka_unit_test(box_counts), cmocka_unit_test(ranges_cover_once),
                                       cmocka_unit_test(range_by_hand)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
