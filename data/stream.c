#include "data/stream.h"

#include <math.h>
#include <string.h>

#include "data/blend.h"
#include "data/course.h"
#include "data/parts.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

struct dtx_stream {
    struct dtx_stream_config config; /* its texts are not kept */
    struct dtx_filepool *files;
    char *cache_dir; /* NULL: none */
    struct dtx_source_list list;
    int n_parts;
    struct dtx_part *parts; /* [list.n_paths] */
    struct dtx_blend blend;
    struct dtx_data_ledger ledger; /* at the start, arranged for this configuration */
    struct dtx_course **courses;   /* [list.n] */
    struct dtx_cursor *start;      /* [list.n] */
    int64_t samples, tokens, tail;
};

/* Where one course is: `drawn` samples of it behind the stream's start. */
struct place {
    struct dtx_cursor cursor;
    int64_t drawn;
};

struct dtx_walk {
    struct place *places;     /* [sources] */
    int32_t *ids;             /* [length + 1] */
    struct dtx_piece *pieces; /* [length] */
};

static enum dtx_status check_config(struct dtx_ctx *ctx, const struct dtx_stream_config *c)
{
    if (c->length < 1 || c->length >= INT32_MAX)
        return dtx_fail(ctx, DTX_E_CONFIG, "a sample length of %lld tokens is not possible", (long long)c->length);
    if (c->vocab < 1)
        return dtx_fail(ctx, DTX_E_CONFIG, "a vocabulary of %lld ids is not possible", (long long)c->vocab);
    if (!(c->heldout >= 0 && c->heldout < 1))
        return dtx_fail(ctx, DTX_E_CONFIG, "the held-out share must be in [0, 1), not %g", c->heldout);
    if (c->use_heldout && c->heldout == 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "held-out text is wanted, but the held-out share is 0");
    if (c->separator >= c->vocab || (c->doc_reset && c->separator < 0))
        return dtx_fail(ctx, DTX_E_CONFIG, "the separator %d is no id of the vocabulary of %lld%s", c->separator,
                        (long long)c->vocab, c->doc_reset ? "; document reset needs one" : "");
    return DTX_OK;
}

static const char *part_name(const struct dtx_stream_config *c)
{
    return c->use_heldout ? "held-out" : "training";
}

static int64_t targets_of(const struct dtx_part *part)
{
    return dtx_max64(part->tokens - 1, 0);
}

static enum dtx_status open_parts(struct dtx_ctx *ctx, struct dtx_stream *s)
{
    const struct dtx_stream_config *c = &s->config;
    struct dtx_parts_config config = {.source = {.files = s->files,
                                                 .vocab = c->vocab,
                                                 .separator = c->separator,
                                                 .type = c->type,
                                                 .trusted = c->trusted},
                                      .heldout = c->heldout,
                                      .use_heldout = c->use_heldout,
                                      .identify = !c->use_heldout && !c->trusted};
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, s->list.n_paths, sizeof *s->parts, &p));
    s->parts = p;
    for (int f = 0; f < s->list.n_paths; f++) {
        struct dtx_part *part = &s->parts[f];
        DTX_TRY(ctx, dtx_part_open(ctx, &config, s->list.paths[f], part));
        s->n_parts++;
        int64_t used = targets_of(part) / c->length * c->length;
        s->tokens += part->tokens;
        s->tail += part->tokens - (used > 0 ? used + 1 : 0);
        if (used == 0)
            dtx_log(ctx, DTX_LOG_WARN,
                    "%s: its %s part of %lld tokens is shorter than one sample of %lld + 1: not used", part->path,
                    part_name(c), (long long)part->tokens, (long long)c->length);
    }
    return DTX_OK;
}

