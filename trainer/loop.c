#include "trainer/loop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/loader.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/watch.h"
#include "trainer/deadline.h"
#include "trainer/describe.h"
#include "trainer/health.h"
#include "trainer/lr.h"
#include "trainer/metrics.h"
#include "trainer/progress.h"
#include "trainer/run_folder.h"
#include "trainer/run_status.h"
#include "trainer/saver.h"
#include "trainer/slow.h"
#include "trainer/snapshot.h"
#include "trainer/stages.h"
#include "trainer/stop.h"
#include "trainer/tracing.h"

enum { QUIET_STEPS = 100 }; /* after a warning of a spike */

/* What a rank tells the others after each step. */
struct wish {
    int stop_signal;
    bool save_ended, save_early;
};

/* Where a rollback goes to, beside the weights. */
struct point {
    struct dtx_health health;
    int64_t step, tokens_seen, samples;
    double best_heldout;
};

struct loop {
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
    struct wish *wishes; /* [ranks] */
    double *lambda;      /* [layers] */
    double peak;         /* FLOP/s of all ranks */
    size_t memory_bytes; /* the fullest rank's */
    int64_t step, steps, tokens_seen;
    int64_t end;       /* last step of this call: train.until or the run's last */
    int64_t stage_end; /* tokens at which the next stage begins */
    bool stage_ended;
    struct dtx_health health;
    struct dtx_health_verdict verdict; /* on the last step */
    int64_t warned_step, warnings;     /* when a spike was last told of, 0: never; those since that were not */
    struct dtx_snapshot snapshot;      /* no copy: no option asks for it */
    struct point point;
    int64_t snapshot_every;
    struct dtx_slow slow;
    struct dtx_slow_report slowest;
    bool told_start;
    double best_heldout;
    bool save_ended; /* all ranks' part of the save under way */
    bool save_early; /* after this step, to measure it */
    int stop_signal; /* the one that the lowest rank with any was sent, or DTX_STOP_TIME; 0: go on */
};

static bool root(const struct loop *l)
{
    return l->s->world->rank == 0;
}

static void read_options(struct loop *l)
{
    struct dtx_opt *opt = l->s->opt;
    int64_t until = dtx_opt_int(opt, "train.until");
    l->steps = dtx_opt_int(opt, "train.steps");
    l->end = until > 0 ? dtx_min64(until, l->steps) : l->steps;
    l->stage_end = dtx_stages_next(opt, l->s->resumed ? l->s->meta.tokens : 0);
    l->lr = (struct dtx_lr){.variant = dtx_lr_find(dtx_opt_text(opt, "lr.schedule")),
                            .peak = dtx_opt_real(opt, "lr.peak"),
                            .min = dtx_opt_real(opt, "lr.min"),
                            .warmup = dtx_opt_int(opt, "lr.warmup"),
                            .steps = l->steps,
                            .decay_steps = dtx_opt_int(opt, "lr.decay_steps")};
    if (l->lr.decay_steps == 0)
        l->lr.decay_steps = dtx_max64(1, l->steps / 10);
    l->documents = dtx_opt_bool(opt, "data.doc_reset");
    l->eval_every = dtx_opt_int(opt, "eval.every");
    l->eval_samples = dtx_opt_int(opt, "eval.samples");
    l->snapshot_every = dtx_opt_int(opt, "health.snapshot_every");
    l->replicas_every = dtx_opt_int(opt, "check.replicas_every");
    l->log_every = dtx_opt_int(opt, "log.every");
    l->replicas_stop = strcmp(dtx_opt_text(opt, "check.replicas_action"), "stop") == 0;
}

