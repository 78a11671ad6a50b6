#include "parallel/mesh.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/mutant.h"
#include "parallel/watch.h"

const char *dtx_axis_name(enum dtx_axis axis)
{
    static const char *const names[] = {"tp", "dp", "pp", "cp"};
    return names[axis];
}

/* Appends "tp 2 × dp 1 × pp 2" to text, and " × cp 2" where there are context ranks. */
static void append_sizes(char *text, size_t bytes, const int size[DTX_AXES])
{
    size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%stp %d × dp %d × pp %d", used ? ", " : "", size[DTX_AXIS_TP],
             size[DTX_AXIS_DP], size[DTX_AXIS_PP]);
    used = strlen(text);
    if (size[DTX_AXIS_CP] != 1)
        snprintf(text + used, bytes - used, " × cp %d", size[DTX_AXIS_CP]);
}

/* What fits `ranks`: first the asked sizes with one axis changed, else every product of powers that keeps tp or pp. */
static void list_fitting(int ranks, const int asked[DTX_AXES], char *text, size_t bytes)
{
    text[0] = '\0';
    for (int axis = 0; axis < DTX_AXES; axis++) {
        int64_t others = 1;
        for (int a = 0; a < DTX_AXES; a++)
            if (a != axis)
                others *= asked[a];
        if (others < 1 || ranks % others != 0)
            continue;
        int size[DTX_AXES];
        memcpy(size, asked, sizeof size);
        size[axis] = (int)(ranks / others);
        append_sizes(text, bytes, size);
    }
    if (text[0])
        return;
    int listed = 0;
    for (int tp = 1; tp <= ranks && listed < 8; tp++)
        for (int pp = 1; ranks % tp == 0 && pp <= ranks / tp && listed < 8; pp++)
            if (ranks / tp % pp == 0) {
                append_sizes(text, bytes, (int[DTX_AXES]){tp, ranks / tp / pp, pp, 1});
                listed++;
            }
    if (listed == 8)
        strncat(text, ", …", bytes - strlen(text) - 1);
}

static enum dtx_status check_sizes(struct dtx_ctx *ctx, int ranks, const int size[DTX_AXES])
{
    int64_t product = 1;
    bool positive = true;
    for (int a = 0; a < DTX_AXES; a++) {
        positive = positive && size[a] >= 1;
        product *= size[a];
    }
    if (positive && product == ranks)
        return DTX_OK;
    char asked[96] = "", fitting[512];
    append_sizes(asked, sizeof asked, size);
    int at_least_one[DTX_AXES];
    for (int a = 0; a < DTX_AXES; a++)
        at_least_one[a] = size[a] < 1 ? 1 : size[a];
    list_fitting(ranks, at_least_one, fitting, sizeof fitting);
    if (!positive)
        return dtx_fail(ctx, DTX_E_CONFIG, "mesh %s: every size must be at least 1. For %d ranks would fit: %s", asked,
                        ranks, fitting);
    return dtx_fail(ctx, DTX_E_CONFIG, "mesh %s needs %lld ranks, the job has %d. Start %lld ranks, or use: %s", asked,
                    (long long)product, ranks, (long long)product, fitting);
}

/* Communicators of two neighbouring stages. Edges between stages 2i, 2i+1 and between 2i+1, 2i+2 are split one after
 * the other, since a stage has one of each. */
static enum dtx_status make_channels(struct dtx_ctx *ctx, struct dtx_mesh *m)
{
    struct dtx_comm *pp = m->axis[DTX_AXIS_PP];
    int stages = pp->size, stage = pp->rank;
    struct dtx_comm **ends[2][2] = {{&m->forward_out, &m->forward_in}, {&m->backward_in, &m->backward_out}};
    static const char *const names[] = {"pp-forward", "pp-backward"};
    for (int direction = 0; direction < 2; direction++)
        for (int parity = 0; parity < 2; parity++) {
            int lower = stage % 2 == parity ? stage : stage - 1; /* of this rank's edge */
            bool exists = lower >= 0 && lower + 1 < stages;
            struct dtx_comm *edge;
            DTX_TRY(ctx, dtx_comm_split(pp, exists ? lower : -1, stage, names[direction], &edge));
            if (exists)
                *ends[direction][stage == lower ? 0 : 1] = edge;
        }
    return DTX_OK;
}

