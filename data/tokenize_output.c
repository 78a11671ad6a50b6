#include "data/tokenize_output.h"

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"

enum { NAMED_LINES = 10 }; /* bad lines that are named one by one; all are counted */

static enum dtx_status open_writer(struct dtx_ctx *ctx, struct dtx_tokenize_output *o)
{
    const struct dtx_tokenize_state *s = &o->state;
    char *prefix;
    DTX_TRY(ctx, dtx_tokenize_shard_prefix(ctx, s, o->config->out, s->n_shards, &prefix));
    enum dtx_status status = dtx_tokenwriter_continue(ctx, prefix, s->vocab, 0, &s->mark, &o->writer);
    dtx_mem_free(prefix);
    return status;
}

/* Everything up to the last document is on disk, and the state says so. */
enum dtx_status dtx_tokenize_output_save(struct dtx_ctx *ctx, struct dtx_tokenize_output *o)
{
    o->last_save = dtx_clock_now();
    if (!o->regular)
        return DTX_OK;
    if (o->writer)
        DTX_TRY(ctx, dtx_tokenwriter_save(ctx, o->writer, &o->state.mark));
    DTX_TRY(ctx, dtx_tokenize_state_write(ctx, &o->state, o->progress, false));
    o->saved = true;
    return DTX_OK;
}

/* The renames of the last shard: all of them, or those that a killed call had not come to. */
enum dtx_status dtx_tokenize_output_rename(struct dtx_ctx *ctx, struct dtx_tokenize_output *o)
{
    char *prefix;
    DTX_TRY(ctx, dtx_tokenize_shard_prefix(ctx, &o->state, o->config->out, o->state.n_shards - 1, &prefix));
    enum dtx_status status = dtx_tokenwriter_rename(ctx, prefix);
    dtx_mem_free(prefix);
    o->state.renaming = false;
    return status;
}

/* Ends the shard that is being written. Its sums are in the state before its files get their names, so that a kill
 * between the two is mended by renaming. */
static enum dtx_status end_shard(struct dtx_ctx *ctx, struct dtx_tokenize_output *o)
{
    struct dtx_tokenize_shard shard = {.counts = dtx_tokenwriter_written(o->writer)};
    DTX_TRY(ctx, dtx_tokenwriter_seal(ctx, o->writer, &shard.sums));
    DTX_TRY(ctx, dtx_tokenize_add_shard(ctx, &o->state, &shard));
    o->state.mark = (struct dtx_tokenwriter_mark){0};
    o->state.renaming = true;
    if (o->regular) {
        DTX_TRY(ctx, dtx_tokenize_state_write(ctx, &o->state, o->progress, false));
        o->saved = true;
    }
    enum dtx_status status = dtx_tokenize_output_rename(ctx, o);
    dtx_tokenwriter_keep(o->writer);
    o->writer = NULL;
    return status;
}

/* All of the input up to here is in the state. */
static void pass(struct dtx_tokenize_output *o, const struct dtx_batch_piece *piece)
{
    struct dtx_tokenize_input *in = &o->state.inputs[o->state.input];
    o->text_bytes += piece->position - in->text_bytes;
    in->text_bytes = piece->position;
    o->state.lines = piece->lines;
}

static enum dtx_status end_document(struct dtx_ctx *ctx, struct dtx_tokenize_output *o,
                                    const struct dtx_batch_piece *piece)
{
    struct dtx_tokenize_input *in = &o->state.inputs[o->state.input];
    o->inside = false;
    pass(o, piece);
    if (o->config->separator >= 0)
        DTX_TRY(ctx, dtx_tokenwriter_add(ctx, o->writer, &o->config->separator, 1));
    DTX_TRY(ctx, dtx_tokenwriter_end(ctx, o->writer));
    in->documents++;
    in->tokens += o->document_tokens + (o->config->separator >= 0);
    o->document_tokens = 0;
    int64_t bytes = dtx_tokenwriter_written(o->writer).tokens * dtx_tokenwriter_token_bytes(o->writer);
    bool full = o->state.shard_bytes > 0 && bytes >= o->state.shard_bytes;
    return full ? end_shard(ctx, o) : DTX_OK;
}

