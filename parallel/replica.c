#include "parallel/replica.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { BLOCK = DTX_PARAM_ALIGN, STAGED = 128 * BLOCK /* elements copied to the host at once */, NAMED = 4 };
enum kind { WEIGHT, MASTER, STATE, KINDS = STATE + DTX_PARAM_STATES };

/* One tensor of one row that this rank holds, or has a piece of. */
struct slot {
    int row, kind;
};

struct check {
    struct dtx_params *p;
    struct dtx_queue *queue;
    const char *const *state_names;
    int n_states, n;
    struct slot *slot; /* [n]; the same list on all ranks of a stage */
    uint64_t *hash;    /* [n]: of this rank's part */
    uint64_t *whole;   /* [n]: of the row, all data ranks' pieces together */
    uint64_t *packed;  /* [n]: tied rows' */
    uint64_t *all;     /* [ranks of the largest axis][n] */
    int64_t *differs;  /* [rows][KINDS] */
    char *staging;     /* [STAGED] elements */
};

static bool cut(const struct check *c, struct slot s)
{
    return s.kind != WEIGHT && c->p->item[s.row].cut;
}

static bool tied(const struct check *c, struct slot s)
{
    const struct dtx_param_row *row = &c->p->item[s.row].row;
    return row->tied_stage >= 0 && row->tied_stage != row->stage;
}

static bool is_split(const struct check *c, struct slot s)
{
    return c->p->item[s.row].row.place.kind == DTX_SPLIT;
}

static void list_slots(struct check *c)
{
    for (int i = 0; i < c->p->n; i++) {
        const struct dtx_param *item = &c->p->item[i];
        if (!item->held)
            continue;
        for (int kind = 0; kind < STATE + c->n_states; kind++)
            if (kind != MASTER || item->master.dtype != item->weight.dtype) /* else the weight is the master */
                c->slot[c->n++] = (struct slot){i, kind};
    }
}

static enum dtx_status open_check(struct check *c)
{
    struct dtx_ctx *ctx = c->p->ctx;
    int64_t most = (int64_t)c->p->n * KINDS, ranks = 2;
    ranks = dtx_max64(ranks, dtx_max64(dtx_mesh_data_size(c->p->mesh), c->p->mesh->size[DTX_AXIS_TP]));
    void *memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, most, sizeof *c->slot, &memory));
    c->slot = memory;
    list_slots(c);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, most, sizeof *c->differs, &memory));
    c->differs = memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, (3 + ranks) * c->n, sizeof *c->hash, &memory));
    c->hash = memory;
    c->whole = c->hash + c->n;
    c->packed = c->whole + c->n;
    c->all = c->packed + c->n;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, STAGED, sizeof(double), &memory));
    c->staging = memory;
    return DTX_OK;
}

static void close_check(struct check *c)
{
    dtx_mem_free(c->slot);
    dtx_mem_free(c->differs);
    dtx_mem_free(c->hash);
    dtx_mem_free(c->staging);
}

/* Elements [first, first + count) of a row, which lie in x; first is a multiple of BLOCK unless count is 0. */
static enum dtx_status hash_part(struct check *c, const struct dtx_tensor *x, int64_t first, int64_t count,
                                 uint64_t *out)
{
    int64_t bytes = (int64_t)dtx_dtype_bytes(x->dtype);
    *out = 0;
    if (DTX_MUTANT(replica_last_block_left_out) && count > BLOCK)
        count -= count % BLOCK;
    for (int64_t at = 0; at < count; at += STAGED) {
        int64_t n = dtx_min64(STAGED, count - at);
        struct dtx_tensor piece = dtx_flat_range(x, at, n);
        DTX_TRY(c->p->ctx, dtx_tensor_get(c->queue, &piece, c->staging));
        for (int64_t b = 0; b < n; b += BLOCK)
            *out += dtx_hash(c->staging + b * bytes, (size_t)(dtx_min64(BLOCK, n - b) * bytes),
                             (uint64_t)((first + at + b) / BLOCK));
    }
    return DTX_OK;
}

