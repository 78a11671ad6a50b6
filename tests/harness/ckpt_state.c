#include "tests/harness/ckpt_state.h"

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoints/index.h"
#include "kernels/base/hash.h"

enum { LAYERS = 4, WIDTH = 6, FFN = 7, VOCABULARY = 101 };

static void element(const char *name, enum dtx_dtype dtype, int64_t index, uint64_t salt, void *out)
{
    uint64_t h = dtx_hash(&index, sizeof index, dtx_hash_text(name, salt));
    float f = (float)((int32_t)h >> 8) / 4096.0f;
    double d = (double)(int64_t)h / 1e12;
    uint16_t b = dtx_f32_to_bf16(f);
    const void *source[] = {
        [DTX_F64] = &d, [DTX_F32] = &f, [DTX_BF16] = &b, [DTX_I32] = &h, [DTX_I64] = &h, [DTX_U8] = &h};
    memcpy(out, source[dtype], dtx_dtype_bytes(dtype));
}

double ckpt_state_value(const char *name, enum dtx_dtype dtype, int64_t index, uint64_t salt)
{
    union {
        double d;
        float f;
        uint16_t b;
        int32_t i;
        int64_t l;
        uint8_t u;
    } x;
    element(name, dtype, index, salt, &x);
    return dtype == DTX_F64    ? x.d
           : dtype == DTX_F32  ? (double)x.f
           : dtype == DTX_BF16 ? (double)dtx_bf16_to_f32(x.b)
           : dtype == DTX_I32  ? (double)x.i
           : dtype == DTX_I64  ? (double)x.l
                               : (double)x.u;
}

/* What one visit of an element of a box does. */
enum visit { FILL, CLEAR, COMPARE };

/* Visits every element of an item's boxes; returns the bytes that differ. `expected` marks the visited bytes. */
static int64_t visit_boxes(const struct dtx_ckpt_item *item, enum visit visit, uint64_t salt, char *expected)
{
    size_t size = dtx_dtype_bytes(item->dtype);
    int64_t differences = 0;
    for (int b = 0; b < item->n_boxes; b++) {
        const struct dtx_box *box = &item->boxes[b];
        int64_t count = 1;
        for (int d = 0; d < item->ndim; d++)
            count *= box->extent[d];
        for (int64_t k = 0; k < count; k++) {
            int64_t rest = k, global = 0, local = 0, at[DTX_MAX_DIMS];
            for (int d = item->ndim - 1; d >= 0; rest /= box->extent[d], d--)
                at[d] = rest % box->extent[d];
            for (int d = 0; d < item->ndim; d++) {
                global = global * item->whole[d] + box->global[d] + at[d];
                local = local * item->local[d] + box->local[d] + at[d];
            }
            char value[8], *place = (char *)item->data + (size_t)local * size;
            element(item->name, item->dtype, global, salt, value);
            if (visit == FILL)
                memcpy(place, value, size);
            else if (visit == CLEAR)
                memset(place, 0, size);
            else
                differences += memcmp(place, value, size) != 0;
            if (expected)
                memset(expected + (size_t)local * size, 1, size);
        }
    }
    return differences;
}

static size_t item_bytes(const struct dtx_ckpt_item *item)
{
    size_t n = dtx_dtype_bytes(item->dtype);
    for (int d = 0; d < item->ndim; d++)
        n *= (size_t)item->local[d];
    return n;
}

static void add(struct ckpt_state *state, const char *name, enum dtx_dtype dtype, struct dtx_placement place, int ndim,
                const int64_t *whole, int tp_rank, int tp_size, bool writer, uint64_t salt)
{
    if (state->n == state->room) {
        state->room = 2 * state->room + 64;
        state->items = realloc(state->items, (size_t)state->room * sizeof *state->items);
    }
    struct dtx_ckpt_item *item = &state->items[state->n++];
    memset(item, 0, sizeof *item);
    snprintf(item->name, sizeof item->name, "%s", name);
    item->dtype = dtype;
    item->ndim = ndim;
    memcpy(item->whole, whole, (size_t)ndim * sizeof *whole);
    dtx_shard_shape(&place, ndim, whole, 0, tp_size, item->local);
    item->n_boxes = dtx_shard_boxes(&place, ndim, whole, 0, tp_rank, tp_size, item->boxes);
    item->writer = writer && (place.kind == DTX_SPLIT || tp_rank == 0);
    item->data = malloc(item_bytes(item) + 1);
    memset(item->data, CKPT_PADDING, item_bytes(item) + 1);
    visit_boxes(item, FILL, salt, NULL);
}

