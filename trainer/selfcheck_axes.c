/* Who and what is to blame when the small model comes out wrong: each rank by itself, then the mesh, then the mesh's
 * axes one at a time, two at a time, …, then the settings of what is still wrong. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/comm_nccl.h"
#include "parallel/watch_view.h"
#include "trainer/selfcheck.h"

enum { TRIED = 3 }; /* as many wrong sets of axes are described */

struct search {
    struct dtx_comm *world;
    struct dtx_ctx *ctx;
    struct dtx_backend *backend;
    const struct dtx_selfcheck_model *model;
    const struct dtx_engine_config *run;
    struct dtx_selfcheck_verdict *verdict;
    bool *suspect;
    double *whole;                      /* this rank's own gradients */
    struct dtx_selfcheck_result result; /* of the last trial */
    struct state {
        bool wrong, here, known; /* known: to blame, by earlier trials */
        int group;               /* of ranks that ran together */
    } * all;                     /* [ranks], of the last trial */
    int *ranks;                  /* [ranks], scratch */
    size_t used;                 /* of verdict->text */
};

static void say(struct search *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct search *s, const char *format, ...)
{
    va_list arguments;
    size_t room = sizeof s->verdict->text - s->used;
    va_start(arguments, format);
    int n = vsnprintf(s->verdict->text + s->used, room, format, arguments);
    va_end(arguments);
    s->used += n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
}

/* Everybody's state after a trial; the largest differences. *wrong: how many ranks were in wrong ones. */
static enum dtx_status gather(struct search *s, int group, int *wrong)
{
    struct state mine = {.wrong = s->result.wrong > 0, .here = s->result.here, .group = group};
    *wrong = 0;
    DTX_TRY(s->ctx, dtx_comm_gather_bytes(s->world, &mine, sizeof mine, s->all));
    for (int r = 0; r < s->world->size; r++)
        *wrong += s->all[r].wrong;
    return DTX_OK;
}

/* What rank `from` found, on every rank. */
static enum dtx_status share_text(struct search *s, int from, char text[DTX_SELFCHECK_TEXT])
{
    memcpy(text, s->result.text, DTX_SELFCHECK_TEXT);
    return dtx_comm_broadcast_bytes(s->world, text, DTX_SELFCHECK_TEXT, from);
}

static enum dtx_status share_worst(struct search *s)
{
    struct dtx_tensor worst = dtx_tensor_1d(s->result.worst, DTX_F64, 4);
    DTX_TRY(s->ctx, dtx_comm_all_reduce_max(s->world, NULL, &worst));
    for (int i = 0; i < 4; i++)
        s->verdict->worst[i] = fmax(s->verdict->worst[i], s->result.worst[i]);
    return DTX_OK;
}

/* The ranks that were in wrong trials, or only those of them whose own part is wrong: "0-3,7" */
static void list_ranks(const struct search *s, bool here, char *text, size_t bytes)
{
    int n = 0;
    for (int r = 0; r < s->world->size; r++)
        if (s->all[r].wrong && (s->all[r].here || !here))
            s->ranks[n++] = r;
    dtx_watch_ranges(s->ranks, n, text, bytes);
}

static int first_wrong(const struct search *s)
{
    int r = 0;
    while (r < s->world->size - 1 && !s->all[r].wrong)
        r++;
    return r;
}

/* Every rank by itself. */
static enum dtx_status try_alone(struct search *s, bool *right)
{
    int wrong;
    char ranks[128], text[DTX_SELFCHECK_TEXT];
    enum dtx_status status =
        dtx_selfcheck_alone(s->ctx, s->backend, s->model, s->run, s->world->size > 1 ? &s->whole : NULL, &s->result);
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, status));
    DTX_TRY(s->ctx, gather(s, s->world->rank, &wrong));
    DTX_TRY(s->ctx, share_worst(s));
    *right = wrong == 0;
    if (*right)
        return DTX_OK;
    s->verdict->wrong = true;
    list_ranks(s, false, ranks, sizeof ranks);
    DTX_TRY(s->ctx, share_text(s, first_wrong(s), text));
    if (wrong == s->world->size)
        say(s,
            "every rank computes wrongly by itself, so it is no node's fault: the program, its libraries or what they "
            "choose for this kind of processor: %s",
            text);
    else
        say(s, "rank%s %s compute%s wrongly by %s: %s", wrong == 1 ? "" : "s", ranks, wrong == 1 ? "s" : "",
            wrong == 1 ? "itself" : "themselves", text);
    for (int r = 0; r < s->world->size; r++)
        s->suspect[r] = s->all[r].wrong && wrong < s->world->size;
    return DTX_OK;
}

