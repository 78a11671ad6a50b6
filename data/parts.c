#include "data/parts.h"

#include <math.h>
#include <string.h>

#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { ENDS = 64, NEAR = 1 << 24 }; /* tokens that make an id; how far a document's end is searched for */

/* The first token of the held-out documents: the last round(share · documents), at least one and not all. */
static enum dtx_status cut_by_index(struct dtx_ctx *ctx, struct dtx_source *source, double share, int64_t *cut)
{
    const struct dtx_source_info *info = dtx_source_info(source);
    if (info->documents < 2)
        return dtx_fail(ctx, DTX_E_CONFIG,
                        "%s has %lld document(s): a held-out share of %g needs at least 2; tokenize with --split or "
                        "set the share to 0",
                        info->index_path, (long long)info->documents, share);
    int64_t held = (int64_t)llround(share * (double)info->documents);
    held = dtx_min64(dtx_max64(held, 1), info->documents - 1);
    return dtx_source_document(ctx, source, info->documents - held, cut);
}

/* Without an index: the first document that starts in the last share of the tokens; where none does nearby, there. */
static enum dtx_status cut_by_tokens(struct dtx_ctx *ctx, struct dtx_source *source, double share, int64_t *cut)
{
    int64_t tokens = dtx_source_info(source)->tokens, held = (int64_t)llround(share * (double)tokens), start;
    if (tokens < 2)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s has %lld token(s): nothing of it can be held out; set the share to 0",
                        dtx_source_info(source)->data_path, (long long)tokens);
    held = dtx_min64(dtx_max64(held, 1), tokens - 1);
    DTX_TRY(ctx, dtx_source_next_document(ctx, source, tokens - held, dtx_min64(NEAR, held / 2), &start));
    *cut = start > 0 && start < tokens ? start : tokens - held;
    return DTX_OK;
}

static enum dtx_status cut_part(struct dtx_ctx *ctx, const struct dtx_parts_config *config, struct dtx_part *part)
{
    const struct dtx_source_info *info = dtx_source_info(part->source);
    int64_t cut;
    part->first = 0;
    part->tokens = info->tokens;
    if (config->heldout == 0)
        return DTX_OK;
    DTX_TRY(ctx, (info->documents >= 0 ? cut_by_index : cut_by_tokens)(ctx, part->source, config->heldout, &cut));
    if (config->use_heldout) {
        part->first = cut;
        part->tokens = info->tokens - cut;
    } else if (!DTX_MUTANT(stream_heldout_overlap)) {
        part->tokens = cut;
    }
    return DTX_OK;
}

/* Ids that the vocabulary does not have are reported when a sample has them, not here. */
static enum dtx_status read_end(struct dtx_ctx *ctx, struct dtx_part *part, int64_t first, int64_t n, int32_t *ids)
{
    enum dtx_status status = dtx_source_read(ctx, part->source, first, n, ids);
    if (status == DTX_E_FORMAT)
        dtx_error_clear(ctx);
    return status == DTX_E_FORMAT ? DTX_OK : status;
}

static enum dtx_status identify(struct dtx_ctx *ctx, struct dtx_part *part)
{
    int64_t tokens = dtx_source_info(part->source)->tokens, n = dtx_min64(ENDS, tokens);
    int32_t ids[2 * ENDS] = {0};
    DTX_TRY(ctx, read_end(ctx, part, 0, n, ids));
    DTX_TRY(ctx, read_end(ctx, part, tokens - n, n, ids + ENDS));
    part->id = dtx_hash(ids, sizeof ids, (uint64_t)tokens);
    return DTX_OK;
}

enum dtx_status dtx_part_open(struct dtx_ctx *ctx, const struct dtx_parts_config *config, const char *path,
                              struct dtx_part *out)
{
    struct dtx_part part = {.path = path};
    DTX_TRY(ctx, dtx_source_open(ctx, &config->source, path, &part.source));
    enum dtx_status status = cut_part(ctx, config, &part);
    if (status == DTX_OK && config->identify)
        status = identify(ctx, &part);
    if (status != DTX_OK) {
        dtx_part_close(&part);
        return status;
    }
    *out = part;
    return DTX_OK;
}

void dtx_part_close(struct dtx_part *part)
{
    dtx_source_close(part->source);
    part->source = NULL;
}