/* Rank 0 finds out where each source stands; the others take its word. Collective over the world. */
static enum dtx_status open_stream(struct loop *l)
{
    struct dtx_session *s = l->s;
    struct dtx_stream_config config = dtx_session_stream(s, false);
    struct dtx_walk *walk = NULL;
    char *ledger = NULL;
    enum dtx_status status = DTX_OK;
    if (root(l)) {
        status = dtx_stream_open(l->ctx, &config, &l->stream);
        if (status == DTX_OK)
            status = dtx_walk_open(l->ctx, l->stream, &walk);
        if (status == DTX_OK)
            status = dtx_stream_ledger(l->ctx, l->stream, walk, dtx_stream_first(l->stream), NULL, 0, &ledger);
        dtx_walk_close(walk);
    }
    DTX_TRY(l->ctx, dtx_comm_agree(s->world, status));
    DTX_TRY(l->ctx, dtx_comm_broadcast_text(s->world, &ledger, 0));
    config.ledger = ledger;
    if (!root(l))
        status = dtx_stream_open(l->ctx, &config, &l->stream);
    dtx_mem_free(ledger);
    return dtx_comm_agree(s->world, status);
}

static enum dtx_status open_data(struct loop *l)
{
    struct dtx_session *s = l->s;
    const struct dtx_mesh *mesh = dtx_engine_mesh(s->engine);
    int64_t depth = dtx_opt_int(s->opt, "data.prefetch");
    void *p;
    struct dtx_loader_config loader = {.first_sample = -1,
                                       .global_batch = s->config.batch.global_batch,
                                       .dp_rank = mesh->rank[DTX_AXIS_DP],
                                       .dp_size = mesh->size[DTX_AXIS_DP],
                                       .depth = (int)dtx_max64(depth, 1),
                                       .thread = depth > 0,
                                       .advise = dtx_opt_bool(s->opt, "data.advise")};
    DTX_TRY(l->ctx, dtx_mem_alloc(l->ctx, s->config.model.layers, sizeof *l->lambda, &p));
    l->lambda = p;
    DTX_TRY(l->ctx, dtx_mem_alloc(l->ctx, s->world->size, sizeof *l->wishes, &p));
    l->wishes = p;
    DTX_TRY(l->ctx, dtx_loader_open(l->ctx, l->stream, &loader, &l->loader));
    if (l->eval_samples > 0 && dtx_opt_real(s->opt, "data.heldout") > 0)
        DTX_TRY(l->ctx, dtx_heldout_open(s, &l->heldout));
    return DTX_OK;
}

/* All is as it was when this was called last, but for the data: a rollback goes on behind them. Not collective. */
static enum dtx_status take_snapshot(struct loop *l)
{
    if (!l->snapshot.copy)
        return DTX_OK;
    double begin = dtx_trace_begin(l->ctx);
    DTX_TRY(l->ctx, dtx_snapshot_take(&l->snapshot));
    dtx_trace_end(l->ctx, begin, DTX_SPAN_WAIT, "compute", "snapshot", l->step, 0);
    dtx_health_keep(&l->health, &l->point.health);
    l->point.step = l->step;
    l->point.tokens_seen = l->tokens_seen;
    l->point.samples = dtx_loader_position(l->loader);
    l->point.best_heldout = l->best_heldout;
    return DTX_OK;
}

static enum dtx_status open_health(struct loop *l)
{
    struct dtx_session *s = l->s;
    DTX_TRY(l->ctx, dtx_health_open(l->ctx, s->opt, &l->health));
    if (s->resumed)
        DTX_TRY(l->ctx, dtx_health_read(l->ctx, s->meta.health, &l->health));
    if (!s->config.snapshot)
        return DTX_OK;
    DTX_TRY(l->ctx, dtx_health_open(l->ctx, s->opt, &l->point.health));
    DTX_TRY(l->ctx, dtx_snapshot_open(l->ctx, s->engine, &l->snapshot));
    return take_snapshot(l);
}

/* Rank 0: the run's folder, metrics, progress. */
static enum dtx_status open_run_folder(struct loop *l)
{
    struct dtx_session *s = l->s;
    const char *mode = dtx_opt_text(s->opt, "log.progress");
    DTX_TRY(l->ctx, dtx_run_folder_open(l->ctx, s->run_dir, s->checkpoint_dir, dtx_session_resumed_from(s), s->text,
                                        s->begins_again ? s->page.attempt - 1 : -1, &l->folder));
    DTX_TRY(l->ctx, dtx_metrics_open(l->ctx, s->run_dir, l->step, &l->metrics));
    return dtx_progress_open(l->ctx, stderr,
                             strcmp(mode, "live") == 0    ? DTX_PROGRESS_LIVE
                             : strcmp(mode, "plain") == 0 ? DTX_PROGRESS_PLAIN
                                                          : DTX_PROGRESS_AUTO,
                             l->log_every, &l->progress);
}

