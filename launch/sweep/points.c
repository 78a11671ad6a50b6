#include "launch/sweep/points.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum column {
    COLUMN_N,
    COLUMN_D,
    COLUMN_C,
    COLUMN_LOSS,
    COLUMN_VARIANT,
    COLUMN_SEED,
    COLUMN_RUN,
    COLUMN_STATE,
    COLUMN_DROPPED,
    COLUMNS
};
enum { FAULT_BYTES = 2600, FAULTS_SHOWN = 12, ALIASES = 9, WHERE_CLAUSES = 12 };

/* Usual names, the best first, in lower case and with _ for whatever is no letter or digit. */
static const struct {
    const char *flag, *what, *alias[ALIASES];
} columns[COLUMNS] = {
    {"n", "weights N", {"n", "n_total", "params", "parameters", "n_params", "num_params", "model_size", "weights"}},
    {"d", "tokens D", {"d", "tokens", "t", "n_tokens", "train_tokens", "d_tokens"}},
    {"c", "FLOPs C", {"c", "flops", "training_flop", "training_flops", "train_flops", "compute", "flop"}},
    {"loss", "the loss", {"loss", "final_loss", "heldout_loss", "heldout", "val_loss", "eval_loss", "valid_loss"}},
    {"variant", "the variant", {"variant", "attention"}},
    {"seed", "the seed", {"seed"}},
    {"run", "the run", {"run", "trial", "id", "run_id", "trial_id"}},
    {"state", "the state", {"state", "status"}},
    {"dropped", "what is dropped", {"dropped", "drop", "excluded", "outlier"}}};

/* Reading: where the columns are, and the faults so far. */
struct reading {
    struct dtx_ctx *ctx;
    const struct dtx_points_options *options;
    struct dtx_points *p;
    int column[COLUMNS]; /* -1: not there */
    int64_t n_faults;
    size_t fault_length;
    char faults[FAULT_BYTES];
};

