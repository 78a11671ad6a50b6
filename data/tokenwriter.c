/* The writer of token files. Lengths and boundaries of unknown number wait in files beside the output. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "data/file.h"
#include "data/tokenwriter.h"
#include "data/megatron_format.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

struct dtx_tokenwriter {
    char *prefix;
    struct dtx_hasher *hash; /* of the data so far */
    bool sealed;
    struct dtx_outfile data, index, lengths, documents; /* the last two: i32 and i64 arrays, never published */
    int64_t vocab, max_sequence;
    bool narrow; /* u16 */
    int64_t sequences, n_documents;
    int64_t document_start; /* sequence index of the current document's first sequence */
    int64_t pending;        /* tokens of the sequence not yet ended */
};

static enum dtx_status open_part(struct dtx_ctx *ctx, const char *prefix, const char *suffix, int64_t bytes,
                                 struct dtx_outfile *f)
{
    char *path;
    DTX_TRY(ctx, dtx_path_join(ctx, prefix, suffix, &path));
    enum dtx_status status = dtx_outfile_reopen(ctx, f, path, bytes);
    dtx_mem_free(path);
    return status;
}

/* The bytes that stay of a killed writer's data belong to its checksum. */
static enum dtx_status hash_data(struct dtx_ctx *ctx, struct dtx_tokenwriter *w)
{
    void *block;
    enum { BYTES = 1 << 20 };
    if (w->data.written == 0)
        return DTX_OK;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, BYTES, 1, &block));
    enum dtx_status status = DTX_OK;
    for (int64_t at = 0; at < w->data.written && status == DTX_OK; at += BYTES) {
        size_t part = (size_t)dtx_min64(BYTES, w->data.written - at);
        status = dtx_file_read_at(ctx, w->data.fd, w->data.partial, block, part, at);
        dtx_hasher_add(w->hash, block, part);
    }
    dtx_mem_free(block);
    return status;
}

static enum dtx_status open_writer(struct dtx_ctx *ctx, struct dtx_tokenwriter *w, const char *prefix,
                                   const struct dtx_tokenwriter_mark *mark)
{
    const int64_t zero = 0, boundaries = mark->sequences > 0 || mark->documents > 0 ? mark->documents + 1 : 0;
    DTX_TRY(ctx, dtx_mem_text(ctx, prefix, &w->prefix));
    DTX_TRY(ctx, open_part(ctx, prefix, ".bin", mark->tokens * (w->narrow ? 2 : 4), &w->data));
    DTX_TRY(ctx, open_part(ctx, prefix, ".idx", 0, &w->index));
    DTX_TRY(ctx, open_part(ctx, prefix, ".idx.lengths", mark->sequences * 4, &w->lengths));
    DTX_TRY(ctx, open_part(ctx, prefix, ".idx.documents", boundaries * 8, &w->documents));
    if (boundaries == 0)
        DTX_TRY(ctx, dtx_outfile_write(ctx, &w->documents, &zero, sizeof zero));
    w->sequences = w->document_start = mark->sequences;
    w->n_documents = mark->documents;
    w->hash = dtx_hasher_begin(0);
    if (!w->hash)
        return dtx_fail(ctx, DTX_E_MEMORY, "no memory for the checksum of %s", w->data.path);
    return hash_data(ctx, w);
}

enum dtx_status dtx_tokenwriter_continue(struct dtx_ctx *ctx, const char *prefix, int64_t vocab, int64_t max_sequence,
                                         const struct dtx_tokenwriter_mark *mark, struct dtx_tokenwriter **out)
{
    if (vocab < 1 || vocab > INT32_MAX)
        return dtx_fail(ctx, DTX_E_RANGE, "a vocabulary of %lld ids cannot be written", (long long)vocab);
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_tokenwriter), &p));
    struct dtx_tokenwriter *w = p;
    w->vocab = vocab;
    w->max_sequence = max_sequence > 0 ? dtx_min64(max_sequence, INT32_MAX) : INT32_MAX;
    w->narrow = vocab < U16_VOCAB_LIMIT;
    enum dtx_status status = open_writer(ctx, w, prefix, mark);
    if (status == DTX_OK)
        *out = w;
    else if (mark->documents > 0)
        dtx_tokenwriter_keep(w);
    else
        dtx_tokenwriter_discard(w);
    return status;
}

