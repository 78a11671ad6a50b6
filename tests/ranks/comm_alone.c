/* test: label=ranks ranks=1 timeout=60 */
/* Started without mpirun: a world of one rank without MPI, unless the scheduler says that there should be more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <mpi.h>

#include "parallel/comm.h"

static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK",           "PMI_RANK", "PMI_SIZE",
                                        "SLURM_NTASKS",         "SLURM_STEP_NUM_TASKS"};

static void clear_variables(void)
{
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        unsetenv(variables[i]);
}

static void self_world(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_comm *world = NULL, *part = NULL;
    dtx_ctx_init(&ctx);
    clear_variables();
    setenv("SLURM_NTASKS", "1", 1);
    assert_int_equal(dtx_comm_open_world(&ctx, &world), DTX_OK);
    int started = 1;
    MPI_Initialized(&started);
    assert_false(started);
    assert_int_equal(world->size, 1);
    assert_int_equal(world->rank, 0);

    double x[3] = {1, 2, 3}, y[3] = {0};
    struct dtx_tensor t = dtx_tensor_1d(x, DTX_F64, 3), u = dtx_tensor_1d(y, DTX_F64, 3);
    assert_int_equal(dtx_comm_all_reduce_sum(world, NULL, &t), DTX_OK);
    assert_int_equal(dtx_comm_all_reduce_max(world, NULL, &t), DTX_OK);
    assert_int_equal(dtx_comm_broadcast(world, NULL, &t, 0), DTX_OK);
    assert_int_equal(dtx_comm_all_gather(world, NULL, &t, &u), DTX_OK);
    assert_memory_equal(x, y, sizeof x);
    assert_int_equal(dtx_comm_barrier(world), DTX_OK);
    assert_int_equal(dtx_comm_agree(world, DTX_E_IO), DTX_E_IO);
    struct dtx_request request;
    assert_int_equal(dtx_comm_send_start(world, NULL, &t, 0, &request), DTX_E_UNSUPPORTED);
    dtx_error_clear(&ctx);
    assert_int_equal(world->sent_bytes, 0);

    assert_int_equal(dtx_comm_split(world, 0, 0, "tp", &part), DTX_OK);
    assert_string_equal(part->name, "tp");
    dtx_comm_free(part);
    assert_int_equal(dtx_comm_split(world, -1, 0, "tp", &part), DTX_OK);
    assert_null(part);
    dtx_fail(&ctx, DTX_E_CONFIG, "this report is part of the test");
    assert_int_equal(dtx_comm_finish(world, DTX_E_CONFIG, 1), DTX_E_CONFIG);
    assert_int_equal(ctx.error.status, DTX_OK);
    dtx_comm_free(NULL);
    dtx_comm_close_world(NULL);
}

static void refused(const char *variable)
{
    struct dtx_ctx ctx;
    struct dtx_comm *world = NULL;
    dtx_ctx_init(&ctx);
    clear_variables();
    setenv(variable, "4", 1);
    if (dtx_comm_open_world(&ctx, &world) != DTX_E_CONFIG)
        fail_msg("%s=4 is taken for a world of one", variable);
    assert_null(world);
    assert_non_null(strstr(ctx.error.text, variable));
    assert_non_null(strstr(ctx.error.text, "4 tasks"));
    assert_non_null(strstr(ctx.error.text, "srun --mpi=pmix"));
    clear_variables();
}

static void singletons(void **state)
{
    (void)state;
    refused("SLURM_NTASKS");
    refused("SLURM_STEP_NUM_TASKS");
}

/* A foreign launcher: MPI starts as a singleton and is ended again. The last test, since MPI starts once only. */
static void foreign_launcher(void **state)
{
    (void)state;
    refused("OMPI_COMM_WORLD_SIZE");
    int ended = 0;
    MPI_Finalized(&ended);
    assert_true(ended);
}

static void bad_options(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_comm *world = NULL;
    struct dtx_comm_options options = dtx_comm_options_default();
    dtx_ctx_init(&ctx);
    options.piece_bytes = (int64_t)1 << 31;
    assert_int_equal(dtx_comm_open_world_with(&ctx, &options, &world), DTX_E_RANGE);
    dtx_error_clear(&ctx);
    options.piece_bytes = 0;
    assert_int_equal(dtx_comm_open_world_with(&ctx, &options, &world), DTX_E_RANGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(self_world), cmocka_unit_test(singletons),
                                       cmocka_unit_test(bad_options), cmocka_unit_test(foreign_launcher)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
