/*
 * cuDNN's attention, causal and in bf16: a peer that ours is measured against, never a part of training. The library is
 * opened at run time and spoken to through its graph API, by declarations of our own: building needs nothing of it.
 *
 * What cuDNN is missing for or refuses is no error of dtx: functions return false and say why in one line. Work goes to
 * one stream; no function is collective.
 */
#ifndef DTX_LAUNCH_BENCH_CUDNN_H
#define DTX_LAUNCH_BENCH_CUDNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The part of libcudnn.so.9 that is used; descriptors are opaque, functions return a cudnnStatus_t, 0 when all is well.
 */
struct dtx_cudnn {
    size_t (*version_number)(void);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, void *stream);
    const char *(*error_text)(int code);
    void (*last_error)(char *message, size_t size);
    int (*descriptor_create)(int type, void **descriptor);
    int (*descriptor_destroy)(void *descriptor);
    int (*finalize)(void *descriptor);
    int (*set)(void *descriptor, int attribute, int type, int64_t count, const void *values);
    int (*get)(void *descriptor, int attribute, int type, int64_t wanted, int64_t *count, void *values);
    int (*execute)(void *handle, void *plan, void *pack);
    void *library, *handle;
    void *device; /* descriptor of a device that is not here, instead of a handle */
    char version[32];
};

/* device: NULL, or the JSON by which cuDNN (9.8) describes a device: then plans are made for it but cannot run. */
bool dtx_cudnn_open(struct dtx_cudnn *out, void *stream, const char *device, char *why, size_t size);
void dtx_cudnn_close(struct dtx_cudnn *cudnn); /* accepts one that is not open */

/* The backward pass has all roles, the forward pass those up to STATS. */
enum dtx_cudnn_role {
    DTX_CUDNN_Q,
    DTX_CUDNN_K,
    DTX_CUDNN_V,
    DTX_CUDNN_O,
    DTX_CUDNN_STATS, /* log-sum-exps, natural */
    DTX_CUDNN_DO,
    DTX_CUDNN_DQ,
    DTX_CUDNN_DK,
    DTX_CUDNN_DV,
    DTX_CUDNN_ROLES
};

/* [batch, heads, length, width] at `data`: bf16, stats f32 of width 1. Steps in elements; columns lie side by side. */
struct dtx_cudnn_tensor {
    void *data;
    int64_t heads, width, batch_step, head_step, position_step;
};

/* Query head i uses key head i / (heads of q / heads of k), and v alike. */
struct dtx_cudnn_attention {
    int64_t batch, length;
    float scale;
    struct dtx_cudnn_tensor tensor[DTX_CUDNN_ROLES];
};

enum { DTX_CUDNN_DESCRIPTORS = 192, DTX_CUDNN_OPERATIONS = 40, DTX_CUDNN_BOUND = 20 };
/* One call. Not to be moved once made. */
struct dtx_cudnn_plan {
    const struct dtx_cudnn *cudnn;
    void *descriptors[DTX_CUDNN_DESCRIPTORS]; /* all of them, in the order made */
    void *operations[DTX_CUDNN_OPERATIONS];
    int n_descriptors, n_operations;
    int64_t names[DTX_CUDNN_BOUND]; /* of tensors in memory, with their addresses */
    void *data[DTX_CUDNN_BOUND];
    int64_t n_names;
    int dq_sum,
        dsum; /* where fp32 sums of the backward pass are in `data`, 0: none; they lie behind cuDNN's workspace */
    size_t dq_sum_bytes, dsum_bytes, library_bytes;
    float scale, one, masked;
    int64_t engine;
    void *plan, *pack;
    int code; /* of the first call that failed; nothing is called after it */
    char why[400];
};

bool dtx_cudnn_plan_make(const struct dtx_cudnn *cudnn, const struct dtx_cudnn_attention *attention, bool backward,
                         struct dtx_cudnn_plan *out);
/* Device memory that bind wants, aligned to 256 bytes. */
size_t dtx_cudnn_work_bytes(const struct dtx_cudnn_plan *plan);
bool dtx_cudnn_plan_bind(struct dtx_cudnn_plan *plan, void *work);
bool dtx_cudnn_plan_run(struct dtx_cudnn_plan *plan);
void dtx_cudnn_plan_free(struct dtx_cudnn_plan *plan); /* accepts a zeroed one */

#endif
