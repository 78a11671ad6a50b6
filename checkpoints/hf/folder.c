#include "checkpoints/hf/folder.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoints/hf/config.h"
#include "checkpoints/hf/safetensors.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { CONFIG_LIMIT = 1 << 20, INDEX_LIMIT = 1 << 26, MAX_FILES = 10000 };
#define SINGLE "model.safetensors"
#define INDEX  "model.safetensors.index.json"

struct file {
    char path[DTX_DISK_PATH];
    int fd;
    int64_t data; /* where it begins */
    struct dtx_st_header header;
};

struct folder {
    const char *path;
    struct dtx_meter *meter;
    struct file *files;
    int n_files;
    struct dtx_hf_tensor *tensors;
    struct source {
        struct folder *folder;
        const struct dtx_hf_tensor *tensor;
        const struct file *file; /* NULL: ones */
        const struct dtx_st_tensor *stored;
    } * sources; /* [items] */
    void *raw;   /* rows as they are in the file */
    int64_t raw_bytes;
};

void dtx_hf_file_name(int file, int n_files, char out[64])
{
    if (n_files == 1)
        snprintf(out, 64, SINGLE);
    else
        snprintf(out, 64, "model-%05d-of-%05d.safetensors", file + 1, n_files);
}

enum dtx_status dtx_hf_write_index(struct dtx_ctx *ctx, const char *folder, const struct dtx_hf_tensor *tensors, int n,
                                   const int *file_of, int n_files, int64_t total_bytes)
{
    char path[DTX_DISK_PATH], name[64];
    json_t *map = json_object();
    int failed = !map;
    for (int i = 0; i < n; i++) {
        if (file_of[i] < 0)
            continue;
        dtx_hf_file_name(file_of[i], n_files, name);
        failed |= json_object_set_new(map, tensors[i].theirs, json_string(name));
    }
    json_t *root = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total_bytes, "weight_map", map);
    char *text = failed || !root ? NULL : json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    enum dtx_status status =
        text ? dtx_disk_join(ctx, folder, INDEX, path) : dtx_fail(ctx, DTX_E_MEMORY, "out of memory making %s", INDEX);
    if (status == DTX_OK)
        status = dtx_disk_write_text(ctx, path, text);
    free(text);
    return status;
}

static void close_folder(struct dtx_ckpt_weights *weights)
{
    struct folder *f = weights->impl;
    for (int i = 0; f && i < f->n_files; i++) {
        if (f->files[i].fd >= 0)
            close(f->files[i].fd);
        dtx_mem_free(f->files[i].header.tensors);
    }
    if (f) {
        dtx_mem_free(f->files);
        dtx_mem_free(f->tensors);
        dtx_mem_free(f->sources);
        dtx_mem_free(f->raw);
    }
    dtx_mem_free(f);
    dtx_mem_free(weights->items);
}

static enum dtx_status open_file(struct dtx_ctx *ctx, struct folder *f, const char *name)
{
    struct file *file = &f->files[f->n_files];
    file->fd = -1;
    DTX_TRY(ctx, dtx_disk_join(ctx, f->path, name, file->path));
    DTX_TRY(ctx, dtx_st_open(ctx, file->path, &file->fd, &file->data, &file->header));
    f->n_files++;
    return DTX_OK;
}

/* Each file that the index names, once. A name is a name, no path. */
static enum dtx_status open_listed(struct dtx_ctx *ctx, struct folder *f, const char *path, json_t *map)
{
    const char *tensor;
    json_t *value;
    void *memory;
    if (!json_is_object(map) || json_object_size(map) == 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s has no weight_map", path);
    json_t *seen = json_object();
    json_object_foreach(map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (!name || !*name || name[0] == '.' || strchr(name, '/') || json_object_set(seen, name, value) != 0) {
            json_decref(seen);
            return dtx_fail(ctx, DTX_E_FORMAT, "%s: the file of %.200s is no file name", path, tensor);
        }
    }
    enum dtx_status status = json_object_size(seen) > MAX_FILES
                                 ? dtx_fail(ctx, DTX_E_FORMAT, "%s names more than %d files", path, MAX_FILES)
                                 : dtx_mem_alloc(ctx, (int64_t)json_object_size(seen), sizeof *f->files, &memory);
    f->files = status == DTX_OK ? memory : NULL;
    json_object_foreach(seen, tensor, value)
    {
        if (status == DTX_OK)
            status = open_file(ctx, f, tensor);
    }
    json_decref(seen);
    return status;
}

static enum dtx_status open_files(struct dtx_ctx *ctx, struct folder *f)
{
    char path[DTX_DISK_PATH], *text;
    int64_t bytes;
    void *memory;
    json_error_t error;
    DTX_TRY(ctx, dtx_disk_join(ctx, f->path, SINGLE, path));
    if (dtx_disk_exists(path)) {
        DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof *f->files, &memory));
        f->files = memory;
        return open_file(ctx, f, SINGLE);
    }
    DTX_TRY(ctx, dtx_disk_join(ctx, f->path, INDEX, path));
    if (!dtx_disk_exists(path))
        return dtx_fail(ctx, DTX_E_CONFIG, "%s has neither %s nor %s", f->path, SINGLE, INDEX);
    DTX_TRY(ctx, dtx_disk_read(ctx, path, INDEX_LIMIT, &text, &bytes));
    json_t *root = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &error);
    dtx_mem_free(text);
    if (!root)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: line %d, column %d: %s", path, error.line, error.column, error.text);
    enum dtx_status status = open_listed(ctx, f, path, json_object_get(root, "weight_map"));
    json_decref(root);
    return status;
}