/* The watch ends the run, on whichever rank and thread. */
static void note_hang(void *self, const char *cause)
{
    const struct dtx_session *s = self;
    dtx_run_status_fail(s->ctx, s->run_dir, cause);
}

static enum dtx_status open_loop(struct loop *l)
{
    struct dtx_session *s = l->s;
    read_options(l);
    dtx_deadline_open(&l->deadline, dtx_clock_wall(), dtx_opt_int(s->opt, "train.end_time"));
    dtx_deadline_saved(&l->deadline, s->save_seconds);
    l->best_heldout = NAN;
    if (s->resumed || (DTX_MUTANT(init_keeps_step) && s->initialized)) {
        l->step = s->meta.step;
        l->tokens_seen = DTX_MUTANT(tokens_forgotten_on_resume) ? 0 : s->meta.tokens;
        l->best_heldout = s->meta.best_heldout;
    }
    DTX_TRY(l->ctx, open_stream(l));
    DTX_TRY(l->ctx, dtx_comm_agree(s->world, open_data(l)));
    DTX_TRY(l->ctx, dtx_comm_agree(s->world, open_health(l)));
    DTX_TRY(l->ctx, dtx_slow_open(dtx_engine_mesh(s->engine), dtx_opt_real(s->opt, "health.slow"),
                                  (int)dtx_opt_int(s->opt, "health.slow_intervals"), dtx_opt_int(s->opt, "log.every"),
                                  &l->slow));
    dtx_start_mark(&s->start, "data");
    DTX_TRY(l->ctx, dtx_comm_agree(s->world, root(l) ? open_run_folder(l) : DTX_OK));
    DTX_TRY(l->ctx, dtx_watch_share(s->world, s->run_dir, note_hang, s));
    dtx_start_mark(&s->start, "run folder");
    DTX_TRY(l->ctx, dtx_describe_ranks(s, &l->peak, &l->memory_bytes));
    dtx_start_mark(&s->start, "peak");
    DTX_TRY(l->ctx, dtx_tracing_open(s, &l->tracing));
    DTX_TRY(l->ctx, dtx_saver_open(s, l->progress, &l->saver));
    if (root(l))
        dtx_describe_run(s, l->stream, l->peak);
    return DTX_OK;
}

/* failed: the other ranks may be anywhere. */
static enum dtx_status close_loop(struct loop *l, bool failed)
{
    bool idle = true;
    if (failed)
        idle = dtx_saver_halt(l->saver);
    else
        dtx_saver_close(l->saver);
    enum dtx_status status = dtx_metrics_close(l->ctx, l->metrics);
    if (idle) /* its thread records nothing more */
        dtx_tracing_close(&l->tracing);
    dtx_progress_close(l->progress);
    dtx_heldout_close(l->heldout);
    dtx_loader_close(l->loader);
    dtx_stream_close(l->stream);
    dtx_mem_free(l->lambda);
    dtx_mem_free(l->wishes);
    dtx_health_close(&l->health);
    dtx_health_close(&l->point.health);
    dtx_snapshot_close(&l->snapshot);
    dtx_slow_close(&l->slow);
    dtx_run_folder_close(&l->folder);
    return status;
}

/* The next batch. */
static enum dtx_status next_batch(struct loop *l, struct dtx_batch *batch)
{
    double begin = dtx_trace_begin(l->ctx);
    DTX_TRY(l->ctx, dtx_loader_next(l->ctx, l->loader, batch));
    dtx_trace_end(l->ctx, begin, DTX_SPAN_WAIT, "data", "wait for data", -1, 0);
    return DTX_OK;
}

