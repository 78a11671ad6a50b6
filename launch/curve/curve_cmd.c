/* `dtx curve`: the loss curve of a run, finished or running. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/command.h"
#include "kernels/base/mem.h"
#include "kernels/base/opt.h"
#include "launch/curve/curve.h"

extern const struct dtx_command dtx_command_curve;

static const struct dtx_opt_row rows[] = {
    {"svg", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "write the picture as SVG to this file (needs gnuplot)"},
    {"png", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "write the picture as PNG to this file (needs gnuplot)"},
    {"unigram", DTX_OPT_REAL, "0", "0..", DTX_OPT_FREE,
     "unigram entropy of the held-out tokens in nats, to compare with"},
    {NULL, DTX_OPT_INT, NULL, NULL, DTX_OPT_FREE, NULL}};

/* The finite ones of a series of losses. */
struct series {
    int64_t n, *step; /* [n] */
    double *value;    /* [n] */
    int64_t lowest;   /* index */
};

static enum dtx_status series_make(struct dtx_ctx *ctx, const struct dtx_losses *l, const double *values,
                                   struct series *s)
{
    void *step, *value;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, l->n, sizeof *s->step, &step));
    enum dtx_status status = dtx_mem_alloc(ctx, l->n, sizeof *s->value, &value);
    if (status != DTX_OK) {
        dtx_mem_free(step);
        return status;
    }
    *s = (struct series){0, step, value, 0};
    for (int64_t i = 0; i < l->n; i++) {
        if (!isfinite(values[i]))
            continue;
        s->step[s->n] = l->step[i];
        s->value[s->n] = values[i];
        if (values[i] < s->value[s->lowest])
            s->lowest = s->n;
        s->n++;
    }
    return DTX_OK;
}

static void series_free(struct series *s)
{
    dtx_mem_free(s->step);
    dtx_mem_free(s->value);
}

static void series_print(const struct series *s, const char *name)
{
    char spark[DTX_SPARK_BYTES];
    dtx_sparkline(s->value, s->n, spark);
    printf("%-16s%s\n", name, spark);
    printf("%-16sfirst %.4f (step %lld)  last %.4f (step %lld)  lowest %.4f (step %lld)\n", "", s->value[0],
           (long long)s->step[0], s->value[s->n - 1], (long long)s->step[s->n - 1], s->value[s->lowest],
           (long long)s->step[s->lowest]);
}

static enum dtx_status print_curve(struct dtx_ctx *ctx, const struct dtx_losses *l, double unigram)
{
    struct series train = {0}, heldout = {0};
    DTX_TRY(ctx, series_make(ctx, l, l->loss, &train));
    enum dtx_status status = series_make(ctx, l, l->heldout, &heldout);
    if (train.n > 0)
        series_print(&train, "training loss");
    if (train.n < l->n)
        printf("%-16s%lld of %lld steps have no finite loss\n", "", (long long)(l->n - train.n), (long long)l->n);
    if (status == DTX_OK && heldout.n > 0) {
        series_print(&heldout, "held-out loss");
        double last = heldout.value[heldout.n - 1];
        if (!isnan(unigram))
            printf("%-16s%.4f: the last held-out loss is %.4f nats %s it\n", "unigram entropy", unigram,
                   fabs(unigram - last), last <= unigram ? "below" : "ABOVE");
    }
    series_free(&train);
    series_free(&heldout);
    return status;
}

/* "runs/a" of "runs/a/" and of "runs/a/metrics.jsonl"; a bare file keeps its name. */
static void make_title(const char *path, char *title, size_t capacity)
{
    static const char file[] = "/metrics.jsonl";
    snprintf(title, capacity, "%s", path);
    size_t n = strlen(title), tail = sizeof file - 1;
    if (n > tail && strcmp(title + n - tail, file) == 0)
        title[n -= tail] = '\0';
    while (n > 1 && title[n - 1] == '/')
        title[--n] = '\0';
}

static enum dtx_status show(struct dtx_ctx *ctx, const struct dtx_opt *opt, const char *path)
{
    char title[256];
    struct dtx_losses losses;
    double unigram = dtx_opt_is_set(opt, "unigram") ? dtx_opt_real(opt, "unigram") : NAN;
    DTX_TRY(ctx, dtx_metrics_read_losses(ctx, path, &losses));
    make_title(path, title, sizeof title);
    struct dtx_plot plot = {title, &losses, unigram};
    enum dtx_status status = print_curve(ctx, &losses, unigram);
    fflush(stdout); /* before a message on pictures */
    if (status == DTX_OK && *dtx_opt_text(opt, "svg"))
        status = dtx_plot_write(ctx, &plot, DTX_PLOT_SVG, dtx_opt_text(opt, "svg"));
    if (status == DTX_OK && *dtx_opt_text(opt, "png"))
        status = dtx_plot_write(ctx, &plot, DTX_PLOT_PNG, dtx_opt_text(opt, "png"));
    dtx_losses_free(&losses);
    return status;
}

static enum dtx_status run_curve(struct dtx_ctx *ctx, int argc, char **argv)
{
    const struct dtx_opt_row *const tables[] = {rows};
    struct dtx_opt *opt = NULL;
    const char *word = NULL;
    int n_words = 0;
    bool help = false;
    for (int i = 0; i < argc; i++)
        help = help || strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, 1, &opt));
    if (help) {
        printf("usage: dtx curve RUN|metrics.jsonl [options]\n\nPrints a run's losses as a line of blocks and draws "
               "them.\n\n");
        dtx_opt_help(opt, stdout);
        dtx_opt_free(opt);
        return DTX_OK;
    }
    enum dtx_status status = dtx_opt_load_args(ctx, opt, argc, argv, &word, 1, &n_words);
    if (status == DTX_OK && n_words == 0)
        dtx_opt_fault(opt, "dtx curve needs the folder of a run or its metrics.jsonl");
    if (status == DTX_OK)
        status = dtx_opt_check(ctx, opt);
    if (status == DTX_OK)
        status = show(ctx, opt, word);
    dtx_opt_free(opt);
    return status;
}

const struct dtx_command dtx_command_curve = {"curve", "show a run's loss curve as text, SVG or PNG", run_curve};