static void fault(struct reading *r, struct dtx_point *point, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Drops the point with this reason, or notes the fault. */
static void fault(struct reading *r, struct dtx_point *point, const char *format, ...)
{
    va_list list;
    char text[DTX_POINTS_REASON];
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (point->dropped[0])
        return;
    snprintf(point->dropped, sizeof point->dropped, "%s", text);
    if (r->options->drop_faults || r->n_faults++ >= FAULTS_SHOWN)
        return;
    size_t room = sizeof r->faults - r->fault_length;
    int n =
        snprintf(r->faults + r->fault_length, room, "\n  %.120s:%lld: %s", r->p->path, (long long)point->line, text);
    r->fault_length += n < (int)room ? (size_t)n : room - 1;
}

static bool same_name(const char *name, const char *alias)
{
    for (; *name && *alias; name++, alias++)
        if ((isalnum((unsigned char)*name) ? tolower((unsigned char)*name) : '_') != *alias)
            return false;
    return !*name && !*alias;
}

static enum dtx_status list_columns(struct reading *r, enum dtx_status status, const char *missing)
{
    char names[1024] = "";
    size_t n = 0;
    for (int i = 0; i < r->p->csv.columns && n + 1 < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s'%.60s'", i ? ", " : "", r->p->csv.header[i]);
    return dtx_fail(r->ctx, status, "%s: %s; its columns are %s", r->p->path, missing, names);
}

static enum dtx_status find_named(struct reading *r, const char *name, int *out)
{
    char text[256];
    for (int i = 0; i < r->p->csv.columns; i++)
        if (strcasecmp(r->p->csv.header[i], name) == 0) {
            *out = i;
            return DTX_OK;
        }
    snprintf(text, sizeof text, "there is no column '%.120s'", name);
    return list_columns(r, DTX_E_CONFIG, text);
}

static int find_usual(const struct reading *r, enum column which)
{
    for (int a = 0; a < ALIASES && columns[which].alias[a]; a++)
        for (int i = 0; i < r->p->csv.columns; i++)
            if (same_name(r->p->csv.header[i], columns[which].alias[a]))
                return i;
    return -1;
}

static enum dtx_status find_columns(struct reading *r)
{
    const struct dtx_points_options *o = r->options;
    const char *const named[COLUMNS] = {o->n, o->d, o->c, o->loss, o->variant, o->seed, o->run, o->state, o->dropped};
    char text[512];
    for (int i = 0; i < COLUMNS; i++) {
        if (named[i] && *named[i])
            DTX_TRY(r->ctx, find_named(r, named[i], &r->column[i]));
        else
            r->column[i] = find_usual(r, i);
    }
    const int *c = r->column;
    bool few = (c[COLUMN_N] < 0) + (c[COLUMN_D] < 0) + (c[COLUMN_C] < 0) > 1;
    if (!few && c[COLUMN_LOSS] >= 0)
        return DTX_OK;
    snprintf(text, sizeof text, "%s%s%s; --column.n, --column.d, --column.c and --column.loss name columns",
             few ? "two of weights (N), tokens (D) and FLOPs (C) are needed" : "",
             few && c[COLUMN_LOSS] < 0 ? ", and " : "", c[COLUMN_LOSS] < 0 ? "no column is the loss" : "");
    return list_columns(r, DTX_E_FORMAT, text);
}

static const char *cell(const struct reading *r, int64_t row, enum column which)
{
    return r->column[which] < 0 ? "" : dtx_csv_cell(&r->p->csv, row, r->column[which]);
}

/* --- rows that are passed over ------------------------------------------------------------------------------------ */
struct clause {
    int column;
    const char *value;
};

struct filter {
    char text[1024]; /* owns the values */
    int n;
    struct clause clauses[WHERE_CLAUSES];
};

static enum dtx_status make_filter(struct reading *r, struct filter *f)
{
    char *save = NULL;
    f->n = 0;
    if (!r->options->where)
        return DTX_OK;
    if (strlen(r->options->where) >= sizeof f->text)
        return dtx_fail(r->ctx, DTX_E_CONFIG, "--where is longer than %zu bytes", sizeof f->text - 1);
    snprintf(f->text, sizeof f->text, "%s", r->options->where);
    for (char *word = strtok_r(f->text, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        char *equals = strchr(word, '=');
        if (!equals || f->n == WHERE_CLAUSES)
            return dtx_fail(r->ctx, DTX_E_CONFIG,
                            "--where: '%s': expected column=value, at most %d of them with commas between", word,
                            (int)WHERE_CLAUSES);
        *equals = '\0';
        DTX_TRY(r->ctx, find_named(r, word, &f->clauses[f->n].column));
        f->clauses[f->n++].value = equals + 1;
    }
    return DTX_OK;
}

static bool same_value(const char *a, const char *b)
{
    char *end_a, *end_b;
    double x = strtod(a, &end_a), y = strtod(b, &end_b);
    return strcmp(a, b) == 0 || (*a && *b && !*end_a && !*end_b && x == y);
}

static bool passes(const struct reading *r, const struct filter *f, int64_t row)
{
    for (int i = 0; i < f->n; i++)
        if (!same_value(dtx_csv_cell(&r->p->csv, row, f->clauses[i].column), f->clauses[i].value))
            return false;
    return true;
}

/* --- one row ------------------------------------------------------------------------------------------------------ */
static double take_number(struct reading *r, struct dtx_point *point, int64_t row, enum column which)
{
    const char *text = cell(r, row, which);
    char *end;
    double value = strtod(text, &end);
    if (r->column[which] < 0)
        return NAN;
    if (!*text)
        fault(r, point, "column '%.40s' (%s) is empty", r->p->csv.header[r->column[which]], columns[which].what);
    else if (*end)
        fault(r, point, "column '%.40s' (%s) is '%.40s', which is no number", r->p->csv.header[r->column[which]],
              columns[which].what, text);
    else if (!(value > 0 && isfinite(value)) && !DTX_MUTANT(points_negative_taken))
        fault(r, point, "column '%.40s' (%s) is %.40s; it must be positive and finite",
              r->p->csv.header[r->column[which]], columns[which].what, text);
    return value;
}

static enum dtx_status take_variant(struct reading *r, struct dtx_point *point, int64_t row)
{
    const char *name = r->column[COLUMN_VARIANT] < 0 ? "all" : cell(r, row, COLUMN_VARIANT);
    struct dtx_points *p = r->p;
    for (point->variant = 0; point->variant < p->n_variants; point->variant++)
        if (strcmp(p->variants[point->variant], name) == 0)
            return DTX_OK;
    if (p->n_variants == DTX_POINTS_VARIANTS)
        return dtx_fail(r->ctx, DTX_E_FORMAT,
                        "%s:%lld: '%.60s' would be variant %d; at most %d are compared (column '%s')", p->path,
                        (long long)point->line, name, p->n_variants + 1, p->n_variants,
                        p->csv.header[r->column[COLUMN_VARIANT]]);
    p->variants[p->n_variants++] = name;
    return DTX_OK;
}

/* Does the row say itself that it is no result? */
static void take_state(const struct reading *r, struct dtx_point *point, int64_t row)
{
    static const char *const no[] = {"", "0", "false", "no", "n"};
    const char *state = cell(r, row, COLUMN_STATE), *flag = cell(r, row, COLUMN_DROPPED);
    bool flagged = true;
    if (!r->options->curves && *state && strcmp(state, "done") != 0 && !DTX_MUTANT(points_state_unseen))
        snprintf(point->dropped, sizeof point->dropped, "its state is '%.80s', not 'done'", state);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        flagged = flagged && strcasecmp(flag, no[i]) != 0;
    if (flagged)
        snprintf(point->dropped, sizeof point->dropped, "column '%.40s' says '%.60s'",
                 r->p->csv.header[r->column[COLUMN_DROPPED]], flag);
}

static enum dtx_status take_row(struct reading *r, int64_t row)
{
    struct dtx_point *point = &r->p->at[r->p->n++];
    point->line = r->p->csv.line[row];
    point->seed = cell(r, row, COLUMN_SEED);
    point->run = cell(r, row, COLUMN_RUN);
    DTX_TRY(r->ctx, take_variant(r, point, row));
    take_state(r, point, row);
    if (point->dropped[0])
        return DTX_OK;
    point->n = take_number(r, point, row, COLUMN_N);
    point->d = take_number(r, point, row, COLUMN_D);
    point->c = take_number(r, point, row, COLUMN_C);
    point->loss = take_number(r, point, row, COLUMN_LOSS);
    if (r->column[COLUMN_N] < 0)
        point->n = point->c / (6 * point->d);
    if (r->column[COLUMN_D] < 0)
        point->d = point->c / (6 * point->n);
    if (r->column[COLUMN_C] < 0)
        point->c = 6 * point->n * point->d;
    if (!point->dropped[0] && !(point->n * point->d * point->c > 0 && isfinite(point->n * point->d * point->c)))
        fault(r, point, "N = %.6g, D = %.6g and C = %.6g are out of range", point->n, point->d, point->c);
    return DTX_OK;
}

/* --- rows among rows ---------------------------------------------------------------------------------------------- */
static int compare(double a, double b)
{
    return (a > b) - (a < b);
}

/* By variant, N, D, loss, then line. */
static int compare_points(const void *left, const void *right)
{
    const struct dtx_point *a = *(struct dtx_point *const *)left, *b = *(struct dtx_point *const *)right;
    int order = a->variant - b->variant;
    order = order ? order : compare(a->n, b->n);
    order = order ? order : compare(a->d, b->d);
    order = order ? order : compare(a->loss, b->loss);
    return order ? order : compare((double)a->line, (double)b->line);
}

static int compare_losses(const void *left, const void *right)
{
    const struct dtx_point *a = *(struct dtx_point *const *)left, *b = *(struct dtx_point *const *)right;
    int order = a->variant != b->variant ? a->variant - b->variant : compare(b->loss, a->loss);
    return order ? order : compare((double)a->line, (double)b->line);
}

static bool same_place(const struct dtx_point *a, const struct dtx_point *b)
{
    return a->variant == b->variant && a->n == b->n && a->d == b->d;
}

/* `sorted` holds the used points. */
static void find_repeated(struct reading *r, struct dtx_point **sorted, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i - 1; j >= 0 && same_place(sorted[i], sorted[j]) && !sorted[i]->dropped[0]; j--) {
            const struct dtx_point *a = sorted[j], *b = sorted[i];
            bool same_trial = strcmp(a->seed, b->seed) == 0 && strcmp(a->run, b->run) == 0;
            if (a->loss == b->loss && same_trial && !DTX_MUTANT(points_repeated_taken))
                fault(r, sorted[i], "repeats line %lld (same variant, N, D, loss, seed, run)", (long long)a->line);
            else if (same_trial && (*a->seed || *a->run) && !r->options->lowest)
                fault(r, sorted[i],
                      "line %lld is the same trial (variant, N, D, seed, run) with another loss (--repeats lowest "
                      "takes the lower)",
                      (long long)a->line);
            else if (r->options->lowest && !a->dropped[0])
                snprintf(sorted[i]->dropped, sizeof sorted[i]->dropped,
                         "line %lld has the same variant, N and D and a lower loss", (long long)a->line);
        }
}

static void drop_highest(const struct reading *r, struct dtx_point **sorted, int64_t n)
{
    int64_t rank = 0;
    qsort(sorted, (size_t)n, sizeof *sorted, compare_losses);
    for (int64_t i = 0; i < n; i++) {
        rank = i > 0 && sorted[i]->variant == sorted[i - 1]->variant ? rank + 1 : 0;
        if (rank < r->options->highest)
            snprintf(sorted[i]->dropped, sizeof sorted[i]->dropped, "among the %lld highest losses (--drop_highest)",
                     (long long)r->options->highest);
    }
}

static int64_t gather_used(const struct dtx_points *p, struct dtx_point **out)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->n; i++)
        if (!p->at[i].dropped[0])
            out[n++] = &p->at[i];
    return n;
}

