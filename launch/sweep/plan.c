/* `dtx sweep plan`: a spec's table of trials, and what it will cost. */
#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checkpoints/disk.h"
#include "data/stream.h"
#include "kernels/base/mem.h"
#include "kernels/base/meter.h"
#include "kernels/base/mutant.h"
#include "launch/plan/machine.h"
#include "launch/sweep/commands.h"
#include "launch/sweep/needs.h"
#include "launch/sweep/table.h"
#include "trainer/session.h"

extern char **environ;

enum { SHOWN_ROWS = 60 };

static const struct dtx_opt_row own_options[] = {
    {"dir", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "folder of the sweep; default: the spec's name"},
    {"machine", DTX_OPT_TEXT, "cpu", NULL, DTX_OPT_CALL,
     "for the hours: a100, h100, h200, b200, cpu (this one) or a YAML file"},
    {"efficiency", DTX_OPT_REAL, "0", "0..1", DTX_OPT_CALL,
     "share of the peak that training reaches; 0: the machine's"},
    {"devices", DTX_OPT_INT, "0", "0..1000000", DTX_OPT_CALL, "for the hours: devices at work; 0: one node's"},
    {"extend", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "add what is new to the table that is there"},
    {"dry-run", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "write nothing"},
    {"json", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print the totals as JSON"},
    {"help", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print this"},
    {NULL, 0, NULL, NULL, 0, NULL},
};

static const char usage[] =
    "usage: dtx sweep plan SPEC.yaml|NAME [--dir SWEEP] [--machine NAME|FILE.yaml] [--sweep.KEY VALUE …] [--KEY VALUE "
    "…]\n\n"
    "Makes SWEEP/plan.jsonl, a row a trial, and SWEEP/configs/, and says what all of it costs before anything runs.\n"
    "SPEC.yaml holds what is varied (the group sweep) and options of dtx train that all trials share; NAME is one "
    "that\n"
    "is shipped. The same spec gives the same table; it never changes but by rows that --extend adds behind it.\n\n";

struct totals {
    double flops, tokens, disk, memory; /* own steps, exact FLOPs; memory: the largest trial's */
    int stems, points;
    double seconds; /* of one device */
    struct dtx_machine machine;
    double rate; /* FLOP/s of a device that training reaches */
    int64_t devices;
};

/* The spec's file: a path, or the name of a shipped one, beside which a sweep's folder may have the same name. */
static void spec_path(const char *word, char path[DTX_SWEEP_PATH])
{
    snprintf(path, DTX_SWEEP_PATH, "%s", word);
    if (!strchr(word, '/') && (access(word, F_OK) != 0 || dtx_disk_is_folder(word)))
        snprintf(path, DTX_SWEEP_PATH, "%s/%s.yaml", DTX_SWEEPS, word);
    if (access(path, F_OK) != 0)
        snprintf(path, DTX_SWEEP_PATH, "%s", word);
}

/* "grid" of "specs/grid.yaml". */
static void base_name(const char *path, char out[DTX_SWEEP_NAME])
{
    const char *slash = strrchr(path, '/'), *begin = slash ? slash + 1 : path;
    size_t length = strlen(begin);
    if (length > 5 && strcmp(begin + length - 5, ".yaml") == 0)
        length -= 5;
    snprintf(out, DTX_SWEEP_NAME, "%.*s", (int)length, begin);
}

static enum dtx_status load_spec(struct dtx_ctx *ctx, int argc, char **argv, struct dtx_sweep_spec *spec,
                                 struct dtx_sweep *sweep, bool *help)
{
    const struct dtx_opt_row *const tables[] = {own_options, dtx_sweep_options, dtx_train_options};
    const char *word = NULL;
    char path[DTX_SWEEP_PATH];
    int n_words = 0;
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, 3, &spec->opt));
    DTX_TRY(ctx, dtx_opt_load_args(ctx, spec->opt, argc, argv, &word, 1, &n_words));
    *help = dtx_opt_bool(spec->opt, "help");
    if (*help)
        return DTX_OK;
    if (n_words == 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "which spec? dtx sweep plan SPEC.yaml (or laptop, figure3: those shipped)");
    spec_path(word, path);
    if (access(path, F_OK) != 0 && !strpbrk(word, "/."))
        return dtx_fail(ctx, DTX_E_CONFIG,
                        "there is no spec '%s' here, nor a shipped one of that name (laptop, figure3)", word);
    DTX_TRY(ctx, dtx_opt_load_env(ctx, spec->opt, environ));
    DTX_TRY(ctx, dtx_opt_load_file(ctx, spec->opt, path, DTX_OPT_FILE));
    dtx_sweep_spec_refuse(spec->opt);
    DTX_TRY(ctx, dtx_session_load_preset(ctx, spec->opt));
    base_name(path, sweep->name);
    /* A trial has a core of its own unless the spec says otherwise. */
    if (!dtx_opt_is_given(spec->opt, "cpu.threads"))
        dtx_opt_set(spec->opt, "cpu.threads", "1", DTX_OPT_DEFAULT, "sweep");
    const char *transfer = dtx_sweep_rule_find(dtx_opt_text(spec->opt, "sweep.lr_rule"))->transfer;
    if (transfer)
        dtx_opt_set(spec->opt, "model.transfer", transfer, DTX_OPT_FLAG, "sweep.lr_rule");
    DTX_TRY(ctx, dtx_opt_dump(ctx, spec->opt, &spec->base));
    dtx_sweep_spec_read(spec);
    if (!*dtx_opt_text(spec->opt, "data.train") && !dtx_opt_bool(spec->opt, "dry-run"))
        dtx_opt_fault(spec->opt, "data.train is not set: the token files of all trials (only --dry-run goes without)");
    return dtx_opt_check(ctx, spec->opt);
}