static enum dtx_status hash_all(struct check *c)
{
    for (int i = 0; i < c->n; i++) {
        const struct dtx_param *item = &c->p->item[c->slot[i].row];
        int kind = c->slot[i].kind;
        const struct dtx_tensor *x = kind == WEIGHT   ? &item->weight
                                     : kind == MASTER ? &item->master
                                                      : &item->state[kind - STATE];
        int64_t first = kind == WEIGHT ? 0 : item->part_first, count = kind == WEIGHT ? item->count : item->part_count;
        DTX_TRY(c->p->ctx, hash_part(c, x, first, count, &c->hash[i]));
    }
    return DTX_OK;
}

static void mark(struct check *c, int slot)
{
    c->differs[(int64_t)c->slot[slot].row * KINDS + c->slot[slot].kind] = 1;
}

/* Also makes `whole`: the sum of the pieces where ZeRO cuts. */
static enum dtx_status compare_data_ranks(struct check *c)
{
    struct dtx_comm *data = c->p->mesh->data;
    DTX_TRY(c->p->ctx, dtx_comm_gather_bytes(data, c->hash, c->n * (int64_t)sizeof *c->hash, c->all));
    for (int i = 0; i < c->n; i++) {
        uint64_t sum = 0;
        bool pieces = cut(c, c->slot[i]);
        for (int r = 0; r < data->size; r++) {
            uint64_t hash = c->all[(int64_t)r * c->n + i];
            sum += hash;
            if (!pieces && hash != c->hash[i] && !DTX_MUTANT(replica_data_ranks_not_compared))
                mark(c, i);
        }
        c->whole[i] = pieces ? sum : c->hash[i];
    }
    return DTX_OK;
}

static enum dtx_status compare_tensor_ranks(struct check *c)
{
    struct dtx_comm *tp = c->p->mesh->axis[DTX_AXIS_TP];
    DTX_TRY(c->p->ctx, dtx_comm_gather_bytes(tp, c->hash, c->n * (int64_t)sizeof *c->hash, c->all));
    for (int i = 0; i < c->n; i++)
        for (int r = 0; r < tp->size && !is_split(c, c->slot[i]); r++)
            if (c->all[(int64_t)r * c->n + i] != c->hash[i] && !DTX_MUTANT(replica_tensor_ranks_not_compared))
                mark(c, i);
    return DTX_OK;
}

/* First and last stage list the tensors of tied rows in the same order. */
static enum dtx_status compare_stages(struct check *c)
{
    int n = 0;
    if (!c->p->mesh->tied || DTX_MUTANT(replica_stages_not_compared))
        return DTX_OK;
    for (int i = 0; i < c->n; i++)
        if (tied(c, c->slot[i]))
            c->packed[n++] = c->whole[i];
    if (n == 0)
        return DTX_OK;
    DTX_TRY(c->p->ctx, dtx_comm_gather_bytes(c->p->mesh->tied, c->packed, n * (int64_t)sizeof *c->packed, c->all));
    for (int i = 0, at = 0; i < c->n; i++)
        if (tied(c, c->slot[i])) {
            if (c->all[at] != c->all[n + at])
                mark(c, i);
            at++;
        }
    return DTX_OK;
}

/* One rank's copy, as all ranks see it after a difference. */
struct copy {
    char host[64];
    int32_t held, rank; /* of the world */
    uint64_t value;
};

