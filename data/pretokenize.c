#include "data/pretokenize.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "kernels/base/mem.h"

/* Unicode's white space, spelled out: PCRE2's own \s also takes U+180E. */
#define SPACE "\\p{Z}\\x{9}-\\x{d}\\x{85}"
/* Possessive where nothing follows, so that no piece costs memory in its length. */
#define GPT2_PATTERN                                                                                                   \
    "'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^" SPACE "\\p{L}\\p{N}]++|[" SPACE "]+(?![^" SPACE "])|[" SPACE "]" \
    "+"                                                                                                                \
    "+"

enum { JIT_STACK_START = 32 << 10, JIT_STACK_MOST = 8 << 20 };

struct dtx_pattern {
    pcre2_code *code;
    bool jit;
};

struct dtx_splitter {
    const struct dtx_pattern *pattern;
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

enum dtx_status dtx_pattern_gpt2(struct dtx_ctx *ctx, struct dtx_pattern **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_pattern), &p));
    struct dtx_pattern *pattern = p;
    int rc;
    PCRE2_SIZE at;
    pattern->code = pcre2_compile((PCRE2_SPTR)GPT2_PATTERN, PCRE2_ZERO_TERMINATED,
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &rc, &at, NULL);
    if (!pattern->code) {
        dtx_pattern_free(pattern);
        return fail_pcre(ctx, rc, "does not compile the pattern", (int64_t)at);
    }
    pattern->jit = pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE) == 0;
    *out = pattern;
    return DTX_OK;
}

void dtx_pattern_free(struct dtx_pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    dtx_mem_free(p);
}

enum dtx_status dtx_splitter_create(struct dtx_ctx *ctx, const struct dtx_pattern *pattern, struct dtx_splitter **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_splitter), &p));
    struct dtx_splitter *s = p;
    s->pattern = pattern;
    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    if (pattern->jit)
        s->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MOST, NULL);
    if (!s->match || !s->context || (pattern->jit && !s->stack)) {
        dtx_splitter_free(s);
        return dtx_fail(ctx, DTX_E_MEMORY, "out of memory for PCRE2");
    }
    if (s->stack)
        pcre2_jit_stack_assign(s->context, NULL, s->stack);
    /* Ten million spaces exceed the default limits (−47); they are no sign of trouble here. */
    pcre2_set_match_limit(s->context, UINT32_MAX);
    pcre2_set_heap_limit(s->context, UINT32_MAX);
    *out = s;
    return DTX_OK;
}

void dtx_splitter_free(struct dtx_splitter *s)
{
    if (!s)
        return;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    dtx_mem_free(s);
}

enum dtx_status dtx_splitter_next(struct dtx_ctx *ctx, struct dtx_splitter *s, const char *text, int64_t n,
                                  int64_t start, int64_t *end)
{
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int rc = PCRE2_ERROR_JIT_BADOPTION;
    if (s->pattern->jit)
        rc = pcre2_jit_match(s->pattern->code, subject, (PCRE2_SIZE)n, (PCRE2_SIZE)start, 0, s->match, s->context);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) /* no JIT, or its stack is too small: the interpreter uses the heap */
        rc = pcre2_match(s->pattern->code, subject, (PCRE2_SIZE)n, (PCRE2_SIZE)start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         s->match, s->context);
    if (rc == PCRE2_ERROR_NOMATCH) {
        *end = n;
        return DTX_OK;
    }
    if (rc < 0)
        return fail_pcre(ctx, rc, "fails on the text", start);
    const PCRE2_SIZE *pair = pcre2_get_ovector_pointer(s->match);
    *end = (int64_t)(pair[0] > (PCRE2_SIZE)start ? pair[0] : pair[1]);
    if (*end <= start)
        return dtx_fail(ctx, DTX_E_INTERNAL, "the pattern matches nothing at byte %lld", (long long)start);
    return DTX_OK;
}

int64_t dtx_split_point(const char *text, int64_t n)
{
    for (int64_t i = n - 1; i > 0; i--)
        if ((text[i] == ' ' || text[i] == '\n') && text[i - 1] > ' ' && text[i - 1] < 0x7f)
            return i;
    return 0;
}
