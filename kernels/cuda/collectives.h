/*
 * What communicators between devices need of a backend: NCCL, its streams, and sums in rank order. parallel/comm_nccl.c
 * is made of it. NCCL comes as a table: the library opened at run time (nccl.c), or the stand-in of the emulator
 * (kernels/simt/nccl.cc), on which ranks exchange over MPI. Functions return an ncclResult_t as int, 0 when all is
 * well.
 */
#ifndef DTX_KERNELS_CUDA_COLLECTIVES_H
#define DTX_KERNELS_CUDA_COLLECTIVES_H

#include <limits.h>

#include "kernels/cuda/runtime.h"

enum { NCCL_BYTES = 1 /* ncclUint8 */ };
/* Channels of a communicator at most, each a block of threads and the buffers of its links
 * (parallel/comm_nccl_memory.c); the variable NCCL_MAX_CTAS overrides it. */
enum { NCCL_CHANNELS = 16 };

struct nccl_id {
    char bytes[128];
};

enum { NCCL_MAGIC = (int)0xcafebeef, NCCL_UNSET = INT_MIN, NCCL_CONFIG_VERSION = 21800 };
struct nccl_config { /* ncclConfig_t of NCCL 2.18; newer ones have more behind */
    size_t size;
    unsigned magic, version;
    int blocking, cluster_size, least_channels, most_channels;
    const char *net_name;
    int split_share;
};

struct dtx_nccl {
    int (*version)(int *out);
    const char *(*error_text)(int code);
    int (*unique_id)(struct nccl_id *out);
    int (*init)(void **comm, int size, struct nccl_id id, int rank, struct nccl_config *config);
    int (*destroy)(void *comm);
    int (*abort)(void *comm);                 /* ends what is under way; by any thread */
    int (*async_error)(void *comm, int *out); /* 0, or why what is under way will not end; by any thread */
    int (*group_start)(void);
    int (*group_end)(void);
    int (*all_gather)(const void *from, void *to, size_t count, int type, void *comm, void *stream);
    int (*broadcast)(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream);
    int (*send)(const void *from, size_t count, int type, int peer, void *comm, void *stream);
    int (*receive)(void *to, size_t count, int type, int peer, void *comm, void *stream);
};

struct dtx_collectives {
    bool (*load)(struct dtx_nccl *out, char *why, size_t size);
    const struct dtx_cuda_runtime *(*runtime)(struct dtx_backend *);
    void *(*stream)(struct dtx_queue *);
    /* A queue whose work the device takes before that of others; free it like any other. */
    enum dtx_status (*urgent_queue)(struct dtx_backend *, struct dtx_queue **out);
    int (*attach)(struct dtx_backend *); /* another thread of this rank may call the runtime's any-thread functions */
    /* to[i] = rows of `count` elements at from, folded in their order: sum, or maximum (a NaN stays). f64, f32, i64. */
    enum dtx_status (*fold)(struct dtx_queue *, bool maximum, enum dtx_dtype, int rows, int64_t count, const void *from,
                            void *to);
};

#ifdef __cplusplus
extern "C" {
#endif

bool DTX_DEVICE(nccl_load)(struct dtx_nccl *out, char *why, size_t size);
enum dtx_status DTX_DEVICE(urgent_queue)(struct dtx_backend *backend, struct dtx_queue **out);
int DTX_DEVICE(attach)(struct dtx_backend *backend);
const struct dtx_cuda_runtime *DTX_DEVICE(runtime_of)(struct dtx_backend *backend);
enum dtx_status DTX_DEVICE(fold)(struct dtx_queue *queue, bool maximum, enum dtx_dtype dtype, int rows, int64_t count,
                                 const void *from, void *to);
extern const struct dtx_collectives DTX_DEVICE(collectives);

/* NULL for the CPU. */
const struct dtx_collectives *dtx_backend_collectives(const struct dtx_backend *backend);

#ifdef __cplusplus
}
#endif

#endif
