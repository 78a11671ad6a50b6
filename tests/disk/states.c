#include "tests/disk/states.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoints/disk.h"
#include "kernels/base/mem.h"
#include "tests/harness/ckpt_state.h"

enum { ITEMS = 4 }; /* arrays of the harness that are saved: rows and columns, fused, of two dtypes */
enum { BYTES = 3 * DTX_DISK_PAGE + 100 };

static uint8_t byte_at(int64_t i, int64_t number)
{
    return (uint8_t)(((uint64_t)i + 1) * (2654435761u + 2 * (uint64_t)number) >> 13);
}

/* One more in the place of the harness's next: pages and a rest, which a save beside training writes both ways. */
static void add_pages(struct ckpt_state *state, int rank, int64_t number)
{
    struct dtx_ckpt_item *item = &state->items[ITEMS];
    uint8_t *bytes = realloc(item->data, BYTES);
    for (int64_t i = 0; i < BYTES; i++)
        bytes[i] = byte_at(i, number);
    *item = (struct dtx_ckpt_item){
        .name = "/other/pages", .dtype = DTX_U8, .ndim = 1, .whole = {BYTES}, .local = {BYTES}, .n_boxes = 1};
    item->boxes[0].extent[0] = BYTES;
    item->writer = rank == 0;
    item->data = bytes;
}

static bool pages_differ(const struct ckpt_state *state, int64_t number)
{
    const uint8_t *bytes = state->items[ITEMS].data;
    int64_t i = 0;
    while (i < BYTES && bytes[i] == byte_at(i, number))
        i++;
    return i < BYTES;
}

enum dtx_status numbered_save(struct dtx_comm *world, const char *dir, int64_t number, int64_t step, bool beside)
{
    struct ckpt_state state = {0};
    struct ckpt_mesh mesh = {world->size, 1, 1};
    struct dtx_ckpt_meta meta = ckpt_state_meta(step, mesh);
    struct dtx_ckpt_save_options options = {.keep = 2, .beside = beside, .max_shards = (world->size + 1) / 2};
    meta.samples = number;
    ckpt_state_add(&state, mesh, world->rank, (uint64_t)number);
    add_pages(&state, world->rank, number);
    enum dtx_status status = dtx_ckpt_save(world->ctx, world, dir, state.items, ITEMS + 1, &meta, &options);
    ckpt_state_free(&state);
    return status;
}

int64_t numbered_load(struct dtx_comm *world, const char *dir, const char *what)
{
    struct ckpt_state state = {0};
    struct ckpt_mesh mesh = {world->size, 1, 1};
    struct dtx_ckpt_meta meta;
    char path[DTX_DISK_PATH];
    if (ckpt_find_whole(world->ctx, world, dir, what, path, sizeof path) != DTX_OK ||
        dtx_ckpt_load_meta(world->ctx, world, path, &meta) != DTX_OK)
        return -1;
    dtx_ckpt_meta_free(&meta);
    ckpt_state_add(&state, mesh, world->rank, (uint64_t)meta.samples);
    add_pages(&state, world->rank, meta.samples);
    ckpt_state_clear(&state);
    int all = state.n;
    enum dtx_status status = dtx_ckpt_load(world->ctx, world, path, state.items, ITEMS + 1);
    state.n = ITEMS;
    if (status == DTX_OK &&
        (ckpt_state_differences(&state, (uint64_t)meta.samples) != 0 || pages_differ(&state, meta.samples)))
        status = dtx_fail(world->ctx, DTX_E_FORMAT, "%s has other values than were saved", path);
    state.n = all;
    ckpt_state_free(&state);
    return dtx_comm_agree(world, status) == DTX_OK ? meta.samples : -1;
}

const char *latest_fault(struct dtx_comm *alone, const char *dir, bool may_lack)
{
    char path[DTX_DISK_PATH], name[64] = "";
    snprintf(path, sizeof path, "%s/latest", dir);
    FILE *file = fopen(path, "r");
    if (!file)
        return may_lack ? "" : "there is no file latest";
    if (!fgets(name, sizeof name, file) || !strchr(name, '\n'))
        name[0] = '\0';
    fclose(file);
    name[strcspn(name, "\n")] = '\0';
    if (!name[0])
        return "latest is empty or cut off";
    return ckpt_find_whole(alone->ctx, alone, dir, name, path, sizeof path) == DTX_OK
               ? ""
               : "latest names a checkpoint that does not load";
}