/* The mesh cut down to some axes: ranks that differ in no other form one. */
static enum dtx_status try_axes(struct search *s, int axes, const struct dtx_engine_config *run, int *wrong)
{
    int place[DTX_AXES], group = 0;
    struct dtx_engine_config part = *run;
    struct dtx_comm *ranks, *between = NULL;
    dtx_mesh_place(run->mesh, s->world->rank, place);
    for (int a = 0; a < DTX_AXES; a++)
        if (!(axes >> a & 1)) {
            group = group * run->mesh[a] + place[a];
            part.mesh[a] = 1;
        }
    DTX_TRY(s->ctx, dtx_comm_split(s->world, group, s->world->rank, "selfcheck", &ranks));
    enum dtx_status status = DTX_OK;
    if (DTX_MUTANT(selfcheck_over_mpi))
        between = ranks;
    else
        status = dtx_comm_nccl_create(ranks, s->backend, &between);
    if (status == DTX_OK)
        status = dtx_selfcheck_run(between, s->backend, s->model, &part, s->whole, &s->result);
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, status));
    if (between != ranks)
        dtx_comm_free(between);
    dtx_comm_free(ranks);
    return gather(s, group, wrong);
}

/* "tp 2 × dp 4" */
static void name_axes(const struct search *s, int axes, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int a = 0; a < DTX_AXES; a++)
        if (axes >> a & 1 && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s %d", used ? " × " : "",
                                     dtx_axis_name((enum dtx_axis)a), s->run->mesh[a]);
}

/* The ranks whose own part is wrong, where that is not all: " at tp rank 1 (ranks 1,3)". */
static void describe_here(const struct search *s, int axes, char *text, size_t bytes)
{
    int wrong = 0, here = 0;
    bool common[DTX_AXES];
    int first[DTX_AXES] = {-1, -1, -1, -1};
    char ranks[128];
    size_t used = 0;
    for (int a = 0; a < DTX_AXES; a++)
        common[a] = axes >> a & 1;
    for (int r = 0; r < s->world->size; r++) {
        int place[DTX_AXES];
        wrong += s->all[r].wrong;
        if (!s->all[r].wrong || !s->all[r].here)
            continue;
        dtx_mesh_place(s->run->mesh, r, place);
        for (int a = 0; a < DTX_AXES; a++) {
            common[a] = common[a] && (here == 0 || place[a] == first[a]);
            first[a] = here == 0 ? place[a] : first[a];
        }
        here++;
    }
    text[0] = '\0';
    if (here == 0 || here == wrong)
        return;
    list_ranks(s, true, ranks, sizeof ranks);
    used = (size_t)snprintf(text, bytes, "; by what ranks hold themselves only rank%s %s", here == 1 ? "" : "s", ranks);
    for (int a = 0; a < DTX_AXES && used < bytes; a++)
        if (common[a])
            used +=
                (size_t)snprintf(text + used, bytes - used, ", %s rank %d,", dtx_axis_name((enum dtx_axis)a), first[a]);
    if (used < bytes)
        snprintf(text + used, bytes - used, " %s wrong", here == 1 ? "is" : "are");
}

/* Of a wrong group the ranks whose own part is wrong; where that is all or none, those that are to blame already; else
 * the whole group. Nobody when several groups are all wrong: it is no rank's fault then. */
static void blame(struct search *s, int wrong)
{
    bool one_group = true;
    for (int r = 0; r < s->world->size; r++) {
        s->all[r].known = s->suspect[r];
        one_group = one_group && s->all[r].group == s->all[0].group;
    }
    if (wrong == s->world->size && !one_group)
        return;
    for (int r = 0; r < s->world->size; r++) {
        int size = 0, here = 0, known = 0;
        for (int k = 0; k < s->world->size && s->all[r].wrong; k++)
            if (s->all[k].group == s->all[r].group) {
                size++;
                here += s->all[k].here;
                known += s->all[k].known;
            }
        if (here > 0 && here < size && !DTX_MUTANT(selfcheck_whole_group_blamed))
            s->suspect[r] = s->suspect[r] || s->all[r].here;
        else if (known == 0 && s->all[r].wrong && !one_group)
            s->suspect[r] = true;
    }
}

/* What can be switched off; false: it is off. */
static bool switch_off(struct dtx_engine_config *c, int setting, const char **says)
{
    const char *const texts[] = {"comm.overlap false",   "parallel.zero 0",        "parallel.sequence false",
                                 "train.recompute none", "parallel.schedule 1f1b", "parallel.cp_exchange gather",
                                 "cuda.graphs false"};
    bool pipeline = c->mesh[DTX_AXIS_PP] > 1, on[] = {c->overlap,
                                                      c->zero > 0,
                                                      c->sequence && c->mesh[DTX_AXIS_TP] > 1,
                                                      c->recompute.what != DTX_RECOMPUTE_NONE,
                                                      pipeline && strcmp(c->schedule, "1f1b") != 0,
                                                      c->ring && c->mesh[DTX_AXIS_CP] > 1,
                                                      c->graphs};
    *says = texts[setting];
    c->overlap = c->overlap && setting != 0;
    c->zero = setting == 1 ? 0 : c->zero;
    c->sequence = c->sequence && setting != 2;
    if (setting == 3)
        c->recompute.what = DTX_RECOMPUTE_NONE;
    if (setting == 4) {
        c->schedule = "1f1b";
        c->split.chunks = 1;
    }
    c->ring = c->ring && setting != 5;
    c->graphs = c->graphs && setting != 6;
    return on[setting];
}
enum { SETTINGS = 7 };

