/*
 * cuDNN's numbers (cudnn_graph.h 9) and the calls that cudnn.c offers to who describes graphs (cudnn_attention.c).
 * After a call that failed the others do nothing; the plan holds the code and the reason.
 */
#ifndef DTX_LAUNCH_BENCH_CUDNN_API_H
#define DTX_LAUNCH_BENCH_CUDNN_API_H

#include "launch/bench/cudnn.h"

enum { CUDNN_FLOAT = 0, CUDNN_INT32 = 4, CUDNN_BF16 = 9, CUDNN_BOOLEAN = 11 };
enum {
    CUDNN_ADD = 0,
    CUDNN_MUL = 1,
    CUDNN_DIV = 6,
    CUDNN_SUB = 9,
    CUDNN_EXP = 13,
    CUDNN_LOG = 15,
    CUDNN_IDENTITY = 21
};
enum { CUDNN_NOT_LESS = 303, CUDNN_INDEX = 501, CUDNN_SELECT = 601 };
enum { CUDNN_REDUCE_ADD = 0, CUDNN_REDUCE_MAX = 3 };

/* A tensor of a graph: dims [batch, heads, rows, columns], steps in elements. */
struct cudnn_value {
    void *descriptor;
    int64_t dims[4], steps[4];
};

/* In memory, at `data`; its index in the plan's list is n_names − 1. */
struct cudnn_value dtx_cudnn_memory(struct dtx_cudnn_plan *p, int type, const int64_t dims[4], const int64_t steps[4],
                                    void *data);
/* One float on the host, read when the plan runs. */
struct cudnn_value dtx_cudnn_scalar(struct dtx_cudnn_plan *p, float *value);
/* Between operations only: rows follow each other. */
struct cudnn_value dtx_cudnn_virtual(struct dtx_cudnn_plan *p, int type, int64_t batch, int64_t heads, int64_t rows,
                                     int64_t columns);

void dtx_cudnn_matmul(struct dtx_cudnn_plan *p, struct cudnn_value a, struct cudnn_value b, struct cudnn_value c);
/* y = mode(x), mode(x, b) or, for SELECT, t ? x : b. b, t: NULL where the mode has none. axis: of INDEX. */
void dtx_cudnn_pointwise(struct dtx_cudnn_plan *p, int mode, struct cudnn_value x, const struct cudnn_value *b,
                         const struct cudnn_value *t, struct cudnn_value y, int compute, int64_t axis);
void dtx_cudnn_reduce(struct dtx_cudnn_plan *p, int operation, struct cudnn_value x, struct cudnn_value y);
/* The same elements under other dims and steps, returned as a virtual tensor with rows and columns exchanged. */
struct cudnn_value dtx_cudnn_transpose(struct dtx_cudnn_plan *p, int type, struct cudnn_value x);

/* cudnn_attention.c: the operations of one pass. */
void dtx_cudnn_forward_graph(struct dtx_cudnn_plan *p, const struct dtx_cudnn_attention *a);
void dtx_cudnn_backward_graph(struct dtx_cudnn_plan *p, const struct dtx_cudnn_attention *a);

#endif