static enum dtx_status name_folder(struct dtx_ctx *ctx, const struct dtx_opt *opt, struct dtx_sweep *sweep)
{
    const char *dir = dtx_opt_text(opt, "dir");
    char cwd[PATH_MAX];
    if (*dir == '\0')
        dir = sweep->name;
    if (!getcwd(cwd, sizeof cwd))
        return dtx_fail(ctx, DTX_E_IO, "cannot read the working directory: %s", strerror(errno));
    if (snprintf(sweep->folder, sizeof sweep->folder, "%s", cwd) >= (int)sizeof sweep->folder ||
        snprintf(sweep->dir, sizeof sweep->dir, "%s%s%s", *dir == '/' ? "" : cwd, *dir == '/' ? "" : "/", dir) >=
            (int)sizeof sweep->dir)
        return dtx_fail(ctx, DTX_E_CONFIG, "dir: %s is too long a path", dir);
    for (size_t end = strlen(sweep->dir); end > 1 && sweep->dir[end - 1] == '/'; end--)
        sweep->dir[end - 1] = '\0';
    return DTX_OK;
}

static enum dtx_status add_up(struct dtx_ctx *ctx, const struct dtx_opt *opt, const struct dtx_sweep *sweep,
                              struct totals *out)
{
    struct dtx_sweep_counter counter;
    enum dtx_dtype dtype = DTX_F32;
    dtx_dtype_parse(sweep->dtype, &dtype);
    *out = (struct totals){0};
    DTX_TRY(ctx, dtx_sweep_counter_open(ctx, &counter));
    enum dtx_status status =
        dtx_machine_find(ctx, dtx_opt_text(opt, "machine"), INT32_MAX, dtype, counter.backend, &out->machine);
    for (int i = 0; i < sweep->trials.n && status == DTX_OK; i++) {
        const struct dtx_sweep_trial *t = &sweep->trials.item[i];
        struct dtx_sweep_needs needs;
        status = dtx_sweep_needs(ctx, sweep, i, &counter, &needs);
        out->flops += DTX_MUTANT(sweep_total_counts_stems_twice) ? t->flops[DTX_SWEEP_EXACT] : dtx_sweep_cost(t);
        out->tokens += (double)((dtx_sweep_last_step(t) - t->start_step) * t->batch * t->length);
        out->disk += needs.disk_bytes;
        out->memory = needs.memory_bytes > out->memory ? needs.memory_bytes : out->memory;
        out->stems += t->stem;
        out->points += !t->stem;
    }
    dtx_sweep_counter_close(&counter);
    double efficiency = dtx_opt_real(opt, "efficiency");
    out->devices = dtx_opt_int(opt, "devices") ? dtx_opt_int(opt, "devices") : out->machine.devices_per_node;
    out->rate = dtx_machine_flops(&out->machine, dtype) * (efficiency > 0 ? efficiency : out->machine.efficiency);
    out->seconds = out->flops / out->rate;
    return status;
}