void ckpt_state_add(struct ckpt_state *state, struct ckpt_mesh mesh, int rank, uint64_t salt)
{
    struct dtx_placement rows = {DTX_SPLIT, 0, 1}, fused = {DTX_SPLIT, 0, 2}, columns = {DTX_SPLIT, 1, 1};
    struct dtx_placement whole = {DTX_REPLICATED, 0, 1};
    int tp = rank % mesh.tp, dp = rank / mesh.tp % mesh.dp, pp = rank / mesh.tp / mesh.dp;
    int row = 0; /* replicas take turns in writing */
    char name[DTX_CKPT_NAME];
    if (pp == 0 || pp == mesh.pp - 1) /* tied: the last stage has a copy and writes nothing */
        add(state, "/model/embed", DTX_BF16, rows, 2, (int64_t[]){VOCABULARY, WIDTH}, tp, mesh.tp,
            pp == 0 && dp == row % mesh.dp, salt);
    row++;
    for (int layer = 0; layer < LAYERS; layer++) {
        static const char *const groups[] = {"/model", "/optimizer/master", "/optimizer/adam_m"};
        static const enum dtx_dtype dtypes[] = {DTX_BF16, DTX_F32, DTX_F64};
        for (int g = 0; g < 3; g++, row++) {
            bool writer = dp == row % mesh.dp;
            if (layer * mesh.pp / LAYERS != pp)
                continue;
            snprintf(name, sizeof name, "%s/layers.%02d.attn.q", groups[g], layer);
            add(state, name, dtypes[g], rows, 2, (int64_t[]){2 * WIDTH, WIDTH}, tp, mesh.tp, writer, salt);
            snprintf(name, sizeof name, "%s/layers.%02d.ffn.gate_up", groups[g], layer);
            add(state, name, dtypes[g], fused, 2, (int64_t[]){2 * FFN, WIDTH}, tp, mesh.tp, writer, salt);
            snprintf(name, sizeof name, "%s/layers.%02d.ffn.w2", groups[g], layer);
            add(state, name, dtypes[g], columns, 2, (int64_t[]){WIDTH, FFN}, tp, mesh.tp, writer, salt);
            snprintf(name, sizeof name, "%s/layers.%02d.attn.lambda_q1", groups[g], layer);
            add(state, name, g == 2 ? DTX_F64 : DTX_F32, whole, 1, (int64_t[]){5}, tp, mesh.tp, writer, salt);
        }
    }
    if (pp != mesh.pp - 1)
        return;
    add(state, "/other/i32", DTX_I32, columns, 3, (int64_t[]){3, 5, 2}, tp, mesh.tp, dp == 0, salt);
    add(state, "/other/i64", DTX_I64, rows, 4, (int64_t[]){13, 1, 2, 3}, tp, mesh.tp, dp == 0, salt);
    add(state, "/other/u8", DTX_U8, whole, 1, (int64_t[]){1}, tp, mesh.tp, dp == 0, salt);
}

void ckpt_state_free(struct ckpt_state *state)
{
    for (int i = 0; i < state->n; i++)
        free(state->items[i].data);
    free(state->items);
    memset(state, 0, sizeof *state);
}

void ckpt_state_clear(struct ckpt_state *state)
{
    for (int i = 0; i < state->n; i++)
        visit_boxes(&state->items[i], CLEAR, 0, NULL);
}

int64_t ckpt_state_differences(const struct ckpt_state *state, uint64_t salt)
{
    int64_t differences = 0;
    for (int i = 0; i < state->n; i++) {
        const struct dtx_ckpt_item *item = &state->items[i];
        size_t bytes = item_bytes(item) + 1;
        char *in_box = calloc(bytes, 1);
        differences += visit_boxes(item, COMPARE, salt, in_box);
        for (size_t k = 0; k < bytes; k++)
            differences += !in_box[k] && ((unsigned char *)item->data)[k] != CKPT_PADDING;
        free(in_box);
    }
    return differences;
}

struct dtx_ckpt_meta ckpt_state_meta(int64_t step, struct ckpt_mesh mesh)
{
    static char config[] = "model.width: 6\nparallel.tp: 2\n";
    return (struct dtx_ckpt_meta){.step = step,
                                  .tokens = step * 1000003,
                                  .samples = step * 17,
                                  .seed = 0xfedcba9876543210u,
                                  .mesh = {mesh.tp, mesh.dp, mesh.pp, 1},
                                  .isa = "avx2",
                                  .program = "0.1.0",
                                  .best_heldout = 3.25,
                                  .heldout = NAN,
                                  .config = config};
}

static enum dtx_status verify(struct dtx_ctx *ctx, struct dtx_comm *world, const char *path)
{
    struct dtx_ckpt_index index;
    DTX_TRY(ctx, dtx_ckpt_index_open(ctx, world, path, &index));
    enum dtx_status status = dtx_ckpt_index_verify(ctx, path, &index, NULL);
    dtx_ckpt_index_free(&index);
    return dtx_comm_agree(world, status);
}

enum dtx_status ckpt_find_whole(struct dtx_ctx *ctx, struct dtx_comm *world, const char *dir, const char *what,
                                char *path, size_t path_bytes)
{
    struct dtx_ckpt_search search = {0};
    enum dtx_status status;
    do {
        DTX_TRY(ctx, dtx_ckpt_find(ctx, world, dir, what, &search, path, path_bytes));
        status = verify(ctx, world, path);
    } while (status != DTX_OK && dtx_ckpt_pass_over(ctx, world, &search, path, status));
    return status;
}

void ckpt_temp_make(char path[256])
{
    const char *base = getenv("TMPDIR");
    snprintf(path, 256, "%s/dtx_ckpt_XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(path)) {
        perror(path);
        exit(1);
    }
}

static int remove_one(const char *path, const struct stat *s, int kind, struct FTW *where)
{
    (void)s, (void)kind, (void)where;
    return remove(path);
}

void ckpt_temp_remove(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
