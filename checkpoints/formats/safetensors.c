/*
 * Hugging Face folders: config.json and its companions, model.safetensors or several files with an index. Tensors are
 * streamed: the memory in use is one stored box of the checkpoint and its conversion, whatever the model's size.
 */
#include <string.h>
#include <unistd.h>

#include "checkpoints/format.h"
#include "checkpoints/hf/config.h"
#include "checkpoints/hf/folder.h"
#include "checkpoints/hf/map.h"
#include "checkpoints/hf/safetensors.h"
#include "checkpoints/shard_file.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

struct writer {
    struct dtx_ctx *ctx;
    const struct dtx_ckpt_export *job;
    struct dtx_hf_tensor *tensors;
    int n;
    int *file_of; /* [n]; −1: no file has it */
    int n_files;
    struct dtx_ckpt_reader reader;
    void *box, *out; /* one stored box; some of its rows as the file has them */
    float *values;   /* the same rows in fp32 */
    float *gain;     /* of the layer at work */
};

enum { PIECE = 1 << 20 }; /* elements that are converted and written at once; at least one row */

static enum dtx_st_dtype file_dtype(const struct writer *w, const struct dtx_hf_tensor *t)
{
    return t->ndim == 2 && w->job->dtype == DTX_BF16 ? DTX_ST_BF16 : DTX_ST_F32;
}

static int64_t elements(const struct dtx_hf_tensor *t)
{
    return t->shape[0] * (t->ndim == 2 ? t->shape[1] : 1);
}

/* Tensors in order into files of at most shard_bytes; a larger one has a file of its own. */
static void plan_files(struct writer *w)
{
    int64_t used = 0;
    w->n_files = 1;
    for (int i = 0; i < w->n; i++) {
        int64_t bytes = elements(&w->tensors[i]) * (int64_t)dtx_st_dtype_bytes(file_dtype(w, &w->tensors[i]));
        w->file_of[i] = -1;
        if (!w->tensors[i].theirs[0])
            continue;
        if (used > 0 && used + bytes > w->job->shard_bytes) {
            w->n_files++;
            used = 0;
        }
        used += bytes;
        w->file_of[i] = w->n_files - 1;
    }
}

/* The stored boxes of a weight, which must have the shape that the model's options say. */
static enum dtx_status find(const struct writer *w, const char *name, int ndim, const int64_t *shape, int64_t *first,
                            int64_t *count)
{
    const struct dtx_ckpt_index *index = w->job->index;
    *count = dtx_ckpt_index_weight(index, name, first);
    if (*count == 0)
        return dtx_fail(w->ctx, DTX_E_FORMAT, "checkpoint %s has no weight %s, which its options ask for",
                        w->job->checkpoint, name);
    const struct dtx_ckpt_entry *e = &index->entries[*first];
    enum dtx_dtype dtype;
    if (e->ndim != ndim || memcmp(e->whole, shape, (size_t)ndim * sizeof *shape) != 0)
        return dtx_fail(w->ctx, DTX_E_FORMAT, "checkpoint %s: %s has another shape than its options say",
                        w->job->checkpoint, e->name);
    if (!dtx_dtype_parse(e->dtype, &dtype) || (dtype != DTX_F32 && dtype != DTX_BF16 && dtype != DTX_F64))
        return dtx_fail(w->ctx, DTX_E_FORMAT, "checkpoint %s: %s is stored as %s", w->job->checkpoint, e->name,
                        e->dtype);
    return DTX_OK;
}

/* n elements of a stored box as fp32. */
static void read_values(const char *dtype, const void *data, int64_t first, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = strcmp(dtype, "f32") == 0   ? ((const float *)data)[first + i]
                 : strcmp(dtype, "f64") == 0 ? (float)((const double *)data)[first + i]
                                             : dtx_bf16_to_f32(((const uint16_t *)data)[first + i]);
}