enum dtx_status dtx_tokenwriter_create(struct dtx_ctx *ctx, const char *prefix, int64_t vocab, int64_t max_sequence,
                                       struct dtx_tokenwriter **out)
{
    const struct dtx_tokenwriter_mark nothing = {0};
    return dtx_tokenwriter_continue(ctx, prefix, vocab, max_sequence, &nothing, out);
}

void dtx_tokenwriter_use_u16(struct dtx_tokenwriter *w, bool narrow)
{
    w->narrow = narrow;
}

static enum dtx_status end_sequence(struct dtx_ctx *ctx, struct dtx_tokenwriter *w)
{
    int32_t length = (int32_t)w->pending;
    DTX_TRY(ctx, dtx_outfile_write(ctx, &w->lengths, &length, sizeof length));
    w->sequences++;
    w->pending = 0;
    return DTX_OK;
}

static enum dtx_status write_tokens(struct dtx_ctx *ctx, struct dtx_tokenwriter *w, const int32_t *ids, int64_t n)
{
    if (!w->narrow) {
        dtx_hasher_add(w->hash, ids, (size_t)n * sizeof *ids);
        return dtx_outfile_write(ctx, &w->data, ids, (size_t)n * sizeof *ids);
    }
    uint16_t narrow[4096];
    for (int64_t i = 0; i < n; i += 4096) {
        int64_t part = dtx_min64(4096, n - i);
        for (int64_t k = 0; k < part; k++)
            narrow[k] = (uint16_t)ids[i + k];
        dtx_hasher_add(w->hash, narrow, (size_t)part * sizeof *narrow);
        DTX_TRY(ctx, dtx_outfile_write(ctx, &w->data, narrow, (size_t)part * sizeof *narrow));
    }
    return DTX_OK;
}

enum dtx_status dtx_tokenwriter_add(struct dtx_ctx *ctx, struct dtx_tokenwriter *w, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= w->vocab)
            return dtx_fail(ctx, DTX_E_RANGE, "id %d of document %lld is outside the vocabulary of %lld", ids[i],
                            (long long)w->n_documents, (long long)w->vocab);
    while (n > 0) {
        if (w->pending == w->max_sequence)
            DTX_TRY(ctx, end_sequence(ctx, w));
        int64_t part = dtx_min64(n, w->max_sequence - w->pending);
        DTX_TRY(ctx, write_tokens(ctx, w, ids, part));
        w->pending += part;
        ids += part;
        n -= part;
    }
    return DTX_OK;
}

enum dtx_status dtx_tokenwriter_end(struct dtx_ctx *ctx, struct dtx_tokenwriter *w)
{
    if (w->pending > 0 || w->sequences == w->document_start)
        DTX_TRY(ctx, end_sequence(ctx, w));
    w->document_start = w->sequences;
    w->n_documents++;
    return dtx_outfile_write(ctx, &w->documents, &w->sequences, sizeof w->sequences);
}

struct dtx_tokenwriter_mark dtx_tokenwriter_written(const struct dtx_tokenwriter *w)
{
    return (struct dtx_tokenwriter_mark){w->data.written / (w->narrow ? 2 : 4), w->sequences, w->n_documents};
}

int dtx_tokenwriter_token_bytes(const struct dtx_tokenwriter *w)
{
    return w->narrow ? 2 : 4;
}

