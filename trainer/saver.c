#include "trainer/saver.h"

#include <string.h>

#include "checkpoints/retain.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/base/trace.h"
#include "trainer/run_status.h"
#include "trainer/state.h"

enum { HALT_SECONDS = 3 }; /* what a rank that failed gives a save under way */

struct dtx_saver {
    struct dtx_session *session;
    struct dtx_ctx *ctx;
    struct dtx_progress *progress;
    struct dtx_state state;
    struct dtx_ckpt_staging *staging;
    struct dtx_ckpt_local *local; /* NULL: no local tier */
    struct dtx_ckpt_save_options options;
    int64_t every, local_every, steps;
    bool skip, told;          /* told: that the local tier works */
    bool beside;              /* saves bypass the page cache when training goes on */
    int64_t saved, under_way; /* steps; −1: none */
    bool local_under_way;     /* of the local tier */
    char *ledger, *health;    /* of the save under way */
    double begin, copied;     /* when it began; seconds of the copy for it */
    double longest;           /* seconds of the longest durable save */
};

static bool root(const struct dtx_saver *s)
{
    return s->session->world->rank == 0;
}

static enum dtx_status create(struct dtx_session *session, struct dtx_progress *progress, struct dtx_saver **out)
{
    struct dtx_opt *opt = session->opt;
    void *memory;
    DTX_TRY(session->ctx, dtx_mem_alloc(session->ctx, 1, sizeof(struct dtx_saver), &memory));
    struct dtx_saver *s = memory;
    *s = (struct dtx_saver){.session = session,
                            .ctx = session->ctx,
                            .progress = progress,
                            .every = dtx_opt_int(opt, "checkpoint.every"),
                            .steps = dtx_opt_int(opt, "train.steps"),
                            .skip = strcmp(dtx_opt_text(opt, "checkpoint.busy"), "skip") == 0,
                            .beside = dtx_opt_bool(opt, "checkpoint.async") && dtx_opt_bool(opt, "checkpoint.direct"),
                            .saved = session->resumed ? session->meta.step : -1,
                            .under_way = -1};
    s->options = (struct dtx_ckpt_save_options){.keep = (int)dtx_opt_int(opt, "checkpoint.keep"),
                                                .keep_every = dtx_opt_int(opt, "checkpoint.keep_every"),
                                                .keep_best = (int)dtx_opt_int(opt, "checkpoint.keep_best"),
                                                .max_shards = (int)dtx_opt_int(opt, "checkpoint.max_shards")};
    enum dtx_status status = dtx_state_open(session->engine, &s->state);
    if (status != DTX_OK) {
        dtx_mem_free(s);
        return status;
    }
    *out = s;
    return DTX_OK;
}

static void release(struct dtx_saver *s)
{
    dtx_ckpt_local_close(s->local);
    dtx_state_close(&s->state);
    dtx_mem_free(s->ledger);
    dtx_mem_free(s->health);
    dtx_mem_free(s);
}

static enum dtx_status open_local(struct dtx_saver *s)
{
    s->local_every = dtx_opt_int(s->session->opt, "checkpoint.local_every");
    if (s->local_every > 0 && !s->session->local_dir[0] && root(s))
        dtx_log(s->ctx, DTX_LOG_WARN,
                "checkpoint.local_every %lld: nothing is saved on the nodes' disks without checkpoint.local_dir",
                (long long)s->local_every);
    if (s->local_every == 0 || !s->session->local_dir[0])
        return DTX_OK;
    struct dtx_ckpt_local_options options = dtx_session_local(s->session);
    DTX_TRY(s->ctx, dtx_ckpt_local_open(s->ctx, s->session->world, &options, !s->session->resumed, &s->local));
    if (root(s) && dtx_ckpt_local_nodes(s->local) == 1)
        dtx_log(s->ctx, DTX_LOG_WARN, "checkpoint.local_dir: there is one node, so nobody has a copy of its disk");
    return DTX_OK;
}

