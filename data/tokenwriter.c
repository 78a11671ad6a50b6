/* The writer of token files. Lengths and boundaries of unknown number wait in files beside the output. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "data/file.h"
#include "data/tokenfile.h"
#include "data/tokenfile_format.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

struct dtx_tokenwriter {
    struct dtx_outfile data, index, lengths, documents; /* the last two: i32 and i64 arrays, never published */
    int64_t vocab, max_sequence;
    bool narrow; /* u16 */
    int64_t sequences, n_documents;
    int64_t document_start; /* sequence index of the current document's first sequence */
    int64_t pending;        /* tokens of the sequence not yet ended */
};

static enum dtx_status open_part(struct dtx_ctx *ctx, const char *prefix, const char *suffix, struct dtx_outfile *f)
{
    char *path;
    DTX_TRY(ctx, dtx_path_join(ctx, prefix, suffix, &path));
    enum dtx_status status = dtx_outfile_open(ctx, f, path);
    dtx_mem_free(path);
    return status;
}

enum dtx_status dtx_tokenwriter_create(struct dtx_ctx *ctx, const char *prefix, int64_t vocab, int64_t max_sequence,
                                       struct dtx_tokenwriter **out)
{
    if (vocab < 1 || vocab > INT32_MAX)
        return dtx_fail(ctx, DTX_E_RANGE, "a vocabulary of %lld ids cannot be written", (long long)vocab);
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_tokenwriter), &p));
    struct dtx_tokenwriter *w = p;
    w->vocab = vocab;
    w->max_sequence = max_sequence > 0 ? dtx_min64(max_sequence, INT32_MAX) : INT32_MAX;
    w->narrow = vocab < U16_VOCAB_LIMIT;
    const int64_t zero = 0;
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, open_part(ctx, prefix, ".bin", &w->data), fail);
    DTX_TRY_GOTO(ctx, status, open_part(ctx, prefix, ".idx", &w->index), fail);
    DTX_TRY_GOTO(ctx, status, open_part(ctx, prefix, ".idx.lengths", &w->lengths), fail);
    DTX_TRY_GOTO(ctx, status, open_part(ctx, prefix, ".idx.documents", &w->documents), fail);
    DTX_TRY_GOTO(ctx, status, dtx_outfile_write(ctx, &w->documents, &zero, sizeof zero), fail);
    *out = w;
    return DTX_OK;
fail:
    dtx_tokenwriter_discard(w);
    return status;
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
    if (!w->narrow)
        return dtx_outfile_write(ctx, &w->data, ids, (size_t)n * sizeof *ids);
    uint16_t narrow[4096];
    for (int64_t i = 0; i < n; i += 4096) {
        int64_t part = dtx_min64(4096, n - i);
        for (int64_t k = 0; k < part; k++)
            narrow[k] = (uint16_t)ids[i + k];
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

/* Copies one of the waiting arrays into the index; with `token_bytes` as the running sum of i32 lengths in bytes. */
static enum dtx_status copy_array(struct dtx_ctx *ctx, struct dtx_tokenwriter *w, struct dtx_outfile *from,
                                  int token_bytes)
{
    int32_t block[4096];
    int64_t offsets[4096], offset = 0;
    for (int64_t at = 0; at < from->written; at += (int64_t)sizeof block) {
        size_t part = (size_t)dtx_min64((int64_t)sizeof block, from->written - at);
        DTX_TRY(ctx, dtx_file_read_at(ctx, from->fd, from->partial, block, part, at));
        if (token_bytes == 0) {
            DTX_TRY(ctx, dtx_outfile_write(ctx, &w->index, block, part));
            continue;
        }
        size_t n = part / sizeof *block;
        for (size_t i = 0; i < n; i++) {
            offsets[i] = offset;
            offset += (int64_t)block[i] * token_bytes;
        }
        DTX_TRY(ctx, dtx_outfile_write(ctx, &w->index, offsets, n * sizeof *offsets));
    }
    return DTX_OK;
}

static enum dtx_status write_index(struct dtx_ctx *ctx, struct dtx_tokenwriter *w)
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
    DTX_TRY(ctx, dtx_outfile_write(ctx, &w->index, header, sizeof header));
    DTX_TRY(ctx, copy_array(ctx, w, &w->lengths, 0));
    DTX_TRY(ctx, copy_array(ctx, w, &w->lengths, w->narrow ? 2 : 4));
    return copy_array(ctx, w, &w->documents, 0);
}

/* Without an index there is no token file: the old index goes first and the new one comes last, so that at no instant
 * an index stands beside the data of another run. */
static enum dtx_status rename_both(struct dtx_ctx *ctx, struct dtx_tokenwriter *w)
{
    if (unlink(w->index.path) != 0 && errno != ENOENT)
        return dtx_fail(ctx, DTX_E_IO, "cannot remove the old %s: %s", w->index.path, strerror(errno));
    DTX_TRY(ctx, dtx_file_sync_folder(ctx, w->index.path));
    char *path;
    DTX_TRY(ctx, dtx_mem_text(ctx, w->index.path, &path));
    bool data_first = !DTX_MUTANT(tokenwriter_index_first);
    enum dtx_status status = dtx_outfile_rename(ctx, data_first ? &w->data : &w->index);
    if (status == DTX_OK)
        status = dtx_file_sync_folder(ctx, path);
    if (status == DTX_OK)
        status = dtx_outfile_rename(ctx, data_first ? &w->index : &w->data);
    if (status == DTX_OK)
        status = dtx_file_sync_folder(ctx, path);
    dtx_mem_free(path);
    return status;
}

enum dtx_status dtx_tokenwriter_publish(struct dtx_ctx *ctx, struct dtx_tokenwriter *w)
{
    enum dtx_status status;
    if (w->pending > 0 || w->sequences != w->document_start) {
        status = dtx_fail(ctx, DTX_E_INTERNAL, "%s is published inside a document", w->data.path);
        goto done;
    }
    DTX_TRY_GOTO(ctx, status, write_index(ctx, w), done);
    DTX_TRY_GOTO(ctx, status, dtx_outfile_sync(ctx, &w->data), done);
    DTX_TRY_GOTO(ctx, status, dtx_outfile_sync(ctx, &w->index), done);
    DTX_TRY_GOTO(ctx, status, rename_both(ctx, w), done);
done:
    dtx_tokenwriter_discard(w);
    return status;
}

void dtx_tokenwriter_discard(struct dtx_tokenwriter *w)
{
    if (!w)
        return;
    dtx_outfile_discard(&w->data);
    dtx_outfile_discard(&w->index);
    dtx_outfile_discard(&w->lengths);
    dtx_outfile_discard(&w->documents);
    dtx_mem_free(w);
}
