#include <stdio.h>
#include <unistd.h>

#include "kernels/base/command.h"
#include "kernels/base/mutant.h"
#include "trainer/loop.h"
#include "trainer/run_folder.h"
#include "trainer/run_status.h"
#include "trainer/stop.h"

static const struct dtx_opt_row no_options[] = {{NULL, 0, NULL, NULL, 0, NULL}};

static const struct dtx_session_command command = {
    .name = "train",
    .usage =
        "usage: dtx train [CONFIG.yaml] [--preset NAME] [--resume latest|auto|PATH] [--init PATH]\n"
        "                 [--KEY VALUE …]\n"
        "       mpirun -n RANKS dtx train …\n\n"
        "Trains a model. Values come from flags, then DTX_GROUP_KEY variables, CONFIG.yaml, the preset (or the\n"
        "checkpoint that is resumed), defaults. Options marked fixed must match a resumed checkpoint. --init takes\n"
        "nothing but the weights and the model's options from a checkpoint: of a run, imported or averaged.\n",
    .options = no_options,
    .needs_data = true,
    .says_started = true};

/* A run that was to go on and cannot: its status must not go on saying "requeue". Nothing else of it is touched. */
static void note_failure(struct dtx_session *s, enum dtx_status status)
{
    char path[DTX_PATH];
    if (DTX_MUTANT(stale_status_kept) || s->ctx->rank != 0 || !s->opt ||
        !(s->next_stage || *dtx_opt_text(s->opt, "resume")))
        return;
    const char *dir = s->run_dir[0] ? s->run_dir : dtx_opt_text(s->opt, "run.dir");
    snprintf(path, sizeof path, "%s/status", dir);
    if (access(path, F_OK) != 0 || !dtx_run_folder_idle(dir, s->checkpoint_dir, dtx_session_resumed_from(s)))
        return;
    if (s->page.attempt == 0)
        dtx_run_page_begin(dir, dtx_opt_int(s->opt, "run.attempt"), &s->page);
    s->page.step = s->meta.step;
    s->page.steps = dtx_opt_int(s->opt, "train.steps");
    dtx_run_status_write(s->ctx, dir, &s->page, "failed", status, s->ctx->error.text);
}

/* Signals are noted from the first moment to the last: one during start-up stops the run after its first step, one
 * while the run ends changes nothing. */
static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    struct dtx_session session;
    struct dtx_stop stop;
    bool done, next_stage = false;
    DTX_TRY(ctx, dtx_stop_install(ctx, &stop));
    enum dtx_status status = dtx_session_open(ctx, &command, argc, argv, &session, &done);
    if (status == DTX_OK && !done && session.world->rank == 0)
        dtx_transfer_log(ctx, &session.config.model.transfer);
    if (status == DTX_OK && !done)
        status = dtx_loop_run(&session, &next_stage);
    else if (status != DTX_OK)
        note_failure(&session, status);
    while (status == DTX_OK && next_stage) {
        status = dtx_session_next_stage(&session, &command, argc, argv);
        if (status == DTX_OK)
            status = dtx_loop_run(&session, &next_stage);
        else
            note_failure(&session, status);
    }
    status = dtx_session_close(&session, status);
    dtx_stop_uninstall(&stop);
    return status;
}

const struct dtx_command dtx_command_train = {"train", "train a model, on one rank or under mpirun or srun", run};