static enum dtx_status load_gain(struct writer *w, const struct dtx_hf_tensor *t)
{
    int64_t first, count;
    if (!t->gain_n)
        return DTX_OK;
    DTX_TRY(w->ctx, find(w, t->gain, 1, &t->gain_n, &first, &count));
    for (int64_t i = first; i < first + count; i++) {
        const struct dtx_ckpt_entry *e = &w->job->index->entries[i];
        DTX_TRY(w->ctx, dtx_ckpt_reader_box(w->ctx, &w->reader, e, w->box, NULL));
        read_values(e->dtype, w->box, 0, e->extent[0], w->gain + e->global[0]);
    }
    return DTX_OK;
}

/* Rows [row, row + rows) of a box (of its own count) lie together on their side too, from `target` on. */
static enum dtx_status write_rows(struct writer *w, const struct dtx_hf_tensor *t, const struct dtx_ckpt_entry *e,
                                  int64_t row, int64_t rows, int fd, const char *path, int64_t at)
{
    enum dtx_st_dtype dtype = file_dtype(w, t);
    int64_t columns = t->ndim == 2 ? e->extent[1] : 1, whole = t->ndim == 2 ? t->shape[1] : 1;
    int64_t left = t->ndim == 2 ? e->global[1] : 0, n = rows * columns;
    int64_t target = dtx_hf_row(t, e->global[0] + row) * whole + left;
    read_values(e->dtype, w->box, row * columns, n, w->values);
    for (int64_t i = 0; t->gain_n && i < n && !DTX_MUTANT(hf_gain_forgotten); i++)
        w->values[i] *= w->gain[(left + i % columns) % t->gain_n];
    for (int64_t i = 0; t->scale != 1 && i < n; i++)
        w->values[i] = (float)(w->values[i] * t->scale);
    dtx_st_from_f32(dtype, w->values, n, w->out);
    int64_t element = (int64_t)dtx_st_dtype_bytes(dtype);
    return dtx_disk_write_at(w->ctx, fd, path, w->out, n * element, at + target * element);
}

/* `at`: where the tensor begins in the file. */
static enum dtx_status write_tensor(struct writer *w, const struct dtx_hf_tensor *t, int fd, const char *path,
                                    int64_t at)
{
    int64_t first, count;
    DTX_TRY(w->ctx, find(w, t->ours, t->ndim, t->shape, &first, &count));
    DTX_TRY(w->ctx, load_gain(w, t));
    for (int64_t i = first; i < first + count; i++) {
        const struct dtx_ckpt_entry *e = &w->job->index->entries[i];
        bool whole_rows = t->ndim == 1 || e->extent[1] == t->shape[1];
        DTX_TRY(w->ctx, dtx_ckpt_reader_box(w->ctx, &w->reader, e, w->box, NULL));
        for (int64_t row = 0, rows; row < e->extent[0]; row += rows) {
            rows = whole_rows ? dtx_hf_run(t, e->global[0] + row, e->extent[0] - row) : 1;
            rows = dtx_min64(rows, dtx_max64(1, PIECE / (t->ndim == 2 ? e->extent[1] : 1)));
            DTX_TRY(w->ctx, write_rows(w, t, e, row, rows, fd, path, at));
        }
        dtx_meter_add(w->job->meter, e->bytes);
    }
    return DTX_OK;
}

/* Vectors in fp32 go before matrices in bf16, so that all lie aligned. */
static enum dtx_status write_file(struct writer *w, int file, struct dtx_st_header *h, int *which)
{
    char name[64], path[DTX_DISK_PATH];
    int fd;
    int64_t data;
    h->n = 0;
    for (int ndim = 1; ndim <= 2; ndim++)
        for (int i = 0; i < w->n; i++) {
            const struct dtx_hf_tensor *t = &w->tensors[i];
            if (w->file_of[i] != file || t->ndim != ndim)
                continue;
            struct dtx_st_tensor *s = &h->tensors[h->n];
            *s = (struct dtx_st_tensor){.dtype = file_dtype(w, t), .ndim = ndim, .shape = {t->shape[0], t->shape[1]}};
            snprintf(s->name, sizeof s->name, "%s", t->theirs);
            which[h->n++] = i;
        }
    dtx_hf_file_name(file, w->n_files, name);
    DTX_TRY(w->ctx, dtx_disk_join(w->ctx, w->job->folder, name, path));
    DTX_TRY(w->ctx, dtx_st_create(w->ctx, path, h, &fd, &data));
    enum dtx_status status = DTX_OK;
    for (int64_t i = 0; status == DTX_OK && i < h->n; i++)
        status = write_tensor(w, &w->tensors[which[i]], fd, path, data + h->tensors[i].offset);
    if (status != DTX_OK) {
        close(fd);
        return status;
    }
    return dtx_disk_close_written(w->ctx, fd, path);
}