/* What is wrong with a line of JSON or with a document's UTF-8 is counted, named, and with strict an error. */
static enum dtx_status note_faults(struct dtx_ctx *ctx, struct dtx_tokenize_output *o, const struct dtx_text_batch *b,
                                   const struct dtx_batch_piece *piece)
{
    struct dtx_tokenize_input *in = &o->state.inputs[o->state.input];
    in->invalid += piece->invalid;
    in->bad_lines += piece->why >= 0;
    if (piece->invalid > 0 && o->config->strict)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: invalid UTF-8 in document %lld, in the text before byte %lld", in->path,
                        (long long)in->documents, (long long)piece->position);
    if (piece->why < 0)
        return DTX_OK;
    if (o->config->strict)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: line %lld: %s", in->path, (long long)piece->line,
                        b->notes.data + piece->why);
    dtx_meter_clear(&o->meter);
    if (o->named < NAMED_LINES)
        dtx_log(ctx, DTX_LOG_WARN, "%s: line %lld is left out: %s", in->path, (long long)piece->line,
                b->notes.data + piece->why);
    if (++o->named == NAMED_LINES)
        dtx_log(ctx, DTX_LOG_WARN, "more bad lines are counted, not named; --strict stops at the first");
    return DTX_OK;
}

static enum dtx_status write_piece(struct dtx_ctx *ctx, struct dtx_tokenize_output *o, const struct dtx_text_batch *b,
                                   int64_t i)
{
    const struct dtx_batch_piece *piece = &b->pieces[i];
    int64_t first = i > 0 ? b->pieces[i - 1].ids_end : 0, n = piece->ids_end - first;
    DTX_TRY(ctx, note_faults(ctx, o, b, piece));
    if (b->json && n == 0) { /* a bad line, or one with an empty text: no document */
        o->state.inputs[o->state.input].empty += piece->why < 0;
        pass(o, piece);
        return DTX_OK;
    }
    if (!o->writer)
        DTX_TRY(ctx, open_writer(ctx, o));
    o->inside = true;
    DTX_TRY(ctx, dtx_tokenwriter_add(ctx, o->writer, b->ids.data + first, n));
    o->document_tokens += n;
    return piece->ends ? end_document(ctx, o, piece) : DTX_OK;
}

enum dtx_status dtx_tokenize_output_write(struct dtx_ctx *ctx, struct dtx_tokenize_output *o, struct dtx_text_batch *b)
{
    if (b->status != DTX_OK) {
        dtx_error_take_from(ctx, &b->ctx);
        return b->status;
    }
    struct dtx_tokenize_state *s = &o->state;
    for (int64_t i = 0; i < b->n; i++)
        DTX_TRY(ctx, write_piece(ctx, o, b, i));
    dtx_meter_add(&o->meter, b->consumed - o->consumed);
    o->consumed = b->consumed;
    if (b->file_ends) {
        s->input++;
        s->lines = o->consumed = 0;
    }
    bool due = dtx_clock_now() - o->last_save >= o->config->save_seconds;
    return due && !o->inside ? dtx_tokenize_output_save(ctx, o) : DTX_OK;
}

enum dtx_status dtx_tokenize_output_end(struct dtx_ctx *ctx, struct dtx_tokenize_output *o)
{
    if (!o->writer && (o->state.mark.documents > 0 || o->state.n_shards == 0))
        DTX_TRY(ctx, open_writer(ctx, o));
    return o->writer ? end_shard(ctx, o) : DTX_OK;
}

void dtx_tokenize_output_close(struct dtx_tokenize_output *o)
{
    if (o->saved)
        dtx_tokenwriter_keep(o->writer);
    else
        dtx_tokenwriter_discard(o->writer);
    o->writer = NULL;
    dtx_mem_free(o->progress);
    dtx_mem_free(o->state.inputs);
    dtx_tokenize_state_free(&o->state);
}
