/*
 * Finding a checkpoint of the local tier: the first rank of each node lists its folder, all learn what lies where, the
 * ranks of a node verify what it has of a candidate, and the newest of which every rank's file is whole somewhere is
 * taken. Its table is put together on every rank; who can read a file is all ranks of a node that has it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoints/local_file.h"
#include "checkpoints/retain.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/* A rank's file on a node. */
struct record {
    int64_t step, after;
    double time;
    uint64_t id;
    int32_t rank, size, node, good;
};

struct search {
    struct dtx_ctx *ctx;
    struct dtx_comm *world;
    struct dtx_local_nodes nodes;
    char folder[DTX_DISK_PATH];
    struct record *records; /* of all nodes, candidates newest first, then by rank and node */
    int64_t n;
    /* while a folder is listed */
    struct record *mine;
    int64_t n_mine, room;
    char step_folder[DTX_DISK_PATH];
};

static enum dtx_status record_path(const struct search *s, const struct record *r, char path[DTX_DISK_PATH])
{
    char step[48], name[32], folder[DTX_DISK_PATH];
    dtx_ckpt_folder_name("", r->step, step);
    dtx_local_name(r->rank, name);
    DTX_TRY(s->ctx, dtx_disk_join(s->ctx, s->folder, step, folder));
    return dtx_disk_join(s->ctx, folder, name, path);
}

static enum dtx_status add_file(struct dtx_ctx *ctx, void *self, const char *name)
{
    struct search *s = self;
    struct dtx_local_head head;
    char path[DTX_DISK_PATH], right[32];
    int rank;
    if (sscanf(name, "rank-%d", &rank) != 1)
        return DTX_OK;
    dtx_local_name(rank, right);
    if (strcmp(name, right) != 0)
        return DTX_OK;
    DTX_TRY(ctx, dtx_disk_join(ctx, s->step_folder, name, path));
    struct dtx_ctx quiet; /* a damaged file is one that is not there */
    dtx_ctx_init_child(&quiet, ctx);
    if (dtx_local_read(&quiet, path, &head, NULL, NULL) != DTX_OK || head.rank != rank)
        return DTX_OK;
    if (s->n_mine == s->room) {
        void *more;
        DTX_TRY(ctx, dtx_mem_alloc(ctx, 2 * s->room + 16, sizeof *s->mine, &more));
        if (s->n_mine)
            memcpy(more, s->mine, (size_t)s->n_mine * sizeof *s->mine);
        dtx_mem_free(s->mine);
        s->mine = more;
        s->room = 2 * s->room + 16;
    }
    s->mine[s->n_mine++] = (struct record){.step = head.step,
                                           .after = head.after,
                                           .time = head.time,
                                           .id = head.id,
                                           .rank = rank,
                                           .size = head.size,
                                           .node = s->nodes.node[s->nodes.rank]};
    return DTX_OK;
}

static enum dtx_status add_step(struct dtx_ctx *ctx, void *self, const char *name)
{
    struct search *s = self;
    int64_t step;
    if (!dtx_ckpt_folder_step(name, "", &step))
        return DTX_OK;
    DTX_TRY(ctx, dtx_disk_join(ctx, s->folder, name, s->step_folder));
    struct dtx_ctx quiet;
    dtx_ctx_init_child(&quiet, ctx);
    if (dtx_ckpt_each_entry(&quiet, s->step_folder, add_file, s) != DTX_OK)
        dtx_log(ctx, DTX_LOG_WARN, "local checkpoints: %s", quiet.error.text);
    return DTX_OK;
}

/* A node's folder, as far as it can be read: what cannot is on no disk. */
static void list_node(struct search *s)
{
    struct dtx_ctx quiet;
    dtx_ctx_init_child(&quiet, s->ctx);
    if (s->nodes.place[s->nodes.rank] != 0 || !dtx_disk_exists(s->folder))
        return;
    if (dtx_ckpt_each_entry(&quiet, s->folder, add_step, s) != DTX_OK)
        dtx_log(s->ctx, DTX_LOG_WARN, "local checkpoints: %s", quiet.error.text);
}

static int newest_first(const void *a, const void *b)
{
    const struct record *x = a, *y = b;
    if (x->after != y->after)
        return x->after < y->after ? 1 : -1;
    if (x->time != y->time)
        return x->time < y->time ? 1 : -1;
    if (x->id != y->id)
        return x->id < y->id ? 1 : -1;
    return x->rank != y->rank ? x->rank - y->rank : x->node - y->node;
}

/* Every node's records on every rank. */
static enum dtx_status gather_records(struct search *s)
{
    void *all;
    DTX_TRY(s->ctx, dtx_comm_gather_lists(s->world, s->mine, s->n_mine, sizeof *s->mine, &all, &s->n));
    s->records = all;
    if (s->n)
        qsort(s->records, (size_t)s->n, sizeof *s->records, newest_first);
    return DTX_OK;
}