/* What this rank asks for after a step of `seconds`. */
static struct wish make_wish(struct loop *l, double seconds)
{
    struct wish wish = {.stop_signal = dtx_stop_requested(), .save_ended = dtx_saver_done(l->saver)};
    if (wish.stop_signal != 0 || !root(l))
        return wish;
    dtx_deadline_saved(&l->deadline, dtx_saver_seconds(l->saver));
    l->deadline.saves = dtx_saver_pending(l->saver, l->step);
    enum dtx_deadline_verdict verdict = dtx_deadline_step(&l->deadline, dtx_clock_wall(), seconds);
    wish.save_early = verdict == DTX_DEADLINE_SAVE;
    if (verdict == DTX_DEADLINE_STOP)
        wish.stop_signal = DTX_STOP_TIME;
    return wish;
}

/* Every rank learns whether any was asked to stop, and by which signal; and whether a checkpoint is written now. */
static enum dtx_status agree(struct loop *l, double seconds)
{
    struct wish mine = make_wish(l, seconds);
    int asked = DTX_MUTANT(stop_of_rank_0_only) ? 1 : l->s->world->size;
    DTX_TRY(l->ctx, dtx_comm_gather_bytes(l->s->world, &mine, sizeof mine, l->wishes));
    for (int r = 0; r < asked && l->stop_signal == 0; r++)
        l->stop_signal = l->wishes[r].stop_signal;
    l->save_early = l->wishes[0].save_early;
    l->save_ended = true;
    for (int r = 0; r < l->s->world->size; r++)
        l->save_ended = l->save_ended && l->wishes[r].save_ended;
    if (l->save_ended)
        dtx_saver_finish(l->saver);
    return DTX_OK;
}

/* Step of the last checkpoint, for a report of what ends the run; what is being written may be one. */
static long long last_saved(struct loop *l)
{
    dtx_saver_finish(l->saver);
    return (long long)dtx_max64(dtx_saver_saved(l->saver), 0);
}

/* Compares what several ranks hold alike. A difference ends the run on all ranks with one report, or is a warning. */
static enum dtx_status check_replicas(struct loop *l)
{
    struct dtx_replica_report report;
    enum dtx_status status = DTX_OK;
    if (l->s->world->size == 1)
        return DTX_OK;
    DTX_TRY(l->ctx, dtx_engine_replicas(l->s->engine, &report));
    if (report.tensors == 0)
        return DTX_OK;
    long long saved = last_saved(l);
    if (root(l) && l->progress)
        dtx_progress_clear(l->progress);
    if (root(l) && l->replicas_stop)
        status =
            dtx_fail(l->ctx, DTX_E_NUMERIC,
                     "step %lld: copies of %lld tensor%s differ between ranks: %s. Nothing is saved of it; the "
                     "last checkpoint is of step %lld. Look at memory errors and the network of the ranks named; "
                     "check.replicas_action warn goes on regardless",
                     (long long)l->step, (long long)report.tensors, report.tensors == 1 ? "" : "s", report.text, saved);
    else if (root(l))
        dtx_log(l->ctx, DTX_LOG_WARN, "step %lld: copies of %lld tensor%s differ between ranks: %s", (long long)l->step,
                (long long)report.tensors, report.tensors == 1 ? "" : "s", report.text);
    return dtx_comm_agree(l->s->world, status);
}

