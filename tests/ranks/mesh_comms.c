/* test: label=ranks ranks=8 timeout=60 */
/*
 * Every mesh of 8 ranks and some of fewer: coordinates, who shares which communicator, both channels between
 * neighbours; contradictory sizes are refused naming what fits.
 */
#include <string.h>

#include "tests/harness/rank_check.h"
#include "parallel/mesh.h"

static int world_rank(const struct dtx_mesh *m, const int at[DTX_AXES])
{
    int data = at[DTX_AXIS_PP] * m->size[DTX_AXIS_DP] + at[DTX_AXIS_DP];
    return (data * m->size[DTX_AXIS_CP] + at[DTX_AXIS_CP]) * m->size[DTX_AXIS_TP] + at[DTX_AXIS_TP];
}

/* The ranks of one axis differ only in it and stand in its order. */
static void check_axis(const struct dtx_mesh *m, enum dtx_axis axis)
{
    struct dtx_comm *world = m->world, *comm = m->axis[axis];
    CHECK(world, comm->size == m->size[axis] && comm->rank == m->rank[axis]);
    CHECK(world, strcmp(comm->name, dtx_axis_name(axis)) == 0);
    int members[8];
    CHECK_OK(world, dtx_comm_gather_bytes(comm, &world->rank, sizeof(int), members));
    for (int r = 0; r < comm->size; r++) {
        int at[DTX_AXES];
        memcpy(at, m->rank, sizeof at);
        at[axis] = r;
        CHECK_THAT(world, members[r] == world_rank(m, at), "axis %s, member %d is rank %d", dtx_axis_name(axis), r,
                   members[r]);
    }
}

/* Each stage says its rank to a neighbour on one channel. */
static void check_channel(const struct dtx_mesh *m, struct dtx_comm *out, struct dtx_comm *in, int from_stage)
{
    struct dtx_comm *world = m->world;
    int mine = world->rank, got = -1;
    struct dtx_tensor send = dtx_tensor_1d(&mine, DTX_I32, 1), receive = dtx_tensor_1d(&got, DTX_I32, 1);
    struct dtx_request sends, receives;
    CHECK(world, (in != NULL) == (from_stage >= 0 && from_stage < m->size[DTX_AXIS_PP]));
    if (in)
        CHECK_OK(world, dtx_comm_recv_start(in, NULL, &receive, 1 - in->rank, &receives));
    if (out)
        CHECK_OK(world, dtx_comm_send_start(out, NULL, &send, 1 - out->rank, &sends));
    if (in) {
        CHECK(world, in->size == 2 && in->rank == (from_stage < m->rank[DTX_AXIS_PP] ? 1 : 0));
        CHECK_OK(world, dtx_comm_wait(&receives));
        int at[DTX_AXES];
        memcpy(at, m->rank, sizeof at);
        at[DTX_AXIS_PP] = from_stage;
        CHECK_THAT(world, got == world_rank(m, at), "from stage %d came rank %d", from_stage, got);
    }
    if (out)
        CHECK_OK(world, dtx_comm_wait(&sends));
}

/* A communicator of the first and the last stage. */
static void check_ends(const struct dtx_mesh *m, struct dtx_comm *comm)
{
    int stages = m->size[DTX_AXIS_PP];
    bool end = stages > 1 && (dtx_mesh_first_stage(m) || dtx_mesh_last_stage(m));
    CHECK(m->world, (comm != NULL) == end);
    if (!end)
        return;
    CHECK(m->world, comm->size == 2 && comm->rank == (dtx_mesh_first_stage(m) ? 0 : 1));
    int both[2], at[DTX_AXES];
    CHECK_OK(m->world, dtx_comm_gather_bytes(comm, &m->world->rank, sizeof(int), both));
    for (int i = 0; i < 2; i++) {
        memcpy(at, m->rank, sizeof at);
        at[DTX_AXIS_PP] = i ? stages - 1 : 0;
        CHECK(m->world, both[i] == world_rank(m, at));
    }
}

