#include "data/pretokenize.h"

#include <string.h>

#include "data/buffer.h"
#include "data/regex.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { MOST_STEPS = 16 };

struct step {
    enum dtx_scan known; /* DTX_SCANS: none, use the regex */
    dtx_scanner scan;
    struct dtx_regex *regex;
    enum dtx_behavior behavior;
    bool invert;
};

struct dtx_pattern {
    struct dtx_unicode *unicode;
    struct step steps[MOST_STEPS];
    int n;
    struct dtx_bytes text; /* NUL-terminated once there is a step */
};

struct segment {
    int64_t from, to;
    bool match;
};

/* A step at work on one piece of the step before: the region, from `at` on. */
struct level {
    int64_t begin, end, at;
    int64_t last_match; /* end of the last match, −1: none; no empty match right behind it */
    bool has_match, has_held;
    struct segment match, held; /* found behind a gap; taken but not used */
};

struct dtx_splitter {
    const struct dtx_pattern *pattern;
    struct dtx_matcher *matcher;
    const char *text;
    int64_t n, at; /* at: used where the only step is a scanner, or none */
    struct level levels[MOST_STEPS];
};

enum dtx_status dtx_pattern_create(struct dtx_ctx *ctx, struct dtx_pattern **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_pattern), &p));
    struct dtx_pattern *pattern = p;
    enum dtx_status status = dtx_unicode_create(ctx, &pattern->unicode);
    if (status == DTX_OK)
        *out = pattern;
    else
        dtx_pattern_free(pattern);
    return status;
}

void dtx_pattern_free(struct dtx_pattern *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n; i++)
        dtx_regex_free(p->steps[i].regex);
    dtx_unicode_free(p->unicode);
    dtx_bytes_free(&p->text);
    dtx_mem_free(p);
}

/* The step's place; its text is appended to the pattern's. */
static enum dtx_status new_step(struct dtx_ctx *ctx, struct dtx_pattern *p, const char *regex, int64_t n,
                                const struct step *step)
{
    static const char *const behaviors[] = {"isolated", "removed", "merged with previous", "merged with next",
                                            "contiguous"};
    if (p->n == MOST_STEPS)
        return dtx_fail(ctx, DTX_E_UNSUPPORTED, "more than %d steps of pre-tokenization", MOST_STEPS);
    p->text.n -= p->n > 0; /* the NUL */
    if (p->n > 0)
        DTX_TRY(ctx, dtx_bytes_append(ctx, &p->text, "\n", 1));
    DTX_TRY(ctx, dtx_bytes_append(ctx, &p->text, regex, n));
    if (step->behavior != DTX_SPLIT_ISOLATED || step->invert) {
        const char *name = behaviors[step->behavior];
        DTX_TRY(ctx, dtx_bytes_append(ctx, &p->text, " (", 2));
        DTX_TRY(ctx, dtx_bytes_append(ctx, &p->text, name, (int64_t)strlen(name)));
        DTX_TRY(ctx, dtx_bytes_append(ctx, &p->text, step->invert ? ", inverted)" : ")", step->invert ? 11 : 1));
    }
    DTX_TRY(ctx, dtx_bytes_append(ctx, &p->text, "", 1));
    p->steps[p->n++] = *step;
    return DTX_OK;
}

enum dtx_status dtx_pattern_add_scan(struct dtx_ctx *ctx, struct dtx_pattern *p, enum dtx_scan scan)
{
    const char *regex = dtx_scan_pattern(scan);
    struct step step = {.known = scan, .scan = dtx_scan_function(scan)};
    return new_step(ctx, p, regex, (int64_t)strlen(regex), &step);
}

