/* What the training loop (loop.c) works with, and how it is opened and closed. Only loop*.c include this. */
#ifndef DTX_TRAINER_LOOP_OPEN_H
#define DTX_TRAINER_LOOP_OPEN_H

#include "data/loader.h"
#include "trainer/deadline.h"
#include "trainer/health.h"
#include "trainer/loop.h"
#include "trainer/lr.h"
#include "trainer/metrics.h"
#include "trainer/progress.h"
#include "trainer/run_folder.h"
#include "trainer/saver.h"
#include "trainer/slow.h"
#include "trainer/snapshot.h"
#include "trainer/tracing.h"

/* What a rank tells the others after each step. */
struct dtx_loop_wish {
    int stop_signal;
    bool save_ended, save_early;
};

/* Where a rollback goes to, beside the weights. */
struct dtx_loop_point {
    struct dtx_health health;
    int64_t step, tokens_seen, samples;
    double best_heldout;
};

struct dtx_loop {
    struct dtx_session *s;
    struct dtx_ctx *ctx;
    struct dtx_lr lr;
    struct dtx_stream *stream;
    struct dtx_loader *loader;
    struct dtx_heldout *heldout;
    struct dtx_metrics *metrics;   /* rank 0 */
    struct dtx_progress *progress; /* rank 0 */
    struct dtx_run_folder folder;  /* rank 0 */
    struct dtx_tracing tracing;
    struct dtx_deadline deadline; /* rank 0 */
    bool documents;               /* options that every step asks for */
    int64_t eval_every, eval_samples, replicas_every, log_every;
    bool replicas_stop; /* a difference between copies ends the run */
    struct dtx_saver *saver;
    struct dtx_loop_wish *wishes; /* [ranks] */
    double *lambda;               /* [layers] */
    double peak;                  /* FLOP/s of all ranks */
    size_t memory_bytes;          /* the fullest rank's */
    int64_t step, steps, tokens_seen;
    int64_t end;       /* last step of this call: train.until or the run's last */
    int64_t stage_end; /* tokens at which the next stage begins */
    bool stage_ended;
    struct dtx_health health;
    struct dtx_health_verdict verdict; /* on the last step */
    int64_t warned_step, warnings;     /* when a spike was last told of, 0: never; those since that were not */
    struct dtx_snapshot snapshot;      /* no copy: no option asks for it */
    struct dtx_loop_point point;
    int64_t snapshot_every;
    struct dtx_slow slow;
    struct dtx_slow_report slowest;
    bool told_start;
    double best_heldout;
    bool save_ended; /* all ranks' part of the save under way */
    bool save_early; /* after this step, to measure it */
    int stop_signal; /* the one that the lowest rank with any was sent, or DTX_STOP_TIME; 0: go on */
};

static inline bool dtx_loop_root(const struct dtx_loop *l)
{
    return l->s->world->rank == 0;
}

/* Options, data, health, the run's folder, metrics, trace, saver; says what the run is. `s` and `ctx` are set.
 * Collective over the world. */
enum dtx_status dtx_loop_open(struct dtx_loop *l);
/* Whatever of it is open. failed: the other ranks may be anywhere; else collective over the world. */
enum dtx_status dtx_loop_close(struct dtx_loop *l, bool failed);
/* A rollback brings back all as it is now, but for the data: it goes on behind them. Nothing where no option asks for
 * it. Not collective. */
enum dtx_status dtx_loop_take_snapshot(struct dtx_loop *l);

#endif
