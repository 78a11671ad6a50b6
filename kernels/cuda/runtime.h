/*
 * The part of the CUDA runtime that dtx calls, as a table: the runtime itself (runtime.c, linked statically), or the
 * stand-in on which tests run the backend without a GPU (kernels/simt/runtime.cc). Functions return a cudaError_t as
 * int, 0 when all is well. Streams, events and graphs are the runtime's own handles.
 */
#ifndef DTX_KERNELS_CUDA_RUNTIME_H
#define DTX_KERNELS_CUDA_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/device/names.h"

struct dtx_cuda_device {
    char name[128];
    int major, minor; /* compute capability */
    int processors;
    size_t memory_bytes;
};

struct dtx_cuda_runtime {
    const char *(*error_text)(int code);
    int (*device_count)(int *out);
    int (*device_describe)(int device, struct dtx_cuda_device *out);
    int (*device_choose)(int device); /* for the calling thread */
    int (*alloc)(void **out, size_t bytes);
    int (*free)(void *); /* waits for all work */
    /* In stream order. Ordinary host memory that is copied from may be reused at once. */
    int (*copy)(void *to, const void *from, size_t bytes, void *stream);
    int (*zero)(void *to, size_t bytes, void *stream);
    int (*memory_left)(size_t *free, size_t *total); /* of the chosen device, whoever uses it */
    int (*host_alloc)(void **out, size_t bytes); /* pinned: copies from it are read when they run, not at the call */
    int (*host_free)(void *);
    int (*stream_create)(void **out, bool urgent); /* urgent: the device takes its work first */
    int (*stream_free)(void *stream);
    int (*stream_wait)(void *stream); /* the host waits */
    int (*event_create)(void **out, bool timed);
    int (*event_free)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_await)(void *stream, void *event);           /* the stream waits */
    int (*event_happened)(void *event, bool *out);           /* what was recorded last; by any thread */
    int (*event_seconds)(void *from, void *to, double *out); /* between timed ones that have happened */
    /* What the stream is given is recorded, not run, until the end, and of streams that wait for its events; the
     * thread may neither allocate nor free memory then. */
    int (*capture_begin)(void *stream);
    int (*capture_end)(void *stream,
                       void **graph); /* NULL and a code where recording failed: it has ended all the same */
    int (*graph_launch)(void *graph, void *stream);
    int (*graph_free)(void *graph); /* not under way any more */
    /* One allocation of which pieces are used. `offset` is where a piece begins, by kernels/base/arena.h; the emulator
     * moves the pieces apart, so that it sees what is read or written beside one. */
    int (*arena_alloc)(void **arena, size_t bytes);
    int (*arena_free)(void *arena);
    void *(*piece_cut)(void *arena, size_t offset, size_t bytes);
    void (*piece_join)(void *arena, void *piece); /* when all work that uses it is done */
    int (*wait)(void);                            /* the host, for all work */
};

#ifdef __cplusplus
extern "C" {
#endif

/* The table. The backend's own reasons why no device can be used here go to `why`, and the result is NULL. */
const struct dtx_cuda_runtime *DTX_DEVICE(runtime)(char *why, size_t size);

#ifdef __cplusplus
}
#endif

#endif