static enum dtx_status compare_rows(struct reading *r)
{
    void *memory;
    DTX_TRY(r->ctx, dtx_mem_alloc(r->ctx, r->p->n, sizeof(struct dtx_point *), &memory));
    struct dtx_point **sorted = memory;
    int64_t n = gather_used(r->p, sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, compare_points);
    find_repeated(r, sorted, n);
    drop_highest(r, sorted, gather_used(r->p, sorted));
    r->p->used = gather_used(r->p, sorted);
    dtx_mem_free(memory);
    return DTX_OK;
}

/* --- the whole ---------------------------------------------------------------------------------------------------- */
static void name_origin(const struct reading *r, enum column which, const char *derived, char *out)
{
    if (r->column[which] >= 0)
        snprintf(out, DTX_POINTS_ORIGIN, "column '%.100s'", r->p->csv.header[r->column[which]]);
    else
        snprintf(out, DTX_POINTS_ORIGIN, "%s", derived);
}

static enum dtx_status read_rows(struct reading *r)
{
    struct dtx_points *p = r->p;
    struct filter filter;
    void *memory;
    DTX_TRY(r->ctx, find_columns(r));
    DTX_TRY(r->ctx, make_filter(r, &filter));
    name_origin(r, COLUMN_N, "flops / (6 * tokens)", p->origin_n);
    name_origin(r, COLUMN_D, "flops / (6 * weights)", p->origin_d);
    name_origin(r, COLUMN_C, "flops_6nd = 6 * N * D", p->origin_c);
    name_origin(r, COLUMN_LOSS, "", p->origin_loss);
    p->has_c = r->column[COLUMN_C] >= 0;
    p->has_run = r->column[COLUMN_RUN] >= 0;
    DTX_TRY(r->ctx, dtx_mem_alloc(r->ctx, p->csv.rows, sizeof *p->at, &memory));
    p->at = memory;
    for (int64_t row = 0; row < p->csv.rows; row++) {
        if (passes(r, &filter, row))
            DTX_TRY(r->ctx, take_row(r, row));
        else
            p->passed_over++;
    }
    DTX_TRY(r->ctx, compare_rows(r));
    if (r->n_faults > FAULTS_SHOWN)
        snprintf(r->faults + r->fault_length, sizeof r->faults - r->fault_length, "\n  and %lld more",
                 (long long)r->n_faults - FAULTS_SHOWN);
    if (r->n_faults > 0)
        return dtx_fail(r->ctx, DTX_E_FORMAT, "%s: %lld rows cannot be used (--faults drop goes on without them):%s",
                        p->path, (long long)r->n_faults, r->faults);
    if (p->used == 0)
        return dtx_fail(r->ctx, DTX_E_FORMAT, "%s: no row is left of %lld (%lld passed over by --where, %lld dropped)",
                        p->path, (long long)p->csv.rows, (long long)p->passed_over, (long long)p->n);
    return DTX_OK;
}

enum dtx_status dtx_points_take(struct dtx_ctx *ctx, const struct dtx_points_options *options, struct dtx_csv *csv,
                                struct dtx_points *out)
{
    struct dtx_points points = {.path = options->path, .csv = *csv};
    struct reading r = {.ctx = ctx, .options = options, .p = &points};
    *csv = (struct dtx_csv){0};
    enum dtx_status status = read_rows(&r);
    if (status == DTX_OK)
        *out = points;
    else
        dtx_points_free(&points);
    return status;
}

enum dtx_status dtx_points_read(struct dtx_ctx *ctx, const struct dtx_points_options *options, struct dtx_points *out)
{
    struct dtx_csv csv;
    DTX_TRY(ctx, dtx_csv_read(ctx, options->path, &csv));
    return dtx_points_take(ctx, options, &csv, out);
}

void dtx_points_free(struct dtx_points *points)
{
    dtx_csv_free(&points->csv);
    dtx_mem_free(points->at);
    *points = (struct dtx_points){0};
}