/* A failed save warns and training goes on; earlier checkpoints are untouched. Damaged weights are never saved. */
static enum dtx_status save(struct loop *l, double heldout)
{
    struct dtx_session *s = l->s;
    bool finite;
    DTX_TRY(l->ctx, dtx_engine_finite(s->engine, &finite));
    if (!finite)
        return dtx_fail(l->ctx, DTX_E_NUMERIC,
                        "step %lld left weights or optimizer states that are not finite; nothing is saved of it. Lower "
                        "lr.peak or look at the optimizer's options; the last checkpoint is of step %lld",
                        (long long)l->step, last_saved(l));
    struct dtx_ckpt_meta meta = {.step = l->step,
                                 .tokens = l->tokens_seen,
                                 .samples = dtx_loader_position(l->loader),
                                 .seed = (uint64_t)s->config.seed,
                                 .mesh = {s->config.mesh[DTX_AXIS_TP], s->config.mesh[DTX_AXIS_DP],
                                          s->config.mesh[DTX_AXIS_PP], s->config.mesh[DTX_AXIS_CP]},
                                 .program = "dtx " DTX_VERSION,
                                 .best_heldout = l->best_heldout,
                                 .heldout = heldout,
                                 .config = s->text};
    enum dtx_status status = root(l) ? dtx_loader_ledger(l->ctx, l->loader, &meta.ledger) : DTX_OK;
    if (root(l) && status == DTX_OK)
        status = dtx_health_write(l->ctx, &l->health, &meta.health);
    status = dtx_comm_agree(s->world, status);
    if (status != DTX_OK) {
        dtx_mem_free(meta.ledger);
        dtx_mem_free(meta.health);
        return status;
    }
    snprintf(meta.isa, sizeof meta.isa, "%s", dtx_isa_name(s->backend->isa));
    if (l->progress)
        dtx_progress_clear(l->progress);
    if (root(l) && dtx_metrics_sync(l->ctx, l->metrics) != DTX_OK) {
        dtx_log(l->ctx, DTX_LOG_WARN, "%s", l->ctx->error.text);
        dtx_error_clear(l->ctx);
    }
    /* with nothing left to train, a lost state is a failure */
    bool last = l->step == l->end || l->stop_signal != 0 || l->stage_ended || DTX_MUTANT(failed_save_ends_run);
    return dtx_saver_save(l->saver, &meta, l->save_ended,
                          last            ? DTX_SAVE_LAST
                          : l->save_early ? DTX_SAVE_DURABLE
                                          : DTX_SAVE_DUE);
}

/* Rank 0, at log intervals: the run's page says where it is. */
static void refresh_page(struct loop *l)
{
    struct dtx_run_page *page = &l->s->page;
    page->step = l->step;
    page->left_seconds = dtx_progress_left(l->progress, l->steps - l->step);
    if (l->step % l->log_every == 0)
        dtx_run_status_refresh(l->ctx, l->s->run_dir, page);
}

static enum dtx_status report(struct loop *l, const struct dtx_step_result *result, double heldout, double seconds,
                              double wait)
{
    int n_lambda = 0;
    DTX_TRY(l->ctx, dtx_engine_lambda(l->s->engine, l->lambda, &n_lambda));
    if (!root(l))
        return DTX_OK;
    struct dtx_step_record record = {.step = l->step,
                                     .steps = l->steps,
                                     .loss = result->loss,
                                     .heldout = heldout,
                                     .lr = dtx_lr_at(&l->lr, l->step),
                                     .grad_norm = result->grad_norm,
                                     .grad_norm_clipped = result->grad_norm * result->clip,
                                     .targets = result->targets,
                                     .targets_total = l->tokens_seen,
                                     .seconds = seconds,
                                     .data_wait = wait,
                                     .flops = dtx_engine_step_flops(&l->s->config),
                                     .peak_flops = l->peak,
                                     .lambda = l->lambda,
                                     .n_lambda = n_lambda,
                                     .memory_bytes = l->memory_bytes,
                                     .skipped = result->skipped,
                                     .why = l->verdict.why,
                                     .loss_z = l->verdict.z,
                                     .rollbacks = l->health.all_rollbacks,
                                     .slowest_rank = l->slowest.slowest,
                                     .slowest_ratio = l->slowest.ratio};
    if (dtx_metrics_write(l->ctx, l->metrics, &record) != DTX_OK) {
        dtx_progress_clear(l->progress);
        dtx_log(l->ctx, DTX_LOG_WARN, "%s", l->ctx->error.text);
        dtx_error_clear(l->ctx);
    }
    dtx_progress_step(l->progress, &record);
    refresh_page(l);
    return DTX_OK;
}

static enum dtx_status evaluate(struct loop *l, double *heldout)
{
    int64_t targets;
    *heldout = NAN;
    if (!l->heldout || !(l->step == l->end || (l->eval_every > 0 && l->step % l->eval_every == 0)))
        return DTX_OK;
    double begin = dtx_trace_begin(l->ctx);
    DTX_TRY(l->ctx, dtx_heldout_loss(l->heldout, l->eval_samples, heldout, &targets));
    dtx_trace_end(l->ctx, begin, DTX_SPAN_STEP, "compute", "evaluation", l->step, 0);
    if (isnan(l->best_heldout) || *heldout < l->best_heldout)
        l->best_heldout = *heldout;
    return DTX_OK;
}