/* Our rows of a box, dense, from where they lie on their side. */
static enum dtx_status read_rows(struct dtx_ctx *ctx, void *memory, const struct dtx_box *box, void *dense)
{
    const struct source *s = memory;
    const struct dtx_hf_tensor *t = s->tensor;
    struct folder *f = s->folder;
    int64_t columns = t->ndim == 2 ? box->extent[1] : 1, whole = t->ndim == 2 ? t->shape[1] : 1;
    int64_t left = t->ndim == 2 ? box->global[1] : 0, row = box->global[0], end = row + box->extent[0];
    float *out = dense;
    if (!s->file) { /* the gain: it is in their out-projection */
        for (int64_t i = 0; i < box->extent[0]; i++)
            out[i] = 1;
        return DTX_OK;
    }
    int64_t element = (int64_t)dtx_st_dtype_bytes(s->stored->dtype);
    for (int64_t rows; row < end; row += rows, out += rows * columns) {
        rows = columns == whole ? dtx_hf_run(t, row, end - row) : 1;
        rows = dtx_min64(rows, dtx_max64(1, f->raw_bytes / (columns * element)));
        int64_t from = dtx_hf_row(t, row) * whole + left, n = rows * columns;
        DTX_TRY(ctx, dtx_disk_read_at(ctx, s->file->fd, s->file->path, f->raw, n * element,
                                      s->file->data + s->stored->offset + from * element));
        dtx_st_to_f32(s->stored->dtype, f->raw, n, out);
        dtx_meter_add(f->meter, n * element);
    }
    return DTX_OK;
}

/* The tensor of that name and its file; a second one of the name is a fault. */
static enum dtx_status find(struct dtx_ctx *ctx, const struct folder *f, const char *name, const struct file **file,
                            const struct dtx_st_tensor **stored)
{
    *stored = NULL;
    for (int i = 0; i < f->n_files; i++)
        for (int64_t k = 0; k < f->files[i].header.n; k++) {
            const struct dtx_st_tensor *t = &f->files[i].header.tensors[k];
            if (strcmp(t->name, name) != 0)
                continue;
            if (*stored)
                return dtx_fail(ctx, DTX_E_FORMAT, "%s is in %s and in %s", name, (*file)->path, f->files[i].path);
            *file = &f->files[i];
            *stored = t;
        }
    return DTX_OK;
}

static enum dtx_status bind(struct dtx_ctx *ctx, struct folder *f, const struct dtx_hf_tensor *t, struct source *s)
{
    *s = (struct source){.folder = f, .tensor = t};
    if (!t->theirs[0])
        return DTX_OK;
    DTX_TRY(ctx, find(ctx, f, t->theirs, &s->file, &s->stored));
    if (!s->stored)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s has no tensor %s, which its config.json asks for%s", f->path, t->theirs,
                        strcmp(t->theirs, "lm_head.weight") == 0 ? " (tie_word_embeddings is not true)" : "");
    bool same = s->stored->ndim == t->ndim;
    for (int d = 0; same && d < t->ndim; d++)
        same = s->stored->shape[d] == t->shape[d];
    if (!same) {
        char stored[DTX_ST_SHAPE_TEXT], wanted[DTX_ST_SHAPE_TEXT];
        dtx_st_shape_text(s->stored->shape, s->stored->ndim, stored);
        dtx_st_shape_text(t->shape, t->ndim, wanted);
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: %s has shape [%s]; its config.json says [%s]", s->file->path, t->theirs,
                        stored, wanted);
    }
    if (s->stored->dtype == DTX_ST_OTHER)
        return dtx_fail(ctx, DTX_E_UNSUPPORTED, "%s: %s is %s; dtx imports F32, BF16 and F16", s->file->path, t->theirs,
                        s->stored->dtype_name);
    return DTX_OK;
}

