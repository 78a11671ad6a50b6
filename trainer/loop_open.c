#include "trainer/loop_open.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/watch.h"
#include "trainer/describe.h"
#include "trainer/run_status.h"
#include "trainer/stages.h"

static void read_options(struct dtx_loop *l)
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
static enum dtx_status open_stream(struct dtx_loop *l)
{
    struct dtx_session *s = l->s;
    struct dtx_stream_config config = dtx_session_stream(s, false);
    struct dtx_walk *walk = NULL;
    char *ledger = NULL;
    enum dtx_status status = DTX_OK;
    if (dtx_loop_root(l)) {
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
    if (!dtx_loop_root(l))
        status = dtx_stream_open(l->ctx, &config, &l->stream);
    dtx_mem_free(ledger);
    return dtx_comm_agree(s->world, status);
}

static enum dtx_status open_data(struct dtx_loop *l)
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

enum dtx_status dtx_loop_take_snapshot(struct dtx_loop *l)
{
    if (!l->snapshot.copy)
        return DTX_OK;
    double begin = dtx_trace_begin(l->ctx, "snapshot");
    DTX_TRY(l->ctx, dtx_snapshot_take(&l->snapshot));
    dtx_trace_end(l->ctx, begin, DTX_SPAN_WAIT, "compute", "snapshot", l->step, 0);
    dtx_health_keep(&l->health, &l->point.health);
    l->point.step = l->step;
    l->point.tokens_seen = l->tokens_seen;
    l->point.samples = dtx_loader_position(l->loader);
    l->point.best_heldout = l->best_heldout;
    return DTX_OK;
}

static enum dtx_status open_health(struct dtx_loop *l)
{
    struct dtx_session *s = l->s;
    DTX_TRY(l->ctx, dtx_health_open(l->ctx, s->opt, &l->health));
    if (s->resumed)
        DTX_TRY(l->ctx, dtx_health_read(l->ctx, s->meta.health, &l->health));
    if (!s->config.snapshot)
        return DTX_OK;
    DTX_TRY(l->ctx, dtx_health_open(l->ctx, s->opt, &l->point.health));
    DTX_TRY(l->ctx, dtx_snapshot_open(l->ctx, s->engine, &l->snapshot));
    return dtx_loop_take_snapshot(l);
}

/* Rank 0: the run's folder, metrics, progress. */
static enum dtx_status open_run_folder(struct dtx_loop *l)
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

enum dtx_status dtx_loop_open(struct dtx_loop *l)
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
    DTX_TRY(l->ctx, dtx_comm_agree(s->world, dtx_loop_root(l) ? open_run_folder(l) : DTX_OK));
    DTX_TRY(l->ctx, dtx_watch_share(s->world, s->run_dir, note_hang, s));
    dtx_start_mark(&s->start, "run folder");
    DTX_TRY(l->ctx, dtx_describe_ranks(s, &l->peak, &l->memory_bytes));
    dtx_start_mark(&s->start, "peak");
    DTX_TRY(l->ctx, dtx_tracing_open(s, &l->tracing));
    DTX_TRY(l->ctx, dtx_saver_open(s, l->progress, &l->saver));
    if (dtx_loop_root(l))
        dtx_describe_run(s, l->stream, l->peak);
    return DTX_OK;
}

enum dtx_status dtx_loop_close(struct dtx_loop *l, bool failed)
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
