/*
 * Saving to the local tier: every rank writes its file, then sends it to its partner while it takes those of its own
 * guests, a piece at a time; all agree, and the files get their names.
 */
#include "checkpoints/local.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checkpoints/local_file.h"
#include "checkpoints/retain.h"
#include "kernels/base/clock.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { PIECE = 8 << 20 }; /* bytes of a message, and of each buffer */

struct dtx_ckpt_local {
    char folder[DTX_DISK_PATH]; /* this node's */
    struct dtx_local_nodes nodes;
    int64_t after, saved; /* root: the durable tier's sequence; all: step of the last one here, or −1 */
};

/* A file that this rank takes from another. */
struct guest {
    int rank, fd;
    int64_t bytes;
    char *buffer, path[DTX_DISK_PATH];
    struct dtx_request request;
};

struct transfer {
    struct dtx_ctx *ctx;
    struct dtx_comm *comm;
    int partner, n_guests;
    struct guest *guests;
    int64_t bytes;                     /* of the own file */
    char *buffer, path[DTX_DISK_PATH]; /* path: "" as long as nothing is written */
    int fd;
};

enum dtx_status dtx_ckpt_local_open(struct dtx_ctx *ctx, struct dtx_comm *world,
                                    const struct dtx_ckpt_local_options *options, bool fresh,
                                    struct dtx_ckpt_local **out)
{
    void *memory;
    bool there;
    DTX_TRY(ctx, dtx_comm_agree(world, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_ckpt_local), &memory)));
    struct dtx_ckpt_local *l = memory;
    l->saved = -1;
    enum dtx_status status = dtx_local_folder(ctx, world, options, false, &there, l->folder);
    if (status == DTX_OK && (fresh || !there))
        status = dtx_local_folder(ctx, world, options, true, &there, l->folder);
    if (status == DTX_OK)
        status = dtx_local_nodes_find(ctx, world, options->node, &l->nodes);
    if (status == DTX_OK && world->rank == 0) {
        struct dtx_ckpt_place *places;
        int n;
        status = dtx_ckpt_list(ctx, options->durable, &places, &n);
        if (status == DTX_OK) {
            l->after = dtx_ckpt_next_sequence(places, n) - 1;
            dtx_mem_free(places);
        }
    }
    status = dtx_comm_agree(world, status);
    if (status != DTX_OK) {
        dtx_ckpt_local_close(l);
        return status;
    }
    *out = l;
    return DTX_OK;
}

void dtx_ckpt_local_close(struct dtx_ckpt_local *l)
{
    if (!l)
        return;
    dtx_local_nodes_free(&l->nodes);
    dtx_mem_free(l);
}

int dtx_ckpt_local_nodes(const struct dtx_ckpt_local *l)
{
    return l->nodes.n;
}

void dtx_ckpt_local_after(struct dtx_ckpt_local *l, int64_t sequence)
{
    l->after = sequence;
}

static bool leads_node(const struct dtx_local_nodes *nodes)
{
    return nodes->place[nodes->rank] == 0;
}

/* Who sends to this rank, and how much; files and buffers for it. */
static enum dtx_status list_guests(struct transfer *t, const struct dtx_local_nodes *nodes, const int64_t *sizes,
                                   const char *folder)
{
    void *memory;
    t->partner = dtx_local_partner(nodes, nodes->rank);
    for (int r = 0; r < nodes->size; r++)
        t->n_guests += dtx_local_partner(nodes, r) == nodes->rank;
    DTX_TRY(t->ctx, dtx_mem_alloc(t->ctx, t->n_guests, sizeof *t->guests, &memory));
    t->guests = memory;
    DTX_TRY(t->ctx, dtx_mem_alloc(t->ctx, t->n_guests + 1, PIECE, &memory));
    t->buffer = memory;
    for (int r = 0, i = 0; r < nodes->size; r++) {
        char name[32];
        if (dtx_local_partner(nodes, r) != nodes->rank)
            continue;
        struct guest *g = &t->guests[i++];
        *g = (struct guest){.rank = r, .fd = -1, .bytes = sizes[r], .buffer = t->buffer + (size_t)i * PIECE};
        snprintf(name, sizeof name, ".rank-%05d", r);
        DTX_TRY(t->ctx, dtx_disk_join(t->ctx, folder, name, g->path));
    }
    return DTX_OK;
}

