/*
 * Backends: a place where tensors live and operations run. A backend fills every slot of three tables: memory, queue,
 * operations. Tensor memory is touched from the host only through the copy functions below.
 *
 * A backend and its queues belong to one thread; the functions are not collective.
 */
#ifndef DTX_KERNELS_BACKEND_H
#define DTX_KERNELS_BACKEND_H

#include "kernels/base/arena.h"
#include "kernels/ops.h"

struct dtx_backend;
struct dtx_queue;

/* The operations of one backend, made from ops.def. */
struct dtx_op_table {
#define DTX_OP(name) enum dtx_status (*name)(struct dtx_queue *, const struct dtx_##name##_args *);
#define DTX_OP_WORK(name)                                                                                              \
    DTX_OP(name)                                                                                                       \
    size_t (*name##_work_bytes)(struct dtx_queue *, const struct dtx_##name##_args *);
#include "kernels/ops.def"
#undef DTX_OP
#undef DTX_OP_WORK
};

struct dtx_memory_table {
    /* Takes so much of the device at once, from which alloc then cuts; what does not fit gets memory of its own. While
     * something is cut from it, and where as much is reserved already, nothing happens; nor where memory is the host's.
     */
    enum dtx_status (*reserve)(struct dtx_backend *, size_t bytes);
    enum dtx_status (*alloc)(struct dtx_backend *, size_t bytes, void **out); /* zeroed, 64-byte aligned */
    void (*free)(struct dtx_backend *, void *);
    /* In queue order; host memory may be reused when the call returns. */
    enum dtx_status (*copy_in)(struct dtx_queue *, void *to, const void *from_host, size_t bytes);
    enum dtx_status (*copy_out)(struct dtx_queue *, void *to_host, const void *from, size_t bytes); /* waits */
    enum dtx_status (*copy)(struct dtx_queue *, void *to, const void *from, size_t bytes);
    enum dtx_status (*zero)(struct dtx_queue *, void *to, size_t bytes);
    /* Host memory that the device copies from and to by itself, zeroed. What is copied in from it must stay until the
     * queue has come to it. */
    enum dtx_status (*host_alloc)(struct dtx_backend *, size_t bytes, void **out);
    void (*host_free)(struct dtx_backend *, void *);
    /* What the device has left for everybody, and in all; 0 and 0 where memory is the host's. */
    enum dtx_status (*left)(struct dtx_backend *, size_t *free, size_t *total);
};

struct dtx_queue_table {
    enum dtx_status (*create)(struct dtx_backend *, struct dtx_queue **out);
    void (*free)(struct dtx_queue *);
    enum dtx_status (*wait)(struct dtx_queue *); /* until all submitted work is done */
    /* Recorded launches, where the backend records; else DTX_E_UNSUPPORTED (the CPU). Between begin and end what the
     * queue gets is kept and not done: operations and copies with the addresses that they name. Meanwhile nothing is
     * waited for, copied out, allocated or freed. graph NULL: thrown away without a word, after a failure. A graph is
     * freed when the queue has done it and before the memory that it uses. */
    bool records;
    enum dtx_status (*begin_capture)(struct dtx_queue *);
    enum dtx_status (*end_capture)(struct dtx_queue *, void **graph);
    enum dtx_status (*launch)(struct dtx_queue *, void *graph);
    void (*graph_free)(struct dtx_queue *, void *graph); /* accepts NULL */
    /* A device's own clock, one for a backend: moments 0 and 1 are work of the queue; between waits for the second.
     * DTX_E_UNSUPPORTED on the CPU. */
    enum dtx_status (*moment)(struct dtx_queue *, int which);
    enum dtx_status (*between)(struct dtx_queue *, double *seconds);
};

struct dtx_backend {
    const char *name;
    struct dtx_ctx *ctx;
    const struct dtx_memory_table *memory;
    const struct dtx_queue_table *queues;
    const struct dtx_op_table *ops;
    int threads;                        /* CPU threads that operations may use */
    int isa;                            /* enum dtx_isa in use */
    size_t allocated_bytes, peak_bytes; /* an allocation counts as its dtx_piece_bytes */
    size_t outside_bytes;               /* of them in all: what did not fit into what was reserved */
    void *impl;
};

struct dtx_queue {
    struct dtx_backend *backend;
    void *impl;
};

/* Instruction sets in ascending order; all ranks of a run agree on the lowest. */
enum dtx_isa { DTX_ISA_PLAIN, DTX_ISA_AVX2, DTX_ISA_AVX512, DTX_ISA_AVX512_BF16 };
const char *dtx_isa_name(int isa);
bool dtx_isa_parse(const char *name, int *out);
/* The best set of this processor. */
int dtx_isa_detect(void);

/* Holds libraries that choose instructions by themselves (oneDNN) to `isa`, so that ranks on different processors
 * compute alike. Once a process, before its first backend; a library that has begun already keeps what it has, with a
 * warning. */
void dtx_isa_limit_libraries(struct dtx_ctx *ctx, int isa);

/* name: "cpu", "cuda", in test builds "emu" (the operations of cuda in the emulator), or "auto": cuda where it works,
 * else cpu, with a line that says why. threads ≥ 1; isa at most dtx_isa_detect(). */
enum dtx_status dtx_backend_open(struct dtx_ctx *ctx, const char *name, int threads, int isa, struct dtx_backend **out);
void dtx_backend_close(struct dtx_backend *backend);
/* Whether a GPU can be used; which one, or why not, in words. */
bool dtx_backend_device(char *text, size_t size);
int dtx_backend_device_count(void); /* GPUs that this process sees; 0 without a driver */

struct dtx_ranges;
/* NVTX, where a profiler is attached to this process and the build has it; else NULL. */
const struct dtx_ranges *dtx_backend_ranges(void);

/* For a backend's operations: fails unless `work` has `bytes`. */
enum dtx_status dtx_need_work(struct dtx_queue *queue, const char *op, const struct dtx_tensor *work, size_t bytes);

/* Shorthands over the tables. */
enum dtx_status dtx_tensor_alloc(struct dtx_backend *backend, struct dtx_tensor *t); /* by t's shape and dtype */
void dtx_tensor_free(struct dtx_backend *backend, struct dtx_tensor *t);             /* accepts absent; sets absent */
size_t dtx_tensor_alloc_bytes(const struct dtx_tensor *t);                           /* what it will count as */
enum dtx_status dtx_tensor_set(struct dtx_queue *queue, const struct dtx_tensor *t, const void *host);
enum dtx_status dtx_tensor_get(struct dtx_queue *queue, const struct dtx_tensor *t, void *host);
enum dtx_status dtx_tensor_zero(struct dtx_queue *queue, const struct dtx_tensor *t);

#endif
