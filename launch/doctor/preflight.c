#include "launch/doctor/preflight.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/host.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/peak.h"
#include "parallel/watch.h"

#define HANG_SECONDS 60.0 /* that a rank may let the others wait */

static const struct dtx_opt_row options[] = {
    {"ranks", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "check the nodes of an allocation for a run"},
    {"json", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "write all results to this file"},
    {"bad-nodes", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL,
     "write the names of nodes that are unfit to this file, one a line"},
    {"folder", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "where files are written and looked for; default: run.dir"},
    {"seconds", DTX_OPT_REAL, "0.5", "0.001..60", DTX_OPT_CALL, "length of each measurement"},
    {"least.gemm", DTX_OPT_REAL, "0.85", "0..", DTX_OPT_CALL, "a rank below this share of the median is unfit"},
    {"least.memory", DTX_OPT_REAL, "0.8", "0..", DTX_OPT_CALL, "the same for the memory's triad"},
    {"least.node", DTX_OPT_REAL, "0.5", "0..", DTX_OPT_CALL, "the same for the all-reduce among a node's ranks"},
    {"least.link", DTX_OPT_REAL, "0.5", "0..", DTX_OPT_CALL, "the same for a node's best pair"},
    {"least.disk", DTX_OPT_REAL, "0.1", "0..", DTX_OPT_CALL,
     "below this share of the median a disk is worth a warning"},
    {"most.clock", DTX_OPT_REAL, "1", "0..", DTX_OPT_CALL, "seconds that a node's clock may be off the median"},
    {NULL, 0, NULL, NULL, 0, NULL}};

static const struct dtx_session_command command = {
    .name = "doctor --ranks",
    .usage =
        "usage: mpirun -n RANKS dtx doctor --ranks [CONFIG.yaml] [--KEY VALUE …]\n"
        "       srun --mpi=pmix dtx doctor --ranks …\n\n"
        "Are the nodes of an allocation fit for a run? Takes dtx train's options and is started like it. On every "
        "rank\n"
        "products and memory, on every node the run's folder, the clock, program and libraries, all-reduce on the\n"
        "node and links between nodes in pairs; then three fp32 steps of a small fixed model on the run's mesh,\n"
        "compared with figures in double precision that are part of dtx. What is out of line with the median is "
        "named.\n"
        "Exit code: 0 all nodes are fit (there may be warnings); 1 a node is unfit, or the steps are wrong, or a rank\n"
        "hangs or dies; 78 the configuration is wrong. --bad-nodes says which nodes, also of a hang.\n",
    .options = options,
    .no_model = true,
    .timeout = HANG_SECONDS};

static void read_options(struct dtx_preflight *p, const struct dtx_opt *opt)
{
    p->limits = (struct dtx_preflight_limits){.gemm = dtx_opt_real(opt, "least.gemm"),
                                              .memory = dtx_opt_real(opt, "least.memory"),
                                              .disk = dtx_opt_real(opt, "least.disk"),
                                              .node = dtx_opt_real(opt, "least.node"),
                                              .link = dtx_opt_real(opt, "least.link"),
                                              .clock = dtx_opt_real(opt, "most.clock")};
    p->seconds = dtx_opt_real(opt, "seconds");
    snprintf(p->bad_nodes, sizeof p->bad_nodes, "%s", dtx_opt_text(opt, "bad-nodes"));
}

/* A rank hangs or is dead: on the one that reports, any thread. Nodes of which all would be unfit are not named. */
static void note_hang(void *self, const char *cause)
{
    struct dtx_preflight *p = self;
    (void)cause;
    bool *blamed = calloc((size_t)p->world->size, sizeof *blamed), *bad = calloc((size_t)p->n_nodes, sizeof *bad);
    int n = 0;
    if (blamed && bad) {
        dtx_watch_blamed(p->world, blamed);
        for (int r = 0; r < p->world->size; r++) {
            int node = p->node_of[r];
            n += blamed[r] && !bad[node];
            bad[node] = bad[node] || blamed[r];
        }
        if (n > 0 && n < p->n_nodes && dtx_preflight_write_bad(p, bad) == DTX_OK)
            for (int i = 0; i < p->n_nodes; i++)
                if (bad[i])
                    fprintf(stderr, "dtx: pre-flight: FAILED: unfit: %s\n", p->nodes[i].name);
    }
    free(blamed);
    free(bad);
}

/* Products and memory of all ranks at once, as training has them; again when one is out of line, and the better counts:
 * a machine may have been busy for a moment. */
static enum dtx_status measure_speeds(struct dtx_preflight *p)
{
    struct dtx_host host;
    double *v = p->mine.value;
    dtx_host_read("", &host);
    for (int pass = 0; pass < 2; pass++) {
        double gemm = NAN, memory = NAN;
        DTX_TRY(p->ctx, dtx_comm_barrier(p->world));
        dtx_preflight_note(p, dtx_peak_measure(p->ctx, p->backend, DTX_F32, p->seconds, &gemm));
        dtx_preflight_note(
            p, dtx_measure_triad(p->ctx, p->backend->threads, host.memory_allowed_bytes, p->seconds / 2, &memory));
        if (DTX_MUTANT(doctor_slow_rank) && p->world->rank == 1)
            gemm /= 50;
        v[DTX_PREFLIGHT_GEMM] = fmax(v[DTX_PREFLIGHT_GEMM], gemm);
        v[DTX_PREFLIGHT_MEMORY] = fmax(v[DTX_PREFLIGHT_MEMORY], memory);
        DTX_TRY(p->ctx, dtx_preflight_gather(p));
        if (!dtx_preflight_slow(p))
            break;
    }
    return DTX_OK;
}

