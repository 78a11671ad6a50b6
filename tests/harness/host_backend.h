/* A backend of host memory without operations, for tests that only move tensors. */
#ifndef DTX_TESTS_HARNESS_HOST_BACKEND_H
#define DTX_TESTS_HARNESS_HOST_BACKEND_H

#include "kernels/backend.h"

struct host_backend {
    struct dtx_backend backend;
    struct dtx_queue queue;
    int waits; /* how often the queue was waited for */
};

void host_backend_init(struct host_backend *host, struct dtx_ctx *ctx);

#endif
