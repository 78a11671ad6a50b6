/* Cases of the mesh fuzzer: one value of every option, which ones the product accepts, and which pairs were seen. */
#ifndef DTX_TESTS_FUZZ_CASE_H
#define DTX_TESTS_FUZZ_CASE_H

#include "trainer/config.h"

enum { FUZZ_VALUES = 7, FUZZ_TEXT = 640 };
/* The order in which a failing case is made smaller. */
enum fuzz_option {
    FUZZ_PP,
    FUZZ_TP,
    FUZZ_DP,
    FUZZ_CP,
    FUZZ_EXCHANGE,
    FUZZ_CHUNKS,
    FUZZ_SCHEDULE,
    FUZZ_ZERO,
    FUZZ_BUCKET,
    FUZZ_OVERLAP,
    FUZZ_SEQUENCE,
    FUZZ_RECOMPUTE,
    FUZZ_LAYOUT,
    FUZZ_MICRO_BATCHES,
    FUZZ_MICRO_BATCH,
    FUZZ_DOCUMENTS,
    FUZZ_TARGETS,
    FUZZ_ATTENTION,
    FUZZ_SUBNORM,
    FUZZ_LAMBDA_INIT,
    FUZZ_GROUPED,
    FUZZ_TIED,
    FUZZ_CLIP,
    FUZZ_HEADS,
    FUZZ_LAYERS,
    FUZZ_LENGTH,
    FUZZ_VOCAB,
    FUZZ_FFN,
    FUZZ_TRANSFER,
    FUZZ_OPTIONS
};

struct fuzz_case {
    int value[FUZZ_OPTIONS]; /* index of the option's value, 0 the plainest */
};
const char *fuzz_value(const struct fuzz_case *c, enum fuzz_option option);
int fuzz_number(const struct fuzz_case *c, enum fuzz_option option);
int fuzz_ranks(const struct fuzz_case *c);

/* "tp=2 schedule=zb_h1": what is not the plainest value. text: FUZZ_TEXT bytes. */
void fuzz_print(const struct fuzz_case *c, char *text);
/* False when a word is no option or value. */
bool fuzz_parse(const char *text, struct fuzz_case *c);
/* A schedule of this build that no case can have; NULL when there is none. */
const char *fuzz_missing_schedule(void);

/* The engine's configuration by the product's own options and checks; false when these refuse it. reference: the same
 * model and global batch on one rank, in micro-batches of one sequence, nothing recomputed. Texts in `out` belong to
 * *opt, which the caller frees. */
bool fuzz_config(struct dtx_ctx *ctx, const struct fuzz_case *c, bool reference, struct dtx_opt **opt,
                 struct dtx_engine_config *out);
bool fuzz_valid(struct dtx_ctx *ctx, const struct fuzz_case *c, int max_ranks);

/* How often each pair of values of two options was drawn, and those for which no valid case was found. */
struct fuzz_coverage {
    int seen[FUZZ_OPTIONS][FUZZ_VALUES][FUZZ_OPTIONS][FUZZ_VALUES]; /* first option < second */
    bool impossible[FUZZ_OPTIONS][FUZZ_VALUES][FUZZ_OPTIONS][FUZZ_VALUES];
    uint64_t key, drawn; /* of the random stream */
};
/* A valid case of at most max_ranks ranks with a pair seen least, everything else by chance; it is counted. */
struct fuzz_case fuzz_draw(struct dtx_ctx *ctx, struct fuzz_coverage *coverage, int max_ranks);
/* Adds `times` to the pairs of a case: −1 for one that was drawn and not run. */
void fuzz_count(struct fuzz_coverage *coverage, const struct fuzz_case *c, int times);
/* Prints how many pairs were seen twice, and the others. */
void fuzz_report(const struct fuzz_coverage *coverage);
/* Valid cases with one option set to a plainer value: their number, at most `capacity`. */
int fuzz_smaller(struct dtx_ctx *ctx, const struct fuzz_case *c, int max_ranks, struct fuzz_case *out, int capacity);

#endif
