#include "launch/status/run_view.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mutant.h"
#include "trainer/run_status.h"

/* Of metrics.jsonl the last steps are read; a run that says nothing for so many seconds, and so many of its own steps,
 * is silent. */
enum { TAIL_BYTES = 65536, TAIL_STEPS = 64, SILENT_SECONDS = 600, SILENT_STEPS = 20 };

static double real(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void take_line(struct dtx_run_view *v, const json_t *line, double *time)
{
    v->step = json_integer_value(json_object_get(line, "step"));
    v->steps = json_integer_value(json_object_get(line, "steps"));
    v->loss = real(line, "loss");
    v->tokens_per_s = real(line, "tokens_per_s");
    if (!isnan(real(line, "heldout_loss")))
        v->heldout = real(line, "heldout_loss");
    *time = real(line, "unix_time");
}

/* The end of metrics.jsonl; the time of its last line, 0 without one. */
static double read_metrics(struct dtx_run_view *v)
{
    char path[PATH_MAX];
    double gap[TAIL_STEPS], last = NAN;
    int n = 0;
    char *text = NULL;
    size_t capacity = 0;
    ssize_t length;
    snprintf(path, sizeof path, "%s/metrics.jsonl", v->path);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    if (fseek(file, -TAIL_BYTES, SEEK_END) != 0)
        rewind(file);
    while ((length = getline(&text, &capacity, file)) > 0) { /* the first line may be a piece */
        json_t *line = text[length - 1] == '\n' ? json_loadb(text, (size_t)length, 0, NULL) : NULL;
        if (json_is_integer(json_object_get(line, "step"))) {
            double before = last;
            take_line(v, line, &last);
            if (!isnan(before))
                gap[n++ % TAIL_STEPS] = last - before;
        }
        json_decref(line);
    }
    free(text);
    fclose(file);
    n = n < TAIL_STEPS ? n : TAIL_STEPS;
    qsort(gap, (size_t)n, sizeof *gap, ascending);
    v->step_seconds = n ? gap[n / 2] : NAN;
    return isnan(last) ? 0 : last;
}

static void read_checkpoint(struct dtx_run_view *v)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/checkpoints/latest", v->path);
    FILE *file = fopen(path, "re");
    if (!file || !fgets(v->checkpoint, sizeof v->checkpoint, file))
        strcpy(v->checkpoint, "-");
    v->checkpoint[strcspn(v->checkpoint, "\n")] = '\0';
    if (file)
        fclose(file);
}

bool dtx_run_view_read(const char *path, double now, struct dtx_run_view *out)
{
    char text[32];
    struct dtx_run_view v = {.path = path,
                             .state = "none",
                             .local = "-",
                             .loss = NAN,
                             .heldout = NAN,
                             .tokens_per_s = NAN,
                             .step_seconds = NAN,
                             .left_seconds = NAN};
    double time = read_metrics(&v);
    bool known = dtx_run_status_read(path, "state", v.state, sizeof v.state);
    if (known && dtx_run_status_read(path, "time", text, sizeof text) && atof(text) > time)
        time = atof(text);
    if (v.steps == 0 && dtx_run_status_read(path, "steps", text, sizeof text))
        v.steps = atoll(text);
    if (v.step == 0 && dtx_run_status_read(path, "step", text, sizeof text))
        v.step = atoll(text);
    if (dtx_run_status_read(path, "attempt", text, sizeof text))
        v.attempts = atoll(text);
    dtx_run_status_read(path, "before", v.before, sizeof v.before);
    dtx_run_status_read(path, "local_checkpoint", v.local, sizeof v.local);
    dtx_run_status_read(path, "cause", v.cause, sizeof v.cause);
    read_checkpoint(&v);
    v.age_seconds = now - time;
    if (strcmp(v.state, "running") == 0) {
        double patience = isnan(v.step_seconds) ? 0 : SILENT_STEPS * v.step_seconds;
        if (v.age_seconds > (patience > SILENT_SECONDS ? patience : SILENT_SECONDS) && !DTX_MUTANT(silence_unseen))
            strcpy(v.state, "silent");
        else
            v.left_seconds = (double)(v.steps - v.step) * v.step_seconds;
    }
    *out = v;
    return known || time > 0;
}
