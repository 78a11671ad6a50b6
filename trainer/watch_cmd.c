/* `dtx watch`: where the ranks of a run are, from outside: of one that runs, hangs, or has died. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/base/command.h"
#include "kernels/base/mem.h"
#include "kernels/base/opt.h"
#include "parallel/watch_view.h"
#include "trainer/run_status.h"

extern const struct dtx_command dtx_command_watch;

static const struct dtx_opt_row rows[] = {
    {"unreported", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FREE, "print nothing when a rank has already reported"},
    {"help", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FREE, "print this"},
    {NULL, DTX_OPT_INT, NULL, NULL, DTX_OPT_FREE, NULL}};

static const char usage[] =
    "usage: dtx watch RUN [--unreported]\n\n"
    "Where every rank of a run is: who is dead, stopped or missing, who disagrees, and the collective that each rank\n"
    "waits in or has ended last. Reads the ledgers that ranks leave on their nodes, and of other nodes the copies in\n"
    "RUN/watch: after a death run it on the node of the dead rank. Exit code 1 when a rank is dead or stopped.\n";

/* Has a rank of this launch printed the table? Prints it once more to `out` (may be NULL). */
static bool reported(const struct dtx_watch_place *place, FILE *out)
{
    char path[DTX_WATCH_PATH + 32], line[1024], launch[40];
    bool found = false, any = false;
    snprintf(path, sizeof path, "%s/watch/report.txt", place->run);
    snprintf(launch, sizeof launch, "launch %016" PRIx64, place->token);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        bool heading = strstr(line, ", launch ") != NULL, ours = strstr(line, launch) != NULL;
        if (out && ours)
            printf("Reported %.19s, before all were gone (%s):\n", line, path);
        found = heading ? ours : found;
        if (out && found && !heading && line[0] != '\n')
            fputs(line, out);
        any = any || ours;
    }
    if (file)
        fclose(file);
    return any;
}

/* Counts what this host can see of the ranks, and says it in a line. */
static bool summarize(const struct dtx_watch_view *view)
{
    int runs = 0, dead = 0, stopped = 0, elsewhere = 0, lost = 0;
    for (int r = 0; r < view->size; r++) {
        const struct dtx_watch_seat *seat = &view->seats[r];
        runs += seat->here && seat->process == 'R';
        dead += seat->process == 'X';
        stopped += seat->process == 'T';
        elsewhere += !seat->here;
        lost += !seat->ledger;
    }
    printf("%d ranks: ", view->size);
    if (dead == view->size)
        printf("all are gone");
    else
        printf("%d run here, %d dead, %d stopped", runs, dead, stopped);
    if (elsewhere)
        printf(", %d on other hosts", elsewhere);
    if (lost)
        printf("; no ledger of %d (it lies on the rank's own node)", lost);
    printf("\n");
    return dead + stopped > 0;
}

static enum dtx_status watch(struct dtx_ctx *ctx, const char *run, bool unreported)
{
    struct stat info;
    char state[64] = "unknown", step[32] = "?", steps[32] = "?";
    if (stat(run, &info) != 0 || !S_ISDIR(info.st_mode))
        return dtx_fail(ctx, DTX_E_CONFIG, "%s: is no folder of a run", run);
    bool known = dtx_run_status_read(run, "state", state, sizeof state);
    dtx_run_status_read(run, "step", step, sizeof step);
    dtx_run_status_read(run, "steps", steps, sizeof steps);
    struct dtx_watch_place place;
    if (dtx_watch_place_read(ctx, run, &place) != DTX_OK) {
        if (ctx->error.status != DTX_E_IO)
            return ctx->error.status;
        dtx_error_clear(ctx);
        if (!known)
            return dtx_fail(ctx, DTX_E_CONFIG, "%s: is no folder of a run: it has no status", run);
        printf("%s: %s at step %s of %s; no ranks are watched\n", run, state, step, steps);
        return DTX_OK;
    }
    enum dtx_status status = DTX_OK;
    struct dtx_watch_view view;
    if (!unreported || !reported(&place, NULL)) {
        status = dtx_watch_view_make(ctx, &place, ctx->host, NULL, &view);
        if (status == DTX_OK) {
            printf("%s: %s at step %s of %s; ", run, state, step, steps);
            bool bad = summarize(&view);
            if (!bad || !reported(&place, stdout))
                dtx_watch_view_print(ctx, &view, stdout);
            dtx_watch_view_free(&view);
            if (bad)
                status = DTX_E_PEER;
        }
    }
    dtx_mem_free(place.ranks);
    return status;
}

static enum dtx_status run_command(struct dtx_ctx *ctx, int argc, char **argv)
{
    const struct dtx_opt_row *const tables[] = {rows};
    struct dtx_opt *opt;
    const char *run = NULL;
    int n = 0;
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, 1, &opt));
    enum dtx_status status = dtx_opt_load_args(ctx, opt, argc, argv, &run, 1, &n);
    if (status == DTX_OK && dtx_opt_bool(opt, "help")) {
        printf("%s\n", usage);
        dtx_opt_help(opt, stdout);
    } else if (status == DTX_OK) {
        if (n == 0)
            dtx_opt_fault(opt, "which run? dtx watch RUN");
        status = dtx_opt_check(ctx, opt);
        if (status == DTX_OK)
            status = watch(ctx, run, dtx_opt_bool(opt, "unreported"));
    }
    dtx_opt_free(opt);
    return status;
}

const struct dtx_command dtx_command_watch = {"watch", "where the ranks of a run are: who hangs, who is dead",
                                              run_command};
