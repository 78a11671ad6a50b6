/* `dtx submit`: a batch script beside the run, with a mesh that fits, given to Slurm. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/command.h"
#include "kernels/base/mutant.h"
#include "launch/plan/plan.h"
#include "launch/submit/script.h"
#include "trainer/session.h"

extern const struct dtx_command dtx_command_submit;
extern char **environ;

/* The command's own; everything else goes to dtx train. */
static const struct dtx_opt_row own_options[] = {
    {"nodes", DTX_OPT_TEXT, "1", NULL, DTX_OPT_CALL,
     "nodes; MIN-MAX: an attempt that has fewer than MAX is given another mesh"},
    {"gpus-per-node", DTX_OPT_INT, "0", "0..1024", DTX_OPT_CALL, "GPUs of a node, one rank each; 0: none"},
    {"tasks-per-node", DTX_OPT_INT, "0", "0..4096", DTX_OPT_CALL, "ranks of a node; 0: one per GPU, or one"},
    {"cpus-per-task", DTX_OPT_INT, "0", "0..4096", DTX_OPT_CALL,
     "cores, so threads, of a rank; 0: the cluster's default"},
    {"time", DTX_OPT_TEXT, "24:00:00", NULL, DTX_OPT_CALL,
     "limit of one attempt, as sbatch takes it; the run goes on after it"},
    {"partition", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "partition"},
    {"account", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "account"},
    {"array", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL,
     "1-8: as many runs, each in RUN/<number> with that train.seed; 1-8%2: two at a time"},
    {"job-name", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "name of the job; default: the run folder's"},
    {"sbatch", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "further options of sbatch: \"qos=long mem=0\""},
    {"preflight", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "check all nodes before each attempt, exclude bad ones"},
    {"modules", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "modules to load: \"openmpi hdf5\""},
    {"container", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "what dtx runs in: \"apptainer exec --nv dtx.sif\""},
    {"launcher", DTX_OPT_CHOICE, "srun", "srun|mpirun", DTX_OPT_CALL, "what starts the ranks in the job"},
    {"machine", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL,
     "for the planner: a100, h100, …, cpu or a YAML file; default: h100 or cpu"},
    {"efficiency", DTX_OPT_REAL, "0", "0..1", DTX_OPT_CALL, "for the planner: share of the peak; 0: the machine's"},
    {"dry-run", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print the script, write and submit nothing"},
    {"help", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print this"},
    {NULL, 0, NULL, NULL, 0, NULL},
};
static const struct dtx_opt_row passed_options[] = {
    {"preset", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "a shipped configuration by name (bench-124m, …) or a path"},
    {"init", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "checkpoint whose weights begin a new run"},
    {NULL, 0, NULL, NULL, 0, NULL},
};

static const char usage[] =
    "usage: dtx submit [CONFIG.yaml] [--preset NAME] --run.dir RUN [--nodes N] [--gpus-per-node G] [--time LIMIT] …\n\n"
    "Writes RUN/train.sbatch, a script to read and edit that trains until the run is done, with the fastest mesh that\n"
    "fits the nodes, and submits it. All other options are those of dtx train. Later attempts: sbatch "
    "RUN/train.sbatch.\n\n";

struct submission {
    struct dtx_ctx *ctx;
    struct dtx_plan plan;
    struct dtx_opt *opt;
    int argc;
    char **argv;
    int nodes, fewest;
    int gpus, tasks, cpus; /* of a node, of a node, of a rank (0: not said) */
    char run[PATH_MAX], cwd[PATH_MAX], path[PATH_MAX + 16];
    struct dtx_script script;
};

static enum dtx_status read_options(struct submission *s, bool everything, struct dtx_opt **out)
{
    const struct dtx_opt_row *const tables[] = {own_options, passed_options, dtx_train_options};
    const char *word = NULL;
    int n_words = 0;
    struct dtx_opt *opt;
    DTX_TRY(s->ctx, dtx_opt_create(s->ctx, tables, 3, &opt));
    *out = opt; /* freed by the caller */
    DTX_TRY(s->ctx, dtx_opt_load_args(s->ctx, opt, s->argc, s->argv, &word, 1, &n_words));
    DTX_TRY(s->ctx, dtx_opt_load_env(s->ctx, opt, environ));
    if (everything && n_words)
        DTX_TRY(s->ctx, dtx_opt_load_file(s->ctx, opt, word, DTX_OPT_FILE));
    if (everything)
        DTX_TRY(s->ctx, dtx_session_load_preset(s->ctx, opt));
    if (*dtx_opt_text(opt, "machine") == '\0')
        dtx_opt_set(opt, "machine", dtx_opt_int(opt, "gpus-per-node") ? "h100" : "cpu", DTX_OPT_DEFAULT, "submit");
    return DTX_OK;
}

static const struct dtx_opt_row *own_row(const char *word)
{
    size_t length = strcspn(word, "=");
    for (const struct dtx_opt_row *row = own_options; strncmp(word, "--", 2) == 0 && row->key; row++)
        if (strlen(row->key) + 2 == length && strncmp(row->key, word + 2, length - 2) == 0)
            return row;
    return NULL;
}

/* The words of the command line that dtx train gets: all but the command's own and run.dir, which the script states. */
static void pass_on(struct submission *s)
{
    dtx_script_set(&s->script, "options=(");
    for (int i = 0; i < s->argc; i++) {
        const struct dtx_opt_row *row = own_row(s->argv[i]);
        bool run = strncmp(s->argv[i], "--run.dir", 9) == 0;
        if (!row && !run)
            dtx_script_word(&s->script, s->argv[i]);
        else if (!strchr(s->argv[i], '=') && !(row && row->type == DTX_OPT_BOOL))
            i++;
    }
    dtx_script_close_list(&s->script);
}

static void add_word(void *self, const char *text)
{
    dtx_script_word(self, text);
}

static void pass_mesh(struct submission *s)
{
    dtx_script_set(&s->script, "mesh=(");
    dtx_plan_flags(&s->plan.row[0], add_word, &s->script);
    dtx_script_close_list(&s->script);
}

static void set_list(struct submission *s, const char *line, const char *words)
{
    char text[1024], *rest = text;
    dtx_script_set(&s->script, "%s(", line);
    snprintf(text, sizeof text, "%s", words);
    for (char *word; (word = strsep(&rest, " "));)
        if (*word)
            dtx_script_word(&s->script, word);
    dtx_script_close_list(&s->script);
}

static void set_word(struct submission *s, const char *line, const char *value)
{
    dtx_script_set(&s->script, "%s", line);
    dtx_script_word(&s->script, value);
}

/* Nodes and what is needed of each. Elastic jobs ask for cores: with --ntasks-per-node one that Slurm requeues never
 * starts on fewer nodes again (launch/slurm/README.md). */
static void ask_nodes(struct submission *s)
{
    struct dtx_script *script = &s->script;
    char word[PATH_MAX + 16];
    if (s->fewest < s->nodes && !DTX_MUTANT(submit_elastic_asks_tasks)) {
        dtx_script_set(script, "#SBATCH --nodes=%d-%d", s->fewest, s->nodes);
        dtx_script_set(script, "#SBATCH --ntasks-per-node=");
        dtx_script_set(script, "#SBATCH --mincpus=%d", s->tasks * (s->cpus ? s->cpus : 1));
    } else {
        dtx_script_set(script, "#SBATCH --nodes=%d", s->nodes);
        dtx_script_set(script, "#SBATCH --ntasks-per-node=%d", s->tasks);
    }
    if (s->gpus)
        dtx_script_set(script, "#SBATCH --gpus-per-node=%d", s->gpus);
    if (s->cpus)
        dtx_script_set(script, "#SBATCH --cpus-per-task=%d", s->cpus);
    dtx_script_set(script, "tasks=%d", s->tasks);
    dtx_script_set(script, "nodes=%d", s->nodes);
    dtx_script_set(script, "fewest=%d", s->fewest);
    dtx_script_set(script, "planner=(");
    snprintf(word, sizeof word, "--machine=%s", dtx_opt_text(s->opt, "machine"));
    dtx_script_word(script, word);
    snprintf(word, sizeof word, "--efficiency=%g", dtx_opt_real(s->opt, "efficiency"));
    if (dtx_opt_real(s->opt, "efficiency") > 0)
        dtx_script_word(script, word);
    dtx_script_close_list(script);
}

static void fill_script(struct submission *s)
{
    struct dtx_script *script = &s->script;
    const char *name = dtx_opt_text(s->opt, "job-name"), *slash = strrchr(s->run, '/');
    char dtx[PATH_MAX];
    dtx_script_program(dtx, sizeof dtx);
    /* sbatch reads its lines' values as they are, a blank in a path as \ and blank. */
    dtx_script_set(script, "#SBATCH --job-name=%s", *name ? name : slash + 1);
    ask_nodes(s);
    dtx_script_ask(script, s->opt);
    dtx_script_set(script, "#SBATCH --output=%s/logs/slurm-%%j.log", s->run);
    dtx_script_set(script, "#SBATCH --chdir=%s", s->cwd);
    if (*dtx_opt_text(s->opt, "array"))
        dtx_script_set(script, "#SBATCH --array=%s", dtx_opt_text(s->opt, "array"));
    set_word(s, "dtx=", dtx);
    set_word(s, "run=", s->run);
    pass_on(s);
    pass_mesh(s);
    dtx_script_set(script, "preflight=%s", dtx_opt_bool(s->opt, "preflight") ? "on" : "off");
    dtx_script_set(script, "launcher=%s", dtx_opt_text(s->opt, "launcher"));
    set_list(s, "modules=", dtx_opt_text(s->opt, "modules"));
    set_list(s, "container=", dtx_opt_text(s->opt, "container"));
}

/* RUN and RUN/logs, where Slurm writes before the script begins. */
static enum dtx_status make_folders(struct submission *s)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/logs", s->run);
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p)
            continue;
        char end = *p;
        *p = '\0';
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return dtx_fail(s->ctx, dtx_status_of_path(errno), "run.dir: cannot make %s: %s", path, strerror(errno));
        if (!end)
            return DTX_OK;
        *p = end;
    }
}