/* After the first step of this call. */
static void tell_start(struct loop *l)
{
    if (l->told_start)
        return;
    l->told_start = true;
    dtx_start_mark(&l->s->start, "first step");
    if (root(l))
        dtx_start_log(&l->s->start, l->ctx);
}

/* A save that is being written when the traced steps are done belongs to them. */
static enum dtx_status trace_step(struct loop *l, bool last)
{
    if (dtx_tracing_ends(&l->tracing, last))
        dtx_saver_finish(l->saver);
    return dtx_tracing_step(&l->tracing, last ? l->step : l->step + 1, last);
}

/* Gradients, the verdict on them, and the update if they are fit for it. Every rank comes to the same verdict. */
static enum dtx_status take_step(struct loop *l, const struct dtx_batch *data, struct dtx_step_result *result)
{
    struct dtx_engine *engine = l->s->engine;
    struct dtx_engine_batch batch = {data->tokens, DTX_MUTANT(targets_shifted) ? data->tokens : data->targets,
                                     l->documents || data->packed ? data->doc_start : NULL};
    double begin = dtx_trace_begin(l->ctx);
    DTX_TRY(l->ctx, dtx_engine_gradients(engine, &batch, result));
    dtx_health_judge(&l->health, result, &l->verdict);
    result->skipped = l->verdict.action >= DTX_HEALTH_SKIP;
    if (result->skipped && !DTX_MUTANT(health_skip_updates))
        return DTX_OK;
    int64_t update = l->step - (DTX_MUTANT(adam_step_restarts) ? l->s->meta.step : 0);
    DTX_TRY(l->ctx, dtx_engine_update(engine, update, dtx_lr_at(&l->lr, l->step), result));
    dtx_trace_end(l->ctx, begin, DTX_SPAN_STEP, "compute", "step", l->step, 0);
    return DTX_OK;
}

/* A line on rank 0 about the step; of spikes that are taken all the same one in QUIET_STEPS steps. */
static void tell_verdict(struct loop *l)
{
    char more[64] = "";
    if (!root(l) || l->verdict.action != DTX_HEALTH_WARN)
        return;
    if (l->warned_step > 0 && l->step < l->warned_step + QUIET_STEPS) {
        l->warnings++;
        return;
    }
    if (l->warnings > 0)
        snprintf(more, sizeof more, " (and %lld more since step %lld)", (long long)l->warnings,
                 (long long)l->warned_step);
    dtx_progress_clear(l->progress);
    dtx_log(l->ctx, DTX_LOG_WARN, "step %lld: %s%s", (long long)l->step, l->verdict.why, more);
    l->warned_step = l->step;
    l->warnings = 0;
}

/* Metrics go on behind the snapshot's step. */
static enum dtx_status cut_metrics(struct loop *l)
{
    struct dtx_metrics *metrics = l->metrics;
    l->metrics = NULL;
    if (dtx_metrics_close(l->ctx, metrics) != DTX_OK) { /* a full disk ends no run */
        dtx_log(l->ctx, DTX_LOG_WARN, "%s", l->ctx->error.text);
        dtx_error_clear(l->ctx);
    }
    return dtx_metrics_open(l->ctx, l->s->run_dir, l->point.step, &l->metrics);
}

/* Back to the snapshot; the samples of the steps since then are passed over. Collective over the world. */
static enum dtx_status roll_back(struct loop *l)
{
    int64_t bad = l->step, first = l->point.samples, end = dtx_loader_position(l->loader);
    if (root(l)) {
        dtx_progress_clear(l->progress);
        dtx_log(l->ctx, DTX_LOG_WARN, "step %lld: %s. Back to step %lld; samples %lld to %lld are passed over",
                (long long)bad, l->verdict.why, (long long)l->point.step, (long long)first, (long long)end - 1);
    }
    DTX_TRY(l->ctx, dtx_snapshot_restore(&l->snapshot));
    dtx_health_return(&l->point.health, &l->health);
    l->step = l->point.step;
    l->tokens_seen = l->point.tokens_seen;
    l->best_heldout = l->point.best_heldout;
    l->stage_ended = false;
    enum dtx_status status = dtx_loader_skip(
        l->ctx, l->loader, DTX_MUTANT(rollback_skips_last_step) ? end - l->s->config.batch.global_batch : first, end,
        first);
    if (status == DTX_OK && root(l) && !DTX_MUTANT(rollback_keeps_metrics))
        status = cut_metrics(l);
    return dtx_comm_agree(l->s->world, status);
}