enum dtx_status dtx_saver_open(struct dtx_session *session, struct dtx_progress *progress, struct dtx_saver **out)
{
    struct dtx_saver *s;
    DTX_TRY(session->ctx, dtx_comm_agree(session->world, create(session, progress, &s)));
    enum dtx_status status = dtx_ckpt_staging_open(
        s->ctx, session->world, session->backend, dtx_ckpt_staging_bytes(s->state.items, s->state.n),
        dtx_opt_bool(session->opt, "checkpoint.async"), dtx_opt_real(session->opt, "checkpoint.timeout"), &s->staging);
    if (status != DTX_OK) {
        release(s);
        return status;
    }
    status = open_local(s);
    if (status != DTX_OK) {
        dtx_saver_close(s);
        return status;
    }
    *out = s;
    return DTX_OK;
}

void dtx_saver_close(struct dtx_saver *s)
{
    if (!s)
        return;
    dtx_ckpt_staging_close(s->staging);
    release(s);
}

bool dtx_saver_halt(struct dtx_saver *s)
{
    if (!s)
        return true;
    if (!dtx_ckpt_staging_halt(s->staging, HALT_SECONDS))
        return false; /* the thread may still look at the items */
    release(s);
    return true;
}

static bool durable_due(const struct dtx_saver *s, int64_t step)
{
    return s->every > 0 && step % s->every == 0;
}

bool dtx_saver_due(const struct dtx_saver *s, int64_t step)
{
    return durable_due(s, step) || (s->local && step % s->local_every == 0);
}

bool dtx_saver_busy(const struct dtx_saver *s)
{
    return dtx_ckpt_staging_busy(s->staging);
}

bool dtx_saver_done(struct dtx_saver *s)
{
    return dtx_ckpt_staging_done(s->staging);
}

static bool writes_durable(const struct dtx_saver *s)
{
    return dtx_saver_busy(s) && !s->local_under_way;
}

int dtx_saver_pending(const struct dtx_saver *s, int64_t step)
{
    bool before = writes_durable(s);
    return before + (durable_due(s, step) && !(before && s->skip));
}

double dtx_saver_seconds(struct dtx_saver *s)
{
    double seconds = writes_durable(s) && !dtx_saver_done(s) ? dtx_clock_now() - s->begin : 0;
    return seconds > s->longest ? seconds : s->longest;
}

int64_t dtx_saver_saved(const struct dtx_saver *s)
{
    return s->saved;
}

/* The first one is told of, and those that fail. */
static void say_local(struct dtx_saver *s, enum dtx_status status, int64_t step, const struct dtx_ckpt_saved *saved)
{
    bool warning = status != DTX_OK || saved->warning[0];
    if (s->told && !warning)
        return;
    dtx_progress_clear(s->progress);
    if (status != DTX_OK)
        dtx_log(s->ctx, DTX_LOG_WARN, "local checkpoint of step %lld was not saved: %s", (long long)step,
                s->ctx->error.text);
    else if (warning)
        dtx_log(s->ctx, DTX_LOG_WARN, "old local checkpoints stay: %s", saved->warning);
    else
        dtx_log(s->ctx, DTX_LOG_INFO,
                "step %lld is saved on the disks of %d node%s: %s, %.2f s; from now on only failures are told",
                (long long)step, dtx_ckpt_local_nodes(s->local), dtx_ckpt_local_nodes(s->local) == 1 ? "" : "s",
                saved->folder, saved->seconds);
    s->told = s->told || !warning;
}