/* Are all ranks' files among records [from, to)? Lists those that are not. */
static bool complete(const struct search *s, int64_t from, int64_t to, bool verified, char *lost, size_t bytes)
{
    size_t used = 0;
    int64_t i = from;
    lost[0] = '\0';
    for (int rank = 0; rank < s->records[from].size; rank++) {
        bool there = false;
        for (; i < to && s->records[i].rank == rank; i++)
            there = there || !verified || s->records[i].good;
        if (!there && used + 16 < bytes)
            used += (size_t)snprintf(lost + used, bytes - used, "%s%d", used ? ", " : "", rank);
    }
    return used == 0 || DTX_MUTANT(local_incomplete_taken);
}

/* The ranks of each node read what it has of a candidate; all learn what is good. */
static enum dtx_status verify(struct search *s, int64_t from, int64_t to)
{
    int node = s->nodes.node[s->nodes.rank], turn = 0;
    void *mine = NULL, *all = NULL;
    int64_t n = to - from;
    enum dtx_status status = dtx_mem_alloc(s->ctx, n, 1, &mine);
    if (status == DTX_OK)
        status = dtx_mem_alloc(s->ctx, n * s->world->size, 1, &all);
    for (int64_t i = 0; i < n && status == DTX_OK; i++) {
        char path[DTX_DISK_PATH];
        struct dtx_ctx quiet;
        if (s->records[from + i].node != node || turn++ % s->nodes.ranks[node] != s->nodes.place[s->nodes.rank])
            continue;
        dtx_ctx_init_child(&quiet, s->ctx);
        status = record_path(s, &s->records[from + i], path);
        bool good = status == DTX_OK && dtx_local_verify(&quiet, path) == DTX_OK;
        ((uint8_t *)mine)[i] = good;
        if (status == DTX_OK && !good)
            dtx_log(s->ctx, DTX_LOG_WARN, "local checkpoint: %s", quiet.error.text);
    }
    status = dtx_comm_agree(s->world, status);
    if (status == DTX_OK)
        status = dtx_comm_gather_bytes(s->world, mine, n, all);
    for (int r = 0; r < s->world->size && status == DTX_OK; r++)
        for (int64_t i = 0; i < n; i++)
            s->records[from + i].good |= ((uint8_t *)all)[r * n + i];
    dtx_mem_free(mine);
    dtx_mem_free(all);
    return status;
}

/* The newest candidate that is whole and newer than `sequence`: records [*from, *to); equal when there is none. */
static enum dtx_status choose(struct search *s, int64_t sequence, int64_t *from, int64_t *to)
{
    char lost[256];
    for (*from = 0; *from < s->n; *from = *to) {
        const struct record *first = &s->records[*from];
        for (*to = *from; *to < s->n && s->records[*to].id == first->id;)
            ++*to;
        if (first->after < sequence)
            break;
        bool whole = complete(s, *from, *to, false, lost, sizeof lost);
        if (whole) {
            DTX_TRY(s->ctx, verify(s, *from, *to));
            whole = complete(s, *from, *to, true, lost, sizeof lost);
        }
        if (whole)
            return DTX_OK;
        if (s->world->rank == 0 && !DTX_MUTANT(local_passed_over_silently))
            dtx_log(s->ctx, DTX_LOG_WARN,
                    "local checkpoint of step %lld is passed over: no node has the files of rank%s %s of the %d that "
                    "saved it",
                    (long long)first->step, strchr(lost, ',') ? "s" : "", lost, first->size);
    }
    *to = *from;
    return DTX_OK;
}

/* The file of one rank: a rank that has it reads head and table, all get them. */
static enum dtx_status share_table(struct search *s, const struct record *r, int reader, struct dtx_local_head *head,
                                   struct dtx_ckpt_entry **entries, struct dtx_ckpt_meta *texts)
{
    char path[DTX_DISK_PATH];
    void *rows = NULL;
    enum dtx_status status = DTX_OK;
    *entries = NULL;
    if (s->world->rank == reader) {
        status = record_path(s, r, path);
        if (status == DTX_OK)
            status = dtx_local_read(s->ctx, path, head, entries, texts);
    }
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, status));
    DTX_TRY(s->ctx, dtx_comm_broadcast_bytes(s->world, head, sizeof *head, reader));
    int64_t bytes = head->n_entries * (int64_t)sizeof **entries;
    if (s->world->rank != reader) {
        status = dtx_mem_alloc(s->ctx, bytes, 1, &rows);
        *entries = rows;
    }
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, status));
    DTX_TRY(s->ctx, dtx_comm_broadcast_bytes(s->world, *entries, bytes, reader));
    if (!texts)
        return DTX_OK;
    DTX_TRY(s->ctx, dtx_comm_broadcast_text(s->world, &texts->config, reader));
    DTX_TRY(s->ctx, dtx_comm_broadcast_text(s->world, &texts->ledger, reader));
    return dtx_comm_broadcast_text(s->world, &texts->health, reader);
}

