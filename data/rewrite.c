#include "data/rewrite.h"

#include <stdio.h>
#include <string.h>

#include "data/reader.h"
#include "data/tokenwriter.h"
#include "kernels/base/mem.h"
#include "kernels/base/meter.h"
#include "kernels/base/mutant.h"

enum { BLOCK = 1 << 16 };

/* Is anything at PREFIX.idx? An index is the last file to appear, so there is a pair where one is. */
static enum dtx_status refuse_existing(struct dtx_ctx *ctx, const char *prefix)
{
    if (dtx_reader_exists(prefix, ".idx") || dtx_reader_exists(prefix, ".bin"))
        return dtx_fail(ctx, DTX_E_CONFIG, "%s.bin or .idx exists already: choose another name, or remove it", prefix);
    return DTX_OK;
}

static enum dtx_status create_writer(struct dtx_ctx *ctx, const struct dtx_rewrite *r, const char *prefix,
                                     struct dtx_tokenwriter **out)
{
    bool narrow = true;
    for (int i = 0; i < r->n_sources; i++)
        narrow &= dtx_source_info(r->sources[i])->token_bytes <= 2;
    DTX_TRY(ctx, refuse_existing(ctx, prefix));
    if (r->vocab > 0)
        return dtx_tokenwriter_create(ctx, prefix, r->vocab, 0, out);
    DTX_TRY(ctx, dtx_tokenwriter_create(ctx, prefix, narrow ? 1 << 16 : INT32_MAX, 0, out));
    dtx_tokenwriter_use_u16(*out, narrow);
    return DTX_OK;
}

/* Documents of a source in order. */
struct walk {
    struct dtx_source *source;
    int64_t d;     /* of an index: the next document */
    int64_t first; /* its first token */
};

static bool walk_done(const struct walk *w)
{
    const struct dtx_source_info *info = dtx_source_info(w->source);
    return info->documents >= 0 ? w->d == info->documents : w->first == info->tokens;
}

/* The end of the next document, which becomes the start of the one after it. */
static enum dtx_status walk_next(struct dtx_ctx *ctx, struct walk *w, int64_t *end)
{
    const struct dtx_source_info *info = dtx_source_info(w->source);
    if (info->documents < 0)
        DTX_TRY(ctx, dtx_source_next_document(ctx, w->source, w->first + 1, INT64_MAX, end));
    else
        DTX_TRY(ctx, dtx_source_document(ctx, w->source, w->d + 1, end));
    if (*end < w->first)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: document %lld ends at token %lld and starts at %lld", info->index_path,
                        (long long)w->d, (long long)*end, (long long)w->first);
    w->d++;
    return DTX_OK;
}

/* Tokens [first, end) as the next part of the writer's document. */
static enum dtx_status copy_tokens(struct dtx_ctx *ctx, const struct dtx_rewrite *r, struct dtx_source *s,
                                   struct dtx_tokenwriter *w, int32_t *ids, int64_t first, int64_t end)
{
    for (int64_t t = first; t < end; t += BLOCK) {
        int64_t n = dtx_min64(BLOCK, end - t);
        DTX_TRY(ctx, dtx_source_read(ctx, s, t, n, ids));
        DTX_TRY(ctx, dtx_tokenwriter_add(ctx, w, ids, n));
        dtx_meter_add(r->meter, n * dtx_source_info(s)->token_bytes);
    }
    return DTX_OK;
}

static enum dtx_status copy_document(struct dtx_ctx *ctx, const struct dtx_rewrite *r, struct dtx_source *s,
                                     struct dtx_tokenwriter *w, int32_t *ids, int64_t first, int64_t end,
                                     struct dtx_rewrite_part *part)
{
    DTX_TRY(ctx, copy_tokens(ctx, r, s, w, ids, first, end));
    part->documents++;
    part->tokens += end - first;
    return dtx_tokenwriter_end(ctx, w);
}

