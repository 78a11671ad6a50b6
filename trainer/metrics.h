/*
 * What a run measures: RUN/metrics.jsonl, one JSON object a step, and RUN/tensorboard/, the same for TensorBoard.
 *
 * All attempts of a run make one continuous file: opening at a resumed step removes the lines of later steps, which the
 * run is about to make again, and a last line torn by a crash. A line is written by one append, in ascending steps, and
 * a line that could not be written whole is taken back, so after a failure (a full disk) a caller may warn and go on.
 * Numbers have the fewest digits that read back to the same bits; NaN and infinities are null in JSON.
 * Only the rank that holds the whole mesh's sums (0) opens it. Not collective, not thread-safe.
 */
#ifndef DTX_TRAINER_METRICS_H
#define DTX_TRAINER_METRICS_H

#include "kernels/base/status.h"

/* One update, over the whole mesh; each token and weight counted once. */
struct dtx_step_record {
    int64_t step, steps;  /* from 1; the run's last */
    double loss, heldout; /* mean per target token, nats; heldout NaN when there was no evaluation */
    double lr;
    double grad_norm, grad_norm_clipped;
    int64_t targets, targets_total; /* target tokens of this step; of the run so far */
    double seconds, data_wait;      /* the step without evaluation and saving; waiting for samples therein */
    double flops, peak_flops;       /* model FLOPs of this step; measured FLOP/s of all ranks, 0 unknown */
    const double *lambda;           /* [n_lambda], one per layer; not kept */
    int n_lambda;
    size_t memory_bytes;  /* the fullest rank's */
    bool skipped;         /* no update was made, */
    const char *why;      /* because; not kept */
    double loss_z;        /* standard deviations of the loss above those before (health.h); NaN unknown */
    int64_t rollbacks;    /* of the run so far */
    int slowest_rank;     /* whose own work took longest beside the median of its stage (slow.h), */
    double slowest_ratio; /* so many times that; 0: not asked after this step */
};

/* Target tokens a second; share of the measured peak: NaN where unknown. */
double dtx_step_tokens_per_s(const struct dtx_step_record *record);
double dtx_step_peak_share(const struct dtx_step_record *record);

struct dtx_metrics;

/* resume_step: the last step that is kept, 0 for a new run. `run` is an existing folder. */
enum dtx_status dtx_metrics_open(struct dtx_ctx *ctx, const char *run, int64_t resume_step, struct dtx_metrics **out);
enum dtx_status dtx_metrics_write(struct dtx_ctx *ctx, struct dtx_metrics *metrics,
                                  const struct dtx_step_record *record);
/* Makes what was written durable: to be called before a checkpoint is declared complete. */
enum dtx_status dtx_metrics_sync(struct dtx_ctx *ctx, struct dtx_metrics *metrics);
/* Accepts NULL; frees in any case. */
enum dtx_status dtx_metrics_close(struct dtx_ctx *ctx, struct dtx_metrics *metrics);

/* Removes from metrics.jsonl the lines after `step` and what follows the last whole line; a missing file is fine. */
enum dtx_status dtx_metrics_cut(struct dtx_ctx *ctx, const char *path, int64_t step);

struct dtx_losses {
    int64_t n;
    int64_t *step;          /* [n], ascending */
    double *loss, *heldout; /* [n], NaN where there is none */
    bool last_skipped;      /* the last step made no update */
};

/* `path` is a metrics.jsonl or a run's folder. Lines that are no metrics are passed over with a warning. */
enum dtx_status dtx_metrics_read_losses(struct dtx_ctx *ctx, const char *path, struct dtx_losses *out);
void dtx_losses_free(struct dtx_losses *losses);

#endif