enum dtx_status dtx_tokenwriter_save(struct dtx_ctx *ctx, struct dtx_tokenwriter *w, struct dtx_tokenwriter_mark *mark)
{
    if (w->pending > 0 || w->sequences != w->document_start)
        return dtx_fail(ctx, DTX_E_INTERNAL, "%s is saved inside a document", w->data.path);
    DTX_TRY(ctx, dtx_outfile_sync(ctx, &w->data));
    DTX_TRY(ctx, dtx_outfile_sync(ctx, &w->lengths));
    DTX_TRY(ctx, dtx_outfile_sync(ctx, &w->documents));
    *mark = dtx_tokenwriter_written(w);
    return DTX_OK;
}

/* The index on its way to the disk. */
struct index {
    struct dtx_outfile *file;
    struct dtx_hasher *hash;
};

static enum dtx_status put(struct dtx_ctx *ctx, const struct index *x, const void *data, size_t bytes)
{
    dtx_hasher_add(x->hash, data, bytes);
    return dtx_outfile_write(ctx, x->file, data, bytes);
}

/* Copies one of the waiting arrays into the index; with `token_bytes` as the running sum of i32 lengths in bytes. */
static enum dtx_status copy_array(struct dtx_ctx *ctx, const struct index *x, struct dtx_outfile *from, int token_bytes)
{
    int32_t block[4096];
    int64_t offsets[4096], offset = 0;
    for (int64_t at = 0; at < from->written; at += (int64_t)sizeof block) {
        size_t part = (size_t)dtx_min64((int64_t)sizeof block, from->written - at);
        DTX_TRY(ctx, dtx_file_read_at(ctx, from->fd, from->partial, block, part, at));
        if (token_bytes == 0) {
            DTX_TRY(ctx, put(ctx, x, block, part));
            continue;
        }
        size_t n = part / sizeof *block;
        for (size_t i = 0; i < n; i++) {
            offsets[i] = offset;
            offset += (int64_t)block[i] * token_bytes;
        }
        DTX_TRY(ctx, put(ctx, x, offsets, n * sizeof *offsets));
    }
    return DTX_OK;
}

static enum dtx_status write_index(struct dtx_ctx *ctx, struct dtx_tokenwriter *w, const struct index *x)
{
    unsigned char header[INDEX_HEADER_BYTES];
    uint64_t version = 1, n = (uint64_t)w->sequences, m = (uint64_t)w->n_documents + 1;
    memcpy(header, INDEX_MAGIC, INDEX_MAGIC_BYTES);
    memcpy(header + 9, &version, 8);
    header[17] = w->narrow ? CODE_U16 : CODE_I32;
    memcpy(header + 18, &n, 8);
    memcpy(header + 26, &m, 8);
    DTX_TRY(ctx, dtx_outfile_flush(ctx, &w->lengths));
    DTX_TRY(ctx, dtx_outfile_flush(ctx, &w->documents));
    DTX_TRY(ctx, put(ctx, x, header, sizeof header));
    DTX_TRY(ctx, copy_array(ctx, x, &w->lengths, 0));
    DTX_TRY(ctx, copy_array(ctx, x, &w->lengths, w->narrow ? 2 : 4));
    return copy_array(ctx, x, &w->documents, 0);
}

enum dtx_status dtx_tokenwriter_seal(struct dtx_ctx *ctx, struct dtx_tokenwriter *w, struct dtx_tokenwriter_sums *sums)
{
    if (w->pending > 0 || w->sequences != w->document_start || w->sealed)
        return dtx_fail(ctx, DTX_E_INTERNAL, "%s is published inside a document", w->data.path);
    struct index x = {&w->index, dtx_hasher_begin(0)};
    enum dtx_status status = x.hash ? write_index(ctx, w, &x)
                                    : dtx_fail(ctx, DTX_E_MEMORY, "no memory for the checksum of %s", w->index.path);
    sums->index_hash = dtx_hasher_end(x.hash);
    DTX_TRY(ctx, status);
    DTX_TRY(ctx, dtx_outfile_sync(ctx, &w->data));
    DTX_TRY(ctx, dtx_outfile_sync(ctx, &w->index));
    sums->data_hash = dtx_hasher_end(w->hash);
    w->hash = NULL;
    w->sealed = true;
    sums->data_bytes = w->data.written;
    sums->index_bytes = w->index.written;
    return DTX_OK;
}