/* One piece each way; a failure of a disk is noted, and the messages go on, since the other side waits for them. */
static enum dtx_status exchange_piece(struct transfer *t, int64_t at, enum dtx_status *fault)
{
    struct dtx_request sent;
    bool sends = t->partner >= 0 && at < t->bytes;
    for (int i = 0; i < t->n_guests; i++) {
        struct guest *g = &t->guests[i];
        struct dtx_tensor piece = dtx_tensor_1d(g->buffer, DTX_U8, dtx_min64(PIECE, g->bytes - at));
        if (at < g->bytes)
            DTX_TRY(t->ctx, dtx_comm_recv_start(t->comm, NULL, &piece, g->rank, &g->request));
    }
    if (sends) {
        struct dtx_tensor piece = dtx_tensor_1d(t->buffer, DTX_U8, dtx_min64(PIECE, t->bytes - at));
        if (*fault == DTX_OK)
            *fault = dtx_disk_read_at(t->ctx, t->fd, t->path, t->buffer, (int64_t)dtx_tensor_bytes(&piece), at);
        DTX_TRY(t->ctx, dtx_comm_send_start(t->comm, NULL, &piece, t->partner, &sent));
    }
    for (int i = 0; i < t->n_guests; i++) {
        struct guest *g = &t->guests[i];
        if (at >= g->bytes)
            continue;
        DTX_TRY(t->ctx, dtx_comm_wait(&g->request));
        if (*fault == DTX_OK)
            *fault = dtx_disk_write_at(t->ctx, g->fd, g->path, g->buffer, dtx_min64(PIECE, g->bytes - at), at);
    }
    return sends ? dtx_comm_wait(&sent) : DTX_OK;
}

static enum dtx_status exchange(struct transfer *t)
{
    enum dtx_status fault = DTX_OK;
    int64_t most = t->partner >= 0 ? t->bytes : 0;
    if (t->partner >= 0)
        fault = dtx_disk_open_read(t->ctx, t->path, &t->fd);
    for (int i = 0; i < t->n_guests; i++) {
        most = dtx_max64(most, t->guests[i].bytes);
        if (fault == DTX_OK)
            fault = dtx_disk_open_new(t->ctx, t->guests[i].path, t->guests[i].bytes, &t->guests[i].fd);
    }
    for (int64_t at = 0; at < most; at += PIECE)
        DTX_TRY(t->ctx, exchange_piece(t, at, &fault));
    for (int i = 0; i < t->n_guests; i++) {
        int fd = t->guests[i].fd;
        if (fault == DTX_OK)
            fault = dtx_disk_close_written(t->ctx, fd, t->guests[i].path);
        else if (fd >= 0)
            close(fd);
    }
    if (t->fd >= 0)
        close(t->fd);
    return fault;
}

/* This rank's files get their names; what is seen from then on is whole. */
static enum dtx_status publish(struct transfer *t, const char *folder)
{
    char path[DTX_DISK_PATH], name[32];
    dtx_local_name(t->comm->rank, name);
    DTX_TRY(t->ctx, dtx_disk_join(t->ctx, folder, name, path));
    DTX_TRY(t->ctx, dtx_disk_rename(t->ctx, t->path, path));
    for (int i = 0; i < t->n_guests; i++) {
        dtx_local_name(t->guests[i].rank, name);
        DTX_TRY(t->ctx, dtx_disk_join(t->ctx, folder, name, path));
        DTX_TRY(t->ctx, dtx_disk_rename(t->ctx, t->guests[i].path, path));
    }
    return dtx_disk_sync(t->ctx, folder);
}

/* After a failure: what was begun goes, so that a full disk has the room for the next one. */
static void discard(const struct transfer *t)
{
    if (DTX_MUTANT(local_failed_stays))
        return;
    if (t->path[0])
        (void)unlink(t->path);
    for (int i = 0; i < t->n_guests; i++)
        if (t->guests[i].path[0])
            (void)unlink(t->guests[i].path);
}

struct old {
    const char *folder;
    int64_t keep[2];
};

static enum dtx_status remove_old(struct dtx_ctx *ctx, void *self, const char *name)
{
    const struct old *old = self;
    char path[DTX_DISK_PATH];
    int64_t step;
    if (!dtx_ckpt_folder_step(name, "", &step) || step == old->keep[0] || step == old->keep[1])
        return DTX_OK;
    DTX_TRY(ctx, dtx_disk_join(ctx, old->folder, name, path));
    return dtx_disk_remove_folder(ctx, path);
}