/* Never over a script that is there: it may have been edited. */
static enum dtx_status write_script(struct submission *s)
{
    DTX_TRY(s->ctx, make_folders(s));
    FILE *file = fopen(s->path, "wx");
    if (!file && errno == EEXIST)
        return dtx_fail(s->ctx, DTX_E_CONFIG,
                        "%s is there: continue that run with `sbatch %s` (edit it as you like), remove it, or choose "
                        "another run.dir",
                        s->path, s->path);
    if (!file)
        return dtx_fail(s->ctx, dtx_status_of_path(errno), "cannot write %s: %s", s->path, strerror(errno));
    enum dtx_status status = dtx_script_write(&s->script, file);
    if (fclose(file) != 0 && status == DTX_OK)
        status = dtx_fail(s->ctx, DTX_E_IO, "cannot write %s: %s", s->path, strerror(errno));
    if (status != DTX_OK)
        unlink(s->path);
    return status;
}

static enum dtx_status set_run(struct submission *s)
{
    const char *run = dtx_opt_text(s->opt, "run.dir");
    if (!getcwd(s->cwd, sizeof s->cwd))
        return dtx_fail(s->ctx, DTX_E_IO, "cannot read the working directory: %s", strerror(errno));
    if (snprintf(s->run, sizeof s->run, "%s%s%s", *run == '/' ? "" : s->cwd, *run == '/' ? "" : "/", run) >=
        (int)sizeof s->run - 64)
        return dtx_fail(s->ctx, DTX_E_CONFIG, "run.dir: %s is too long", run);
    for (size_t end = strlen(s->run); end > 1 && s->run[end - 1] == '/'; end--)
        s->run[end - 1] = '\0';
    snprintf(s->path, sizeof s->path, "%s/train.sbatch", s->run);
    if (strpbrk(s->run, " \t\n\\%"))
        return dtx_fail(s->ctx, DTX_E_CONFIG, "run.dir: sbatch does not take blanks, \\ and %% in %s", s->run);
    return DTX_OK;
}