static void take_meta(const struct dtx_local_head *head, struct dtx_ckpt_meta *meta)
{
    meta->step = head->step;
    meta->tokens = head->tokens;
    meta->samples = head->samples;
    meta->seed = head->seed;
    meta->best_heldout = head->best_heldout;
    meta->heldout = head->heldout;
    memcpy(meta->mesh, head->mesh, sizeof meta->mesh);
    memcpy(meta->isa, head->isa, sizeof meta->isa);
    memcpy(meta->program, head->program, sizeof meta->program);
}

/* Appends rows to the table. */
static enum dtx_status append(struct dtx_ctx *ctx, struct dtx_ckpt_index *index, const struct dtx_ckpt_entry *rows,
                              int64_t n)
{
    void *more;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, index->n + n, sizeof *rows, &more));
    if (index->n)
        memcpy(more, index->entries, (size_t)index->n * sizeof *rows);
    if (n)
        memcpy((struct dtx_ckpt_entry *)more + index->n, rows, (size_t)n * sizeof *rows);
    dtx_mem_free(index->entries);
    index->entries = more;
    index->n += n;
    return DTX_OK;
}

/* Table and scalars of the chosen one, and who can read what. */
static enum dtx_status make_index(struct search *s, int64_t from, int64_t to, struct dtx_ckpt_index *index)
{
    void *memory;
    int files = s->records[from].size;
    DTX_TRY(s->ctx, dtx_comm_agree(s->world, dtx_mem_alloc(s->ctx, files, (size_t)s->world->size, &memory)));
    index->readers = memory;
    index->n_files = files;
    for (int64_t i = from; i < to; i++)
        for (int r = 0; r < s->world->size; r++)
            if (s->records[i].good && s->nodes.node[r] == s->records[i].node)
                index->readers[r * files + s->records[i].rank] = 1;
    for (int64_t i = from, file = 0; i < to; i++) {
        struct dtx_local_head head;
        struct dtx_ckpt_entry *rows;
        int reader = 0;
        if (s->records[i].rank != file || !s->records[i].good)
            continue;
        while (s->nodes.node[reader] != s->records[i].node)
            reader++;
        enum dtx_status status = share_table(s, &s->records[i], reader, &head, &rows, file == 0 ? &index->meta : NULL);
        if (status == DTX_OK && file == 0)
            take_meta(&head, &index->meta);
        if (status == DTX_OK)
            status = dtx_comm_agree(s->world, append(s->ctx, index, rows, head.n_entries));
        dtx_mem_free(rows);
        DTX_TRY(s->ctx, status);
        file++;
    }
    dtx_ckpt_sort(index->entries, index->n);
    return dtx_ckpt_check_table(s->ctx, "local checkpoint", index->entries, index->n, files);
}

enum dtx_status dtx_ckpt_local_find(struct dtx_ctx *ctx, struct dtx_comm *world,
                                    const struct dtx_ckpt_local_options *options, int64_t sequence, bool *found,
                                    struct dtx_ckpt_index *index, char *folder, size_t folder_bytes)
{
    void *memory;
    int64_t from = 0, to = 0;
    bool there;
    DTX_TRY(ctx, dtx_comm_agree(world, dtx_mem_alloc(ctx, 1, sizeof(struct search), &memory)));
    struct search *s = memory;
    s->ctx = ctx;
    s->world = world;
    memset(index, 0, sizeof *index);
    *found = false;
    enum dtx_status status = dtx_local_folder(ctx, world, options, false, &there, s->folder);
    if (status != DTX_OK || !there)
        goto done;
    DTX_TRY_GOTO(ctx, status, dtx_local_nodes_find(ctx, world, options->node, &s->nodes), done);
    list_node(s);
    DTX_TRY_GOTO(ctx, status, gather_records(s), done);
    DTX_TRY_GOTO(ctx, status, choose(s, sequence, &from, &to), done);
    if (from == to)
        goto done;
    status = make_index(s, from, to, index);
    if (status != DTX_OK) {
        dtx_ckpt_index_free(index);
    } else {
        char step[48];
        dtx_ckpt_folder_name("", index->meta.step, step);
        snprintf(folder, folder_bytes, "%s/%s", s->folder, step);
        *found = true;
    }
done:
    if ((status == DTX_E_IO || status == DTX_E_FORMAT) && !DTX_MUTANT(local_unreadable_ends)) {
        if (world->rank == 0)
            dtx_log(ctx, DTX_LOG_WARN, "the local checkpoints are passed over: %s", ctx->error.text);
        dtx_error_clear(ctx);
        status = DTX_OK;
    }
    dtx_local_nodes_free(&s->nodes);
    dtx_mem_free(s->mine);
    dtx_mem_free(s->records);
    dtx_mem_free(s);
    return status;
}
