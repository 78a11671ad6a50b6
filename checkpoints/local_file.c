#include "checkpoints/local_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "checkpoints/shard_file.h"
#include "kernels/base/clock.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

static const char magic[8] = "dtxlocal";

void dtx_local_name(int rank, char out[32])
{
    snprintf(out, 32, "rank-%05d", rank);
}

/* The bytes of a box, dense: where they lie, or gathered into `buffer`. */
static const void *box_bytes(const struct dtx_ckpt_item *item, const struct dtx_box *box, void *buffer)
{
    size_t element = dtx_dtype_bytes(item->dtype);
    int64_t row = 1;
    bool dense = true;
    for (int d = 1; d < item->ndim; d++) {
        row *= item->local[d];
        dense = dense && box->extent[d] == item->local[d];
    }
    if (dense)
        return (const char *)item->data + (size_t)(box->local[0] * row) * element;
    dtx_box_gather(box, item->ndim, item->local, element, item->data, buffer);
    return buffer;
}

static int64_t longest_box(const struct dtx_ckpt_item *items, int n_items, int64_t *n)
{
    int64_t longest = 1;
    *n = 0;
    for (int i = 0; i < n_items; i++)
        for (int b = 0; b < items[i].n_boxes && items[i].writer; b++, ++*n)
            longest = dtx_max64(longest, dtx_ckpt_box_count(&items[i].boxes[b], items[i].ndim) *
                                             (int64_t)dtx_dtype_bytes(items[i].dtype));
    return longest;
}

/* The rows of the table with their places; the boxes are written on the way. Returns the end of the last. */
static enum dtx_status write_boxes(struct dtx_ctx *ctx, int fd, const char *path, const struct dtx_local_head *head,
                                   const struct dtx_ckpt_item *items, int n_items, void *buffer,
                                   struct dtx_ckpt_entry *entries, int64_t *end)
{
    int64_t at = head->data_at, n = 0;
    for (int i = 0; i < n_items; i++)
        for (int b = 0; b < items[i].n_boxes && items[i].writer; b++) {
            const struct dtx_box *box = &items[i].boxes[b];
            struct dtx_ckpt_entry *e = &entries[n];
            const void *bytes = box_bytes(&items[i], box, buffer);
            snprintf(e->name, sizeof e->name, "%.*s", DTX_CKPT_NAME - 1, items[i].name);
            snprintf(e->dtype, sizeof e->dtype, "%s", dtx_dtype_name(items[i].dtype));
            e->ndim = items[i].ndim;
            e->shard = e->writer = head->rank;
            e->part = (int32_t)n++;
            for (int d = 0; d < e->ndim; d++) {
                e->whole[d] = items[i].whole[d];
                e->global[d] = box->global[d];
                e->extent[d] = box->extent[d];
            }
            e->offset = at;
            e->bytes = dtx_ckpt_box_count(box, e->ndim) * (int64_t)dtx_dtype_bytes(items[i].dtype);
            e->checksum = dtx_hash(bytes, (size_t)e->bytes, 0);
            DTX_TRY(ctx, dtx_disk_write_at(ctx, fd, path, bytes, e->bytes, at));
            at += e->bytes;
        }
    *end = at;
    return DTX_OK;
}