/* "4" or "2-4" */
static enum dtx_status set_nodes(struct submission *s)
{
    const char *text = dtx_opt_text(s->opt, "nodes");
    int used = 0, n = sscanf(text, "%d%n-%d%n", &s->fewest, &used, &s->nodes, &used);
    if (n == 1)
        s->nodes = s->fewest;
    if (n < 1 || text[used] || s->fewest < 1 || s->fewest > s->nodes || s->nodes > 1000000)
        return dtx_fail(s->ctx, DTX_E_CONFIG, "nodes: '%s' is neither a number of nodes nor MIN-MAX", text);
    return DTX_OK;
}

/* Is there a mesh for the fewest nodes? Better found out now than at night. */
static enum dtx_status check_fewest(struct submission *s)
{
    struct dtx_plan plan = {.ctx = s->ctx, .held = s->plan.held};
    enum dtx_status status = dtx_plan_open(&plan, s->opt, s->fewest * s->tasks, s->tasks);
    if (status == DTX_OK)
        status = dtx_plan_search(&plan, false);
    if (status == DTX_OK)
        status = dtx_plan_check(&plan);
    plan.held = NULL; /* s->plan's */
    dtx_plan_free(&plan);
    return status;
}

static enum dtx_status submit(struct submission *s)
{
    DTX_TRY(s->ctx, read_options(s, false, &s->plan.held));
    if (dtx_opt_bool(s->plan.held, "help")) {
        printf("%s", usage);
        dtx_opt_help(s->plan.held, stdout);
        return DTX_OK;
    }
    DTX_TRY(s->ctx, read_options(s, true, &s->opt));
    if (*dtx_opt_text(s->opt, "checkpoint.dir"))
        dtx_opt_fault(s->opt, "checkpoint.dir: the script keeps them in RUN/checkpoints; edit it to change that");
    DTX_TRY(s->ctx, dtx_opt_check(s->ctx, s->opt));
    DTX_TRY(s->ctx, set_run(s));
    DTX_TRY(s->ctx, set_nodes(s));
    s->cpus = (int)dtx_opt_int(s->opt, "cpus-per-task");
    s->gpus = (int)dtx_opt_int(s->opt, "gpus-per-node");
    s->tasks = (int)dtx_opt_int(s->opt, "tasks-per-node");
    if (s->tasks == 0)
        s->tasks = s->gpus ? s->gpus : 1;
    DTX_TRY(s->ctx, dtx_plan_open(&s->plan, s->opt, s->nodes * s->tasks, s->tasks));
    DTX_TRY(s->ctx, dtx_plan_search(&s->plan, false));
    DTX_TRY(s->ctx, dtx_plan_check(&s->plan));
    if (s->fewest < s->nodes && !DTX_MUTANT(submit_fewest_unchecked))
        DTX_TRY(s->ctx, check_fewest(s));
    fill_script(s);
    if (dtx_opt_bool(s->opt, "dry-run"))
        return dtx_script_write(&s->script, stdout);
    DTX_TRY(s->ctx, write_script(s));
    dtx_log(s->ctx, DTX_LOG_INFO, "wrote %s", s->path);
    return dtx_script_submit(s->ctx, s->path, "");
}

static enum dtx_status run(struct dtx_ctx *ctx, int argc, char **argv)
{
    static const struct submission empty;
    struct submission *s = malloc(sizeof *s);
    if (!s)
        return dtx_fail(ctx, DTX_E_MEMORY, "submit: no memory");
    *s = empty;
    s->ctx = s->plan.ctx = s->script.ctx = ctx;
    s->script.template = "train.sbatch";
    s->argc = argc;
    s->argv = argv;
    enum dtx_status status = submit(s);
    dtx_plan_free(&s->plan);
    dtx_opt_free(s->opt);
    free(s);
    return status;
}

const struct dtx_command dtx_command_submit = {"submit",
                                               "write a run's batch script with a mesh that fits, and submit it", run};