static enum dtx_status make_comms(struct dtx_ctx *ctx, struct dtx_mesh *m)
{
    int tp = m->rank[DTX_AXIS_TP], dp = m->rank[DTX_AXIS_DP], pp = m->rank[DTX_AXIS_PP], cp = m->rank[DTX_AXIS_CP];
    int n_tp = m->size[DTX_AXIS_TP], n_dp = m->size[DTX_AXIS_DP], n_pp = m->size[DTX_AXIS_PP];
    int n_cp = m->size[DTX_AXIS_CP], stage = pp * n_tp + tp; /* among the ranks with the same weights */
    DTX_TRY(ctx, dtx_comm_split(m->world, (pp * n_dp + dp) * n_cp + cp, tp, "tp", &m->axis[DTX_AXIS_TP]));
    DTX_TRY(ctx, dtx_comm_split(m->world, stage * n_cp + cp, dp, "dp", &m->axis[DTX_AXIS_DP]));
    DTX_TRY(ctx, dtx_comm_split(m->world, stage, dp * n_cp + cp, "grads", &m->grads));
    DTX_TRY(ctx, dtx_comm_split(m->world, (dp * n_cp + cp) * n_tp + tp, pp, "pp", &m->axis[DTX_AXIS_PP]));
    DTX_TRY(ctx, dtx_comm_split(m->world, stage * n_dp + dp, cp, "cp", &m->axis[DTX_AXIS_CP]));
    m->data = m->axis[DTX_AXIS_DP];
    if (n_cp > 1)
        DTX_TRY(ctx, dtx_comm_split(m->world, stage, dp * n_cp + cp, "data", &m->data));
    DTX_TRY(ctx, dtx_comm_split(m->world, 0, m->world->rank, "control", &m->control));
    if (n_pp == 1)
        return DTX_OK;
    DTX_TRY(ctx, make_channels(ctx, m));
    int end = pp == 0 || pp == n_pp - 1 ? 0 : -1;
    DTX_TRY(ctx, dtx_comm_split(m->axis[DTX_AXIS_PP], end, pp, "wrap-forward", &m->wrap_forward));
    DTX_TRY(ctx, dtx_comm_split(m->axis[DTX_AXIS_PP], end, pp, "wrap-backward", &m->wrap_backward));
    return dtx_comm_split(m->axis[DTX_AXIS_PP], end, pp, "tied", &m->tied);
}

void dtx_mesh_place(const int size[DTX_AXES], int world_rank, int place[DTX_AXES])
{
    static const enum dtx_axis order[] = {DTX_AXIS_TP, DTX_AXIS_CP, DTX_AXIS_DP, DTX_AXIS_PP};
    for (int i = 0; i < DTX_AXES; i++) {
        place[order[i]] = world_rank % size[order[i]];
        world_rank /= size[order[i]];
    }
    if (DTX_MUTANT(mesh_axes_swapped)) {
        int tp = place[DTX_AXIS_TP];
        place[DTX_AXIS_TP] = place[DTX_AXIS_DP] % size[DTX_AXIS_TP];
        place[DTX_AXIS_DP] = tp % size[DTX_AXIS_DP];
    }
}

enum dtx_status dtx_mesh_create(struct dtx_ctx *ctx, struct dtx_comm *world, const int size[DTX_AXES],
                                struct dtx_mesh *out)
{
    DTX_TRY(ctx, check_sizes(ctx, world->size, size));
    struct dtx_mesh m = {.world = world};
    memcpy(m.size, size, sizeof m.size);
    dtx_mesh_place(size, world->rank, m.rank);
    enum dtx_status status = make_comms(ctx, &m);
    if (status != DTX_OK) {
        dtx_mesh_free(&m);
        return status;
    }
    char place[64] = "";
    for (int a = 0; a < DTX_AXES; a++)
        snprintf(place + strlen(place), sizeof place - strlen(place), "%s%s %d", a ? " " : "", dtx_axis_name(a),
                 m.rank[a]);
    dtx_watch_describe(world, place);
    *out = m;
    return DTX_OK;
}

void dtx_mesh_free(struct dtx_mesh *m)
{
    struct dtx_comm *owned[] = {m->data != m->axis[DTX_AXIS_DP] ? m->data : NULL,
                                m->axis[DTX_AXIS_CP],
                                m->tied,
                                m->wrap_backward,
                                m->wrap_forward,
                                m->backward_out,
                                m->backward_in,
                                m->forward_out,
                                m->forward_in,
                                m->control,
                                m->grads,
                                m->axis[DTX_AXIS_PP],
                                m->axis[DTX_AXIS_DP],
                                m->axis[DTX_AXIS_TP]};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        dtx_comm_free(owned[i]);
    *m = (struct dtx_mesh){0};
}
