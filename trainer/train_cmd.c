#include "kernels/base/command.h"
#include "trainer/loop.h"

static const struct dtx_opt_row no_options[] = {{NULL, 0, NULL, NULL, 0, NULL}};

static const struct dtx_session_command command = {
    .name = "train",
    .usage = "usage: dtx train [CONFIG.yaml] [--preset NAME] [--resume latest|PATH] [--KEY VALUE …]\n"
             "       mpirun -n RANKS dtx train …\n\n"
             "Trains a model. Values come from flags, then DTX_GROUP_KEY variables, CONFIG.yaml, the preset (or the\n"
             "checkpoint that is resumed), defaults. Options marked fixed must match a resumed checkpoint.\n",
    .options = no_options};

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    struct dtx_session session;
    bool done;
    enum dtx_status status = dtx_session_open(ctx, &command, argc, argv, &session, &done);
    if (status == DTX_OK && !done)
        status = dtx_loop_run(&session);
    return dtx_session_close(&session, status);
}

const struct dtx_command dtx_command_train = {"train", "train a model, on one rank or under mpirun or srun", run};
