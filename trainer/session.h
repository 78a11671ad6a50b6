/*
 * What train, eval and generate do before they begin, and after: MPI, options (resolved by rank 0, the same text on
 * every rank), backend, engine, and the weights of a checkpoint. Collective over the world.
 */
#ifndef DTX_TRAINER_SESSION_H
#define DTX_TRAINER_SESSION_H

#include "checkpoints/local.h"
#include "data/stream.h"
#include "trainer/engine.h"
#include "trainer/run_status.h"
#include "trainer/start.h"

enum { DTX_PATH = 4096 };

struct dtx_session_command {
    const char *name;                  /* "train" */
    const char *usage;                 /* lines before the list of options */
    const struct dtx_opt_row *options; /* its own; "preset", "resume", "init" are added; NULL-terminated */
    bool needs_checkpoint;             /* --resume is required; weights alone will do; the mesh is not taken from it */
    bool one_rank;
    bool needs_data;   /* data.train must be set */
    bool no_model;     /* stops short of the engine and of a checkpoint's arrays */
    bool says_started; /* one line when all ranks have met, before anything is loaded: train.sbatch waits for it */
    double timeout;    /* comm.timeout is no longer than this; 0: what the options say */
};

struct dtx_session {
    struct dtx_ctx *ctx;
    struct dtx_comm *world;
    struct dtx_comm *between; /* the same ranks for tensors: over NCCL on GPUs, else world itself */
    struct dtx_opt *opt;
    char *text; /* the options as resolved, without those of one call; YAML */
    struct dtx_engine_config config;
    struct dtx_backend *backend;
    struct dtx_engine *engine;
    char run_dir[DTX_PATH / 2], checkpoint_dir[DTX_PATH];
    bool resumed, initialized; /* all of a checkpoint's state is continued; its weights alone begin a new run */
    bool begins_again;         /* --resume auto found nothing to continue */
    int64_t length_before;     /* rank 0: train.length of that checkpoint */
    struct dtx_ckpt_meta meta; /* of that checkpoint, its folder in `source`; unset without one */
    char source[DTX_PATH];
    bool next_stage; /* goes on from the checkpoint just saved, whatever the command line says */
    struct dtx_ckpt_search search;
    char local_dir[DTX_PATH];          /* checkpoint.local_dir */
    bool local, local_refused;         /* `source` is this node's part of a local checkpoint; none is looked for */
    struct dtx_ckpt_index local_index; /* of it */
    struct dtx_start start;            /* marked up to the checkpoint */
    struct dtx_run_page page;          /* rank 0: RUN/status */
    double save_seconds;               /* rank 0: of the longest save of the stages before; 0: none */
};

/* Loads what the option `preset` (a TEXT of opt's tables) names, if anything: a shipped configuration or a path. */
enum dtx_status dtx_session_load_preset(struct dtx_ctx *ctx, struct dtx_opt *opt);

/* Where the local tier of the run lies, as this rank sees it. Valid while the session is. */
struct dtx_ckpt_local_options dtx_session_local(const struct dtx_session *session);
/* The checkpoint that the run continues, as dtx_run_folder_open wants it; NULL: none. */
const char *dtx_session_resumed_from(const struct dtx_session *session);
/* *done: --help was printed, nothing is open. After a failure dtx_session_close must still be called. */
enum dtx_status dtx_session_open(struct dtx_ctx *ctx, const struct dtx_session_command *command, int argc, char **argv,
                                 struct dtx_session *session, bool *done);
/* Begins the run's next stage: everything but MPI anew, from the newest checkpoint. As dtx_session_open. */
enum dtx_status dtx_session_next_stage(struct dtx_session *session, const struct dtx_session_command *command, int argc,
                                       char **argv);
/* The stream that the options ask for, continued from the checkpoint; its texts are the session's. Not collective. */
struct dtx_stream_config dtx_session_stream(const struct dtx_session *session, bool heldout);
/* Agrees on one status over all ranks, frees everything, ends MPI; returns the status to exit with. */
enum dtx_status dtx_session_close(struct dtx_session *session, enum dtx_status status);

#endif
