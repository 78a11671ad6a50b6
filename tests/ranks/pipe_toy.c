/* test: label=ranks ranks=4 timeout=60 */
/*
 * The pipe on 1, 2 and 4 stages with a stage that only counts: every boundary value of every micro-batch is checked, on
 * both directions, with sends that wait for their receives, boundaries too large for MPI's own buffers, and stages that
 * take turns being slow, so that a buffer used too early or read too early shows.
 */
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "parallel/pipe.h"
#include "parallel/comm_impl.h"
#include "tests/harness/host_backend.h"
#include "tests/harness/rank_check.h"

enum { ROWS = 3, COLUMNS = 2731, N = 2 * ROWS * COLUMNS, MOST = 16 };

struct toy {
    struct dtx_mesh mesh;
    const struct dtx_schedule *schedule;
    int micro_batches, slots, pass;
    bool forward_only;
    int slot_of[MOST]; /* of a micro-batch alive, −1 */
    struct dtx_step done[2 * MOST];
    int n_done;
};

/* The activation after `stage` stages, the gradient before stage `stage`: different for all arguments. */
static float activation(const struct toy *toy, int stage, int m, int64_t i)
{
    return (float)(stage * 1000000 + toy->pass * 200000 + m * 10000 + toy->mesh.rank[DTX_AXIS_DP] * 5000 + i % 4999);
}

static float gradient(const struct toy *toy, int stage, int m, int64_t i)
{
    return -activation(toy, stage, m, i) - 0.5f;
}

static void check_boundary(const struct toy *toy, const struct dtx_tensor *t, bool present)
{
    CHECK(toy->mesh.world, (t->data != NULL) == present);
    CHECK(toy->mesh.world, t->ndim == 3 && dtx_tensor_count(t) == N && t->dtype == DTX_F32);
}

/* Which stage is slow changes, so that both ends of a channel wait at times. */
static void dawdle(const struct toy *toy, int m)
{
    if ((toy->mesh.rank[DTX_AXIS_PP] + m + toy->pass) % 3 == 0)
        dtx_clock_sleep(1e-3);
}

static enum dtx_status toy_forward(void *self, int m, int slot, const struct dtx_tensor *in,
                                   const struct dtx_tensor *out)
{
    struct toy *toy = self;
    struct dtx_comm *world = toy->mesh.world;
    int stage = toy->mesh.rank[DTX_AXIS_PP];
    check_boundary(toy, in, !dtx_mesh_first_stage(&toy->mesh));
    check_boundary(toy, out, !dtx_mesh_last_stage(&toy->mesh));
    CHECK(world, slot >= 0 && slot < toy->slots);
    for (int i = 0; in->data && i < N; i++)
        CHECK_THAT(world, ((float *)in->data)[i] == activation(toy, stage, m, i),
                   "stage %d: activation %d of micro-batch %d is %g", stage, i, m, ((float *)in->data)[i]);
    dawdle(toy, m);
    for (int i = 0; out->data && i < N; i++)
        ((float *)out->data)[i] = activation(toy, stage + 1, m, i);
    /* Nothing changes the input while the stage works. */
    CHECK(world, !in->data || ((float *)in->data)[N - 1] == activation(toy, stage, m, N - 1));
    if (toy->forward_only)
        return DTX_OK;
    for (int other = 0; other < toy->micro_batches; other++)
        CHECK(world, toy->slot_of[other] != slot);
    toy->slot_of[m] = slot;
    toy->done[toy->n_done++] = (struct dtx_step){DTX_STEP_FORWARD, m, 0, slot};
    return DTX_OK;
}

static enum dtx_status toy_backward(void *self, int m, int slot, const struct dtx_tensor *dout,
                                    const struct dtx_tensor *din)
{
    struct toy *toy = self;
    struct dtx_comm *world = toy->mesh.world;
    int stage = toy->mesh.rank[DTX_AXIS_PP];
    check_boundary(toy, dout, !dtx_mesh_last_stage(&toy->mesh));
    check_boundary(toy, din, !dtx_mesh_first_stage(&toy->mesh));
    CHECK(world, toy->slot_of[m] == slot);
    for (int i = 0; dout->data && i < N; i++)
        CHECK_THAT(world, ((float *)dout->data)[i] == gradient(toy, stage + 1, m, i),
                   "stage %d: gradient %d of micro-batch %d is %g", stage, i, m, ((float *)dout->data)[i]);
    dawdle(toy, m + 1);
    for (int i = 0; din->data && i < N; i++)
        ((float *)din->data)[i] = gradient(toy, stage, m, i);
    toy->slot_of[m] = -1;
    toy->done[toy->n_done++] = (struct dtx_step){DTX_STEP_BACKWARD, m, 0, slot};
    return DTX_OK;
}