static enum dtx_status write_files(struct writer *w)
{
    struct dtx_st_header header = {0};
    void *tensors = NULL, *which = NULL;
    enum dtx_status status = dtx_mem_alloc(w->ctx, w->n, sizeof *header.tensors, &tensors);
    if (status == DTX_OK)
        status = dtx_mem_alloc(w->ctx, w->n, sizeof(int), &which);
    header.tensors = tensors;
    for (int file = 0; status == DTX_OK && file < w->n_files; file++)
        status = write_file(w, file, &header, which);
    dtx_mem_free(tensors);
    dtx_mem_free(which);
    return status;
}

static enum dtx_status open_writer(struct writer *w)
{
    const struct dtx_ckpt_export *job = w->job;
    void *memory;
    int64_t longest = dtx_ckpt_longest(job->index->entries, job->index->n);
    int64_t piece = dtx_max64(PIECE, dtx_max64(job->model.width, job->model.ffn)); /* no row is longer */
    DTX_TRY(w->ctx, dtx_hf_tensors(w->ctx, &job->model, &w->tensors, &w->n));
    DTX_TRY(w->ctx, dtx_mem_alloc(w->ctx, w->n, sizeof(int), &memory));
    w->file_of = memory;
    DTX_TRY(w->ctx, dtx_mem_alloc(w->ctx, longest, 1, &w->box));
    DTX_TRY(w->ctx, dtx_mem_alloc(w->ctx, piece, sizeof(float), &w->out));
    DTX_TRY(w->ctx, dtx_mem_alloc(w->ctx, piece, sizeof(float), &memory));
    w->values = memory;
    DTX_TRY(w->ctx, dtx_mem_alloc(w->ctx, 2 * job->model.head_dim, sizeof(float), &memory));
    w->gain = memory;
    return DTX_OK;
}

static enum dtx_status write_weights(struct writer *w)
{
    DTX_TRY(w->ctx, open_writer(w));
    plan_files(w);
    int64_t total = 0;
    for (int i = 0; i < w->n; i++) {
        int64_t first, count;
        DTX_TRY(w->ctx, find(w, w->tensors[i].ours, w->tensors[i].ndim, w->tensors[i].shape, &first, &count));
        for (int64_t e = first; e < first + count; e++)
            total += w->job->index->entries[e].bytes;
    }
    w->job->meter->total = total;
    DTX_TRY(w->ctx, write_files(w));
    if (w->n_files == 1)
        return DTX_OK;
    int64_t bytes = 0;
    for (int i = 0; i < w->n; i++)
        if (w->file_of[i] >= 0)
            bytes += elements(&w->tensors[i]) * (int64_t)dtx_st_dtype_bytes(file_dtype(w, &w->tensors[i]));
    return dtx_hf_write_index(w->ctx, w->job->folder, w->tensors, w->n, w->file_of, w->n_files, bytes);
}

static enum dtx_status export_weights(struct dtx_ctx *ctx, const struct dtx_ckpt_export *job)
{
    struct writer w = {.ctx = ctx, .job = job};
    DTX_TRY(ctx, dtx_hf_check(ctx, job->checkpoint, &job->model));
    DTX_TRY(ctx, dtx_hf_write_config(ctx, job));
    dtx_ckpt_reader_open(&w.reader, job->checkpoint);
    enum dtx_status status = write_weights(&w);
    dtx_ckpt_reader_close(&w.reader);
    dtx_mem_free(w.tensors);
    dtx_mem_free(w.file_of);
    dtx_mem_free(w.box);
    dtx_mem_free(w.out);
    dtx_mem_free(w.values);
    dtx_mem_free(w.gain);
    return status;
}

const struct dtx_ckpt_format dtx_ckpt_format_safetensors = {"safetensors", export_weights, dtx_hf_open};