static enum dtx_status ask_slow(struct loop *l)
{
    DTX_TRY(l->ctx, dtx_slow_ask(&l->slow, &l->slowest));
    if (root(l) && l->slowest.named >= 0) {
        dtx_progress_clear(l->progress);
        dtx_log(l->ctx, DTX_LOG_WARN, "%s", l->slowest.text);
    }
    return DTX_OK;
}

static enum dtx_status stop_unfit(struct loop *l)
{
    return dtx_fail(l->ctx, DTX_E_NUMERIC,
                    "step %lld: %s. Nothing is saved of it; the last checkpoint is of step %lld. Lower lr.peak, or "
                    "look at the data; what is done about such steps is said in health.*",
                    (long long)l->step, l->verdict.why, last_saved(l));
}

/* A snapshot of this step, in which all must be finite: else back to the one before. */
static enum dtx_status renew_snapshot(struct loop *l)
{
    bool finite;
    if (!l->snapshot.copy)
        return DTX_OK;
    DTX_TRY(l->ctx, dtx_engine_finite(l->s->engine, &finite));
    dtx_health_judge_weights(&l->health, finite || DTX_MUTANT(snapshot_of_anything), &l->verdict);
    if (l->verdict.action == DTX_HEALTH_STOP)
        return stop_unfit(l);
    return l->verdict.action == DTX_HEALTH_ROLLBACK ? roll_back(l) : take_snapshot(l);
}

/* What comes after a step: evaluation, metrics, agreement, checks, a snapshot, a checkpoint. */
static enum dtx_status end_step(struct loop *l, const struct dtx_step_result *result, double start, double wait)
{
    double heldout, seconds = dtx_clock_now() - start;
    DTX_TRY(l->ctx, ask_slow(l));
    DTX_TRY(l->ctx, evaluate(l, &heldout));
    DTX_TRY(l->ctx, report(l, result, heldout, seconds, wait));
    DTX_TRY(l->ctx, agree(l, dtx_clock_now() - start));
    bool fit = !result->skipped || DTX_MUTANT(skipped_step_saved);
    bool due = (dtx_saver_due(l->saver, l->step) || l->save_early) && fit;
    l->stage_ended = l->tokens_seen >= l->stage_end && l->step < l->end && l->stop_signal == 0;
    bool saving = due || l->stop_signal != 0 || l->step == l->end || l->stage_ended;
    if (l->replicas_every > 0 &&
        (l->step % l->replicas_every == 0 || (saving && !DTX_MUTANT(replicas_not_checked_before_save))))
        DTX_TRY(l->ctx, check_replicas(l));
    if ((due && !DTX_MUTANT(checkpoint_after_snapshot)) ||
        (l->step % l->snapshot_every == 0 && fit)) /* no checkpoint is newer than the snapshot */
        DTX_TRY(l->ctx, renew_snapshot(l));
    if (l->verdict.action == DTX_HEALTH_ROLLBACK)
        return l->stop_signal != 0 ? save(l, NAN) : DTX_OK;
    return saving ? save(l, heldout) : DTX_OK;
}

/* Rank 0: the run's page at the beginning of an attempt or stage. */
static void begin_page(struct loop *l)
{
    struct dtx_session *s = l->s;
    struct dtx_run_page *page = &s->page;
    const char *name = strrchr(s->source, '/');
    page->step = l->step;
    page->steps = l->steps;
    if (!s->resumed || !s->local)
        strcpy(page->local, "-");
    if (!s->resumed)
        strcpy(page->checkpoint, "-");
    else
        snprintf(s->local ? page->local : page->checkpoint, sizeof page->local, "%.63s", name ? name + 1 : s->source);
    dtx_run_status_write(l->ctx, s->run_dir, page, "running", DTX_OK, "");
}