/* Where a run of before the ledger stands: all files were one source. */
static enum dtx_status make_before(struct dtx_ctx *ctx, const struct dtx_stream *s, struct dtx_data_ledger_plan plan,
                                   struct dtx_data_ledger *out)
{
    const struct dtx_stream_config *c = &s->config;
    const int first[2] = {0, plan.n_files};
    struct dtx_data_ledger none = {0};
    int64_t n = 0;
    if (c->samples_before == 0)
        return DTX_OK;
    if (c->samples_before < 0 || c->length_before < 1)
        return dtx_fail(ctx, DTX_E_RANGE, "%lld samples of length %lld are not possible", (long long)c->samples_before,
                        (long long)c->length_before);
    plan.first = first;
    plan.n_sources = 1;
    plan.length = c->length_before;
    for (int f = 0; f < plan.n_files; f++)
        n += plan.files[f].targets / c->length_before;
    if (n == 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "%s: no sample of the checkpoint's length %lld is in these files",
                        s->list.paths[0], (long long)c->length_before);
    DTX_TRY(ctx, dtx_data_ledger_arrange(ctx, &none, &plan, out));
    out->samples = c->samples_before;
    out->courses[0].epoch = c->samples_before / n;
    out->courses[0].done = c->samples_before % n;
    return DTX_OK;
}

static enum dtx_status make_ledger(struct dtx_ctx *ctx, struct dtx_stream *s, const char *text)
{
    void *p;
    struct dtx_data_ledger before = {0};
    DTX_TRY(ctx, dtx_mem_alloc(ctx, s->n_parts, sizeof(struct dtx_data_ledger_file), &p));
    struct dtx_data_ledger_file *files = p;
    for (int f = 0; f < s->n_parts; f++)
        files[f] = (struct dtx_data_ledger_file){s->parts[f].id, targets_of(&s->parts[f]), (char *)s->parts[f].path};
    struct dtx_data_ledger_plan plan = {.files = files,
                                        .first = s->list.first,
                                        .n_files = s->n_parts,
                                        .n_sources = s->list.n,
                                        .length = s->config.length,
                                        .same_files = s->config.trusted};
    enum dtx_status status = text ? dtx_data_ledger_read(ctx, text, &before) : make_before(ctx, s, plan, &before);
    if (status == DTX_OK)
        status = dtx_data_ledger_arrange(ctx, &before, &plan, &s->ledger);
    dtx_data_ledger_free(&before);
    dtx_mem_free(p);
    return status;
}

static enum dtx_status open_courses(struct dtx_ctx *ctx, struct dtx_stream *s)
{
    void *p;
    int64_t length = s->config.length;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, s->list.n, sizeof(struct dtx_course *), &p));
    s->courses = p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, s->list.n, sizeof *s->start, &p));
    s->start = p;
    for (int i = 0; i < s->list.n; i++) {
        DTX_TRY(ctx,
                dtx_course_open(ctx, s->config.seed, &s->ledger, &s->ledger.courses[i], &s->courses[i], &s->start[i]));
        int64_t tokens = 0, n = dtx_course_samples(s->courses[i]);
        for (int f = s->list.first[i]; f < s->list.first[i + 1]; f++)
            tokens += s->parts[f].tokens;
        if (n == 0)
            return dtx_fail(ctx, DTX_E_CONFIG,
                            "%s: the %s part has %lld tokens, one sample needs %lld + 1: give more text, a shorter "
                            "sample or another held-out share (now %g), or leave the source out",
                            s->list.paths[s->list.first[i]], part_name(&s->config), (long long)tokens,
                            (long long)length, s->config.heldout);
        s->samples += n;
    }
    return DTX_OK;
}