/* A set of axes on which it is wrong. */
static enum dtx_status describe(struct search *s, int axes, int wrong, bool last)
{
    char name[64], text[DTX_SELFCHECK_TEXT], ranks[128], at[256];
    name_axes(s, axes, name, sizeof name);
    list_ranks(s, false, ranks, sizeof ranks);
    describe_here(s, axes, at, sizeof at);
    DTX_TRY(s->ctx, share_text(s, first_wrong(s), text));
    blame(s, wrong);
    say(s, "%swrong on %s%s: %s%s%s%s", s->used ? "\n" : "", name, last ? "" : " with the other axes at 1", text,
        wrong < s->world->size ? "; ranks " : "", wrong < s->world->size ? ranks : "",
        wrong < s->world->size ? " alone, the other groups are right" : "");
    say(s, "%s", at);
    for (int i = 0, other; i < SETTINGS; i++) {
        struct dtx_engine_config config = *s->run;
        const char *setting;
        if (!switch_off(&config, i, &setting))
            continue;
        DTX_TRY(s->ctx, try_axes(s, axes, &config, &other));
        if (other == 0)
            say(s, "; right with %s", setting);
    }
    return DTX_OK;
}

static int count_bits(int bits)
{
    int n = 0;
    for (; bits; bits &= bits - 1)
        n++;
    return n;
}

/* The smallest sets of axes of a mesh that is wrong. */
static enum dtx_status find_axes(struct search *s, int mesh)
{
    int found = 0, wrong;
    for (int n = DTX_MUTANT(selfcheck_axes_not_searched) ? count_bits(mesh) : 1; n <= count_bits(mesh) && !found; n++)
        for (int axes = 1; axes <= mesh && found < TRIED; axes++) {
            if ((axes & mesh) != axes || count_bits(axes) != n)
                continue;
            DTX_TRY(s->ctx, try_axes(s, axes, s->run, &wrong));
            if (wrong == 0)
                continue;
            found++;
            DTX_TRY(s->ctx, describe(s, axes, wrong, axes == mesh));
        }
    return DTX_OK;
}

static enum dtx_status search(struct search *s)
{
    bool right;
    int mesh = 0, wrong;
    char text[DTX_SELFCHECK_TEXT];
    DTX_TRY(s->ctx, try_alone(s, &right));
    if (!right || s->world->size == 1)
        return DTX_OK;
    for (int a = 0; a < DTX_AXES; a++)
        mesh |= (s->run->mesh[a] > 1) << a;
    DTX_TRY(s->ctx, try_axes(s, mesh, s->run, &wrong));
    DTX_TRY(s->ctx, share_worst(s));
    if (wrong == 0)
        return DTX_OK;
    s->verdict->wrong = true;
    DTX_TRY(s->ctx, share_text(s, 0, text));
    DTX_TRY(s->ctx, find_axes(s, mesh));
    if (s->used == 0) /* not a second time, and not on a part of the mesh */
        say(s, "wrong on the mesh once, and right when it was tried again: %s", text);
    return DTX_OK;
}

enum dtx_status dtx_selfcheck_world(struct dtx_comm *world, struct dtx_backend *backend,
                                    const struct dtx_selfcheck_model *model, const struct dtx_engine_config *run,
                                    struct dtx_selfcheck_verdict *verdict, bool *suspect)
{
    struct search s = {.world = world,
                       .ctx = world->ctx,
                       .backend = backend,
                       .model = model,
                       .run = run,
                       .verdict = verdict,
                       .suspect = suspect};
    void *all = NULL, *ranks = NULL;
    memset(verdict, 0, sizeof *verdict);
    memset(suspect, 0, (size_t)world->size * sizeof *suspect);
    enum dtx_status status = dtx_mem_alloc(world->ctx, world->size, sizeof *s.all, &all);
    if (status == DTX_OK)
        status = dtx_mem_alloc(world->ctx, world->size, sizeof *s.ranks, &ranks);
    s.all = all;
    s.ranks = ranks;
    status = dtx_comm_agree(world, status);
    if (status == DTX_OK)
        status = search(&s);
    dtx_mem_free(s.whole);
    dtx_mem_free(ranks);
    dtx_mem_free(all);
    return status;
}