static enum dtx_status copy_source(struct dtx_ctx *ctx, const struct dtx_rewrite *r, struct dtx_source *s,
                                   struct dtx_tokenwriter *w, int32_t *ids, struct dtx_rewrite_part *part)
{
    struct walk walk = {.source = s};
    while (!walk_done(&walk)) {
        int64_t end;
        DTX_TRY(ctx, walk_next(ctx, &walk, &end));
        DTX_TRY(ctx, copy_document(ctx, r, s, w, ids, walk.first, end, part));
        walk.first = end;
    }
    return DTX_OK;
}

enum dtx_status dtx_rewrite_merge(struct dtx_ctx *ctx, const struct dtx_rewrite *r, const char *prefix,
                                  struct dtx_rewrite_part *out)
{
    struct dtx_tokenwriter *w = NULL;
    struct dtx_rewrite_part part = {0};
    void *ids;
    enum dtx_status status;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, BLOCK, sizeof(int32_t), &ids));
    DTX_TRY_GOTO(ctx, status, create_writer(ctx, r, prefix, &w), done);
    for (int i = 0; i < r->n_sources - DTX_MUTANT(merge_last_source_lost); i++)
        DTX_TRY_GOTO(ctx, status, copy_source(ctx, r, r->sources[i], w, ids, &part), done);
    struct dtx_tokenwriter *whole = w;
    w = NULL;
    DTX_TRY_GOTO(ctx, status, dtx_tokenwriter_publish(ctx, whole), done);
    *out = part;
done:
    dtx_tokenwriter_discard(w);
    dtx_mem_free(ids);
    return status;
}

/* Documents from the walk's position into one part, up to its end. */
static enum dtx_status fill_part(struct dtx_ctx *ctx, const struct dtx_rewrite *r, struct walk *walk, int64_t part_end,
                                 struct dtx_tokenwriter *w, int32_t *ids, struct dtx_rewrite_part *part)
{
    struct dtx_source *s = walk->source;
    bool last = part_end == dtx_source_info(s)->tokens;
    bool whole = dtx_source_info(s)->documents >= 0 || s->separator >= 0;
    while (!walk_done(walk) && (walk->first < part_end || last)) {
        int64_t end = part_end;
        if (whole)
            DTX_TRY(ctx, walk_next(ctx, walk, &end));
        DTX_TRY(ctx, copy_document(ctx, r, s, w, ids, walk->first, end, part));
        walk->first = end + DTX_MUTANT(split_token_lost);
    }
    return DTX_OK;
}

void dtx_rewrite_name(const char *prefix, int k, int n, char out[DTX_REWRITE_PATH])
{
    snprintf(out, DTX_REWRITE_PATH, "%s-%05d-of-%05d", prefix, k, n);
}

enum dtx_status dtx_rewrite_split(struct dtx_ctx *ctx, const struct dtx_rewrite *r, const char *prefix,
                                  const int64_t *ends, int n, struct dtx_rewrite_part *out)
{
    struct walk walk = {.source = r->sources[0]};
    struct dtx_tokenwriter *w = NULL;
    void *ids;
    char path[DTX_REWRITE_PATH];
    enum dtx_status status = DTX_OK;
    if (strlen(prefix) > DTX_REWRITE_PATH - 32)
        return dtx_fail(ctx, DTX_E_CONFIG, "the prefix %.60s… is too long", prefix);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, BLOCK, sizeof(int32_t), &ids));
    for (int k = 0; k < n; k++) {
        dtx_rewrite_name(prefix, k, n, path);
        DTX_TRY_GOTO(ctx, status, refuse_existing(ctx, path), done);
    }
    for (int k = 0; k < n; k++) {
        struct dtx_rewrite_part part = {0};
        dtx_rewrite_name(prefix, k, n, path);
        DTX_TRY_GOTO(ctx, status, create_writer(ctx, r, path, &w), done);
        DTX_TRY_GOTO(ctx, status, fill_part(ctx, r, &walk, ends[k], w, ids, &part), done);
        struct dtx_tokenwriter *whole = w;
        w = NULL;
        DTX_TRY_GOTO(ctx, status, dtx_tokenwriter_publish(ctx, whole), done);
        out[k] = part;
    }
done:
    dtx_tokenwriter_discard(w);
    dtx_mem_free(ids);
    return status;
}