static enum dtx_status one_step(struct loop *l)
{
    struct dtx_batch data;
    struct dtx_step_result result;
    DTX_TRY(l->ctx, trace_step(l, false));
    double start = dtx_clock_now();
    dtx_slow_begin(&l->slow);
    DTX_TRY(l->ctx, dtx_comm_agree(l->s->world, next_batch(l, &data)));
    l->step++;
    DTX_TRY(l->ctx, take_step(l, &data, &result));
    dtx_slow_end(&l->slow, data.wait_seconds);
    tell_start(l);
    if (l->verdict.action == DTX_HEALTH_STOP)
        return stop_unfit(l);
    if (l->verdict.action == DTX_HEALTH_ROLLBACK) {
        DTX_TRY(l->ctx, roll_back(l));
        if (!DTX_MUTANT(rollback_hears_no_signal))
            DTX_TRY(l->ctx, agree(l, dtx_clock_now() - start));
        return l->stop_signal != 0 ? save(l, NAN) : DTX_OK;
    }
    tell_verdict(l);
    l->tokens_seen += result.targets;
    dtx_health_note(&l->health, &result);
    return end_step(l, &result, start, data.wait_seconds);
}

static enum dtx_status run(struct loop *l)
{
    if (root(l) && l->s->page.attempt == 0)
        dtx_run_page_begin(l->s->run_dir, dtx_opt_int(l->s->opt, "run.attempt"), &l->s->page);
    DTX_TRY(l->ctx, open_loop(l));
    if (root(l))
        begin_page(l);
    if (l->step >= l->end && root(l))
        dtx_log(l->ctx, DTX_LOG_INFO, "nothing to do: step %lld is reached (train.steps %lld, train.until %lld)",
                (long long)l->end, (long long)l->steps, (long long)dtx_opt_int(l->s->opt, "train.until"));
    if ((l->s->resumed || l->s->initialized) && l->replicas_every > 0 && !DTX_MUTANT(replicas_not_checked_after_load))
        DTX_TRY(l->ctx, check_replicas(l));
    while (l->step < l->end && l->stop_signal == 0 && !l->stage_ended)
        DTX_TRY(l->ctx, one_step(l));
    DTX_TRY(l->ctx, trace_step(l, true));
    return l->stop_signal != 0 && l->step < l->end ? DTX_E_REQUEUE : DTX_OK;
}

enum dtx_status dtx_loop_run(struct dtx_session *session, bool *next_stage)
{
    struct loop l = {.s = session, .ctx = session->ctx};
    enum dtx_status status = run(&l);
    char stopped[160] = "";
    *next_stage = status == DTX_OK && l.stage_ended;
    if (root(&l) && status == DTX_E_REQUEUE) {
        snprintf(stopped, sizeof stopped, "stopped by %s at step %lld of %lld; everything is saved",
                 dtx_stop_name(l.stop_signal), (long long)l.step, (long long)l.steps);
        dtx_progress_clear(l.progress);
        dtx_log(l.ctx, DTX_LOG_INFO, "%s: continue with --resume latest", stopped);
    }
    /* A folder that this run did not open may be another one's. */
    if (root(&l) && !*next_stage &&
        (l.folder.locks[0] > 0 || (session->resumed && dtx_run_folder_idle(session->run_dir, session->checkpoint_dir,
                                                                           dtx_session_resumed_from(session))))) {
        const char *state = status == DTX_E_REQUEUE ? "requeue"
                            : status != DTX_OK      ? "failed"
                            : l.step < l.steps      ? "paused"
                                                    : "done";
        session->page.step = l.step;
        session->page.steps = l.steps;
        dtx_run_status_write(l.ctx, session->run_dir, &session->page, state, status,
                             stopped[0] ? stopped : l.ctx->error.text);
    }
    if (l.saver)
        dtx_deadline_saved(&l.deadline, dtx_saver_seconds(l.saver));
    session->save_seconds = l.deadline.save_seconds;
    enum dtx_status closed = close_loop(&l, status != DTX_OK && status != DTX_E_REQUEUE);
    return status != DTX_OK ? status : closed;
}
