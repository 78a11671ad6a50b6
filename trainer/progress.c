#include "trainer/progress.h"

#include <math.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

enum { PACE_STEPS = 100, FIELDS = 8, FIELD_BYTES = 48, LINE_BYTES = 512 };

struct dtx_progress {
    FILE *file;
    bool live, drawn;
    int64_t every;
    double last_draw;
    struct dtx_pace pace;
    double heldout;     /* the last one, NaN before */
    int64_t first_step; /* 0 before the first record */
    struct {            /* since the last line */
        double tokens, seconds, flops;
    } sum;
};

/* Parts of a line in the order in which they are printed; `rank` says which one goes first when space is short. */
struct field {
    int rank; /* 0 stays longest */
    char text[FIELD_BYTES];
};

void dtx_pace_start(struct dtx_pace *pace, double now)
{
    *pace = (struct dtx_pace){.last_time = now};
}

void dtx_pace_step(struct dtx_pace *pace, double now)
{
    double seconds = now - pace->last_time;
    pace->last_time = now;
    int64_t n = pace->intervals++; /* without the first interval */
    if (n == 0) {
        pace->seconds = seconds;
        return;
    }
    pace->seconds += (seconds - pace->seconds) / (double)dtx_min64(n, PACE_STEPS);
}

enum dtx_status dtx_progress_open(struct dtx_ctx *ctx, FILE *file, enum dtx_progress_mode mode, int64_t every,
                                  struct dtx_progress **out)
{
    void *memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_progress), &memory));
    struct dtx_progress *p = memory;
    p->file = file;
    p->live = mode == DTX_PROGRESS_LIVE || (mode == DTX_PROGRESS_AUTO && dtx_terminal_live(file));
    p->every = dtx_max64(every, 1);
    p->last_draw = -1;
    p->heldout = NAN;
    dtx_pace_start(&p->pace, dtx_clock_now());
    *out = p;
    return DTX_OK;
}

double dtx_progress_left(const struct dtx_progress *progress, int64_t steps)
{
    return progress->pace.seconds * (double)steps;
}

static int make_fields(const struct dtx_progress *p, const struct dtx_step_record *r, struct field f[FIELDS])
{
    char number[16];
    int n = 0;
    double share = p->sum.flops / p->sum.seconds / r->peak_flops;
    f[n].rank = 0;
    snprintf(f[n++].text, FIELD_BYTES, "step %lld/%lld", (long long)r->step, (long long)r->steps);
    f[n].rank = 1;
    snprintf(f[n++].text, FIELD_BYTES, "loss %.4f", r->loss);
    if (!isnan(p->heldout)) {
        f[n].rank = 4;
        snprintf(f[n++].text, FIELD_BYTES, "held-out %.4f", p->heldout);
    }
    dtx_format_count(p->sum.tokens / p->sum.seconds, number);
    f[n].rank = 3;
    snprintf(f[n++].text, FIELD_BYTES, "%s tokens/s", number);
    if (isfinite(share)) {
        f[n].rank = 5;
        snprintf(f[n++].text, FIELD_BYTES, "%.1f%% of peak", 100 * share);
    }
    f[n].rank = 6;
    snprintf(f[n++].text, FIELD_BYTES, "lr %.2e", r->lr);
    f[n].rank = 7;
    snprintf(f[n++].text, FIELD_BYTES, "grad norm %.2f", r->grad_norm);
    dtx_format_duration(dtx_progress_left(p, r->steps - r->step), number);
    f[n].rank = 2;
    snprintf(f[n++].text, FIELD_BYTES, "ETA %s", number);
    return n;
}

static int width_of(const struct field *f, int n, int highest_rank)
{
    int width = 0;
    for (int i = 0; i < n; i++)
        if (f[i].rank <= highest_rank)
            width += (width > 0 ? 2 : 0) + (int)strlen(f[i].text);
    return width;
}

/* The fields that fit into `width` columns, the most important ones first; all of it ASCII. */
static void join_fields(const struct field *f, int n, int width, char line[LINE_BYTES])
{
    int rank = FIELDS - 1, at = 0;
    while (rank > 0 && width_of(f, n, rank) > width)
        rank--;
    line[0] = '\0';
    for (int i = 0; i < n; i++)
        if (f[i].rank <= rank)
            at += snprintf(line + at, LINE_BYTES - (size_t)at, "%s%s", at > 0 ? "  " : "", f[i].text);
    if (width < LINE_BYTES && !DTX_MUTANT(progress_ignores_width))
        line[dtx_max64(width, 0)] = '\0';
}

static void draw_live(struct dtx_progress *p, const struct dtx_step_record *r)
{
    struct field fields[FIELDS];
    char line[LINE_BYTES];
    int n = make_fields(p, r, fields);
    join_fields(fields, n, dtx_terminal_width(p->file) - 1, line); /* the last column would wrap */
    fprintf(p->file, "\r%s\033[K", line);
    fflush(p->file);
    p->drawn = true;
}

static void print_line(struct dtx_progress *p, const struct dtx_step_record *r)
{
    struct field fields[FIELDS];
    char line[LINE_BYTES];
    int n = make_fields(p, r, fields);
    join_fields(fields, n, LINE_BYTES, line);
    dtx_progress_clear(p);
    fprintf(p->file, "dtx: %s%s%s\n", line, r->skipped ? "  no update: " : "", r->skipped ? r->why : "");
    fflush(p->file);
}

static void forget_sums(struct dtx_progress *p)
{
    p->sum.tokens = p->sum.seconds = p->sum.flops = 0;
}

void dtx_progress_step(struct dtx_progress *progress, const struct dtx_step_record *record)
{
    double now = dtx_clock_now();
    bool evaluated = !isnan(record->heldout);
    dtx_pace_step(&progress->pace, now);
    progress->sum.tokens += (double)record->targets;
    progress->sum.seconds += record->seconds;
    progress->sum.flops += record->flops;
    if (evaluated)
        progress->heldout = record->heldout;
    bool notable = evaluated || record->skipped || !progress->first_step || record->step == record->steps;
    if (!progress->first_step)
        progress->first_step = record->step;
    if (notable || (!progress->live && record->step % progress->every == 0)) {
        print_line(progress, record);
        forget_sums(progress);
    } else if (progress->live && (now - progress->last_draw >= 0.2 || DTX_MUTANT(progress_draws_each_step))) {
        draw_live(progress, record);
        progress->last_draw = now;
        forget_sums(progress);
    }
}

void dtx_progress_clear(struct dtx_progress *progress)
{
    if (!progress->drawn)
        return;
    fputs("\r\033[K", progress->file);
    fflush(progress->file);
    progress->drawn = false;
}

void dtx_progress_close(struct dtx_progress *progress)
{
    if (!progress)
        return;
    dtx_progress_clear(progress);
    dtx_mem_free(progress);
}
