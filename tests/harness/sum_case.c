#include "tests/harness/sum_case.h"

#include <math.h>

#include "kernels/base/hash.h"

double sum_exact(int rank, int64_t i)
{
    return (double)((i * 7 + rank * 31) % 1001 - 500);
}

double sum_rough(int rank, int64_t i)
{
    uint64_t key[2] = {(uint64_t)rank, (uint64_t)i}, h = dtx_hash(key, sizeof key, 5);
    return ldexp((double)(int64_t)h / 4611686018427387904.0, (int)(h % 29) - 14);
}

void sum_put(enum dtx_dtype dtype, void *data, int64_t i, double value)
{
    if (dtype == DTX_F32)
        ((float *)data)[i] = (float)value;
    else if (dtype == DTX_F64)
        ((double *)data)[i] = value;
    else
        ((int64_t *)data)[i] = (int64_t)value;
}

void sum_add(enum dtx_dtype dtype, void *data, int64_t i, double value)
{
    if (dtype == DTX_F32)
        ((float *)data)[i] += (float)value;
    else if (dtype == DTX_F64)
        ((double *)data)[i] += value;
    else
        ((int64_t *)data)[i] += (int64_t)value;
}

static void with_options(struct dtx_comm *world, const struct dtx_comm_options *options,
                         void (*check)(struct dtx_comm *, const struct dtx_comm_options *))
{
    dtx_comm_mpi_set_options(world, options);
    for (int size = 1; size <= world->size; size++) {
        struct dtx_comm *part = NULL;
        CHECK_OK(world, dtx_comm_split(world, world->rank < size ? 0 : -1, world->rank, "part", &part));
        CHECK(world, (part != NULL) == (world->rank < size));
        if (part) {
            CHECK(world, part->size == size && part->rank == world->rank);
            check(part, options);
            dtx_comm_free(part);
        }
    }
    struct dtx_comm *self;
    CHECK_OK(world, dtx_comm_self(world->ctx, &self));
    check(self, options);
    dtx_comm_free(self);
}

int sum_main(const struct dtx_comm_options *rows, int n_rows,
             void (*check)(struct dtx_comm *, const struct dtx_comm_options *), void (*refusals)(struct dtx_comm *))
{
    struct dtx_ctx ctx;
    struct dtx_comm *world = rank_world(&ctx);
    if (!world)
        return 1;
    CHECK(world, world->size == 4 && ctx.size == 4 && ctx.rank == world->rank);
    for (int i = 0; i < n_rows; i++)
        with_options(world, &rows[i], check);
    refusals(world);
    dtx_comm_close_world(world);
    return 0;
}
