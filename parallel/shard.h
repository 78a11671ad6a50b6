/*
 * The one place that knows how an array is cut. A placement says how a whole array lies over the ranks of one axis;
 * dtx_shard_boxes turns it into boxes: pieces of the whole array and where they lie in the local one.
 *
 * SPLIT cuts dimension `dim`, after padding it to `padded` elements. With `segments` > 1 the dimension is made of that
 * many equal parts, each cut by itself (fused weights): locally the parts' pieces follow one another. Padding lies at
 * the end of each segment and is in no box: the last ranks may hold nothing else.
 *
 * segments (0 counts as 1, at most DTX_MAX_SEGMENTS) must divide the dimension, segments · size must divide `padded`,
 * and padded must not be less than the dimension; the caller has checked this. Nothing here communicates.
 */
#ifndef DTX_PARALLEL_SHARD_H
#define DTX_PARALLEL_SHARD_H

#include "kernels/base/status.h"
#include "kernels/base/tensor.h"

enum dtx_placement_kind { DTX_REPLICATED, DTX_SPLIT, DTX_PARTIAL };

struct dtx_placement {
    enum dtx_placement_kind kind;
    int dim, segments; /* SPLIT */
};

struct dtx_box {
    int64_t global[DTX_MAX_DIMS]; /* offset in the whole array */
    int64_t local[DTX_MAX_DIMS];  /* offset in the local array */
    int64_t extent[DTX_MAX_DIMS];
};
enum { DTX_MAX_SEGMENTS = 8, DTX_MAX_BOXES = 3 * DTX_MAX_SEGMENTS };

/* Local shape of a whole array [dim…] for one of `size` ranks; `padded` is dim[place.dim] rounded up to what `size` and
 * the segments need when 0. REPLICATED and PARTIAL: the whole shape. */
void dtx_shard_shape(const struct dtx_placement *place, int ndim, const int64_t *whole, int64_t padded, int size,
                     int64_t *local);
/* The boxes of rank `rank` of `size`; returns their number (0 when a rank holds only padding). */
int dtx_shard_boxes(const struct dtx_placement *place, int ndim, const int64_t *whole, int64_t padded, int rank,
                    int size, struct dtx_box out[DTX_MAX_BOXES]);
/* A range of the local array's elements in index order is at most three rectangles: part of a row, whole rows, part of
 * a row. The boxes of a range have local offsets within the rows it touches, which are an array of their own. */
struct dtx_shard_rows {
    int64_t shape[DTX_MAX_DIMS]; /* of the rows touched */
    int64_t skip;                /* elements of them before the range */
};
/* The boxes of elements [first, first + count) of rank `rank`'s local array, which has one dimension or two; returns
 * their number, at most three for each of dtx_shard_boxes. The whole range gives what dtx_shard_boxes gives. */
int dtx_shard_range_boxes(const struct dtx_placement *place, int ndim, const int64_t *whole, int64_t padded, int rank,
                          int size, int64_t first, int64_t count, struct dtx_shard_rows *rows,
                          struct dtx_box out[DTX_MAX_BOXES]);
/* Copies one box between a dense buffer of the box's extent and the local array (host memory). */
void dtx_box_gather(const struct dtx_box *box, int ndim, const int64_t *local_shape, size_t element_bytes,
                    const void *local, void *dense);
void dtx_box_scatter(const struct dtx_box *box, int ndim, const int64_t *local_shape, size_t element_bytes,
                     const void *dense, void *local);

#endif