enum dtx_status dtx_local_write(struct dtx_ctx *ctx, const char *path, struct dtx_local_head *head,
                                const struct dtx_ckpt_item *items, int n_items, const struct dtx_ckpt_meta *texts)
{
    void *image = NULL, *buffer = NULL;
    int64_t longest = longest_box(items, n_items, &head->n_entries);
    int fd = -1;
    memcpy(head->magic, magic, sizeof magic);
    head->format = DTX_LOCAL_FORMAT;
    const char *all[] = {texts->config, texts->ledger, texts->health};
    head->texts_bytes = 0;
    for (int i = 0; i < 3; i++)
        head->texts_bytes += all[i] ? (int64_t)strlen(all[i]) + 1 : 1;
    int64_t table = head->n_entries * (int64_t)sizeof(struct dtx_ckpt_entry);
    head->data_at = dtx_round_up((int64_t)sizeof *head + table + head->texts_bytes, DTX_LOCAL_ALIGN);
    enum dtx_status status = dtx_mem_alloc(ctx, head->data_at, 1, &image);
    if (status == DTX_OK)
        status = dtx_mem_alloc(ctx, longest, 1, &buffer);
    if (status == DTX_OK)
        status = dtx_disk_open_new(ctx, path, 0, &fd);
    if (status == DTX_OK)
        status = write_boxes(ctx, fd, path, head, items, n_items, buffer,
                             (struct dtx_ckpt_entry *)((char *)image + sizeof *head), &head->file_bytes);
    if (status == DTX_OK) {
        head->checksum = 0;
        memcpy(image, head, sizeof *head);
        char *text = (char *)image + sizeof *head + table;
        for (int i = 0; i < 3; i++)
            text = stpcpy(text, all[i] ? all[i] : "") + 1;
        head->checksum = dtx_hash(image, (size_t)head->data_at, 0);
        memcpy(image, head, sizeof *head);
        status = dtx_disk_write_at(ctx, fd, path, image, head->data_at, 0);
    }
    if (status == DTX_OK)
        status = dtx_disk_close_written(ctx, fd, path);
    else if (fd >= 0)
        close(fd);
    dtx_mem_free(image);
    dtx_mem_free(buffer);
    return status;
}

static enum dtx_status check_head(struct dtx_ctx *ctx, const char *path, const struct dtx_local_head *h, int64_t bytes)
{
    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s is no file of a local checkpoint", path);
    if (h->format != DTX_LOCAL_FORMAT)
        return dtx_fail(ctx, DTX_E_UNSUPPORTED, "%s has format %u, this dtx reads %d", path, h->format,
                        DTX_LOCAL_FORMAT);
    int64_t room = h->data_at - (int64_t)sizeof *h;
    if (h->file_bytes != bytes || h->data_at > bytes || h->n_entries < 0 || h->texts_bytes < 2 || room < 0 ||
        h->n_entries > room / (int64_t)sizeof(struct dtx_ckpt_entry) ||
        h->texts_bytes > room - h->n_entries * (int64_t)sizeof(struct dtx_ckpt_entry) || h->size < 1 || h->rank < 0 ||
        h->rank >= h->size)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s is damaged or cut off: %lld bytes", path, (long long)bytes);
    return DTX_OK;
}

/* All before the boxes, in memory that the caller frees. */
static enum dtx_status read_image(struct dtx_ctx *ctx, int fd, const char *path, int64_t bytes, char **out)
{
    struct dtx_local_head head;
    void *image;
    if (bytes < (int64_t)sizeof head)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s is cut off: %lld bytes", path, (long long)bytes);
    DTX_TRY(ctx, dtx_disk_read_at(ctx, fd, path, &head, sizeof head, 0));
    DTX_TRY(ctx, check_head(ctx, path, &head, bytes));
    DTX_TRY(ctx, dtx_mem_alloc(ctx, head.data_at, 1, &image));
    enum dtx_status status = dtx_disk_read_at(ctx, fd, path, image, head.data_at, 0);
    if (status == DTX_OK) {
        struct dtx_local_head *h = image;
        uint64_t stored = h->checksum;
        h->checksum = 0;
        if (dtx_hash(image, (size_t)head.data_at, 0) != stored || memcmp(h->magic, magic, sizeof magic) != 0)
            status = dtx_fail(ctx, DTX_E_FORMAT, "%s is damaged: its checksum differs", path);
        h->checksum = stored;
    }
    if (status != DTX_OK) {
        dtx_mem_free(image);
        return status;
    }
    *out = image;
    return DTX_OK;
}