static enum dtx_status open_all(struct dtx_ctx *ctx, struct dtx_stream *s)
{
    const struct dtx_stream_config *c = &s->config;
    void *p;
    DTX_TRY(ctx, dtx_source_list_read(ctx, c->paths, &s->list));
    DTX_TRY(ctx, dtx_filepool_create(ctx, c->mmap, 0, &s->files));
    if (c->cache_dir && *c->cache_dir)
        DTX_TRY(ctx, dtx_mem_text(ctx, c->cache_dir, &s->cache_dir));
    DTX_TRY(ctx, open_parts(ctx, s));
    DTX_TRY(ctx, make_ledger(ctx, s, c->ledger));
    DTX_TRY(ctx, open_courses(ctx, s));
    DTX_TRY(ctx, dtx_mem_alloc(ctx, s->list.n, sizeof(char *), &p));
    const char **names = p;
    for (int i = 0; i < s->list.n; i++)
        names[i] = s->list.paths[s->list.first[i]];
    enum dtx_status status = dtx_blend_init(ctx, &s->blend, c->seed, s->list.weights, names, s->list.n);
    dtx_mem_free(p);
    return status;
}

enum dtx_status dtx_stream_open(struct dtx_ctx *ctx, const struct dtx_stream_config *config, struct dtx_stream **out)
{
    DTX_TRY(ctx, check_config(ctx, config));
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_stream), &p));
    struct dtx_stream *s = p;
    s->config = *config;
    enum dtx_status status = open_all(ctx, s);
    if (status != DTX_OK) {
        dtx_stream_close(s);
        return status;
    }
    s->config.paths = s->config.type = s->config.cache_dir = s->config.ledger = NULL;
    *out = s;
    return DTX_OK;
}

void dtx_stream_close(struct dtx_stream *s)
{
    if (!s)
        return;
    for (int i = 0; s->courses && i < s->list.n; i++)
        dtx_course_close(s->courses[i]);
    for (int i = 0; i < s->n_parts; i++)
        dtx_part_close(&s->parts[i]);
    dtx_filepool_free(s->files);
    dtx_data_ledger_free(&s->ledger);
    dtx_blend_free(&s->blend);
    dtx_source_list_free(&s->list);
    dtx_mem_free(s->cache_dir);
    dtx_mem_free(s->courses);
    dtx_mem_free(s->start);
    dtx_mem_free(s->parts);
    dtx_mem_free(s);
}

int64_t dtx_stream_samples(const struct dtx_stream *s)
{
    return s->samples;
}

int64_t dtx_stream_tokens(const struct dtx_stream *s)
{
    return s->tokens;
}

int64_t dtx_stream_tail(const struct dtx_stream *s)
{
    return s->tail;
}

int64_t dtx_stream_length(const struct dtx_stream *s)
{
    return s->config.length;
}

int64_t dtx_stream_first(const struct dtx_stream *s)
{
    return s->ledger.samples;
}

const struct dtx_data_ledger *dtx_stream_start(const struct dtx_stream *s)
{
    return &s->ledger;
}

enum dtx_status dtx_walk_open(struct dtx_ctx *ctx, const struct dtx_stream *s, struct dtx_walk **out)
{
    void *p;
    enum dtx_status status;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_walk), &p));
    struct dtx_walk *walk = p;
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, s->list.n, sizeof *walk->places, &p), fail);
    walk->places = p;
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, s->config.length + 1, sizeof *walk->ids, &p), fail);
    walk->ids = p;
    DTX_TRY_GOTO(ctx, status, dtx_mem_alloc(ctx, s->config.length, sizeof *walk->pieces, &p), fail);
    walk->pieces = p;
    for (int i = 0; i < s->list.n; i++)
        walk->places[i].cursor = s->start[i];
    *out = walk;
    return DTX_OK;
fail:
    dtx_walk_close(walk);
    return status;
}

void dtx_walk_close(struct dtx_walk *walk)
{
    if (!walk)
        return;
    dtx_mem_free(walk->places);
    dtx_mem_free(walk->ids);
    dtx_mem_free(walk->pieces);
    dtx_mem_free(walk);
}

/* Samples of a source between the stream's start and sample i. */
static int64_t drawn_before(const struct dtx_stream *s, int source, int64_t i)
{
    return dtx_blend_count(&s->blend, source, i) - dtx_blend_count(&s->blend, source, s->ledger.samples);
}

