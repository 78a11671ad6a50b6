/*
 * A blend: which of several sources sample i of a run is of. Weights are shares of samples, normalised.
 *
 * Sample i belongs to the source in whose part of [0, 1) the point u(i) lies: the bits of i in reverse order, 62 of
 * them, exclusive-or a number made of the seed; source s has a part as long as its share. Both directions are closed
 * forms: the source of i is a binary search; how many of the samples below i a source has is at most 62 additions,
 * since the samples of an aligned block of 2^k are points at equal distances 2^−k. Any window of samples has of each
 * source what its share asks for, to within 2·log2(i) + 2 samples; nothing is stored, nothing is drawn.
 */
#ifndef DTX_DATA_BLEND_H
#define DTX_DATA_BLEND_H

#include "kernels/base/status.h"

struct dtx_blend {
    uint64_t shift;
    int n;
    uint64_t *edge; /* [n + 1], from 0 to 2^62: source s has the points edge[s] ≤ u < edge[s + 1] */
};

/* weights[n]: each positive, finite, and not under 10^−12 of their sum; refused otherwise, naming names[]. */
enum dtx_status dtx_blend_init(struct dtx_ctx *ctx, struct dtx_blend *blend, uint64_t seed, const double *weights,
                               const char *const *names, int n);
void dtx_blend_free(struct dtx_blend *blend);
int dtx_blend_source(const struct dtx_blend *blend, int64_t i);
/* Samples of source s among 0 … i − 1, 0 ≤ i ≤ 2^62. */
int64_t dtx_blend_count(const struct dtx_blend *blend, int s, int64_t i);

/* The list of sources as a user writes it: paths separated by commas. A path behind a number and a blank begins a
 * source of that weight; the paths up to the next such one belong to it too ("0.7 web-0, web-1, 0.3 code"). Without
 * any number all paths are one source. */
struct dtx_source_list {
    char *text; /* holds the paths */
    int n_paths, n;
    const char **paths;
    int *first; /* [n + 1]: source s has the paths first[s] … first[s + 1] − 1 */
    double *weights;
};
enum dtx_status dtx_source_list_read(struct dtx_ctx *ctx, const char *text, struct dtx_source_list *out);
void dtx_source_list_free(struct dtx_source_list *list);

#endif
