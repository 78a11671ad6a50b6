/* test: label=ranks ranks=4 timeout=60 */
/*
 * The pipe on 1, 2 and 4 stages of 1 to 3 chunks with a stage that only counts: every boundary value of every
 * micro-batch is checked, on both directions, with sends that wait for their receives, boundaries too large for MPI's
 * own buffers, and stages that take turns being slow, so that a buffer used too early or read too early shows.
 */
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "parallel/pipe.h"
#include "parallel/comm_impl.h"
#include "tests/harness/host_backend.h"
#include "tests/harness/rank_check.h"

enum { ROWS = 3, COLUMNS = 2731, N = 2 * ROWS * COLUMNS, MOST = 16, CHUNKS = 3 };

struct toy {
    struct dtx_mesh mesh;
    const struct dtx_schedule *schedule;
    int micro_batches, chunks, slots, kept, pass;
    bool forward_only;
    int slot_of[CHUNKS][MOST], keep_of[CHUNKS][MOST]; /* of a micro-batch alive, −1 */
    struct dtx_step done[3 * CHUNKS * MOST];
    int n_done;
};

/* The part of the model that a step works on. */
static int part_of(const struct toy *toy, const struct dtx_step *s)
{
    return s->chunk * toy->mesh.size[DTX_AXIS_PP] + toy->mesh.rank[DTX_AXIS_PP];
}

/* The activation after `part` parts, the gradient before part `part`: different for all arguments. */
static float activation(const struct toy *toy, int part, int m, int64_t i)
{
    return (float)(part * 1000000 + toy->pass * 200000 + m * 10000 + toy->mesh.rank[DTX_AXIS_DP] * 5000 + i % 4999);
}