/* The status of the save that was under way; a failure's report stays in the context. */
static enum dtx_status finish(struct dtx_saver *s)
{
    struct dtx_ckpt_saved saved;
    enum dtx_status status = dtx_ckpt_staging_finish(s->staging, &saved);
    int64_t step = s->under_way;
    double seconds = status == DTX_OK ? s->copied + saved.seconds : dtx_clock_now() - s->begin;
    s->under_way = -1;
    if (!s->local_under_way && seconds > s->longest)
        s->longest = seconds;
    if (status == DTX_OK && !s->local_under_way)
        s->saved = step;
    if (!root(s))
        return status;
    struct dtx_run_page *page = &s->session->page;
    if (s->local_under_way) {
        if (status == DTX_OK)
            dtx_ckpt_folder_name("", step, page->local);
        say_local(s, status, step, &saved);
        return status;
    }
    if (status == DTX_OK && s->local)
        dtx_ckpt_local_after(s->local, saved.sequence);
    dtx_progress_clear(s->progress);
    if (status == DTX_OK) {
        dtx_ckpt_saved_log(s->ctx, &saved);
        dtx_ckpt_folder_name("", step, page->checkpoint);
        dtx_run_status_write(s->ctx, s->session->run_dir, page, "running", DTX_OK, "");
    } else {
        dtx_log(s->ctx, DTX_LOG_WARN, "checkpoint of step %lld was not saved: %s", (long long)step, s->ctx->error.text);
    }
    return status;
}

void dtx_saver_finish(struct dtx_saver *s)
{
    if (dtx_ckpt_staging_busy(s->staging) && finish(s) != DTX_OK)
        dtx_error_clear(s->ctx);
}

enum dtx_status dtx_saver_save(struct dtx_saver *s, const struct dtx_ckpt_meta *meta, bool ended,
                               enum dtx_save_kind kind)
{
    bool last = kind == DTX_SAVE_LAST;
    bool before_local = durable_due(s, meta->step) && s->local_under_way; /* for which a durable one is not given up */
    if (dtx_saver_busy(s) && s->skip && !before_local && !ended && !last) {
        if (root(s)) {
            dtx_progress_clear(s->progress);
            dtx_log(s->ctx, DTX_LOG_WARN,
                    "checkpoint of step %lld is skipped: that of step %lld is still being written (checkpoint.busy)",
                    (long long)meta->step, (long long)s->under_way);
        }
        dtx_mem_free(meta->ledger);
        dtx_mem_free(meta->health);
        return DTX_OK;
    }
    double begin = dtx_trace_begin(s->ctx, dtx_saver_busy(s) ? "wait for checkpoint" : "copy for checkpoint");
    if (dtx_saver_busy(s) && !DTX_MUTANT(busy_not_waited)) {
        int64_t before = s->under_way;
        dtx_saver_finish(s);
        dtx_trace_end(s->ctx, begin, DTX_SPAN_WAIT, "compute", "wait for checkpoint", before, 0);
        begin = dtx_trace_begin(s->ctx, "copy for checkpoint");
    }
    dtx_mem_free(s->ledger);
    dtx_mem_free(s->health);
    s->ledger = meta->ledger;
    s->health = meta->health;
    s->begin = dtx_clock_now();
    DTX_TRY(s->ctx, dtx_comm_agree(s->session->world, dtx_state_snapshot(&s->state, s->staging)));
    dtx_trace_end(s->ctx, begin, DTX_SPAN_WAIT, "compute", "copy for checkpoint", meta->step, 0);
    s->copied = dtx_clock_now() - s->begin;
    s->under_way = meta->step;
    s->local_under_way = s->local && kind == DTX_SAVE_DUE && !durable_due(s, meta->step);
    s->options.beside = !last && s->beside && !DTX_MUTANT(saver_never_beside);
    dtx_ckpt_staging_start(s->staging, s->session->checkpoint_dir, s->local_under_way ? s->local : NULL, s->state.items,
                           s->state.n, meta, &s->options);
    if (last) {
        enum dtx_status status = finish(s);
        if (status != DTX_OK && DTX_MUTANT(last_save_fails_silently)) {
            dtx_error_clear(s->ctx);
            return DTX_OK;
        }
        return status;
    }
    if (!dtx_opt_bool(s->session->opt, "checkpoint.async"))
        dtx_saver_finish(s);
    return DTX_OK;
}