/* Moves a place to its course's sample that many behind the start; back by beginning anew. */
static void go_to(const struct dtx_stream *s, int source, struct place *place, int64_t drawn)
{
    if (drawn < place->drawn)
        *place = (struct place){.cursor = s->start[source]};
    dtx_course_advance(s->courses[source], &place->cursor, drawn - place->drawn);
    place->drawn = drawn;
}

/* The pieces of sample i, at most `length`; its source. */
static int find_pieces(const struct dtx_stream *s, struct place *places, int64_t i, struct dtx_piece *pieces,
                       int64_t *n)
{
    int source = dtx_blend_source(&s->blend, i);
    int64_t drawn = drawn_before(s, source, i);
    if (s->config.use_heldout) {
        dtx_course_in_order(s->courses[source], drawn, pieces);
        *n = 1;
        return source;
    }
    go_to(s, source, &places[source], drawn);
    dtx_course_next(s->courses[source], &places[source].cursor, pieces, n);
    places[source].drawn++;
    return source;
}

static int64_t first_token(const struct dtx_stream *s, const struct dtx_part *part, const struct dtx_piece *piece)
{
    int64_t shift = DTX_MUTANT(stream_sample_overlap_missing) ? piece->first / s->config.length : 0;
    return part->first + piece->first + shift;
}

/* How many of ids[n] come before the first separator; blocks of 16 are compared at once. */
static int64_t before_separator(const int32_t *ids, int64_t n, int32_t separator)
{
    int64_t t = 0;
    for (int found = 0; t + 16 <= n; t += 16) {
        for (int k = 0; k < 16; k++)
            found |= ids[t + k] == separator;
        if (found)
            break;
    }
    while (t < n && ids[t] != separator)
        t++;
    return t;
}

/* start[n] of ids[n], which lie in a row from `at` on; a document begins no earlier than `first`. */
static void find_starts(const struct dtx_stream *s, const int32_t *ids, int64_t n, int64_t at, int64_t first,
                        int32_t *start)
{
    for (int64_t t = 0; t < n;) {
        int64_t end = s->config.doc_reset ? t + before_separator(ids + t, n - t, s->config.separator) + 1 : n;
        end = dtx_min64(end, n);
        for (; t < end; t++)
            start[t] = (int32_t)first;
        first = at + end - DTX_MUTANT(stream_document_starts_at_separator);
    }
}

static enum dtx_status read_row(struct dtx_ctx *ctx, const struct dtx_stream *s, struct dtx_walk *walk, int64_t i,
                                int32_t *tokens, int32_t *targets, int32_t *doc_start, bool *packed)
{
    int64_t length = s->config.length, n = 0, at = 0;
    const struct dtx_part *parts = s->parts + s->list.first[find_pieces(s, walk->places, i, walk->pieces, &n)];
    *packed = n != 1 || walk->pieces[0].n != length;
    for (int64_t k = 0; k < n; k++) {
        const struct dtx_piece *piece = &walk->pieces[k];
        const struct dtx_part *part = &parts[piece->file];
        size_t bytes = (size_t)piece->n * sizeof *tokens;
        if (s->cache_dir)
            dtx_source_cache(ctx, part->source, s->cache_dir);
        DTX_TRY(ctx, dtx_source_read(ctx, part->source, first_token(s, part, piece), piece->n + 1, walk->ids));
        memcpy(tokens + at, walk->ids, bytes);
        memcpy(targets + at, walk->ids + 1, bytes);
        if (doc_start)
            find_starts(s, walk->ids, piece->n, at, DTX_MUTANT(stream_pieces_see_each_other) ? 0 : at, doc_start + at);
        at += piece->n;
    }
    for (int64_t t = at; t < length; t++) { /* the end of an epoch */
        tokens[t] = 0;
        targets[t] = -1;
        if (doc_start)
            doc_start[t] = (int32_t)at;
    }
    return DTX_OK;
}

