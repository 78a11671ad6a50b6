#include "data/blend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/base/rng.h"

enum { BITS = 62, EDGE_BITS = 53 }; /* of a point; of an edge, which is made in double precision */
static const double LEAST_SHARE = 1e-12;

static uint64_t reverse(uint64_t x)
{
    x = (x & UINT64_C(0x5555555555555555)) << 1 | (x >> 1 & UINT64_C(0x5555555555555555));
    x = (x & UINT64_C(0x3333333333333333)) << 2 | (x >> 2 & UINT64_C(0x3333333333333333));
    x = (x & UINT64_C(0x0f0f0f0f0f0f0f0f)) << 4 | (x >> 4 & UINT64_C(0x0f0f0f0f0f0f0f0f));
    x = (x & UINT64_C(0x00ff00ff00ff00ff)) << 8 | (x >> 8 & UINT64_C(0x00ff00ff00ff00ff));
    x = (x & UINT64_C(0x0000ffff0000ffff)) << 16 | (x >> 16 & UINT64_C(0x0000ffff0000ffff));
    return (x << 32 | x >> 32) >> (64 - BITS);
}

static enum dtx_status add_weights(struct dtx_ctx *ctx, const double *weights, const char *const *names, int n,
                                   double *total)
{
    *total = 0;
    for (int s = 0; s < n; s++) {
        if (!(weights[s] > 0 && isfinite(weights[s])) && !DTX_MUTANT(blend_weights_unchecked))
            return dtx_fail(
                ctx, DTX_E_CONFIG,
                "the weight of source %s is %g; weights are numbers above 0: leave out a source that is not "
                "wanted",
                names[s], weights[s]);
        *total += weights[s];
    }
    if (!isfinite(*total))
        return dtx_fail(ctx, DTX_E_CONFIG, "the weights of the %d sources add up to %g", n, *total);
    for (int s = 0; s < n; s++)
        if (weights[s] < LEAST_SHARE * *total)
            return dtx_fail(
                ctx, DTX_E_CONFIG,
                "the weight of source %s is %g of a sum of %g: no sample in %g would be of it; leave it out", names[s],
                weights[s], *total, 1 / LEAST_SHARE);
    return DTX_OK;
}

enum dtx_status dtx_blend_init(struct dtx_ctx *ctx, struct dtx_blend *blend, uint64_t seed, const double *weights,
                               const char *const *names, int n)
{
    void *p;
    double total, sum = 0;
    DTX_TRY(ctx, add_weights(ctx, weights, names, n, &total));
    if (DTX_MUTANT(blend_not_normalised))
        total = 1;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, (int64_t)n + 1, sizeof *blend->edge, &p));
    *blend = (struct dtx_blend){.shift = dtx_rng_key(seed, "blend") >> (64 - BITS), .n = n, .edge = p};
    for (int s = 0; s < n - 1; s++) {
        sum += weights[s];
        blend->edge[s + 1] = (uint64_t)floor(ldexp(sum / total, EDGE_BITS)) << (BITS - EDGE_BITS);
    }
    blend->edge[n] = UINT64_C(1) << BITS;
    return DTX_OK;
}

void dtx_blend_free(struct dtx_blend *blend)
{
    dtx_mem_free(blend->edge);
    *blend = (struct dtx_blend){0};
}

int dtx_blend_source(const struct dtx_blend *blend, int64_t i)
{
    uint64_t u = reverse((uint64_t)i) ^ blend->shift;
    int low = 0, high = blend->n;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (blend->edge[middle] <= u)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Of `points` whose lower `bits` are `rest` and whose upper ones are all there are: those below an edge. */
static int64_t below(uint64_t edge, uint64_t rest, int bits)
{
    return (int64_t)((edge >> bits) + (rest < (edge & ((UINT64_C(1) << bits) - 1))));
}

/* The samples below i are one aligned block of 2^k for each bit k that i has. */
int64_t dtx_blend_count(const struct dtx_blend *blend, int s, int64_t i)
{
    uint64_t left = (uint64_t)i, reversed;
    int64_t count = 0;
    if (blend->n == 1)
        return i;
    while (left != 0) {
        int k = __builtin_ctzll(left), bits = BITS - k;
        left &= left - 1; /* the block begins here */
        reversed = (reverse(left) ^ blend->shift) & ((UINT64_C(1) << bits) - 1);
        count += below(blend->edge[s + 1], reversed, bits) - below(blend->edge[s], reversed, bits);
        if (DTX_MUTANT(blend_count_last_block_only))
            break;
    }
    return count;
}

static char *trim(char *text)
{
    text += strspn(text, " \t\n");
    for (size_t n = strlen(text); n > 0 && strchr(" \t\n", text[n - 1]); n--)
        text[n - 1] = '\0';
    return text;
}

static enum dtx_status read_item(struct dtx_ctx *ctx, const char *text, char *item, struct dtx_source_list *list)
{
    char *path = trim(item), *end;
    double weight = strtod(path, &end);
    bool weighted = end > path && strspn(end, " \t\n") > 0;
    if (weighted)
        path = end + strspn(end, " \t\n");
    if (*path == '\0')
        return dtx_fail(ctx, DTX_E_CONFIG, "an empty path in the list of token files '%.200s'", text);
    if (weighted && list->n_paths > 0 && list->weights[0] == 0)
        return dtx_fail(ctx, DTX_E_CONFIG,
                        "'%s' has the weight %g, but the first source of the list, %s, has none: give each source a "
                        "weight, or none at all",
                        path, weight, list->paths[0]);
    if (weighted || list->n_paths == 0) {
        list->first[list->n] = list->n_paths;
        list->weights[list->n++] = weighted ? weight : 0;
    }
    if (weighted && weight == 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "the weight of source %s is 0: leave it out", path);
    list->paths[list->n_paths++] = path;
    return DTX_OK;
}

static enum dtx_status read_items(struct dtx_ctx *ctx, const char *text, struct dtx_source_list *list)
{
    void *p;
    int n = 1;
    for (const char *c = text; *c; c++)
        n += *c == ',';
    DTX_TRY(ctx, dtx_mem_text(ctx, text, &list->text));
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n, sizeof *list->paths, &p));
    list->paths = p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, (int64_t)n + 1, sizeof *list->first, &p));
    list->first = p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n, sizeof *list->weights, &p));
    list->weights = p;
    for (char *item = list->text; item;) {
        char *comma = strchr(item, ',');
        if (comma)
            *comma = '\0';
        DTX_TRY(ctx, read_item(ctx, text, item, list));
        item = comma ? comma + 1 : NULL;
    }
    list->first[list->n] = list->n_paths;
    if (list->weights[0] == 0)
        list->weights[0] = 1;
    return DTX_OK;
}

enum dtx_status dtx_source_list_read(struct dtx_ctx *ctx, const char *text, struct dtx_source_list *out)
{
    struct dtx_source_list list = {0};
    enum dtx_status status = read_items(ctx, text, &list);
    if (status == DTX_OK)
        *out = list;
    else
        dtx_source_list_free(&list);
    return status;
}

void dtx_source_list_free(struct dtx_source_list *list)
{
    dtx_mem_free(list->text);
    dtx_mem_free(list->paths);
    dtx_mem_free(list->first);
    dtx_mem_free(list->weights);
    *list = (struct dtx_source_list){0};
}