static enum dtx_status measure_disks(struct dtx_preflight *p)
{
    struct dtx_disk_speed disk = {NAN, NAN, NAN};
    if (p->local == 0 && p->mine.sees_folder)
        dtx_preflight_note(p, dtx_measure_disk(p->ctx, p->folder, p->seconds, &disk));
    p->mine.value[DTX_PREFLIGHT_WRITE] = disk.write_bytes;
    p->mine.value[DTX_PREFLIGHT_READ] = disk.read_bytes;
    p->mine.value[DTX_PREFLIGHT_SYNC] = disk.sync;
    return dtx_preflight_gather(p);
}

static enum dtx_status take_steps(struct dtx_preflight *p, const struct dtx_engine_config *run)
{
    void *memory;
    p->model = dtx_selfcheck_choose(run, p->steps_left_out, sizeof p->steps_left_out);
    p->steps_compared = p->model != NULL;
    if (!p->steps_compared)
        return DTX_OK;
    enum dtx_status status = dtx_mem_alloc(p->ctx, p->world->size, sizeof *p->suspect, &memory);
    p->suspect = memory;
    DTX_TRY(p->ctx, dtx_comm_agree(p->world, status));
    return dtx_selfcheck_world(p->world, p->backend, p->model, run, &p->steps, p->suspect);
}

static void say(const struct dtx_preflight *p, const char *what)
{
    if (p->world->rank == 0)
        dtx_log(p->ctx, DTX_LOG_INFO, "pre-flight: %s", what);
}

static enum dtx_status measure(struct dtx_preflight *p, const struct dtx_session *s)
{
    DTX_TRY(p->ctx, dtx_preflight_identify(p));
    enum dtx_status status =
        p->world->rank == 0 ? dtx_preflight_write_bad(p, NULL) : DTX_OK; /* not an earlier call's */
    DTX_TRY(p->ctx, dtx_comm_agree(p->world, status));
    DTX_TRY(p->ctx, dtx_preflight_share_folder(p, dtx_opt_text(s->opt, "folder"), s->run_dir));
    DTX_TRY(p->ctx, dtx_watch_share(p->world, p->folder, note_hang, p));
    say(p, "products and memory");
    DTX_TRY(p->ctx, measure_speeds(p));
    say(p, "disks");
    DTX_TRY(p->ctx, measure_disks(p));
    say(p, "clocks and links");
    DTX_TRY(p->ctx, dtx_preflight_clocks(p));
    DTX_TRY(p->ctx, dtx_preflight_links(p));
    DTX_TRY(p->ctx, dtx_preflight_gather(p));
    say(p, "three steps");
    return take_steps(p, &s->config);
}

/* Rank 0. */
static enum dtx_status report(struct dtx_preflight *p, const struct dtx_opt *opt)
{
    void *memory;
    const char *json = dtx_opt_text(opt, "json");
    int bad_nodes = 0, fatal = 0;
    DTX_TRY(p->ctx, dtx_preflight_judge(p));
    dtx_preflight_show(p, stdout);
    fflush(stdout);
    if (*json)
        DTX_TRY(p->ctx, dtx_preflight_write_json(p, json));
    DTX_TRY(p->ctx, dtx_mem_alloc(p->ctx, p->n_nodes, sizeof(bool), &memory));
    bool *bad = memory;
    for (int n = 0; n < p->n_nodes; n++) {
        bad[n] = dtx_preflight_bad(p, n);
        bad_nodes += bad[n];
    }
    for (int i = 0; i < p->n_problems; i++)
        fatal += p->problems[i].fatal;
    enum dtx_status status = dtx_preflight_write_bad(p, bad);
    dtx_mem_free(bad);
    if (status == DTX_OK && fatal)
        status = dtx_fail(p->ctx, DTX_E_NUMERIC, "pre-flight: %d of %d nodes unfit, %d faults (the table above)",
                          bad_nodes, p->n_nodes, fatal);
    return status;
}

/* Rank 0 removes the folder, before any rank can exit: a launcher ends the others when one exits with an error. */
static void remove_folder(struct dtx_preflight *p)
{
    if (p->folder[0] && p->ctx->rank == 0 && rmdir(p->folder) != 0)
        dtx_log(p->ctx, DTX_LOG_WARN, "%s is left: %s", p->folder, strerror(errno));
    p->folder[0] = '\0';
}

static enum dtx_status examine(struct dtx_preflight *p, const struct dtx_session *s)
{
    read_options(p, s->opt);
    enum dtx_status status = measure(p, s);
    dtx_preflight_empty_folder(p);
    DTX_TRY(p->ctx, status);
    p->took = dtx_clock_now() - p->begin;
    status = dtx_comm_agree(p->world, p->world->rank == 0 ? report(p, s->opt) : DTX_OK);
    dtx_comm_free(p->node_ranks);
    dtx_watch_stop(p->world); /* all have come to the end */
    remove_folder(p);
    return status;
}

enum dtx_status dtx_preflight(struct dtx_ctx *ctx, int argc, char **argv)
{
    struct dtx_session session;
    void *memory;
    bool done;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_preflight), &memory));
    struct dtx_preflight *p = memory;
    p->begin = dtx_clock_now();
    enum dtx_status status = dtx_session_open(ctx, &command, argc, argv, &session, &done);
    p->ctx = ctx;
    p->world = session.world;
    p->backend = session.backend;
    if (status == DTX_OK && !done)
        status = examine(p, &session);
    status = dtx_session_close(&session, status);
    remove_folder(p);
    dtx_preflight_free(p);
    return status;
}