static void print_rows(const struct dtx_sweep *sweep)
{
    int width = 5, n = sweep->trials.n;
    for (int i = 0; i < n; i++)
        width = (int)strlen(sweep->trials.item[i].label) > width ? (int)strlen(sweep->trials.item[i].label) : width;
    printf("%5s  %-*s  %8s  %8s  %9s  %6s  %9s  %6s  %7s  %s\n", "trial", width, "label", "n_total", "d", "flops",
           "d/n", "lr", "batch", "steps", "starts");
    for (int i = 0; i < n && i < SHOWN_ROWS; i++) {
        const struct dtx_sweep_trial *t = &sweep->trials.item[i];
        char weights[16], tokens[16], start[64] = "new";
        dtx_format_count((double)t->n[DTX_SWEEP_TOTAL], weights);
        dtx_format_count((double)t->tokens, tokens);
        if (t->start >= 0)
            snprintf(start, sizeof start, "from %d at %lld", t->start + 1, (long long)t->start_step);
        printf("%5d  %-*s  %8s  %8s  %9.3g  %6.3g  %9.3g  %6lld  %7lld  %s\n", i + 1, width, t->label, weights, tokens,
               t->flops[DTX_SWEEP_EXACT], (double)t->tokens / (double)t->n[DTX_SWEEP_TOTAL], t->lr, (long long)t->batch,
               (long long)dtx_sweep_last_step(t), start);
    }
    if (n > SHOWN_ROWS)
        printf("       … %d more in plan.jsonl\n", n - SHOWN_ROWS);
}

static void print_totals(const struct dtx_sweep *sweep, const struct totals *t)
{
    char tokens[16], rate[16], disk[16], memory[16], alone[16], together[16];
    dtx_format_count(t->tokens, tokens);
    dtx_format_count(t->rate, rate);
    dtx_format_count(t->disk, disk);
    dtx_format_count(t->memory, memory);
    dtx_format_duration(t->seconds, alone);
    dtx_format_duration(t->seconds / (double)t->devices, together);
    printf("\n%d trials", sweep->trials.n);
    if (t->stems)
        printf(", of which %d are stable parts that others start from", t->stems);
    printf("\nFLOPs    %.4g (3 x forward, causal attention as computed), %s tokens\n", t->flops, tokens);
    printf("hours    %.3g device-hours (%s) on %s at %sFLOP/s; %s on %lld of them\n", t->seconds / 3600, alone,
           t->machine.name, rate, together, (long long)t->devices);
    printf("disk     %sB of checkpoints when all is done\n", disk);
    printf("memory   %sB for the largest trial (%d rank%s)\n", memory, sweep->ranks, sweep->ranks == 1 ? "" : "s");
}

static void print_json(const struct dtx_sweep *sweep, const struct totals *t, const struct dtx_sweep_change *change)
{
    json_t *line =
        json_pack("{s:s, s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:I, s:s, s:f, s:f, s:f, s:i, s:i, s:i}", "dir", sweep->dir,
                  "name", sweep->name, "trials", sweep->trials.n, "stems", t->stems, "ranks", sweep->ranks, "flops",
                  t->flops, "tokens", t->tokens, "device_hours", t->seconds / 3600, "devices", (json_int_t)t->devices,
                  "machine", t->machine.name, "device_flops_per_s", t->rate, "disk_bytes", t->disk, "memory_bytes",
                  t->memory, "kept", change->kept, "added", change->added, "missing", change->missing);
    json_dumpf(line, stdout, JSON_COMPACT);
    printf("\n");
    json_decref(line);
}