/* A tied head may be stored as well: then it must be the embedding. */
static enum dtx_status check_tied_head(struct dtx_ctx *ctx, struct folder *f, const struct dtx_st_tensor *head,
                                       const struct file *file)
{
    const struct source *e = &f->sources[0];
    char a[4096], b[4096];
    bool same = head->dtype == e->stored->dtype && head->bytes == e->stored->bytes;
    for (int64_t at = 0; same && at < head->bytes; at += (int64_t)sizeof a) {
        int64_t n = dtx_min64((int64_t)sizeof a, head->bytes - at);
        DTX_TRY(ctx, dtx_disk_read_at(ctx, file->fd, file->path, a, n, file->data + head->offset + at));
        DTX_TRY(ctx, dtx_disk_read_at(ctx, e->file->fd, e->file->path, b, n, e->file->data + e->stored->offset + at));
        same = memcmp(a, b, (size_t)n) == 0;
    }
    return same ? DTX_OK
                : dtx_fail(ctx, DTX_E_UNSUPPORTED,
                           "%s: tie_word_embeddings is true, but lm_head.weight is another matrix than "
                           "model.embed_tokens.weight",
                           f->path);
}

/* No tensor that the model has no place for (rotary tables of older versions say nothing). */
static enum dtx_status check_rest(struct dtx_ctx *ctx, struct folder *f, int n, bool tied)
{
    static const char table[] = ".rotary_emb.inv_freq";
    for (int i = 0; i < f->n_files; i++)
        for (int64_t k = 0; k < f->files[i].header.n; k++) {
            const struct dtx_st_tensor *t = &f->files[i].header.tensors[k];
            size_t length = strlen(t->name), tail = sizeof table - 1;
            bool known = length > tail && strcmp(t->name + length - tail, table) == 0;
            for (int s = 0; !known && s < n; s++)
                known = f->sources[s].stored == t;
            if (!known && tied && strcmp(t->name, "lm_head.weight") == 0) {
                DTX_TRY(ctx, check_tied_head(ctx, f, t, &f->files[i]));
                known = true;
            }
            if (!known)
                return dtx_fail(ctx, DTX_E_UNSUPPORTED, "%s: dtx has no place for the tensor %s", f->files[i].path,
                                t->name);
        }
    return DTX_OK;
}

static enum dtx_status list_items(struct dtx_ctx *ctx, struct folder *f, struct dtx_ckpt_weights *out)
{
    void *memory;
    int n;
    DTX_TRY(ctx, dtx_hf_tensors(ctx, &out->model, &f->tensors, &n));
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n, sizeof *f->sources, &memory));
    f->sources = memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n, sizeof *out->items, &memory));
    out->items = memory;
    for (int i = 0; i < n; i++) {
        const struct dtx_hf_tensor *t = &f->tensors[i];
        struct dtx_ckpt_item *item = &out->items[i];
        DTX_TRY(ctx, bind(ctx, f, t, &f->sources[i]));
        *item = (struct dtx_ckpt_item){.dtype = DTX_F32,
                                       .ndim = t->ndim,
                                       .n_boxes = 1,
                                       .writer = true,
                                       .read = read_rows,
                                       .source = &f->sources[i]};
        snprintf(item->name, sizeof item->name, "/model/%s", t->ours);
        int64_t bytes = (int64_t)sizeof(float);
        for (int d = 0; d < t->ndim; d++) {
            item->whole[d] = item->local[d] = item->boxes[0].extent[d] = t->shape[d];
            bytes *= t->shape[d];
        }
        f->raw_bytes = dtx_max64(f->raw_bytes, dtx_min64(bytes, DTX_CKPT_BOX_BYTES));
    }
    out->n = n;
    DTX_TRY(ctx, check_rest(ctx, f, n, out->model.tied));
    return dtx_mem_alloc(ctx, f->raw_bytes, 1, &f->raw);
}

static enum dtx_status open_folder(struct dtx_ctx *ctx, struct folder *f, struct dtx_ckpt_weights *out)
{
    char path[DTX_DISK_PATH], *text;
    int64_t bytes;
    DTX_TRY(ctx, dtx_disk_join(ctx, f->path, "config.json", path));
    if (!dtx_disk_exists(path))
        return dtx_fail(ctx, DTX_E_CONFIG, "%s does not exist; import needs a Hugging Face folder", path);
    DTX_TRY(ctx, dtx_disk_read(ctx, path, CONFIG_LIMIT, &text, &bytes));
    enum dtx_status status = dtx_hf_parse_config(ctx, path, text, bytes, &out->model);
    dtx_mem_free(text);
    DTX_TRY(ctx, status);
    DTX_TRY(ctx, open_files(ctx, f));
    return list_items(ctx, f, out);
}

enum dtx_status dtx_hf_open(struct dtx_ctx *ctx, const char *folder, struct dtx_meter *meter,
                            struct dtx_ckpt_weights *out)
{
    void *memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct folder), &memory));
    struct folder *f = memory;
    struct dtx_ckpt_weights weights = {.impl = f, .close = close_folder};
    f->path = folder;
    f->meter = meter;
    enum dtx_status status = open_folder(ctx, f, &weights);
    for (int i = 0; status == DTX_OK && i < weights.n; i++)
        if (f->sources[i].file)
            meter->total += f->sources[i].stored->bytes;
    if (status == DTX_OK)
        *out = weights;
    else
        close_folder(&weights);
    return status;
}