/* Data and context ranks of one (tp, pp), in the order of the world. */
static void check_data(const struct dtx_mesh *m)
{
    struct dtx_comm *world = m->world;
    int members[8], n_cp = m->size[DTX_AXIS_CP];
    CHECK(world, m->data->size == m->size[DTX_AXIS_DP] * n_cp && m->data->rank == dtx_mesh_data_rank(m));
    CHECK(world, dtx_mesh_data_size(m) == m->data->size);
    CHECK_OK(world, dtx_comm_gather_bytes(m->data, &world->rank, sizeof(int), members));
    for (int r = 0; r < m->data->size; r++) {
        int at[DTX_AXES], place[DTX_AXES];
        memcpy(at, m->rank, sizeof at);
        at[DTX_AXIS_DP] = r / n_cp;
        at[DTX_AXIS_CP] = r % n_cp;
        CHECK_THAT(world, members[r] == world_rank(m, at), "data rank %d is rank %d", r, members[r]);
        dtx_mesh_place(m->size, members[r], place);
        CHECK(world, memcmp(place, at, sizeof at) == 0);
    }
}

static void check_mesh(struct dtx_comm *world, int tp, int dp, int pp, int cp)
{
    struct dtx_mesh m;
    CHECK_OK(world, dtx_mesh_create(world->ctx, world, (int[DTX_AXES]){tp, dp, pp, cp}, &m));
    CHECK(world, world_rank(&m, m.rank) == world->rank && m.world == world);
    for (int a = 0; a < DTX_AXES; a++)
        check_axis(&m, (enum dtx_axis)a);
    check_data(&m);
    CHECK(world, m.control != world && m.control->size == world->size && m.control->rank == world->rank);
    int stage = m.rank[DTX_AXIS_PP];
    check_channel(&m, m.forward_out, m.forward_in, stage - 1);
    check_channel(&m, m.backward_out, m.backward_in, stage + 1);
    if (m.forward_out)
        CHECK(world, m.forward_out != m.backward_in);
    check_ends(&m, m.tied);
    check_ends(&m, m.wrap_forward);
    check_ends(&m, m.wrap_backward);
    CHECK(world, !m.wrap_forward || m.wrap_forward != m.wrap_backward);
    dtx_mesh_free(&m);
    CHECK(world, m.axis[0] == NULL && m.tied == NULL && m.wrap_forward == NULL);
}

static void refused(struct dtx_comm *world, int tp, int dp, int pp, int cp, const char *text)
{
    struct dtx_mesh m = {.size = {-7}};
    CHECK(world, dtx_mesh_create(world->ctx, world, (int[DTX_AXES]){tp, dp, pp, cp}, &m) == DTX_E_CONFIG);
    CHECK(world, m.size[0] == -7);
    CHECK(world, strstr(world->ctx->error.text, text) != NULL);
    dtx_error_clear(world->ctx);
}

static int test(struct dtx_comm *world)
{
    struct dtx_comm *part;
    for (int tp = 1; tp <= 8; tp *= 2)
        for (int dp = 1; tp * dp <= 8; dp *= 2)
            for (int cp = 1; tp * dp * cp <= 8; cp *= 2)
                check_mesh(world, tp, dp, 8 / tp / dp / cp, cp);
    CHECK_OK(world, dtx_comm_split(world, world->rank < 6 ? 0 : -1, world->rank, "six", &part));
    if (part) {
        check_mesh(part, 1, 2, 3, 1);
        check_mesh(part, 3, 1, 2, 1);
        check_mesh(part, 1, 1, 6, 1);
        check_mesh(part, 1, 2, 1, 3);
    }
    dtx_comm_free(part);
    refused(world, 2, 2, 1, 1, "mesh tp 2 × dp 2 × pp 1 needs 4 ranks, the job has 8. Start 4 ranks, or use: ");
    refused(world, 2, 2, 1, 1, "tp 4 × dp 2 × pp 1, tp 2 × dp 4 × pp 1, tp 2 × dp 2 × pp 2");
    refused(world, 2, 2, 1, 1, "tp 2 × dp 2 × pp 1 × cp 2");
    refused(world, 1, 1, 1, 3, "mesh tp 1 × dp 1 × pp 1 × cp 3 needs 3 ranks");
    refused(world, 3, 3, 3, 1, "needs 27 ranks");
    refused(world, 3, 3, 3, 1, "tp 1 × dp 8 × pp 1");
    refused(world, 2, 0, 4, 1, "every size must be at least 1");
    refused(world, 2, 0, 4, 1, "tp 2 × dp 1 × pp 4");
    return 0;
}

int main(void)
{
    return rank_main(test);
}