/* PREFIX + suffix gets its final name if it still has its partial one. */
static enum dtx_status rename_part(struct dtx_ctx *ctx, const char *prefix, const char *suffix)
{
    char *path, *partial;
    DTX_TRY(ctx, dtx_path_join(ctx, prefix, suffix, &path));
    enum dtx_status status = dtx_path_join(ctx, path, ".partial", &partial);
    if (status == DTX_OK) {
        if (rename(partial, path) != 0 && errno != ENOENT)
            status = dtx_fail(ctx, DTX_E_IO, "cannot rename %s to %s: %s", partial, path, strerror(errno));
        dtx_mem_free(partial);
    }
    if (status == DTX_OK)
        status = dtx_file_sync_folder(ctx, path);
    dtx_mem_free(path);
    return status;
}

static enum dtx_status remove_part(struct dtx_ctx *ctx, const char *prefix, const char *suffix)
{
    char *path;
    DTX_TRY(ctx, dtx_path_join(ctx, prefix, suffix, &path));
    enum dtx_status status = DTX_OK;
    if (unlink(path) == 0)
        status = dtx_file_sync_folder(ctx, path);
    else if (errno != ENOENT)
        status = dtx_fail(ctx, DTX_E_IO, "cannot remove %s: %s", path, strerror(errno));
    dtx_mem_free(path);
    return status;
}

static bool has_part(const char *prefix, const char *suffix)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s%s", prefix, suffix);
    return n < (int)sizeof path && access(path, F_OK) == 0;
}

/* Without an index there is no token file: an old index goes first and the new one comes last, so that at no instant an
 * index stands beside the data of another run. */
enum dtx_status dtx_tokenwriter_rename(struct dtx_ctx *ctx, const char *prefix)
{
    bool data_first = !DTX_MUTANT(tokenwriter_index_first);
    if (has_part(prefix, ".bin.partial")) {
        DTX_TRY(ctx, remove_part(ctx, prefix, ".idx"));
        DTX_TRY(ctx, rename_part(ctx, prefix, data_first ? ".bin" : ".idx"));
    }
    DTX_TRY(ctx, rename_part(ctx, prefix, data_first ? ".idx" : ".bin"));
    DTX_TRY(ctx, remove_part(ctx, prefix, ".idx.lengths.partial"));
    return remove_part(ctx, prefix, ".idx.documents.partial");
}

enum dtx_status dtx_tokenwriter_publish(struct dtx_ctx *ctx, struct dtx_tokenwriter *w)
{
    struct dtx_tokenwriter_sums sums;
    enum dtx_status status = DTX_OK;
    if (!w->sealed)
        DTX_TRY_GOTO(ctx, status, dtx_tokenwriter_seal(ctx, w, &sums), fail);
    DTX_TRY_GOTO(ctx, status, dtx_tokenwriter_rename(ctx, w->prefix), fail);
    dtx_tokenwriter_keep(w);
    return DTX_OK;
fail:
    dtx_tokenwriter_discard(w);
    return status;
}

static void free_writer(struct dtx_tokenwriter *w, void (*close_part)(struct dtx_outfile *f))
{
    if (!w)
        return;
    close_part(&w->data);
    close_part(&w->index);
    close_part(&w->lengths);
    close_part(&w->documents);
    dtx_hasher_end(w->hash);
    dtx_mem_free(w->prefix);
    dtx_mem_free(w);
}

void dtx_tokenwriter_keep(struct dtx_tokenwriter *w)
{
    free_writer(w, dtx_outfile_keep);
}

void dtx_tokenwriter_discard(struct dtx_tokenwriter *w)
{
    free_writer(w, dtx_outfile_discard);
}