enum dtx_status dtx_stream_read(struct dtx_ctx *ctx, const struct dtx_stream *s, struct dtx_walk *walk, int64_t first,
                                int64_t n, struct dtx_rows *rows)
{
    int64_t length = s->config.length;
    if (first < s->ledger.samples || n < 0)
        return dtx_fail(ctx, DTX_E_RANGE, "samples %lld … + %lld are wanted, the run stands at %lld", (long long)first,
                        (long long)n, (long long)s->ledger.samples);
    for (int64_t k = 0; k < n; k++) {
        bool packed;
        DTX_TRY(ctx, read_row(ctx, s, walk, first + k, rows->tokens + k * length, rows->targets + k * length,
                              rows->doc_start ? rows->doc_start + k * length : NULL, &packed));
        rows->packed |= packed;
    }
    return DTX_OK;
}

void dtx_stream_advise(const struct dtx_stream *s, const struct dtx_walk *walk, int64_t i)
{
    struct dtx_piece piece;
    int64_t n;
    int source = dtx_blend_source(&s->blend, i);
    struct place place = walk->places[source];
    if (!place.cursor.fresh) /* what comes is not known before it comes */
        return;
    go_to(s, source, &place, drawn_before(s, source, i));
    if (!place.cursor.fresh)
        return;
    dtx_course_next(s->courses[source], &place.cursor, &piece, &n);
    const struct dtx_part *part = &s->parts[s->list.first[source] + piece.file];
    dtx_source_advise(part->source, part->first + piece.first, piece.n + 1);
}

enum dtx_status dtx_stream_ledger(struct dtx_ctx *ctx, const struct dtx_stream *s, struct dtx_walk *walk,
                                  int64_t position, const struct dtx_skip *skips, int n_skips, char **text)
{
    struct dtx_data_ledger copy = {0};
    struct dtx_data_ledger_plan plan = {.files = s->ledger.files,
                                        .first = s->list.first,
                                        .n_files = s->n_parts,
                                        .n_sources = s->list.n,
                                        .length = s->config.length,
                                        .same_files = true};
    enum dtx_status status = dtx_data_ledger_arrange(ctx, &s->ledger, &plan, &copy);
    for (int i = 0; i < s->list.n && status == DTX_OK; i++) {
        go_to(s, i, &walk->places[i], drawn_before(s, i, position));
        dtx_course_note(&walk->places[i].cursor, &copy.courses[i]);
    }
    copy.samples = position;
    copy.n_skips = 0;
    for (int i = 0; i < n_skips && status == DTX_OK; i++)
        status = dtx_data_ledger_skip(ctx, &copy, skips[i].first, skips[i].end);
    if (status == DTX_OK)
        status = dtx_data_ledger_write(ctx, &copy, text);
    dtx_data_ledger_free(&copy);
    return status;
}

static enum dtx_status count_part(struct dtx_ctx *ctx, const struct dtx_part *part, int64_t *counts)
{
    int32_t ids[4096];
    for (int64_t t = 0; t < part->tokens; t += 4096) {
        int64_t n = dtx_min64(4096, part->tokens - t);
        DTX_TRY(ctx, dtx_source_read(ctx, part->source, part->first + t, n, ids));
        for (int64_t i = 0; i < n; i++)
            counts[ids[i]]++;
    }
    return DTX_OK;
}

enum dtx_status dtx_stream_entropy(struct dtx_ctx *ctx, const struct dtx_stream *s, double *nats)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, s->config.vocab, sizeof(int64_t), &p));
    int64_t *counts = p;
    enum dtx_status status = DTX_OK;
    for (int i = 0; i < s->n_parts && status == DTX_OK; i++)
        status = count_part(ctx, &s->parts[i], counts);
    *nats = 0;
    for (int64_t v = 0; v < s->config.vocab && status == DTX_OK; v++)
        if (counts[v] > 0) {
            double share = (double)counts[v] / (double)s->tokens;
            *nats -= share * log(share);
        }
    dtx_mem_free(counts);
    return status;
}
