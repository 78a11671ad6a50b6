#include "parallel/shard.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/* One dimension under a SPLIT: all in elements of that dimension. */
struct cut {
    int64_t segments;
    int64_t segment; /* true elements of one segment */
    int64_t piece;   /* one rank's piece of one padded segment */
};

static struct cut cut_of(const struct dtx_placement *place, const int64_t *whole, int64_t padded, int size)
{
    int64_t segments = place->segments > 1 ? place->segments : 1;
    int64_t segment = whole[place->dim] / segments;
    int64_t padded_segment = padded ? padded / segments : dtx_round_up(segment, size);
    return (struct cut){segments, segment, padded_segment / size};
}

void dtx_shard_shape(const struct dtx_placement *place, int ndim, const int64_t *whole, int64_t padded, int size,
                     int64_t *local)
{
    for (int i = 0; i < ndim; i++)
        local[i] = whole[i];
    if (place->kind == DTX_SPLIT) {
        struct cut cut = cut_of(place, whole, padded, size);
        local[place->dim] = cut.segments * cut.piece;
    }
}

int dtx_shard_boxes(const struct dtx_placement *place, int ndim, const int64_t *whole, int64_t padded, int rank,
                    int size, struct dtx_box out[DTX_MAX_BOXES])
{
    struct dtx_box all = {{0}, {0}, {0}};
    for (int i = 0; i < ndim; i++)
        all.extent[i] = whole[i];
    if (place->kind != DTX_SPLIT) {
        out[0] = all;
        return 1;
    }
    struct cut cut = cut_of(place, whole, padded, size);
    int d = place->dim, n = 0;
    int64_t first = rank * cut.piece; /* in the segment */
    int64_t extent = dtx_min64(cut.piece, cut.segment - first);
    if (DTX_MUTANT(padding_in_box))
        extent = cut.piece;
    if (DTX_MUTANT(box_offset) && rank > 0)
        first--;
    for (int64_t s = 0; s < cut.segments && extent > 0; s++) {
        struct dtx_box box = all;
        box.global[d] = s * cut.segment + first;
        box.local[d] = s * cut.piece;
        box.extent[d] = extent;
        struct dtx_box *last = n ? &out[n - 1] : NULL;
        if (last && last->global[d] + last->extent[d] == box.global[d] &&
            last->local[d] + last->extent[d] == box.local[d])
            last->extent[d] += extent;
        else
            out[n++] = box;
    }
    return n;
}

/* Rows [row, row + n) and columns [from, to) of a local array. */
struct rectangle {
    int64_t row, n, from, to;
};

/* Elements [first, end) of an array of `columns` columns; returns the number of rectangles. */
static int rectangles_of(int64_t first, int64_t end, int64_t columns, struct rectangle out[3])
{
    int64_t row = first / columns, last = end / columns; /* last: the row in which the range ends, maybe before it */
    int64_t from = first % columns, to = end % columns;
    int n = 0;
    if (first >= end)
        return 0;
    if (row == last) {
        out[n++] = (struct rectangle){row, 1, from, to};
        return n;
    }
    if (from > 0)
        out[n++] = (struct rectangle){row++, 1, from, columns};
    if (last > row)
        out[n++] = (struct rectangle){row, last - row, 0, columns};
    if (to > 0)
        out[n++] = (struct rectangle){last, 1, DTX_MUTANT(range_last_row_column) ? from : 0, to};
    return n;
}

/* The part of `box` in a rectangle; false when there is none. Local offsets become those behind row `first_row`. */
static bool intersect(const struct dtx_box *box, const struct rectangle *r, int64_t first_row, struct dtx_box *out)
{
    const int64_t from[2] = {r->row, r->from}, to[2] = {r->row + r->n, r->to};
    *out = *box;
    for (int d = 0; d < 2; d++) {
        int64_t begin = dtx_max64(from[d], box->local[d]), end = dtx_min64(to[d], box->local[d] + box->extent[d]);
        if (end <= begin)
            return false;
        out->global[d] += begin - box->local[d];
        out->local[d] = begin;
        out->extent[d] = end - begin;
    }
    out->local[0] -= first_row;
    return true;
}