static void append(struct dtx_replica_report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(struct dtx_replica_report *report, const char *format, ...)
{
    size_t used = strlen(report->text);
    va_list list;
    va_start(list, format);
    vsnprintf(report->text + used, sizeof report->text - used, format, list);
    va_end(list);
}

/* "rank 3 on node7 (tp 1, pp 0, dp 1), rank …", with the context rank where there are several: the first few of the
 * copies with this value (or without it). */
static void list_ranks(const struct check *c, const struct copy *copies, int n, uint64_t value, bool with,
                       struct dtx_replica_report *report)
{
    const int *size = c->p->mesh->size;
    int listed = 0;
    for (int i = 0; i < n; i++) {
        int at[DTX_AXES];
        char context[24] = "";
        if ((copies[i].value == value) != with || listed++ >= DTX_REPLICA_RANKS)
            continue;
        dtx_mesh_place(size, copies[i].rank, at);
        if (size[DTX_AXIS_CP] > 1)
            snprintf(context, sizeof context, ", cp %d", at[DTX_AXIS_CP]);
        append(report, "%srank %d on %s (tp %d, pp %d, dp %d%s)", listed > 1 ? ", " : "", copies[i].rank,
               copies[i].host, at[DTX_AXIS_TP], at[DTX_AXIS_PP], at[DTX_AXIS_DP], context);
    }
    if (listed > DTX_REPLICA_RANKS)
        append(report, " and %d more", listed - DTX_REPLICA_RANKS);
}

static int count_value(const struct copy *copies, int n, uint64_t value)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += copies[i].value == value;
    return count;
}

/* The value of more than half of the copies, if there is one (Boyer and Moore's vote). */
static bool find_majority(const struct copy *copies, int n, uint64_t *value)
{
    int lead = 0;
    for (int i = 0; i < n; i++) {
        if (lead == 0)
            *value = copies[i].value;
        lead += copies[i].value == *value ? 1 : -1;
    }
    return 2 * count_value(copies, n, *value) > n;
}

/* Two values of the first copy and of the first other one; more are not named. */
static void list_values(const struct check *c, const struct copy *copies, int n, struct dtx_replica_report *report)
{
    int other = 0;
    while (copies[other].value == copies[0].value)
        other++;
    append(report, ": %d copies, no majority: ", n);
    list_ranks(c, copies, n, copies[0].value, true, report);
    append(report, " | ");
    list_ranks(c, copies, n, copies[other].value, true, report);
    int rest = n - count_value(copies, n, copies[0].value) - count_value(copies, n, copies[other].value);
    if (rest)
        append(report, " | %d with other values", rest);
}

/* Copies that must be alike, in the order of ranks. */
static void describe_copies(const struct check *c, const char *tensor, const struct copy *copies, int n,
                            struct dtx_replica_report *report)
{
    uint64_t value = 0;
    if (n == 0 || count_value(copies, n, copies[0].value) == n)
        return;
    struct dtx_replica_difference d = {.copies = n, .majority = find_majority(copies, n, &value)};
    if (DTX_MUTANT(replica_minority_trusted) && d.majority)
        for (int i = 0; i < n; i++)
            value = copies[i].value != value ? copies[i].value : value;
    snprintf(d.tensor, sizeof d.tensor, "%s", tensor);
    for (int i = 0; i < n; i++)
        if (!d.majority || copies[i].value != value) {
            if (d.n_ranks < DTX_REPLICA_RANKS)
                d.ranks[d.n_ranks] = copies[i].rank;
            d.n_ranks++;
        }
    append(report, "%s%s", report->text[0] ? "; " : "", tensor);
    if (d.majority) {
        append(report, ": ");
        list_ranks(c, copies, n, value, false, report);
        append(report, " differ%s from the %d other copies", d.n_ranks == 1 ? "s" : "", n - d.n_ranks);
    } else {
        list_values(c, copies, n, report);
    }
    if (!report->first.copies)
        report->first = d;
}

