/*
 * The ledger: which parts of which files a run has consumed, as a few integers for each source. It is the whole data
 * position of a run; with it the run goes on after any change of the blend, the sequence length, the files, the batch
 * or the ranks, repeats nothing before the end of a source's epoch and loses nothing.
 *
 * A course is the way of one source through its files: epoch after epoch, in each all samples of the present length in
 * the order of data/order.h, of which the first `done` are through. After a change within an epoch what was consumed
 * before stays as layers: the first `done` elements of an older order. data/course.h has the rules; data/README.md the
 * text, byte for byte.
 *
 * Plain data, no files, no I/O. Not collective.
 */
#ifndef DTX_DATA_LEDGER_H
#define DTX_DATA_LEDGER_H

#include <stdio.h>

#include "kernels/base/status.h"

/* Indices in the ledger's table of files. */
struct dtx_file_list {
    int n, *at;
};

struct dtx_data_ledger_file {
    uint64_t id;     /* made of its tokens: the same wherever it lies, in whatever format */
    int64_t targets; /* of its training part: tokens − 1, at least 0 */
    char *name;      /* where it lay last */
};

/* Consumed of an epoch under an earlier length or set of files. Counts in the files of `scope` alone, those that the
 * course still has. */
struct dtx_course_layer {
    bool rest; /* not samples, but pieces of a rest: `done` of them and `within` targets of the next */
    int64_t length, number, epoch, done, within;
    struct dtx_file_list grid, scope;
};

struct dtx_course_record {
    int source; /* of the present blend; −1: none, kept for the day when it comes back */
    int64_t number, epoch, length;
    int64_t done;         /* samples of the order that are through */
    bool rest;            /* all of them are: what they left is being served, */
    int64_t unit, within; /* so many pieces of it and targets of the next piece are through */
    struct dtx_file_list files;
    int n_layers;
    struct dtx_course_layer *layers;
};

struct dtx_skip {
    int64_t first, end; /* samples of the run that are passed over */
};

struct dtx_data_ledger {
    int64_t samples; /* of the run: where it stands */
    int n_files, n_courses, n_skips;
    struct dtx_data_ledger_file *files;
    struct dtx_course_record *courses; /* those of the present sources first, in their order */
    struct dtx_skip *skips;            /* ascending, apart from each other */
};

/* Of what a rest is made: the shortest length that samples of the course's epoch have had. */
int64_t dtx_course_piece_length(const struct dtx_course_record *course);

void dtx_data_ledger_free(struct dtx_data_ledger *ledger);
enum dtx_status dtx_data_ledger_write(struct dtx_ctx *ctx, const struct dtx_data_ledger *ledger, char **text);
/* Refuses what dtx_data_ledger_write cannot have written. */
enum dtx_status dtx_data_ledger_read(struct dtx_ctx *ctx, const char *text, struct dtx_data_ledger *out);
/* For people: what of which source is through. */
void dtx_data_ledger_print(const struct dtx_data_ledger *ledger, FILE *out);

/* The files and sources of a run that is about to go on. */
struct dtx_data_ledger_plan {
    const struct dtx_data_ledger_file *files; /* [n_files] */
    const int *first; /* [n_sources + 1]: source s has the files first[s] … first[s + 1] − 1 */
    int n_files, n_sources;
    int64_t length;
    bool same_files; /* the ledger was made for this very plan: files are known by their places, not by id */
};

/* The ledger of the run under the plan. A source that has the files and the length it had goes on; else it begins an
 * order of its own over what the ledger says is left of the epoch of its files. Files that no source has any more are
 * kept, with what was consumed of them. `old` is left as it is; an empty one (zeroed) begins a run. */
enum dtx_status dtx_data_ledger_arrange(struct dtx_ctx *ctx, const struct dtx_data_ledger *old,
                                        const struct dtx_data_ledger_plan *plan, struct dtx_data_ledger *out);
/* Records that samples first … end − 1 are passed over; they count as consumed. */
enum dtx_status dtx_data_ledger_skip(struct dtx_ctx *ctx, struct dtx_data_ledger *ledger, int64_t first, int64_t end);
/* The sample behind `n` samples from `first` on that are not passed over. */
int64_t dtx_skips_pass(const struct dtx_skip *skips, int n_skips, int64_t first, int64_t n);

#endif