/* A box of one dimension as one of one row, and back. */
static void turn(struct dtx_box *box)
{
    int64_t *const all[] = {box->global, box->local, box->extent};
    for (int i = 0; i < 3; i++) {
        int64_t kept = all[i][0];
        all[i][0] = all[i][1];
        all[i][1] = kept;
    }
}

int dtx_shard_range_boxes(const struct dtx_placement *place, int ndim, const int64_t *whole, int64_t padded, int rank,
                          int size, int64_t first, int64_t count, struct dtx_shard_rows *rows,
                          struct dtx_box out[DTX_MAX_BOXES])
{
    int64_t local[DTX_MAX_DIMS];
    struct dtx_box boxes[DTX_MAX_BOXES];
    struct rectangle rectangles[3];
    dtx_shard_shape(place, ndim, whole, padded, size, local);
    int64_t columns = local[ndim - 1], first_row = columns ? first / columns : 0;
    int n_boxes = dtx_shard_boxes(place, ndim, whole, padded, rank, size, boxes);
    int n_rectangles = columns ? rectangles_of(first, first + count, columns, rectangles) : 0, n = 0;
    *rows = (struct dtx_shard_rows){.skip = columns ? first % columns : 0};
    rows->shape[0] = dtx_div_up(rows->skip + count, dtx_max64(columns, 1));
    rows->shape[ndim - 1] = ndim == 1 ? local[0] : columns;
    for (int b = 0; b < n_boxes; b++) {
        if (ndim == 1) {
            boxes[b].extent[1] = 1;
            turn(&boxes[b]);
        }
        for (int r = 0; r < n_rectangles; r++)
            if (intersect(&boxes[b], &rectangles[r], first_row, &out[n])) {
                if (ndim == 1)
                    turn(&out[n]);
                n++;
            }
    }
    return n;
}

/* Calls memcpy for each contiguous run; `dense` and `local` say which side is written. */
static void copy_box(const struct dtx_box *box, int ndim, const int64_t *local_shape, size_t element_bytes, char *local,
                     char *dense, bool to_local)
{
    int64_t shape[DTX_MAX_DIMS] = {1, 1, 1, 1}, start[DTX_MAX_DIMS] = {0}, extent[DTX_MAX_DIMS] = {1, 1, 1, 1};
    int shift = DTX_MAX_DIMS - ndim; /* leading dimensions of one element: always four loops */
    for (int i = 0; i < ndim; i++) {
        shape[shift + i] = local_shape[i];
        start[shift + i] = box->local[i];
        extent[shift + i] = box->extent[i];
    }
    size_t run = (size_t)extent[3] * element_bytes;
    for (int64_t a = 0; a < extent[0]; a++)
        for (int64_t b = 0; b < extent[1]; b++)
            for (int64_t c = 0; c < extent[2]; c++) {
                int64_t at = start[0] + a;
                at = at * shape[1] + start[1] + b;
                at = at * shape[2] + start[2] + c;
                at = at * shape[3] + start[3];
                char *place = local + (size_t)at * element_bytes;
                memcpy(to_local ? place : dense, to_local ? dense : place, run);
                dense += run;
            }
}

void dtx_box_gather(const struct dtx_box *box, int ndim, const int64_t *local_shape, size_t element_bytes,
                    const void *local, void *dense)
{
    copy_box(box, ndim, local_shape, element_bytes, (char *)local, dense, false);
}

void dtx_box_scatter(const struct dtx_box *box, int ndim, const int64_t *local_shape, size_t element_bytes,
                     const void *dense, void *local)
{
    copy_box(box, ndim, local_shape, element_bytes, local, (char *)dense, true);
}