/* Gathers one tensor's hashes over the mesh. Copies of a split row are those of one tensor rank. all, some: [ranks]. */
static enum dtx_status describe_tensor(struct check *c, struct slot s, struct copy *all, struct copy *some,
                                       struct dtx_replica_report *report)
{
    struct dtx_comm *world = c->p->mesh->control;
    int tp_size = c->p->mesh->size[DTX_AXIS_TP];
    struct copy mine = {.rank = world->rank};
    char tensor[2 * DTX_PARAM_NAME];
    snprintf(mine.host, sizeof mine.host, "%s", c->p->ctx->host);
    for (int i = 0; i < c->n; i++)
        if (c->slot[i].row == s.row && c->slot[i].kind == s.kind) {
            mine.held = 1;
            mine.value = c->whole[i];
        }
    DTX_TRY(c->p->ctx, dtx_comm_gather_bytes(world, &mine, sizeof mine, all));
    snprintf(tensor, sizeof tensor, "%s (%.32s)", c->p->item[s.row].row.name,
             s.kind == WEIGHT   ? "weight"
             : s.kind == MASTER ? "master"
                                : c->state_names[s.kind - STATE]);
    for (int t = 0; t < (is_split(c, s) ? tp_size : 1); t++) {
        int n = 0;
        for (int r = 0; r < world->size; r++)
            if (all[r].held && (!is_split(c, s) || r % tp_size == t))
                some[n++] = all[r];
        describe_copies(c, tensor, some, n, report);
    }
    return DTX_OK;
}

/* All ranks learn which tensors differ anywhere, and who holds what of the first ones. */
static enum dtx_status describe(struct check *c, struct dtx_replica_report *report)
{
    struct dtx_comm *world = c->p->mesh->control;
    int64_t n = (int64_t)c->p->n * KINDS;
    struct dtx_tensor differs = dtx_tensor_1d(c->differs, DTX_I64, n);
    void *copies = NULL;
    DTX_TRY(c->p->ctx, dtx_comm_all_reduce_max(world, NULL, &differs));
    enum dtx_status status = dtx_mem_alloc(c->p->ctx, 2 * (int64_t)world->size, sizeof(struct copy), &copies);
    status = dtx_comm_agree(world, status);
    for (int64_t i = 0; i < n && status == DTX_OK; i++) {
        if (!c->differs[i] || report->tensors++ >= NAMED)
            continue;
        struct slot s = {(int)(i / KINDS), (int)(i % KINDS)};
        status = describe_tensor(c, s, copies, (struct copy *)copies + world->size, report);
    }
    dtx_mem_free(copies);
    if (report->tensors > NAMED)
        append(report, "; and %lld more tensors", (long long)(report->tensors - NAMED));
    return status;
}

static enum dtx_status run_check(struct check *c, struct dtx_replica_report *report)
{
    struct dtx_ctx *ctx = c->p->ctx;
    struct dtx_comm *world = c->p->mesh->control;
    enum dtx_status status = open_check(c);
    if (status == DTX_OK)
        status = hash_all(c);
    DTX_TRY(ctx, dtx_comm_agree(world, status));
    DTX_TRY(ctx, compare_data_ranks(c));
    DTX_TRY(ctx, compare_tensor_ranks(c));
    DTX_TRY(ctx, compare_stages(c));
    int64_t found = 0;
    for (int64_t i = 0; i < (int64_t)c->p->n * KINDS; i++)
        found += c->differs[i];
    struct dtx_tensor sum = dtx_tensor_1d(&found, DTX_I64, 1);
    DTX_TRY(ctx, dtx_comm_all_reduce_sum(world, NULL, &sum));
    return found && !DTX_MUTANT(replica_check_never_differs) ? describe(c, report) : DTX_OK;
}

enum dtx_status dtx_replicas_check(struct dtx_params *params, struct dtx_queue *queue, const char *const *state_names,
                                   int n_states, struct dtx_replica_report *report)
{
    struct check c = {.p = params, .queue = queue, .state_names = state_names, .n_states = n_states};
    if (DTX_MUTANT(replica_states_left_out))
        c.n_states = 0;
    memset(report, 0, sizeof *report);
    enum dtx_status status = run_check(&c, report);
    close_check(&c);
    return status;
}
