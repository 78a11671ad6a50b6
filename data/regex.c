#include "data/regex.h"

#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "data/buffer.h"
#include "kernels/base/mem.h"

enum { JIT_STACK_START = 32 << 10, JIT_STACK_MOST = 8 << 20, LIMIT_START = 1 << 20, LIMIT_PER_BYTE = 16 };

struct dtx_regex {
    pcre2_code *code;
    bool jit;
};

struct dtx_matcher {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static enum dtx_status fail_pcre(struct dtx_ctx *ctx, int rc, const char *what, int64_t at)
{
    PCRE2_UCHAR text[256] = "";
    pcre2_get_error_message(rc, text, sizeof text);
    return dtx_fail(ctx, DTX_E_LIBRARY, "PCRE2 %s at byte %lld: %s (%d)", what, (long long)at, (const char *)text, rc);
}

/* Where the pattern is read: inside [ ] other rules hold. */
struct reader {
    const char *where, *pattern;
    int64_t n, at;
    bool in_class;
    struct dtx_bytes out;
};

static enum dtx_status refuse(struct dtx_ctx *ctx, const struct reader *r, const char *what)
{
    return dtx_fail(ctx, DTX_E_UNSUPPORTED, "%s: %s at byte %lld of the pattern '%.*s' is not supported", r->where,
                    what, (long long)r->at, (int)dtx_min64(r->n, 120), r->pattern);
}

static enum dtx_status put(struct dtx_ctx *ctx, struct reader *r, const char *text)
{
    return dtx_bytes_append(ctx, &r->out, text, (int64_t)strlen(text));
}

/* PCRE2's \s has U+180E, its \w no marks. Oniguruma's \w has the other numbers of Latin-1, but of nothing else. */
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
static enum dtx_status copy_escape(struct dtx_ctx *ctx, struct reader *r)
{
    static const struct {
        char name;
        const char *outside, *inside; /* NULL: has another meaning there, or cannot be said */
    } rules[] = {{'s', "\\p{White_Space}", "\\p{White_Space}"},
                 {'S', "\\P{White_Space}", "\\P{White_Space}"},
                 {'w', "[" WORD "]", WORD},
                 {'W', "[^" WORD "]", NULL},
                 {'h', "[0-9a-fA-F]", "0-9a-fA-F"},
                 {'H', "[^0-9a-fA-F]", NULL},
                 {'b', NULL, "\\b"},
                 {'B', NULL, NULL},
                 {'y', NULL, NULL},
                 {'Y', NULL, NULL},
                 {'u', NULL, NULL}};
    if (r->at + 1 >= r->n)
        return refuse(ctx, r, "a \\ at the end");
    char name = r->pattern[r->at + 1];
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].name == name) {
            const char *text = r->in_class ? rules[i].inside : rules[i].outside;
            char what[3] = {'\\', name, 0};
            if (!text)
                return refuse(ctx, r, what);
            r->at += 2;
            return put(ctx, r, text);
        }
    int64_t begin = r->at;
    r->at += 2;
    if (r->at < r->n && r->pattern[r->at] == '{' && strchr("pPxo", name)) /* \p{L}: to its end */
        while (r->at < r->n && r->pattern[r->at++] != '}')
            ;
    return dtx_bytes_append(ctx, &r->out, r->pattern + begin, r->at - begin);
}

/* (?imx-imx: with m: Ruby's m lets . match newlines. */
static bool has_option_m(const struct reader *r)
{
    if (r->at + 2 >= r->n || r->pattern[r->at + 1] != '?')
        return false;
    for (int64_t i = r->at + 2; i < r->n && memchr("imxs-", r->pattern[i], 5); i++)
        if (r->pattern[i] == 'm' || r->pattern[i] == 's')
            return true;
    return false;
}

static enum dtx_status translate(struct dtx_ctx *ctx, struct reader *r)
{
    while (r->at < r->n) {
        char c = r->pattern[r->at], next = r->at + 1 < r->n ? r->pattern[r->at + 1] : 0;
        if (c == '\\') {
            DTX_TRY(ctx, copy_escape(ctx, r));
            continue;
        }
        if (r->in_class && c == '[')
            return refuse(ctx, r, "a class inside a class");
        if (r->in_class && c == '&' && next == '&')
            return refuse(ctx, r, "&& in a class");
        if (!r->in_class && c == '(' && has_option_m(r))
            return refuse(ctx, r, "the option m");
        if (!r->in_class && c == '}' && next == '+')
            return refuse(ctx, r, "a possessive {…}+");
        int64_t begin = r->at++;
        if (!r->in_class && c == '[') {
            r->in_class = true;
            r->at += r->at < r->n && r->pattern[r->at] == '^';
            r->at += r->at < r->n && r->pattern[r->at] == ']'; /* a ] in the first place stands for itself */
        } else if (c == ']') {
            r->in_class = false;
        }
        DTX_TRY(ctx, dtx_bytes_append(ctx, &r->out, r->pattern + begin, r->at - begin));
    }
    return DTX_OK;
}