static enum dtx_status start_head(struct dtx_comm *comm, const struct dtx_ckpt_local *l,
                                  const struct dtx_ckpt_meta *meta, struct dtx_local_head *head)
{
    *head = (struct dtx_local_head){.size = comm->size,
                                    .step = meta->step,
                                    .after = l->after,
                                    .time = dtx_clock_wall(),
                                    .tokens = meta->tokens,
                                    .samples = meta->samples,
                                    .seed = meta->seed,
                                    .best_heldout = meta->best_heldout,
                                    .heldout = meta->heldout};
    memcpy(head->mesh, meta->mesh, sizeof head->mesh);
    memcpy(head->isa, meta->isa, sizeof head->isa);
    memcpy(head->program, meta->program, sizeof head->program);
    head->id = dtx_hash(head, sizeof *head, (uint64_t)getpid()) | 1;
    DTX_TRY(comm->ctx, dtx_comm_broadcast_bytes(comm, head, sizeof *head, 0));
    head->rank = comm->rank;
    return DTX_OK;
}

/* The own file, then its way to the partner. */
static enum dtx_status write_and_send(struct transfer *t, struct dtx_ckpt_local *l, const char *folder,
                                      const struct dtx_ckpt_item *items, int n_items, const struct dtx_ckpt_meta *meta,
                                      struct dtx_local_head *head)
{
    char name[32];
    void *sizes = NULL;
    snprintf(name, sizeof name, ".rank-%05d", t->comm->rank);
    enum dtx_status status = dtx_disk_join(t->ctx, folder, name, t->path);
    if (status == DTX_OK)
        status = dtx_local_write(t->ctx, t->path, head, items, n_items, meta);
    if (status == DTX_OK)
        status = dtx_mem_alloc(t->ctx, t->comm->size, sizeof(int64_t), &sizes);
    DTX_TRY_GOTO(t->ctx, status, dtx_comm_agree(t->comm, status), done);
    t->bytes = head->file_bytes;
    DTX_TRY_GOTO(t->ctx, status, dtx_comm_gather_bytes(t->comm, &t->bytes, sizeof t->bytes, sizes), done);
    DTX_TRY_GOTO(t->ctx, status, dtx_comm_agree(t->comm, list_guests(t, &l->nodes, sizes, folder)), done);
    DTX_TRY_GOTO(t->ctx, status, dtx_comm_agree(t->comm, exchange(t)), done);
    status = dtx_comm_agree(t->comm, publish(t, folder));
done:
    dtx_mem_free(sizes);
    return status;
}

enum dtx_status dtx_ckpt_local_save(struct dtx_ctx *ctx, struct dtx_comm *comm, struct dtx_ckpt_local *l,
                                    const struct dtx_ckpt_item *items, int n_items, const struct dtx_ckpt_meta *meta,
                                    struct dtx_ckpt_saved *saved)
{
    double start = dtx_clock_now();
    char folder[DTX_DISK_PATH], name[48];
    void *memory = NULL;
    struct dtx_local_head head;
    enum dtx_status status = dtx_mem_alloc(ctx, 1, sizeof(struct transfer), &memory);
    dtx_ckpt_folder_name("", meta->step, name);
    if (status == DTX_OK)
        status = dtx_disk_join(ctx, l->folder, name, folder);
    if (status == DTX_OK && leads_node(&l->nodes))
        status = dtx_disk_make_folders(ctx, folder);
    status = dtx_comm_agree(comm, status);
    if (status != DTX_OK) {
        dtx_mem_free(memory);
        return status;
    }
    struct transfer *t = memory;
    t->ctx = ctx;
    t->comm = comm;
    t->fd = -1;
    DTX_TRY_GOTO(ctx, status, start_head(comm, l, meta, &head), done);
    status = write_and_send(t, l, folder, items, n_items, meta, &head);
    if (status != DTX_OK) {
        discard(t);
        goto done;
    }
    *saved = (struct dtx_ckpt_saved){.step = meta->step, .shards = comm->size};
    snprintf(saved->folder, sizeof saved->folder, "%s", folder);
    saved->bytes = t->bytes;
    saved->seconds = dtx_clock_now() - start;
    struct old old = {l->folder, {meta->step, l->saved}};
    l->saved = meta->step;
    bool removes = leads_node(&l->nodes);
    if (dtx_comm_agree(comm, removes ? dtx_ckpt_each_entry(ctx, l->folder, remove_old, &old) : DTX_OK) != DTX_OK) {
        snprintf(saved->warning, sizeof saved->warning, "%.500s", ctx->error.text);
        dtx_error_clear(ctx);
    }
done:
    dtx_mem_free(t->guests);
    dtx_mem_free(t->buffer);
    dtx_mem_free(t);
    return status;
}