enum dtx_status dtx_pattern_add_regex(struct dtx_ctx *ctx, struct dtx_pattern *p, const char *where, const char *regex,
                                      int64_t n, bool literal, enum dtx_behavior behavior, bool invert)
{
    struct step step = {.known = DTX_SCANS, .behavior = behavior, .invert = invert};
    /* What matches everything: isolated, or all that does not match removed. tiktoken's own is no JSON pattern. */
    bool all = (behavior == DTX_SPLIT_ISOLATED && !invert) || (behavior == DTX_SPLIT_REMOVED && invert);
    for (int scan = 0; scan < DTX_SCANS && all && !literal; scan++) {
        const char *known = dtx_scan_pattern(scan);
        if (scan != DTX_SCAN_CL100K && (int64_t)strlen(known) == n && memcmp(known, regex, (size_t)n) == 0)
            return dtx_pattern_add_scan(ctx, p, scan);
    }
    DTX_TRY(ctx, dtx_regex_create(ctx, where, regex, n, literal, &step.regex));
    enum dtx_status status = new_step(ctx, p, regex, n, &step);
    if (status != DTX_OK)
        dtx_regex_free(step.regex);
    return status;
}

const struct dtx_unicode *dtx_pattern_unicode(const struct dtx_pattern *p)
{
    return p->unicode;
}

const char *dtx_pattern_text(const struct dtx_pattern *p)
{
    return p->n > 0 ? p->text.data : "";
}

bool dtx_pattern_is(const struct dtx_pattern *p, enum dtx_scan scan)
{
    return p->n == 1 && p->steps[0].known == scan;
}

enum dtx_status dtx_splitter_create(struct dtx_ctx *ctx, const struct dtx_pattern *pattern, struct dtx_splitter **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_splitter), &p));
    struct dtx_splitter *s = p;
    s->pattern = pattern;
    bool needed = false;
    for (int i = 0; i < pattern->n; i++)
        needed |= pattern->steps[i].regex != NULL;
    enum dtx_status status = needed ? dtx_matcher_create(ctx, &s->matcher) : DTX_OK;
    if (status == DTX_OK)
        *out = s;
    else
        dtx_splitter_free(s);
    return status;
}

void dtx_splitter_free(struct dtx_splitter *s)
{
    if (!s)
        return;
    dtx_matcher_free(s->matcher);
    dtx_mem_free(s);
}

static void start_level(struct level *l, int64_t begin, int64_t end)
{
    *l = (struct level){.begin = begin, .end = end, .at = begin, .last_match = -1};
}

void dtx_splitter_start(struct dtx_splitter *s, const char *text, int64_t n)
{
    s->text = text;
    s->n = n;
    s->at = 0;
    for (int i = 0; i < s->pattern->n; i++)
        start_level(&s->levels[i], 0, i == 0 ? n : 0);
}

/* The next match of a regex in the level's region, as segment in l->match. */
static enum dtx_status find_match(struct dtx_ctx *ctx, struct dtx_splitter *s, const struct step *step, struct level *l,
                                  bool *found)
{
    int64_t from = 0, to = 0, start = l->at - l->begin, length;
    const char *text = s->text + l->begin;
    for (;;) {
        DTX_TRY(ctx, dtx_matcher_find(ctx, s->matcher, step->regex, text, l->end - l->begin, start, found, &from, &to));
        if (!*found)
            return DTX_OK;
        if (to > from || from + l->begin != l->last_match)
            break;
        if (l->begin + to == l->end) {
            *found = false;
            return DTX_OK;
        }
        dtx_unicode_kind(s->pattern->unicode, text + to, &length);
        start = to + length;
    }
    l->match = (struct segment){l->begin + from, l->begin + to, true};
    l->last_match = l->match.to;
    return DTX_OK;
}

/* The region's next segment, match or gap; segments cover it in order. *more false: it is used up. */
static enum dtx_status raw_next(struct dtx_ctx *ctx, struct dtx_splitter *s, const struct step *step, struct level *l,
                                struct segment *out, bool *more)
{
    *more = true;
    if (l->has_held || l->has_match) {
        *out = l->has_held ? l->held : l->match;
        l->has_match &= l->has_held;
        l->has_held = false;
    } else if (l->at >= l->end) {
        *more = false;
        return DTX_OK;
    } else if (step->scan) {
        const char *text = s->text + l->begin;
        *out = (struct segment){l->at,
                                l->begin + step->scan(s->pattern->unicode, text, l->end - l->begin, l->at - l->begin),
                                !step->invert};
    } else {
        bool found;
        DTX_TRY(ctx, find_match(ctx, s, step, l, &found));
        l->match.match = !step->invert;
        if (found && l->match.from == l->at) {
            *out = l->match;
        } else {
            *out = (struct segment){l->at, found ? l->match.from : l->end, step->invert};
            l->has_match = found;
        }
    }
    l->at = out->to;
    return DTX_OK;
}