static enum dtx_status compile(struct dtx_ctx *ctx, struct reader *r, bool literal, struct dtx_regex *regex)
{
    int rc;
    PCRE2_SIZE at;
    uint32_t options = literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE;
    if (literal)
        DTX_TRY(ctx, dtx_bytes_append(ctx, &r->out, r->pattern, r->n));
    else
        DTX_TRY(ctx, translate(ctx, r));
    regex->code =
        pcre2_compile((PCRE2_SPTR)(r->out.data ? r->out.data : ""), (PCRE2_SIZE)r->out.n, options, &rc, &at, NULL);
    if (!regex->code) {
        PCRE2_UCHAR text[256] = "";
        pcre2_get_error_message(rc, text, sizeof text);
        return dtx_fail(ctx, DTX_E_UNSUPPORTED, "%s: PCRE2 refuses the pattern '%.*s': %s", r->where,
                        (int)dtx_min64(r->n, 200), r->pattern, (const char *)text);
    }
    regex->jit = pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE) == 0;
    return DTX_OK;
}

enum dtx_status dtx_regex_create(struct dtx_ctx *ctx, const char *where, const char *pattern, int64_t n, bool literal,
                                 struct dtx_regex **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_regex), &p));
    struct reader r = {.where = where, .pattern = pattern, .n = n};
    enum dtx_status status = compile(ctx, &r, literal, p);
    dtx_bytes_free(&r.out);
    if (status == DTX_OK)
        *out = p;
    else
        dtx_regex_free(p);
    return status;
}

void dtx_regex_free(struct dtx_regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    dtx_mem_free(r);
}

enum dtx_status dtx_matcher_create(struct dtx_ctx *ctx, struct dtx_matcher **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_matcher), &p));
    struct dtx_matcher *m = p;
    m->match = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MOST, NULL);
    if (!m->match || !m->context) {
        dtx_matcher_free(m);
        return dtx_fail(ctx, DTX_E_MEMORY, "out of memory for PCRE2");
    }
    if (m->stack)
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
    pcre2_set_heap_limit(m->context, UINT32_MAX);
    *out = m;
    return DTX_OK;
}

void dtx_matcher_free(struct dtx_matcher *m)
{
    if (!m)
        return;
    pcre2_match_data_free(m->match);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    dtx_mem_free(m);
}

enum dtx_status dtx_matcher_find(struct dtx_ctx *ctx, struct dtx_matcher *m, const struct dtx_regex *r,
                                 const char *text, int64_t n, int64_t start, bool *found, int64_t *from, int64_t *to)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int rc = PCRE2_ERROR_JIT_BADOPTION;
    /* Ten million spaces exceed the default limit (−47) and are no sign of trouble; a pattern that goes through all
     * ways to cut a text into parts is. */
    int64_t limit = LIMIT_START + LIMIT_PER_BYTE * (n - start);
    pcre2_set_match_limit(m->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    if (r->jit)
        rc = pcre2_jit_match(r->code, subject, (PCRE2_SIZE)n, (PCRE2_SIZE)start, 0, m->match, m->context);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH &&
        rc != PCRE2_ERROR_MATCHLIMIT) /* no JIT, or its stack is too small: the interpreter uses the heap */
        rc = pcre2_match(r->code, subject, (PCRE2_SIZE)n, (PCRE2_SIZE)start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         m->match, m->context);
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH)
        return DTX_OK;
    if (rc < 0)
        return fail_pcre(ctx, rc, "fails on the text", start);
    const PCRE2_SIZE *pair = pcre2_get_ovector_pointer(m->match);
    *from = (int64_t)pair[0];
    *to = (int64_t)pair[1];
    if (*to < *from) /* \K in a lookahead */
        return dtx_fail(ctx, DTX_E_UNSUPPORTED, "the pattern's match ends before it starts");
    return DTX_OK;
}
