/* Programs of several ranks, and checks in them: the first that fails says where and ends all ranks. */
#ifndef DTX_TESTS_HARNESS_RANK_CHECK_H
#define DTX_TESTS_HARNESS_RANK_CHECK_H

#include <stdio.h>

#include "parallel/comm.h"

#define CHECK_THAT(world, condition, ...)                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: rank %d: %s: ", __FILE__, __LINE__, (world)->rank, #condition);                    \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, "\n");                                                                                     \
            dtx_comm_abort(world, 1);                                                                                  \
        }                                                                                                              \
    } while (0)
#define CHECK(world, condition) CHECK_THAT(world, condition, "%s", (world)->ctx->error.text)
/* A call that must succeed. */
#define CHECK_OK(world, call) CHECK(world, (call) == DTX_OK)

/* The world, or NULL, and why is printed. */
static inline struct dtx_comm *rank_world(struct dtx_ctx *ctx)
{
    struct dtx_comm *world = NULL;
    dtx_ctx_init(ctx);
    if (dtx_comm_open_world(ctx, &world) != DTX_OK)
        dtx_error_print(ctx);
    return world;
}

/* Their main: opens the world, gives it to the test, which returns how much failed, and closes it. Its exit code. */
static inline int rank_main(int (*test)(struct dtx_comm *world))
{
    struct dtx_ctx ctx;
    struct dtx_comm *world = rank_world(&ctx);
    if (!world)
        return 1;
    int failures = test(world);
    dtx_comm_close_world(world);
    return failures ? 1 : 0;
}

#endif
