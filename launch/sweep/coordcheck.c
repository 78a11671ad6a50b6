/* `dtx sweep coordcheck`: its options, the shapes, the order of things. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend.h"
#include "kernels/base/host.h"
#include "kernels/base/mem.h"
#include "launch/sweep/commands.h"
#include "launch/sweep/coord.h"
#include "launch/sweep/rules.h"
#include "launch/sweep/spec.h"
#include "trainer/session.h"

extern char **environ;

enum { RULES = 3 };

static const struct dtx_opt_row rows[] = {
    {"rule", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL,
     "rules to check, of none, mup, completep; default: the configuration's, or none,completep"},
    {"widths", DTX_OPT_TEXT, "64,128,256", NULL, DTX_OPT_CALL, "widths, at the least of the depths"},
    {"depths", DTX_OPT_TEXT, "2,4,8", NULL, DTX_OPT_CALL, "layers, at the least of the widths"},
    {"grow", DTX_OPT_CHOICE, "heads", "heads|head_dim", DTX_OPT_CALL, "wider models have more heads, or wider ones"},
    {"steps", DTX_OPT_INT, "4", "1..32", DTX_OPT_CALL, "training steps, all on one batch at lr.peak"},
    {"seeds", DTX_OPT_INT, "3", "1..1000", DTX_OPT_CALL, "models of each shape, with other initial weights"},
    {"bound", DTX_OPT_REAL, "0.2", "0..", DTX_OPT_CALL, "largest slope with which a rule counts as transferring"},
    {"strict", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "fail when a slope of any rule is beyond the bound"},
    {"csv", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "write every number to this file"},
    {"svg", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "write the picture as SVG to this file (needs gnuplot)"},
    {"png", DTX_OPT_TEXT, "", NULL, DTX_OPT_CALL, "write the picture as PNG to this file (needs gnuplot)"},
    {"help", DTX_OPT_BOOL, "false", NULL, DTX_OPT_CALL, "print this"},
    {NULL, DTX_OPT_INT, NULL, NULL, DTX_OPT_FREE, NULL}};

static const char usage[] =
    "usage: dtx sweep coordcheck [CONFIG.yaml|SPEC.yaml] [--preset NAME] [options]\n\n"
    "Trains small models of several widths and depths for a few steps and says how much coordinates of each kind\n"
    "change, as a power of width and depth: 0 where the rule transfers. Heads and ffn grow with the width. The base\n"
    "model of a rule is the configuration's (model.base_*), else the smallest of the shapes. Text is made. Of a SPEC\n"
    "its model counts, and its sweep.lr_rule. One process, fp32.\n\n";

/* Without a configuration: small enough for seconds. The embedding is as large as what blocks add, and λ_init the same
 * in all layers: else models of other depth are not alike from the start, whatever the rule (trainer/transfer.md). */
static const char small_model[] = "model: {layers: 2, width: 64, heads: 2, ffn: 192, vocab: 256, embed_mult: 50, "
                                  "lambda_init: 0.5}\n"
                                  "train: {length: 32, batch: 8}\n"
                                  "lr: {peak: 1e-2}\n";

struct check {
    struct dtx_ctx *ctx;
    struct dtx_opt *opt;
    struct dtx_backend *backend;
    struct dtx_engine_config base; /* the configuration's model */
    int64_t widths[DTX_COORD_SHAPES], depths[DTX_COORD_SHAPES];
    int n_widths, n_depths, n_rules;
    bool wider_heads;
    enum dtx_transfer_rule rules[RULES];
    struct dtx_coord_series series[2 * RULES];
    int n_series;
};

/* "64,128,256": ascending. */
static int read_list(struct dtx_opt *opt, const char *key, int64_t out[DTX_COORD_SHAPES])
{
    const char *text = dtx_opt_text(opt, key);
    int n = 0;
    for (const char *at = text; n < DTX_COORD_SHAPES;) {
        char *end;
        out[n] = strtoll(at, &end, 10);
        if (end == at || out[n] < 1 || (n > 0 && out[n] <= out[n - 1]) || (*end && *end != ','))
            break;
        n++;
        if (!*end)
            return n;
        at = end + 1;
    }
    dtx_opt_fault(opt, "%s: '%s' is not a list of at most %d ascending whole numbers, separated by commas", key, text,
                  DTX_COORD_SHAPES);
    return 0;
}

