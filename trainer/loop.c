#include "trainer/loop.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "trainer/loop_open.h"
#include "trainer/run_status.h"
#include "trainer/stop.h"

enum { QUIET_STEPS = 100 }; /* after a warning of a spike */

/* The next batch. */
static enum dtx_status next_batch(struct dtx_loop *l, struct dtx_batch *batch)
{
    double begin = dtx_trace_begin(l->ctx, "wait for data");
    DTX_TRY(l->ctx, dtx_loader_next(l->ctx, l->loader, batch));
    dtx_trace_end(l->ctx, begin, DTX_SPAN_WAIT, "data", "wait for data", -1, 0);
    return DTX_OK;
}

/* What this rank asks for after a step of `seconds`. */
static struct dtx_loop_wish make_wish(struct dtx_loop *l, double seconds)
{
    struct dtx_loop_wish wish = {.stop_signal = dtx_stop_requested(), .save_ended = dtx_saver_done(l->saver)};
    if (wish.stop_signal != 0 || !dtx_loop_root(l))
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
static enum dtx_status agree(struct dtx_loop *l, double seconds)
{
    struct dtx_loop_wish mine = make_wish(l, seconds);
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
static long long last_saved(struct dtx_loop *l)
{
    dtx_saver_finish(l->saver);
    return (long long)dtx_max64(dtx_saver_saved(l->saver), 0);
}

/* Compares what several ranks hold alike. A difference ends the run on all ranks with one report, or is a warning. */
static enum dtx_status check_replicas(struct dtx_loop *l)
{
    struct dtx_replica_report report;
    enum dtx_status status = DTX_OK;
    if (l->s->world->size == 1)
        return DTX_OK;
    DTX_TRY(l->ctx, dtx_engine_replicas(l->s->engine, &report));
    if (report.tensors == 0)
        return DTX_OK;
    long long saved = last_saved(l);
    if (dtx_loop_root(l) && l->progress)
        dtx_progress_clear(l->progress);
    if (dtx_loop_root(l) && l->replicas_stop)
        status =
            dtx_fail(l->ctx, DTX_E_NUMERIC,
                     "step %lld: copies of %lld tensor%s differ between ranks: %s. Nothing is saved of it; the "
                     "last checkpoint is of step %lld. Look at memory errors and the network of the ranks named; "
                     "check.replicas_action warn goes on regardless",
                     (long long)l->step, (long long)report.tensors, report.tensors == 1 ? "" : "s", report.text, saved);
    else if (dtx_loop_root(l))
        dtx_log(l->ctx, DTX_LOG_WARN, "step %lld: copies of %lld tensor%s differ between ranks: %s", (long long)l->step,
                (long long)report.tensors, report.tensors == 1 ? "" : "s", report.text);
    return dtx_comm_agree(l->s->world, status);
}

/* A failed save warns and training goes on; earlier checkpoints are untouched. Damaged weights are never saved. */
static enum dtx_status save(struct dtx_loop *l, double heldout)
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
    enum dtx_status status = dtx_loop_root(l) ? dtx_loader_ledger(l->ctx, l->loader, &meta.ledger) : DTX_OK;
    if (dtx_loop_root(l) && status == DTX_OK)
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
    if (dtx_loop_root(l) && dtx_metrics_sync(l->ctx, l->metrics) != DTX_OK) {
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
static void refresh_page(struct dtx_loop *l)
{
    struct dtx_run_page *page = &l->s->page;
    page->step = l->step;
    page->left_seconds = dtx_progress_left(l->progress, l->steps - l->step);
    if (l->step % l->log_every == 0)
        dtx_run_status_refresh(l->ctx, l->s->run_dir, page);
}

static enum dtx_status report(struct dtx_loop *l, const struct dtx_step_result *result, double heldout, double seconds,
                              double wait)
{
    int n_lambda = 0;
    DTX_TRY(l->ctx, dtx_engine_lambda(l->s->engine, l->lambda, &n_lambda));
    if (!dtx_loop_root(l))
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

static enum dtx_status evaluate(struct dtx_loop *l, double *heldout)
{
    int64_t targets;
    double loss;
    bool cut = false, last = l->step == l->end; /* its figure is the run's */
    *heldout = NAN;
    if (!l->heldout || !(last || (l->eval_every > 0 && l->step % l->eval_every == 0)))
        return DTX_OK;
    double begin = dtx_trace_begin(l->ctx, "evaluation");
    DTX_TRY(l->ctx, dtx_heldout_loss(l->heldout, l->eval_samples, last ? NULL : &cut, &loss, &targets));
    dtx_trace_end(l->ctx, begin, DTX_SPAN_STEP, "compute", "evaluation", l->step, 0);
    if (cut && dtx_loop_root(l)) {
        dtx_progress_clear(l->progress);
        dtx_log(l->ctx, DTX_LOG_INFO, "asked to stop: no held-out loss of step %lld", (long long)l->step);
    }
    if (cut)
        return DTX_OK;
    *heldout = loss;
    if (isnan(l->best_heldout) || loss < l->best_heldout)
        l->best_heldout = loss;
    return DTX_OK;
}

/* After the first step of this call. */
static void tell_start(struct dtx_loop *l)
{
    if (l->told_start)
        return;
    l->told_start = true;
    dtx_start_mark(&l->s->start, "first step");
    if (dtx_loop_root(l))
        dtx_start_log(&l->s->start, l->ctx);
}

/* A save that is being written when the traced steps are done belongs to them. */
static enum dtx_status trace_step(struct dtx_loop *l, bool last)
{
    if (dtx_tracing_ends(&l->tracing, last))
        dtx_saver_finish(l->saver);
    return dtx_tracing_step(&l->tracing, last ? l->step : l->step + 1, last);
}

/* Gradients, the verdict on them, and the update if they are fit for it. Every rank comes to the same verdict. */
static enum dtx_status take_step(struct dtx_loop *l, const struct dtx_batch *data, struct dtx_step_result *result)
{
    struct dtx_engine *engine = l->s->engine;
    struct dtx_engine_batch batch = {data->tokens, DTX_MUTANT(targets_shifted) ? data->tokens : data->targets,
                                     l->documents || data->packed ? data->doc_start : NULL};
    double begin = dtx_trace_begin(l->ctx, "step");
    DTX_TRY(l->ctx, dtx_engine_gradients(engine, &batch, result));
    dtx_health_judge(&l->health, result, &l->verdict);
    result->skipped = l->verdict.action >= DTX_HEALTH_SKIP;
    int64_t update = l->step - (DTX_MUTANT(adam_step_restarts) ? l->s->meta.step : 0);
    if (!result->skipped || DTX_MUTANT(health_skip_updates))
        DTX_TRY(l->ctx, dtx_engine_update(engine, update, dtx_lr_at(&l->lr, l->step), result));
    dtx_trace_end(l->ctx, begin, DTX_SPAN_STEP, "compute", "step", l->step, 0);
    return DTX_OK;
}

/* A line on rank 0 about the step; of spikes that are taken all the same one in QUIET_STEPS steps. */
static void tell_verdict(struct dtx_loop *l)
{
    char more[64] = "";
    if (!dtx_loop_root(l) || l->verdict.action != DTX_HEALTH_WARN)
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
static enum dtx_status cut_metrics(struct dtx_loop *l)
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
static enum dtx_status roll_back(struct dtx_loop *l)
{
    int64_t bad = l->step, first = l->point.samples, end = dtx_loader_position(l->loader);
    if (dtx_loop_root(l)) {
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
    if (status == DTX_OK && dtx_loop_root(l) && !DTX_MUTANT(rollback_keeps_metrics))
        status = cut_metrics(l);
    return dtx_comm_agree(l->s->world, status);
}

static enum dtx_status ask_slow(struct dtx_loop *l)
{
    DTX_TRY(l->ctx, dtx_slow_ask(&l->slow, &l->slowest));
    if (dtx_loop_root(l) && l->slowest.named >= 0) {
        dtx_progress_clear(l->progress);
        dtx_log(l->ctx, DTX_LOG_WARN, "%s", l->slowest.text);
    }
    return DTX_OK;
}

static enum dtx_status stop_unfit(struct dtx_loop *l)
{
    return dtx_fail(l->ctx, DTX_E_NUMERIC,
                    "step %lld: %s. Nothing is saved of it; the last checkpoint is of step %lld. Lower lr.peak, or "
                    "look at the data; what is done about such steps is said in health.*",
                    (long long)l->step, l->verdict.why, last_saved(l));
}

/* A snapshot of this step, in which all must be finite: else back to the one before. */
static enum dtx_status renew_snapshot(struct dtx_loop *l)
{
    bool finite;
    if (!l->snapshot.copy)
        return DTX_OK;
    DTX_TRY(l->ctx, dtx_engine_finite(l->s->engine, &finite));
    dtx_health_judge_weights(&l->health, finite || DTX_MUTANT(snapshot_of_anything), &l->verdict);
    if (l->verdict.action == DTX_HEALTH_STOP)
        return stop_unfit(l);
    return l->verdict.action == DTX_HEALTH_ROLLBACK ? roll_back(l) : dtx_loop_take_snapshot(l);
}

/* What comes after a step: evaluation, metrics, agreement, checks, a snapshot, a checkpoint. */
static enum dtx_status end_step(struct dtx_loop *l, const struct dtx_step_result *result, double start, double wait)
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
static void begin_page(struct dtx_loop *l)
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

static enum dtx_status one_step(struct dtx_loop *l)
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

static enum dtx_status run(struct dtx_loop *l)
{
    if (dtx_loop_root(l) && l->s->page.attempt == 0)
        dtx_run_page_begin(l->s->run_dir, dtx_opt_int(l->s->opt, "run.attempt"), &l->s->page);
    DTX_TRY(l->ctx, dtx_loop_open(l));
    if (dtx_loop_root(l))
        begin_page(l);
    if (l->step >= l->end && dtx_loop_root(l))
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
    struct dtx_loop l = {.s = session, .ctx = session->ctx};
    enum dtx_status status = run(&l);
    char stopped[160] = "";
    *next_stage = status == DTX_OK && l.stage_ended;
    if (dtx_loop_root(&l) && status == DTX_E_REQUEUE) {
        snprintf(stopped, sizeof stopped, "stopped by %s at step %lld of %lld; everything is saved",
                 dtx_stop_name(l.stop_signal), (long long)l.step, (long long)l.steps);
        dtx_progress_clear(l.progress);
        dtx_log(l.ctx, DTX_LOG_INFO, "%s: continue with --resume latest", stopped);
    }
    /* A folder that this run did not open may be another one's. */
    if (dtx_loop_root(&l) && !*next_stage &&
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
    enum dtx_status closed = dtx_loop_close(&l, status != DTX_OK && status != DTX_E_REQUEUE);
    return status != DTX_OK ? status : closed;
}