static enum dtx_status open_image(struct dtx_ctx *ctx, const char *path, int *fd, char **image)
{
    int64_t bytes;
    DTX_TRY(ctx, dtx_disk_size(ctx, path, &bytes));
    DTX_TRY(ctx, dtx_disk_open_read(ctx, path, fd));
    enum dtx_status status = read_image(ctx, *fd, path, bytes, image);
    if (status != DTX_OK)
        close(*fd);
    return status;
}

/* Configuration, ledger and, but in older files, health. */
static enum dtx_status read_texts(struct dtx_ctx *ctx, const char *path, const char *text, int64_t bytes,
                                  struct dtx_ckpt_meta *texts)
{
    const char *end = text + bytes, *ledger = memchr(text, '\0', (size_t)bytes - 1);
    if (!ledger || end[-1] != '\0')
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: its configuration has no end", path);
    const char *health = ledger + 1 + strlen(ledger + 1) + 1;
    DTX_TRY(ctx, dtx_mem_text(ctx, text, &texts->config));
    DTX_TRY(ctx, dtx_mem_text(ctx, ledger + 1, &texts->ledger));
    return dtx_mem_text(ctx, health < end ? health : "", &texts->health);
}

enum dtx_status dtx_local_read(struct dtx_ctx *ctx, const char *path, struct dtx_local_head *head,
                               struct dtx_ckpt_entry **entries, struct dtx_ckpt_meta *texts)
{
    char *image;
    void *rows = NULL;
    int fd;
    DTX_TRY(ctx, open_image(ctx, path, &fd, &image));
    close(fd);
    memcpy(head, image, sizeof *head);
    int64_t table = head->n_entries * (int64_t)sizeof(struct dtx_ckpt_entry);
    enum dtx_status status = entries ? dtx_mem_alloc(ctx, table, 1, &rows) : DTX_OK;
    if (status == DTX_OK && texts)
        status = read_texts(ctx, path, image + sizeof *head + table, head->texts_bytes, texts);
    if (status == DTX_OK && entries) {
        memcpy(rows, image + sizeof *head, (size_t)table);
        *entries = rows;
        rows = NULL;
    }
    dtx_mem_free(rows);
    dtx_mem_free(image);
    return status;
}

enum dtx_status dtx_local_verify(struct dtx_ctx *ctx, const char *path)
{
    char *image;
    void *buffer = NULL;
    int fd;
    DTX_TRY(ctx, open_image(ctx, path, &fd, &image));
    const struct dtx_local_head *head = (const struct dtx_local_head *)image;
    const struct dtx_ckpt_entry *entries = (const struct dtx_ckpt_entry *)(image + sizeof *head);
    enum dtx_status status = dtx_mem_alloc(ctx, dtx_ckpt_longest(entries, head->n_entries), 1, &buffer);
    for (int64_t i = 0; i < head->n_entries && status == DTX_OK && !DTX_MUTANT(local_boxes_unchecked); i++)
        status = dtx_ckpt_box_read(ctx, fd, path, &entries[i], buffer, NULL);
    close(fd);
    dtx_mem_free(buffer);
    dtx_mem_free(image);
    return status;
}

enum dtx_status dtx_local_nodes_find(struct dtx_ctx *ctx, struct dtx_comm *world, const char *name,
                                     struct dtx_local_nodes *out)
{
    uint64_t mine = dtx_hash_text(name, 0), *all;
    void *names = NULL, *numbers = NULL;
    enum dtx_status status = dtx_mem_alloc(ctx, world->size, sizeof mine, &names);
    if (status == DTX_OK)
        status = dtx_mem_alloc(ctx, 3 * (int64_t)world->size, sizeof(int), &numbers);
    status = dtx_comm_agree(world, status);
    if (status == DTX_OK)
        status = dtx_comm_gather_bytes(world, &mine, sizeof mine, names);
    if (status != DTX_OK) {
        dtx_mem_free(names);
        dtx_mem_free(numbers);
        return status;
    }
    all = names;
    struct dtx_local_nodes n = {.size = world->size, .rank = world->rank, .node = numbers};
    n.place = n.node + n.size;
    n.ranks = n.place + n.size;
    for (int r = 0; r < n.size; r++) {
        int before = 0;
        while (all[before] != all[r])
            before++;
        n.node[r] = before == r ? n.n++ : n.node[before];
        n.place[r] = n.ranks[n.node[r]]++;
    }
    dtx_mem_free(names);
    *out = n;
    return DTX_OK;
}

