#include "data/tokenize_batch.h"

#include <string.h>

#include "data/jsonline.h"
#include "kernels/base/mem.h"

enum { BATCH_BYTES = 1 << 20 };

void dtx_text_batch_free(struct dtx_text_batch *b)
{
    dtx_bytes_free(&b->text);
    dtx_bytes_free(&b->notes);
    dtx_ids_free(&b->ids);
    dtx_mem_free(b->pieces);
    *b = (struct dtx_text_batch){0};
}

static enum dtx_status add_piece(struct dtx_ctx *ctx, struct dtx_text_batch *b, const struct dtx_text_part *part,
                                 const struct dtx_textfile *file)
{
    void *pieces = b->pieces;
    DTX_TRY(ctx, dtx_grow(ctx, b->pieces, b->n, b->n + 1, sizeof *b->pieces, &b->capacity, &pieces));
    b->pieces = pieces;
    b->pieces[b->n++] = (struct dtx_batch_piece){.first = b->text.n,
                                                 .n = part->n,
                                                 .position = dtx_textfile_position(file),
                                                 .lines = part->line,
                                                 .ends = part->ends,
                                                 .line = part->line,
                                                 .why = -1};
    return dtx_bytes_append(ctx, &b->text, part->text, part->n);
}

enum dtx_status dtx_text_batch_fill(struct dtx_ctx *ctx, struct dtx_text_batch *b, struct dtx_textfile *file)
{
    struct dtx_text_part part;
    bool more = true;
    b->n = b->text.n = b->notes.n = b->ids.n = 0;
    while (b->text.n < BATCH_BYTES && b->n < BATCH_BYTES / 16) {
        DTX_TRY(ctx, dtx_textfile_next(ctx, file, &part, &more));
        if (!more)
            break;
        DTX_TRY(ctx, add_piece(ctx, b, &part, file));
    }
    b->file_ends = !more;
    b->consumed = dtx_textfile_consumed(file);
    return DTX_OK;
}

/* A line of JSON: its document takes the scratch's place; what is wrong goes to the notes. */
static enum dtx_status encode_line(struct dtx_text_batch *b, struct dtx_encoder *encoder, struct dtx_batch_piece *piece,
                                   struct dtx_bytes *scratch)
{
    char why[DTX_JSONLINE_WHY];
    struct dtx_ctx *ctx = &b->ctx;
    scratch->n = 0;
    DTX_TRY(ctx,
            dtx_jsonline_text(ctx, b->text.data + piece->first, piece->n, b->field, scratch, &piece->invalid, why));
    if (why[0]) {
        piece->why = b->notes.n;
        return dtx_bytes_append(ctx, &b->notes, why, (int64_t)strlen(why) + 1);
    }
    return dtx_encoder_run(ctx, encoder, scratch->data, scratch->n, &b->ids, &piece->invalid);
}

static enum dtx_status encode(struct dtx_text_batch *b, struct dtx_encoder *encoder, struct dtx_bytes *scratch)
{
    struct dtx_ctx *ctx = &b->ctx;
    for (int64_t i = 0; i < b->n; i++) {
        struct dtx_batch_piece *piece = &b->pieces[i];
        if (b->json)
            DTX_TRY(ctx, encode_line(b, encoder, piece, scratch));
        else
            DTX_TRY(ctx,
                    dtx_encoder_run(ctx, encoder, b->text.data + piece->first, piece->n, &b->ids, &piece->invalid));
        piece->ids_end = b->ids.n;
    }
    return DTX_OK;
}

void dtx_text_batch_encode(struct dtx_text_batch *b, struct dtx_encoder *encoder)
{
    struct dtx_bytes scratch = {0};
    b->status = encode(b, encoder, &scratch);
    dtx_bytes_free(&scratch);
}