static float gradient(const struct toy *toy, int part, int m, int64_t i)
{
    return -activation(toy, part, m, i) - 0.5f;
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

static void note(struct toy *toy, const struct dtx_step *s)
{
    toy->done[toy->n_done++] = *s;
}

/* Nobody else has this place. */
static void check_free(const struct toy *toy, const int place_of[CHUNKS][MOST], int place, int places)
{
    CHECK(toy->mesh.world, place >= 0 && place < places);
    for (int c = 0; c < CHUNKS; c++)
        for (int m = 0; m < MOST; m++)
            CHECK(toy->mesh.world, place_of[c][m] != place);
}

static enum dtx_status toy_forward(void *self, const struct dtx_step *s, const struct dtx_tensor *in,
                                   const struct dtx_tensor *out)
{
    struct toy *toy = self;
    struct dtx_comm *world = toy->mesh.world;
    int part = part_of(toy, s), m = s->micro_batch;
    check_boundary(toy, in, part > 0);
    check_boundary(toy, out, part < toy->mesh.size[DTX_AXIS_PP] * toy->chunks - 1);
    for (int i = 0; in->data && i < N; i++)
        CHECK_THAT(world, ((float *)in->data)[i] == activation(toy, part, m, i),
                   "part %d: activation %d of micro-batch %d is %g", part, i, m, ((float *)in->data)[i]);
    dawdle(toy, m);
    for (int i = 0; out->data && i < N; i++)
        ((float *)out->data)[i] = activation(toy, part + 1, m, i);
    /* Nothing changes the input while the stage works. */
    CHECK(world, !in->data || ((float *)in->data)[N - 1] == activation(toy, part, m, N - 1));
    CHECK(world, !toy->forward_only || s->slot == 0);
    if (toy->forward_only)
        return DTX_OK;
    check_free(toy, toy->slot_of, s->slot, toy->slots);
    toy->slot_of[s->chunk][m] = s->slot;
    note(toy, s);
    return DTX_OK;
}

/* What both kinds of backward do. */
static void pass_gradient(struct toy *toy, const struct dtx_step *s, const struct dtx_tensor *dout,
                          const struct dtx_tensor *din)
{
    struct dtx_comm *world = toy->mesh.world;
    int part = part_of(toy, s), m = s->micro_batch;
    check_boundary(toy, dout, part < toy->mesh.size[DTX_AXIS_PP] * toy->chunks - 1);
    check_boundary(toy, din, part > 0);
    CHECK(world, toy->slot_of[s->chunk][m] == s->slot);
    for (int i = 0; dout->data && i < N; i++)
        CHECK_THAT(world, ((float *)dout->data)[i] == gradient(toy, part + 1, m, i),
                   "part %d: gradient %d of micro-batch %d is %g", part, i, m, ((float *)dout->data)[i]);
    dawdle(toy, m + 1);
    for (int i = 0; din->data && i < N; i++)
        ((float *)din->data)[i] = gradient(toy, part, m, i);
    note(toy, s);
}

static enum dtx_status toy_backward(void *self, const struct dtx_step *s, const struct dtx_tensor *dout,
                                    const struct dtx_tensor *din)
{
    struct toy *toy = self;
    pass_gradient(toy, s, dout, din);
    toy->slot_of[s->chunk][s->micro_batch] = -1;
    return DTX_OK;
}

static enum dtx_status toy_backward_input(void *self, const struct dtx_step *s, const struct dtx_tensor *dout,
                                          const struct dtx_tensor *din)
{
    struct toy *toy = self;
    check_free(toy, toy->keep_of, s->keep, toy->kept);
    toy->keep_of[s->chunk][s->micro_batch] = s->keep;
    pass_gradient(toy, s, dout, din);
    return DTX_OK;
}

static enum dtx_status toy_backward_weight(void *self, const struct dtx_step *s)
{
    struct toy *toy = self;
    CHECK(toy->mesh.world, toy->slot_of[s->chunk][s->micro_batch] == s->slot);
    CHECK(toy->mesh.world, toy->keep_of[s->chunk][s->micro_batch] == s->keep);
    toy->slot_of[s->chunk][s->micro_batch] = toy->keep_of[s->chunk][s->micro_batch] = -1;
    note(toy, s);
    return DTX_OK;
}

/* The stage was called for exactly the steps of its list. */
static void check_steps(const struct toy *toy)
{
    struct dtx_step want[3 * CHUNKS * MOST];
    const struct dtx_mesh *mesh = &toy->mesh;
    int n =
        toy->schedule->steps(mesh->rank[DTX_AXIS_PP], mesh->size[DTX_AXIS_PP], toy->micro_batches, toy->chunks, want);
    CHECK(mesh->world, n == toy->n_done && memcmp(want, toy->done, (size_t)n * sizeof *want) == 0);
}

/* What the channels to the next and to the previous part have sent so far. */
static void sent_bytes(const struct toy *toy, int64_t sent[4])
{
    struct dtx_comm *sends[] = {toy->mesh.forward_out, toy->mesh.backward_out, toy->mesh.wrap_forward,
                                toy->mesh.wrap_backward};
    for (int i = 0; i < 4; i++)
        sent[i] = sends[i] ? sends[i]->sent_bytes : 0;
}

/* Every boundary has crossed once, and nothing else. */
static void check_bytes(const struct toy *toy, const int64_t before[4], int passes)
{
    int64_t now[4], each = (int64_t)passes * toy->micro_batches * N * 4, wraps = each * (toy->chunks - 1);
    bool first = dtx_mesh_first_stage(&toy->mesh), last = dtx_mesh_last_stage(&toy->mesh);
    const int64_t want[4] = {last ? 0 : each * toy->chunks, first ? 0 : each * toy->chunks, last && !first ? wraps : 0,
                             first && !last ? wraps : 0};
    sent_bytes(toy, now);
    for (int i = 0; i < 4; i++)
        CHECK(toy->mesh.world, now[i] - before[i] == want[i]);
}

static void run(struct toy *toy, struct host_backend *host)
{
    struct dtx_comm *world = toy->mesh.world;
    struct dtx_pipe *pipe;
    struct dtx_tensor boundary = dtx_tensor_3d(NULL, DTX_F32, 2, ROWS, COLUMNS);
    CHECK_OK(world, dtx_pipe_create(world->ctx, &toy->mesh, &host->queue, toy->schedule, toy->micro_batches,
                                    toy->chunks, &boundary, &pipe));
    toy->slots = dtx_pipe_slots(pipe);
    toy->kept = dtx_pipe_kept(pipe);
    CHECK(world, toy->slots >= 1 && toy->slots <= toy->chunks * toy->micro_batches);
    struct dtx_pipe_stage stage = {toy, toy_forward, toy_backward, toy_backward_input, toy_backward_weight};
    int64_t sent[4];
    sent_bytes(toy, sent);
    for (toy->pass = 0; toy->pass < 2; toy->pass++) {
        toy->n_done = 0;
        memset(toy->slot_of, -1, sizeof toy->slot_of);
        memset(toy->keep_of, -1, sizeof toy->keep_of);
        CHECK_OK(world, dtx_pipe_run(pipe, &stage));
        check_steps(toy);
    }
    check_bytes(toy, sent, 2);
    toy->forward_only = true;
    for (int m = MOST - 1; m <= MOST; m++) /* any number, whatever the schedule takes */
        CHECK_OK(world, dtx_pipe_run_forward(pipe, &stage, m));
    toy->forward_only = false;
    dtx_pipe_free(pipe);
}

/* What a stage reports ends the pass on its rank. */
static enum dtx_status failing_forward(void *self, const struct dtx_step *s, const struct dtx_tensor *in,
                                       const struct dtx_tensor *out)
{
    (void)s, (void)in, (void)out;
    return dtx_fail(self, DTX_E_NUMERIC, "NaN in the toy");
}

static void check_failure(struct dtx_ctx *ctx, struct dtx_comm *world, struct host_backend *host)
{
    struct dtx_mesh mesh;
    struct dtx_pipe *pipe;
    struct dtx_tensor boundary = dtx_tensor_3d(NULL, DTX_F32, 1, 1, 1);
    CHECK_OK(world, dtx_mesh_create(ctx, world, (int[DTX_AXES]){1, world->size, 1, 1}, &mesh));
    CHECK(world, dtx_pipe_create(ctx, &mesh, &host->queue, dtx_schedule_find("interleaved"), 4, 2, &boundary, &pipe) ==
                     DTX_E_RANGE);
    CHECK(world, strstr(ctx->error.text, "chunks need at least 2 stages"));
    dtx_error_clear(ctx);
    CHECK_OK(world, dtx_pipe_create(ctx, &mesh, &host->queue, dtx_schedule_find("1f1b"), 3, 1, &boundary, &pipe));
    struct dtx_pipe_stage stage = {.self = ctx, .forward = failing_forward, .backward = toy_backward};
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
    static const int micro_batches[] = {1, 2, 3, 4, 5, 8, 16};
    static const int64_t pieces[] = {64 << 20, 4096};
    int n;
    const struct dtx_schedule *const *list = dtx_schedule_list(&n);
    for (size_t p = 0; p < 2; p++)
        for (int stages = 1; stages <= 4; stages *= 2) {
            struct toy toy = {.pass = 0};
            options.piece_bytes = pieces[p];
            dtx_comm_mpi_set_options(world, &options);
            CHECK_OK(world, dtx_mesh_create(&ctx, world, (int[DTX_AXES]){1, 4 / stages, stages, 1}, &toy.mesh));
            for (int s = 0; s < n; s++)
                for (int chunks = 1; chunks <= (stages > 1 ? CHUNKS : 1) && chunks <= list[s]->max_chunks; chunks++)
                    for (size_t m = p; m < sizeof micro_batches / sizeof *micro_batches; m += 1 + 3 * p) {
                        toy.schedule = list[s];
                        toy.micro_batches = micro_batches[m];
                        toy.chunks = chunks;
                        if (toy.micro_batches % dtx_schedule_multiple(list[s], stages, chunks) == 0)
                            run(&toy, &host);
                    }
            dtx_mesh_free(&toy.mesh);
        }
    check_failure(&ctx, world, &host);
    dtx_comm_close_world(world);
    return 0;
}