void dtx_local_nodes_free(struct dtx_local_nodes *nodes)
{
    dtx_mem_free(nodes->node);
    *nodes = (struct dtx_local_nodes){0};
}

int dtx_local_partner(const struct dtx_local_nodes *nodes, int rank)
{
    if (nodes->n == 1 || DTX_MUTANT(local_copy_left_out))
        return -1;
    int next = (nodes->node[rank] + 1) % nodes->n, place = nodes->place[rank] % nodes->ranks[next];
    for (int r = 0; r < nodes->size; r++)
        if (nodes->node[r] == next && nodes->place[r] == place)
            return r;
    return -1;
}

/* Root: the id in the durable tier's folder; 0: none. */
static enum dtx_status run_id(struct dtx_ctx *ctx, const char *durable, bool make, uint64_t *id)
{
    char path[DTX_DISK_PATH], fresh[DTX_DISK_PATH], line[32], *text;
    int64_t bytes;
    DTX_TRY(ctx, dtx_disk_join(ctx, durable, ".local-id", path));
    DTX_TRY(ctx, dtx_disk_join(ctx, durable, ".local-id.new", fresh));
    *id = 0;
    if (!make) {
        if (!dtx_disk_exists(path))
            return DTX_OK;
        DTX_TRY(ctx, dtx_disk_read(ctx, path, sizeof line, &text, &bytes));
        bool read = sscanf(text, "%" SCNx64, id) == 1;
        dtx_mem_free(text);
        return read ? DTX_OK
                    : dtx_fail(ctx, DTX_E_FORMAT,
                               "%s should hold a number of 16 digits; without it local checkpoints begin anew", path);
    }
    if (getrandom(id, sizeof *id, GRND_NONBLOCK) != sizeof *id)
        *id = dtx_hash(&(double){dtx_clock_wall()}, sizeof(double), (uint64_t)getpid());
    *id |= 1;
    snprintf(line, sizeof line, "%016" PRIx64 "\n", *id);
    DTX_TRY(ctx, dtx_disk_write_text(ctx, fresh, line));
    DTX_TRY(ctx, dtx_disk_rename(ctx, fresh, path));
    return dtx_disk_sync(ctx, durable);
}

enum dtx_status dtx_local_folder(struct dtx_ctx *ctx, struct dtx_comm *world,
                                 const struct dtx_ckpt_local_options *options, bool make, bool *there,
                                 char folder[DTX_DISK_PATH])
{
    uint64_t id = 0;
    enum dtx_status status = DTX_OK;
    if (world->rank == 0) {
        status = run_id(ctx, options->durable, false, &id);
        if (status == DTX_OK && make)
            status = run_id(ctx, options->durable, true, &id);
    }
    DTX_TRY(ctx, dtx_comm_agree(world, status));
    DTX_TRY(ctx, dtx_comm_broadcast_bytes(world, &id, sizeof id, 0));
    *there = id != 0;
    if (snprintf(folder, DTX_DISK_PATH, "%s/dtx-%016" PRIx64 "/%s", options->dir, id, options->node) >= DTX_DISK_PATH)
        status = dtx_fail(ctx, DTX_E_CONFIG, "checkpoint.local_dir: its path is too long");
    return dtx_comm_agree(world, status);
}