static void read_rules(struct check *c)
{
    const struct dtx_sweep_rule *spec = dtx_sweep_rule_find(dtx_opt_text(c->opt, "sweep.lr_rule"));
    const char *text = dtx_opt_text(c->opt, "rule"), *own = dtx_opt_text(c->opt, "model.transfer");
    if (spec && spec->transfer)
        own = spec->transfer;
    char copy[64], *rest = copy;
    snprintf(copy, sizeof copy, "%s", *text ? text : strcmp(own, "none") ? own : "none,completep");
    for (char *word; (word = strsep(&rest, ","));) {
        int rule = DTX_TRANSFER_NONE;
        while (rule <= DTX_TRANSFER_COMPLETEP && strcmp(word, dtx_coord_rule_name(rule)) != 0)
            rule++;
        if (rule > DTX_TRANSFER_COMPLETEP || c->n_rules == RULES) {
            dtx_opt_fault(c->opt, "rule: '%s' is none of none, mup, completep, or one too many", word);
            return;
        }
        c->rules[c->n_rules++] = rule;
    }
}

/* The model of that width and depth: as many more heads, or as much wider ones, and ffn columns. */
static bool reshape(const struct check *c, enum dtx_transfer_rule rule, int64_t width, int64_t layers,
                    struct dtx_engine_config *out)
{
    const struct dtx_model_config *m = &c->base.model;
    int64_t base_width = dtx_opt_int(c->opt, "model.base_width"),
            base_layers = dtx_opt_int(c->opt, "model.base_layers"),
            base_head_dim = dtx_opt_int(c->opt, "model.base_head_dim");
    *out = c->base;
    int64_t *const more[] = {&out->model.ffn, &out->model.heads, &out->model.kv_heads};
    int64_t *const wider[] = {&out->model.ffn, &out->model.head_dim};
    for (int i = 0; i < (c->wider_heads ? 2 : 3); i++) {
        int64_t *size = c->wider_heads ? wider[i] : more[i];
        if (*size * width % m->width)
            return false;
        *size = *size * width / m->width;
    }
    struct dtx_transfer *t = &out->model.transfer;
    out->model.width = width;
    out->model.layers = layers;
    t->rule = rule;
    t->width = (double)width / (double)(base_width ? base_width : c->widths[0]);
    t->depth = (double)layers / (double)(base_layers ? base_layers : c->depths[0]);
    t->head_dim = base_head_dim ? (double)out->model.head_dim / (double)base_head_dim : c->wider_heads ? t->width : 1;
    return out->model.head_dim % 2 == 0;
}

/* One rank, fp32, the whole batch at once; rules are set shape by shape. */
static void read_base(struct check *c)
{
    char batch[32];
    snprintf(batch, sizeof batch, "%lld", (long long)dtx_opt_int(c->opt, "train.batch"));
    const char *const settings[][2] = {
        {"model.transfer", "none"},   {"train.dtype", "f32"},  {"train.recompute", "none"},
        {"train.micro_batch", batch}, {"parallel.tp", "1"},    {"parallel.pp", "1"},
        {"parallel.dp", "1"},         {"parallel.cp", "1"},    {"parallel.schedule", "1f1b"},
        {"parallel.chunks", "1"},     {"parallel.layout", ""}, {"cuda.graphs", "false"}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        dtx_opt_set(c->opt, settings[i][0], settings[i][1], DTX_OPT_FLAG, "coordcheck");
    dtx_engine_config_read(c->opt, 1, &c->base);
    struct dtx_engine_config ignored;
    for (int i = 0; i < c->n_widths; i++)
        if (!reshape(c, DTX_TRANSFER_NONE, c->widths[i], 1, &ignored))
            dtx_opt_fault(c->opt,
                          "widths: %lld is not a width to which %lld heads, %lld key/value heads of %lld and ffn %lld "
                          "of width %lld can grow by %s",
                          (long long)c->widths[i], (long long)c->base.model.heads, (long long)c->base.model.kv_heads,
                          (long long)c->base.model.head_dim, (long long)c->base.model.ffn,
                          (long long)c->base.model.width, dtx_opt_text(c->opt, "grow"));
}

static enum dtx_status read_options(struct check *c, int argc, char **argv)
{
    const struct dtx_opt_row *const tables[] = {rows, dtx_sweep_options, dtx_train_options};
    struct dtx_ctx *ctx = c->ctx;
    const char *word = NULL;
    int n_words = 0;
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, 3, &c->opt));
    DTX_TRY(ctx, dtx_opt_load_args(ctx, c->opt, argc, argv, &word, 1, &n_words));
    if (dtx_opt_bool(c->opt, "help"))
        return DTX_OK;
    DTX_TRY(ctx, dtx_opt_load_env(ctx, c->opt, environ));
    if (n_words)
        DTX_TRY(ctx, dtx_opt_load_file(ctx, c->opt, word, DTX_OPT_FILE));
    else if (!*dtx_opt_text(c->opt, "preset"))
        DTX_TRY(ctx, dtx_opt_load_text(ctx, c->opt, small_model, "coordcheck", DTX_OPT_PRESET));
    DTX_TRY(ctx, dtx_session_load_preset(ctx, c->opt));
    c->n_widths = read_list(c->opt, "widths", c->widths);
    c->n_depths = read_list(c->opt, "depths", c->depths);
    c->wider_heads = strcmp(dtx_opt_text(c->opt, "grow"), "head_dim") == 0;
    read_rules(c);
    read_base(c);
    return dtx_opt_check(ctx, c->opt);
}