/* The stage was called for exactly the steps of its list. */
static void check_steps(const struct toy *toy)
{
    struct dtx_step want[2 * MOST];
    const struct dtx_mesh *mesh = &toy->mesh;
    int n = toy->schedule->steps(mesh->rank[DTX_AXIS_PP], mesh->size[DTX_AXIS_PP], toy->micro_batches, 1, want);
    CHECK(mesh->world, n == toy->n_done && memcmp(want, toy->done, (size_t)n * sizeof *want) == 0);
}

static void run(struct toy *toy, struct host_backend *host)
{
    struct dtx_comm *world = toy->mesh.world;
    struct dtx_pipe *pipe;
    struct dtx_tensor boundary = dtx_tensor_3d(NULL, DTX_F32, 2, ROWS, COLUMNS);
    CHECK_OK(world, dtx_pipe_create(world->ctx, &toy->mesh, &host->queue, toy->schedule, toy->micro_batches, &boundary,
                                    &pipe));
    toy->slots = dtx_pipe_slots(pipe);
    CHECK(world, toy->slots >= 1 && toy->slots <= toy->micro_batches);
    struct dtx_pipe_stage stage = {toy, toy_forward, toy_backward};
    struct dtx_comm *sends[] = {toy->mesh.forward_out, toy->mesh.backward_out};
    int64_t sent[2] = {0, 0};
    for (int i = 0; i < 2; i++)
        sent[i] = sends[i] ? sends[i]->sent_bytes : 0;
    for (toy->pass = 0; toy->pass < 2; toy->pass++) {
        toy->n_done = 0;
        memset(toy->slot_of, -1, sizeof toy->slot_of);
        CHECK_OK(world, dtx_pipe_run(pipe, &stage));
        check_steps(toy);
    }
    for (int i = 0; i < 2; i++)
        CHECK(world, !sends[i] || sends[i]->sent_bytes - sent[i] == 2 * toy->micro_batches * N * 4);
    toy->forward_only = true;
    CHECK_OK(world, dtx_pipe_run_forward(pipe, &stage, MOST));
    toy->forward_only = false;
    dtx_pipe_free(pipe);
}

/* What a stage reports ends the pass on its rank. */
static enum dtx_status failing_forward(void *self, int m, int slot, const struct dtx_tensor *in,
                                       const struct dtx_tensor *out)
{
    (void)m, (void)slot, (void)in, (void)out;
    return dtx_fail(self, DTX_E_NUMERIC, "NaN in the toy");
}

static void check_failure(struct dtx_ctx *ctx, struct dtx_comm *world, struct host_backend *host)
{
    struct dtx_mesh mesh;
    struct dtx_pipe *pipe;
    struct dtx_tensor boundary = dtx_tensor_3d(NULL, DTX_F32, 1, 1, 1);
    CHECK_OK(world, dtx_mesh_create(ctx, world, (int[DTX_AXES]){1, world->size, 1}, &mesh));
    CHECK_OK(world, dtx_pipe_create(ctx, &mesh, &host->queue, dtx_schedule_find("1f1b"), 3, &boundary, &pipe));
    struct dtx_pipe_stage stage = {ctx, failing_forward, toy_backward};
    CHECK(world, dtx_pipe_run(pipe, &stage) == DTX_E_NUMERIC);
    CHECK(world, strcmp(ctx->error.text, "NaN in the toy") == 0);
    dtx_error_clear(ctx);
    dtx_pipe_free(pipe);
    dtx_mesh_free(&mesh);
}

int main(void)
{
    struct dtx_ctx ctx;
    struct dtx_comm *world;
    struct host_backend host;
    struct dtx_comm_options options = dtx_comm_options_default();
    dtx_ctx_init(&ctx);
    host_backend_init(&host, &ctx);
    options.synchronous_sends = true;
    if (dtx_comm_open_world_with(&ctx, &options, &world) != DTX_OK) {
        dtx_error_print(&ctx);
        return 1;
    }
    static const int micro_batches[] = {1, 2, 3, 5, 8, 16};
    static const int64_t pieces[] = {64 << 20, 4096};
    int n;
    const struct dtx_schedule *const *list = dtx_schedule_list(&n);
    for (size_t p = 0; p < 2; p++)
        for (int stages = 1; stages <= 4; stages *= 2) {
            struct toy toy = {.pass = 0};
            options.piece_bytes = pieces[p];
            dtx_comm_mpi_set_options(world, &options);
            CHECK_OK(world, dtx_mesh_create(&ctx, world, (int[DTX_AXES]){1, 4 / stages, stages}, &toy.mesh));
            for (int s = 0; s < n; s++)
                for (size_t m = p; m < sizeof micro_batches / sizeof *micro_batches; m += 1 + 3 * p) {
                    toy.schedule = list[s];
                    toy.micro_batches = micro_batches[m];
                    run(&toy, &host);
                }
            dtx_mesh_free(&toy.mesh);
        }
    check_failure(&ctx, world, &host);
    dtx_comm_close_world(world);
    return 0;
}