/* Tokens that are read twice are no new ones to a law. The data may be on another machine. */
static void warn_of_epochs(struct dtx_ctx *ctx, const struct dtx_opt *opt, const struct dtx_sweep *sweep)
{
    struct dtx_stream_config config = {.paths = dtx_opt_text(opt, "data.train"),
                                       .length = dtx_opt_int(opt, "train.length"),
                                       .heldout = dtx_opt_real(opt, "data.heldout"),
                                       .vocab = dtx_opt_int(opt, "model.vocab"),
                                       .separator = (int32_t)dtx_opt_int(opt, "data.separator"),
                                       .doc_reset = dtx_opt_bool(opt, "data.doc_reset"),
                                       .type = dtx_opt_text(opt, "data.type")};
    struct dtx_stream *stream;
    int64_t most = 0;
    char wanted[16], there[16];
    if (!*config.paths)
        return;
    if (dtx_stream_open(ctx, &config, &stream) != DTX_OK) {
        dtx_log(ctx, DTX_LOG_WARN, "data.train cannot be looked at here: %s", ctx->error.text);
        dtx_error_clear(ctx);
        return;
    }
    for (int i = 0; i < sweep->trials.n; i++)
        most = dtx_max64(most, sweep->trials.item[i].tokens);
    int64_t tokens = dtx_stream_tokens(stream);
    dtx_stream_close(stream);
    dtx_format_count((double)most, wanted);
    dtx_format_count((double)tokens, there);
    if (most > tokens)
        dtx_log(ctx, DTX_LOG_WARN,
                "data.train has %s training tokens; the longest trial takes %s, so %.1f times all of them", there,
                wanted, (double)most / (double)tokens);
}

/* Everything is counted before anything is written. */
static enum dtx_status show_and_write(struct dtx_ctx *ctx, struct dtx_sweep_spec *spec, struct dtx_sweep *sweep)
{
    const struct dtx_opt *opt = spec->opt;
    struct dtx_sweep_change change;
    struct totals totals;
    bool json = dtx_opt_bool(opt, "json");
    DTX_TRY(ctx, dtx_sweep_compare(ctx, sweep, dtx_opt_bool(opt, "extend"), &change));
    DTX_TRY(ctx, add_up(ctx, opt, sweep, &totals));
    warn_of_epochs(ctx, opt, sweep);
    bool same = change.there && !change.added && !change.missing, write = !dtx_opt_bool(opt, "dry-run") && !same;
    if (write)
        DTX_TRY(ctx, dtx_sweep_write(ctx, sweep, spec->base));
    if (json) {
        print_json(sweep, &totals, &change);
        return DTX_OK;
    }
    print_rows(sweep);
    print_totals(sweep, &totals);
    if (same)
        printf("%s holds this very table\n", sweep->dir);
    else if (!write)
        printf("nothing was written\n");
    else
        printf("wrote %s/plan.jsonl%s: next, dtx sweep run %s\n", sweep->dir, change.there ? ", extended" : "",
               sweep->dir);
    return DTX_OK;
}

static enum dtx_status make(struct dtx_ctx *ctx, struct dtx_sweep_spec *spec, struct dtx_sweep *sweep)
{
    int lock = -1;
    DTX_TRY(ctx, name_folder(ctx, spec->opt, sweep));
    sweep->ranks = spec->ranks;
    snprintf(sweep->dtype, sizeof sweep->dtype, "%s", dtx_opt_text(spec->opt, "train.dtype"));
    DTX_TRY(ctx, dtx_sweep_expand(ctx, spec, &sweep->trials));
    DTX_TRY(ctx, dtx_opt_check(ctx, spec->opt));
    if (sweep->trials.n == 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "the spec has no trials");
    if (!dtx_opt_bool(spec->opt, "dry-run")) {
        DTX_TRY(ctx, dtx_disk_make_folders(ctx, sweep->dir));
        DTX_TRY(ctx, dtx_disk_lock(ctx, "dir", sweep->dir, &lock));
    }
    enum dtx_status status = show_and_write(ctx, spec, sweep);
    if (lock >= 0)
        close(lock);
    return status;
}

enum dtx_status dtx_sweep_plan(struct dtx_ctx *ctx, int argc, char **argv)
{
    struct dtx_sweep sweep = {0};
    void *memory;
    bool help = false;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_sweep_spec), &memory));
    struct dtx_sweep_spec *spec = memory;
    enum dtx_status status = load_spec(ctx, argc, argv, spec, &sweep, &help);
    if (help) {
        printf("%s", usage);
        dtx_opt_help(spec->opt, stdout);
    } else if (status == DTX_OK) {
        status = make(ctx, spec, &sweep);
    }
    dtx_sweep_spec_free(spec);
    dtx_mem_free(memory);
    dtx_sweep_free(&sweep);
    return status;
}
