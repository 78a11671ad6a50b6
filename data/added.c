/* A trie of bytes: nodes of one level are linked lists, the first byte has a table. */
#include "data/added.h"

#include <string.h>

#include "data/utf8.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

struct node {
    int32_t child, sibling; /* −1: none */
    int32_t token;          /* index into the tokenizer's added, −1: none ends here */
    unsigned char byte;
};

struct dtx_added_set {
    const struct dtx_tokenizer *t;
    const struct dtx_unicode *unicode;
    bool plain; /* special tokens are passed over */
    int32_t first[256];
    struct node *nodes;
    int64_t n, capacity;
};

static enum dtx_status new_node(struct dtx_ctx *ctx, struct dtx_added_set *s, unsigned char byte, int32_t sibling,
                                int32_t *out)
{
    void *p;
    DTX_TRY(ctx, dtx_grow(ctx, s->nodes, s->n, s->n + 1, sizeof *s->nodes, &s->capacity, &p));
    s->nodes = p;
    s->nodes[s->n] = (struct node){-1, sibling, -1, byte};
    *out = (int32_t)s->n++;
    return DTX_OK;
}

static enum dtx_status add_text(struct dtx_ctx *ctx, struct dtx_added_set *s, const char *text, int64_t n,
                                int32_t token)
{
    int32_t at = s->first[(unsigned char)text[0]];
    if (at < 0) {
        DTX_TRY(ctx, new_node(ctx, s, (unsigned char)text[0], -1, &at));
        s->first[(unsigned char)text[0]] = at;
    }
    for (int64_t i = 1; i < n; i++) {
        unsigned char byte = (unsigned char)text[i];
        int32_t next = s->nodes[at].child;
        while (next >= 0 && s->nodes[next].byte != byte)
            next = s->nodes[next].sibling;
        if (next < 0) {
            DTX_TRY(ctx, new_node(ctx, s, byte, s->nodes[at].child, &next));
            s->nodes[at].child = next;
        }
        at = next;
    }
    if (s->nodes[at].token < 0)
        s->nodes[at].token = token;
    return DTX_OK;
}

/* The text of a token as it stands in normalized text. */
static enum dtx_status add_normalized(struct dtx_ctx *ctx, struct dtx_added_set *s, const char *text, int64_t n,
                                      int32_t token)
{
    struct dtx_bytes from = {0}, to = {0};
    struct dtx_normal_scratch scratch = {0};
    enum dtx_status status;
    DTX_TRY_GOTO(ctx, status, dtx_bytes_append(ctx, &from, text, n), done);
    for (int i = 0; i < s->t->n_forms; i++) {
        to.n = 0;
        DTX_TRY_GOTO(ctx, status, dtx_normalize(ctx, s->unicode, s->t->forms[i], from.data, from.n, &scratch, &to),
                     done);
        struct dtx_bytes swap = from;
        from = to;
        to = swap;
    }
    status = add_text(ctx, s, from.data, from.n, token);
done:
    dtx_normal_scratch_free(&scratch);
    dtx_bytes_free(&from);
    dtx_bytes_free(&to);
    return status;
}

enum dtx_status dtx_added_set_create(struct dtx_ctx *ctx, const struct dtx_tokenizer *t, bool normalized,
                                     enum dtx_special_text special, struct dtx_added_set **out)
{
    bool findable = false;
    for (int64_t i = 0; i < t->n_added; i++)
        findable |= t->added[i].normalized == normalized && (special == DTX_SPECIAL_TOKENS || !t->added[i].special);
    *out = NULL;
    if (!findable)
        return DTX_OK;
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_added_set), &p));
    struct dtx_added_set *s = p;
    s->t = t;
    s->unicode = dtx_pattern_unicode(t->pattern);
    s->plain = special == DTX_SPECIAL_PLAIN;
    memset(s->first, 0xff, sizeof s->first);
    enum dtx_status status = DTX_OK;
    for (int64_t i = 0; i < t->n_added && status == DTX_OK; i++) {
        const struct dtx_token *token = &t->tokens[t->added[i].id];
        if (t->added[i].normalized == normalized)
            status =
                (normalized ? add_normalized : add_text)(ctx, s, t->text.data + token->first, token->n, (int32_t)i);
    }
    if (status == DTX_OK)
        *out = s;
    else
        dtx_added_set_free(s);
    return status;
}

void dtx_added_set_free(struct dtx_added_set *s)
{
    if (!s)
        return;
    dtx_mem_free(s->nodes);
    dtx_mem_free(s);
}

/* The longest token at `at`: its index and end, or −1. */
static int32_t longest(const struct dtx_added_set *s, const char *text, int64_t n, int64_t at, int64_t *end)
{
    int32_t node = s->first[(unsigned char)text[at]], found = -1;
    for (int64_t i = at + 1; node >= 0; i++) {
        if (s->nodes[node].token >= 0) {
            found = s->nodes[node].token;
            *end = i;
            if (DTX_MUTANT(added_shortest))
                break;
        }
        node = i < n ? s->nodes[node].child : -1;
        while (node >= 0 && s->nodes[node].byte != (unsigned char)text[i])
            node = s->nodes[node].sibling;
    }
    return found;
}

/* Where the character in front of `at` begins. */
static int64_t step_back(const char *text, int64_t at)
{
    do
        at--;
    while (at > 0 && (text[at] & 0xc0) == 0x80);
    return at;
}

static bool is_word(const char *text)
{
    int length;
    return dtx_unicode_is_word(dtx_utf8_get(text, &length));
}

bool dtx_added_find(const struct dtx_added_set *s, const char *text, int64_t n, int64_t done, int64_t *at,
                    struct dtx_added_match *match)
{
    for (int64_t from = *at, to = 0, length; from < n; from++) {
        if (s->first[(unsigned char)text[from]] < 0)
            continue;
        int32_t found = longest(s, text, n, from, &to);
        if (found < 0)
            continue;
        const struct dtx_added *token = &s->t->added[found];
        bool inside = token->single_word &&
                      ((from > 0 && is_word(text + step_back(text, from))) || (to < n && is_word(text + to)));
        if ((token->special && s->plain && !DTX_MUTANT(special_text_found)) || inside) {
            from = to - 1; /* passed over, with all that would overlap it */
            continue;
        }
        *at = to;
        while (token->lstrip && from > done &&
               (dtx_unicode_kind(s->unicode, text + step_back(text, from), &length) & DTX_CH_SPACE))
            from = step_back(text, from);
        while (token->rstrip && to < n && (dtx_unicode_kind(s->unicode, text + to, &length) & DTX_CH_SPACE))
            to += length;
        *match = (struct dtx_added_match){from, to, token->id};
        return true;
    }
    *at = n;
    return false;
}