static enum dtx_status measure(struct check *c, enum dtx_transfer_rule rule, bool by_depth)
{
    int seeds = (int)dtx_opt_int(c->opt, "seeds"), steps = (int)dtx_opt_int(c->opt, "steps");
    struct dtx_coord_series *s = &c->series[c->n_series];
    *s = (struct dtx_coord_series){.rule = rule, .by_depth = by_depth, .n = by_depth ? c->n_depths : c->n_widths};
    for (int i = 0; i < s->n; i++) {
        struct dtx_engine_config config;
        reshape(c, rule, by_depth ? c->widths[0] : c->widths[i], by_depth ? c->depths[i] : c->depths[0], &config);
        DTX_TRY(c->ctx, dtx_coord_measure(c->ctx, &config, c->backend, seeds, steps, dtx_opt_real(c->opt, "lr.peak"),
                                          &s->at[i]));
        dtx_log(c->ctx, DTX_LOG_INFO, "rule %s, width %lld, %lld layers: loss %.4f after %d steps",
                dtx_coord_rule_name(rule), (long long)config.model.width, (long long)config.model.layers,
                s->at[i].loss[steps - 1], steps - 1);
    }
    c->n_series++;
    return DTX_OK;
}

static enum dtx_status write_csv(struct check *c, const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file)
        return dtx_fail(c->ctx, dtx_status_of_path(errno), "%s: cannot create the file: %s", path, strerror(errno));
    dtx_coord_put_csv(file, c->series, c->n_series, (int)dtx_opt_int(c->opt, "steps"));
    bool bad = ferror(file) != 0;
    if (fclose(file) != 0 || bad)
        return dtx_fail(c->ctx, DTX_E_IO, "%s: cannot write: %s", path, strerror(errno));
    return DTX_OK;
}

static enum dtx_status show(struct check *c)
{
    int steps = (int)dtx_opt_int(c->opt, "steps"), beyond = 0;
    const char *csv = dtx_opt_text(c->opt, "csv"), *svg = dtx_opt_text(c->opt, "svg"),
               *png = dtx_opt_text(c->opt, "png");
    for (int i = 0; i < c->n_series; i++)
        beyond += dtx_coord_print(stdout, &c->series[i], steps, dtx_opt_real(c->opt, "bound"));
    fflush(stdout);
    if (*csv)
        DTX_TRY(c->ctx, write_csv(c, csv));
    if (*svg)
        DTX_TRY(c->ctx, dtx_coord_draw(c->ctx, c->series, c->n_series, steps, DTX_PLOT_SVG, svg));
    if (*png)
        DTX_TRY(c->ctx, dtx_coord_draw(c->ctx, c->series, c->n_series, steps, DTX_PLOT_PNG, png));
    if (beyond && dtx_opt_bool(c->opt, "strict"))
        return dtx_fail(c->ctx, DTX_E_NUMERIC, "coordinate check: %d slopes are beyond ±%g", beyond,
                        dtx_opt_real(c->opt, "bound"));
    return DTX_OK;
}

static enum dtx_status run(struct check *c)
{
    struct dtx_host host;
    int isa = dtx_isa_detect(), limit;
    int64_t threads = dtx_opt_int(c->opt, "cpu.threads");
    if (dtx_isa_parse(dtx_opt_text(c->opt, "cpu.isa"), &limit) && limit < isa)
        isa = limit;
    dtx_host_read("", &host);
    dtx_isa_limit_libraries(c->ctx, isa);
    DTX_TRY(c->ctx, dtx_backend_open(c->ctx, dtx_opt_text(c->opt, "device"),
                                     threads > 0 ? (int)threads : dtx_host_threads(&host, 1), isa, &c->backend));
    for (int r = 0; r < c->n_rules; r++) {
        if (c->n_widths > 1)
            DTX_TRY(c->ctx, measure(c, c->rules[r], false));
        if (c->n_depths > 1)
            DTX_TRY(c->ctx, measure(c, c->rules[r], true));
    }
    return show(c);
}

enum dtx_status dtx_sweep_coordcheck(struct dtx_ctx *ctx, int argc, char **argv)
{
    void *memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct check), &memory));
    struct check *c = memory;
    c->ctx = ctx;
    enum dtx_status status = read_options(c, argc, argv);
    if (c->opt && dtx_opt_bool(c->opt, "help")) {
        printf("%s", usage);
        dtx_opt_help(c->opt, stdout);
    } else if (status == DTX_OK) {
        status = run(c);
    }
    dtx_backend_close(c->backend);
    dtx_opt_free(c->opt);
    dtx_mem_free(c);
    return status;
}
