/* The index of a checkpoint: its table of boxes, /boxes. The input is laid over the rows of a good index (exclusive
 * or), and the list of files gets the checksum of that, so that what lies behind it is reached; HDF5's own structures
 * stay good. What is accepted lies within the shards and can be loaded or is refused. */
#include "checkpoints/disk.h"
#include "checkpoints/h5.h"
#include "checkpoints/index.h"
#include "checkpoints/index_type.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "tests/parse/parse.h"

enum { ROWS = 6, SHARD = 4096, SHARDS = 2 };

struct base {
    char *image; /* of a good index */
    int64_t bytes;
    int64_t rows, row_bytes; /* where the table lies in it */
    char folder[512];
};

static void add_row(struct dtx_ckpt_entry *e, const char *name, const char *dtype, int64_t whole, int64_t columns,
                    int64_t first, int64_t rows, int shard, int64_t offset, int64_t element)
{
    snprintf(e->name, sizeof e->name, "%s", name);
    snprintf(e->dtype, sizeof e->dtype, "%s", dtype);
    e->ndim = columns ? 2 : 1;
    e->shard = shard;
    e->whole[0] = whole;
    e->global[0] = first;
    e->extent[0] = rows;
    e->whole[1] = e->extent[1] = columns;
    e->offset = offset;
    e->bytes = rows * (columns ? columns : 1) * element;
}

static void seal(const struct base *b, const char *image)
{
    struct dtx_ctx ctx;
    static struct dtx_ckpt_manifest list = {.sequence = 1, .step = 1, .n_files = 1 + SHARDS};
    dtx_ctx_init(&ctx);
    for (int i = 0; i <= SHARDS; i++) {
        if (i)
            dtx_ckpt_shard_name(i - 1, list.files[i].name);
        list.files[i].bytes = i ? SHARD : b->bytes;
    }
    snprintf(list.files[0].name, sizeof list.files[0].name, "%s", DTX_CKPT_INDEX);
    list.files[0].hash = dtx_hash(image, (size_t)b->bytes, 0);
    PROMISE(dtx_ckpt_manifest_write(&ctx, b->folder, &list) == DTX_OK);
}

static void make_base(struct base *b)
{
    struct dtx_ctx ctx;
    struct dtx_ckpt_entry e[ROWS] = {0};
    struct dtx_ckpt_meta meta = {.step = 1, .isa = "plain", .program = "fuzz", .config = "a: 1\n"};
    char path[512], shard[SHARD] = {0}, name[32];
    hid_t file, set;
    dtx_ctx_init(&ctx);
    add_row(&e[0], "/model/a", "f32", 8, 4, 0, 3, 0, 2048, 4);
    add_row(&e[1], "/model/a", "f32", 8, 4, 3, 5, 1, 2048, 4);
    add_row(&e[2], "/model/b", "bf16", 7, 0, 0, 7, 0, 3000, 2);
    add_row(&e[3], "/optimizer/master/a", "f64", 4, 2, 0, 2, 0, 3100, 8);
    add_row(&e[4], "/optimizer/master/a", "f64", 4, 2, 2, 2, 1, 3100, 8);
    add_row(&e[5], "/other", "i64", 1, 0, 0, 1, 1, 100, 8);
    for (int i = 0; i < SHARDS; i++) {
        dtx_ckpt_shard_name(i, name);
        parse_write(name, shard, SHARD, path);
    }
    snprintf(b->folder, sizeof b->folder, "%s", path);
    *strrchr(b->folder, '/') = '\0';
    PROMISE(dtx_ckpt_index_write(&ctx, b->folder, &meta, e, ROWS) == DTX_OK);
    snprintf(path, sizeof path, "%.400s/%s", b->folder, DTX_CKPT_INDEX);
    PROMISE(dtx_disk_read(&ctx, path, 1 << 20, &b->image, &b->bytes) == DTX_OK);
    PROMISE(dtx_h5_open(&ctx, path, b->image, b->bytes, &file) == DTX_OK);
    set = H5Dopen2(file, "/boxes", H5P_DEFAULT);
    b->rows = (int64_t)H5Dget_offset(set);
    b->row_bytes = (int64_t)H5Dget_storage_size(set);
    PROMISE(b->rows > 0 && b->row_bytes > 0 && b->rows + b->row_bytes <= b->bytes);
    H5Dclose(set);
    H5Fclose(file);
}

/* Loads every array that was accepted, as far as it is small: shards are zeros, so that checksums mostly differ. */
static void load(struct dtx_ctx *ctx, const struct base *b, const struct dtx_ckpt_index *index)
{
    static char data[1 << 20];
    for (int64_t i = 0; i < index->n; i += dtx_ckpt_run(index->entries, index->n, i)) {
        const struct dtx_ckpt_entry *e = &index->entries[i];
        struct dtx_ckpt_item item = {.ndim = e->ndim, .n_boxes = 1, .data = data};
        PROMISE(dtx_dtype_parse(e->dtype, &item.dtype));
        int64_t bytes = (int64_t)dtx_dtype_bytes(item.dtype);
        memcpy(item.name, e->name, sizeof item.name);
        for (int d = 0; d < e->ndim; d++) {
            item.whole[d] = item.local[d] = item.boxes[0].extent[d] = e->whole[d];
            bytes *= e->whole[d];
        }
        PROMISE(bytes > 0 && bytes <= SHARDS * SHARD); /* boxes cover it and lie in the shards without overlap */
        enum dtx_status status = dtx_ckpt_index_load(ctx, NULL, b->folder, index, &item, 1);
        PROMISE(status == DTX_OK || status == DTX_E_FORMAT);
        dtx_error_clear(ctx);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct base b;
    struct dtx_ctx ctx;
    struct dtx_ckpt_index index;
    char path[512];
    if (!b.image)
        make_base(&b);
    dtx_ctx_init(&ctx);
    char *image = malloc((size_t)b.bytes);
    memcpy(image, b.image, (size_t)b.bytes);
    for (int64_t i = 0; i < b.row_bytes && i < (int64_t)n; i++)
        image[b.rows + i] = (char)(image[b.rows + i] ^ data[i]);
    parse_write(DTX_CKPT_INDEX, image, (size_t)b.bytes, path);
    seal(&b, image);
    free(image);
    enum dtx_status status = dtx_ckpt_index_read(&ctx, b.folder, &index);
    PROMISE(status == DTX_OK || status == DTX_E_FORMAT);
    if (status != DTX_OK)
        return 0;
    for (int64_t i = 0; i < index.n; i++) {
        const struct dtx_ckpt_entry *e = &index.entries[i];
        PROMISE(e->shard >= 0 && e->shard < SHARDS && e->offset >= 0 && e->offset + e->bytes <= SHARD);
    }
    load(&ctx, &b, &index);
    dtx_ckpt_index_free(&index);
    return 0;
}