/* Whether a segment is joined to the one before it. */
static bool joins(enum dtx_behavior behavior, const struct segment *piece, const struct segment *next)
{
    switch (behavior) {
    case DTX_SPLIT_MERGED_WITH_PREVIOUS:
        return next->match && !piece->match;
    case DTX_SPLIT_MERGED_WITH_NEXT:
        return piece->match && !next->match;
    case DTX_SPLIT_CONTIGUOUS:
        return piece->match == next->match;
    default:
        return false;
    }
}

/* The next piece of a level; it may be empty. */
static enum dtx_status cook_next(struct dtx_ctx *ctx, struct dtx_splitter *s, const struct step *step, struct level *l,
                                 struct segment *out, bool *more)
{
    do
        DTX_TRY(ctx, raw_next(ctx, s, step, l, out, more));
    while (*more && step->behavior == DTX_SPLIT_REMOVED && out->match);
    if (!*more || step->behavior == DTX_SPLIT_ISOLATED || step->behavior == DTX_SPLIT_REMOVED)
        return DTX_OK;
    for (;;) {
        struct segment next;
        bool another;
        DTX_TRY(ctx, raw_next(ctx, s, step, l, &next, &another));
        if (!another)
            return DTX_OK;
        if (!joins(step->behavior, out, &next)) {
            l->held = next;
            l->has_held = true;
            l->at = next.from;
            return DTX_OK;
        }
        out->to = next.to;
        if (step->behavior != DTX_SPLIT_CONTIGUOUS)
            return DTX_OK;
    }
}

/* The next piece of step `i`, from the pieces of the step before it. */
static enum dtx_status step_next(struct dtx_ctx *ctx, struct dtx_splitter *s, int i, struct segment *out, bool *more)
{
    struct level *l = &s->levels[i];
    for (;;) {
        DTX_TRY(ctx, cook_next(ctx, s, &s->pattern->steps[i], l, out, more));
        if (*more && out->to > out->from)
            return DTX_OK;
        if (*more)
            continue;
        if (i == 0)
            return DTX_OK;
        struct segment region;
        DTX_TRY(ctx, step_next(ctx, s, i - 1, &region, more));
        if (!*more)
            return DTX_OK;
        start_level(l, region.from, region.to);
    }
}

enum dtx_status dtx_splitter_next(struct dtx_ctx *ctx, struct dtx_splitter *s, struct dtx_piece_span *pieces,
                                  int64_t most, int64_t *n)
{
    const struct dtx_pattern *p = s->pattern;
    int64_t got = 0;
    if (p->n == 0 && s->at < s->n) {
        pieces[got++] = (struct dtx_piece_span){s->at, s->n - s->at};
        s->at = s->n;
    } else if (p->n == 1 && p->steps[0].scan) {
        dtx_scanner scan = p->steps[0].scan;
        for (int64_t at = s->at, end; got < most && at < s->n; at = s->at = end) {
            end = scan(p->unicode, s->text, s->n, at);
            pieces[got++] = (struct dtx_piece_span){at, end - at};
        }
    } else {
        struct segment piece;
        for (bool more = p->n > 0; got < most && more;) {
            DTX_TRY(ctx, step_next(ctx, s, p->n - 1, &piece, &more));
            if (more)
                pieces[got++] = (struct dtx_piece_span){piece.from, piece.to - piece.from};
        }
    }
    *n = got;
    return DTX_OK;
}

static bool letter_or_digit(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (DTX_MUTANT(cut_behind_signs) && c > ' ');
}

int64_t dtx_split_point(const char *text, int64_t n)
{
    for (int64_t i = n - 1; i > 0; i--)
        if ((text[i] == ' ' || text[i] == '\n') && letter_or_digit(text[i - 1]))
            return i;
    return 0;
}
