#include "launch/sweep/record.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoints/disk.h"
#include "kernels/base/hash.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "trainer/metrics.h"
#include "trainer/run_status.h"

enum { RECORD_BYTES = 1024 };
static const double WORSE_THAN_GUESSING = 1; /* nats over ln of the vocabulary: no use to any law */

static void record_path(const struct dtx_sweep *sweep, int trial, char path[DTX_SWEEP_PATH])
{
    snprintf(path, DTX_SWEEP_PATH, "%s/state/%s.done", sweep->dir, sweep->trials.item[trial].id);
}

/* Was the run's configuration the planned one? Variables and flags of whoever started it may have changed it. */
static enum dtx_status check_config(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, int trial, const char *run,
                                    bool *same)
{
    const struct dtx_sweep_trial *t = &sweep->trials.item[trial];
    char path[DTX_SWEEP_PATH + 16], id[DTX_SWEEP_ID], *text;
    int64_t bytes;
    snprintf(path, sizeof path, "%s/config.yaml", run);
    *same = false;
    if (!dtx_disk_exists(path))
        return DTX_OK;
    DTX_TRY(ctx, dtx_disk_read(ctx, path, 1 << 24, &text, &bytes));
    enum dtx_status status = dtx_sweep_identify(ctx, text, t->start >= 0 ? sweep->trials.item[t->start].id : "",
                                                t->start_step, t->until, id);
    *same = status == DTX_OK && (strcmp(id, t->id) == 0 || DTX_MUTANT(sweep_config_unchecked));
    dtx_mem_free(text);
    if (status == DTX_E_CONFIG) { /* not the trainer's own */
        dtx_error_clear(ctx);
        return DTX_OK;
    }
    return status;
}

struct ending { /* of metrics.jsonl */
    int64_t step;
    double heldout, train;
    bool finite; /* the last step's loss and gradient norm */
};

static enum dtx_status read_ending(struct dtx_ctx *ctx, const char *run, int64_t steps, struct ending *out)
{
    struct dtx_losses losses;
    char path[DTX_SWEEP_PATH + 16];
    *out = (struct ending){.heldout = NAN, .train = NAN};
    snprintf(path, sizeof path, "%s/metrics.jsonl", run);
    if (!dtx_disk_exists(path))
        return DTX_OK;
    enum dtx_status status = dtx_metrics_read_losses(ctx, path, &losses);
    if (status == DTX_E_FORMAT) { /* not a line yet */
        dtx_error_clear(ctx);
        return DTX_OK;
    }
    DTX_TRY(ctx, status);
    int64_t tail = dtx_min64(losses.n, dtx_max64(1, steps / 20));
    out->step = losses.step[losses.n - 1];
    out->heldout = losses.heldout[losses.n - 1];
    out->train = 0;
    for (int64_t i = losses.n - tail; i < losses.n; i++)
        out->train += losses.loss[i] / (double)tail;
    out->finite = isfinite(losses.loss[losses.n - 1]) && !losses.last_skipped;
    dtx_losses_free(&losses);
    return DTX_OK;
}

/* "…/checkpoints/step-00001000": is it complete? */
static bool has_checkpoint(const char *run, int64_t step, char name[64])
{
    char path[DTX_SWEEP_PATH + 128];
    snprintf(name, 64, "step-%08lld", (long long)step);
    snprintf(path, sizeof path, "%s/checkpoints/%s/COMPLETE", run, name);
    return dtx_disk_exists(path);
}

static enum dtx_sweep_verdict judge(const struct dtx_sweep_trial *t, const char *run, bool same_config,
                                    const struct ending *e, struct dtx_sweep_record *out, char why[256])
{
    char state[32] = "none", step[32] = "0", kind[32] = "";
    int64_t last = dtx_sweep_last_step(t);
    dtx_run_status_read(run, "state", state, sizeof state);
    dtx_run_status_read(run, "step", step, sizeof step);
    dtx_run_status_read(run, "kind", kind, sizeof kind);
    if (DTX_MUTANT(sweep_done_unverified) && strcmp(state, "none") != 0) {
        out->step = last;
        return DTX_SWEEP_VERIFIED;
    }
    bool numeric = strcmp(state, "failed") == 0 && strcmp(kind, dtx_status_name(DTX_E_NUMERIC)) == 0;
    if (numeric && !e->finite && e->step > 0) {
        snprintf(why, 256, "diverged: no finite loss and gradient at step %lld", (long long)e->step);
        return DTX_SWEEP_DIVERGED;
    }
    if (strcmp(state, t->until ? "paused" : "done") != 0 || atoll(step) != last) {
        snprintf(why, 256, "its run is '%s' at step %s of %lld", state, step, (long long)last);
        return DTX_SWEEP_NOT_YET;
    }
    if (!same_config) {
        snprintf(why, 256, "its run's config.yaml is not the planned configuration: is a DTX_ variable set?");
        return DTX_SWEEP_NOT_YET;
    }
    if (e->step != last) {
        snprintf(why, 256, "its metrics end at step %lld, not %lld", (long long)e->step, (long long)last);
        return DTX_SWEEP_NOT_YET;
    }
    if (!has_checkpoint(run, last, out->checkpoint)) {
        snprintf(why, 256, "checkpoint %s is missing", out->checkpoint);
        return DTX_SWEEP_NOT_YET;
    }
    double limit = log((double)t->vocab) + WORSE_THAN_GUESSING;
    if (!t->stem && !(e->heldout <= limit)) {
        snprintf(why, 256, "diverged: held-out loss %g, guessing has %.3g", e->heldout, log((double)t->vocab));
        return DTX_SWEEP_DIVERGED;
    }
    out->step = last;
    out->loss = t->stem ? NAN : e->heldout;
    out->train_loss = e->train;
    return DTX_SWEEP_VERIFIED;
}

enum dtx_status dtx_sweep_verify(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, int trial,
                                 struct dtx_sweep_record *out, enum dtx_sweep_verdict *verdict, char why[256])
{
    char run[DTX_SWEEP_PATH];
    struct ending ending;
    bool same;
    *out = (struct dtx_sweep_record){0};
    why[0] = '\0';
    dtx_sweep_run_path(sweep, trial, run);
    DTX_TRY(ctx, check_config(ctx, sweep, trial, run, &same));
    DTX_TRY(ctx, read_ending(ctx, run, sweep->trials.item[trial].steps, &ending));
    *verdict = judge(&sweep->trials.item[trial], run, same, &ending, out, why);
    dtx_run_status_read(run, "host", out->host, sizeof out->host);
    return DTX_OK;
}

static json_t *real_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

enum dtx_status dtx_sweep_record_write(struct dtx_ctx *ctx, const struct dtx_sweep *sweep, int trial,
                                       const struct dtx_sweep_record *r)
{
    char path[DTX_SWEEP_PATH], temporary[DTX_SWEEP_PATH + 64], text[RECORD_BYTES];
    json_t *line =
        json_pack("{s:s, s:I, s:o, s:o, s:i, s:s, s:s}", "id", sweep->trials.item[trial].id, "step",
                  (json_int_t)r->step, "loss", real_or_null(r->loss), "train_loss", real_or_null(r->train_loss),
                  "attempts", r->attempts, "host", r->host, "checkpoint", r->checkpoint);
    char *json = json_dumps(line, JSON_COMPACT);
    json_decref(line);
    if (!json)
        return dtx_fail(ctx, DTX_E_MEMORY, "sweep: no memory for a record");
    snprintf(text, sizeof text, "%s\n%016llx\n", json, (unsigned long long)dtx_hash_text(json, 0));
    free(json);
    record_path(sweep, trial, path);
    snprintf(temporary, sizeof temporary, "%s.%.40s.new", path, ctx->host);
    DTX_TRY(ctx, dtx_disk_write_text(ctx, temporary, text));
    DTX_TRY(ctx, dtx_disk_rename(ctx, temporary, path));
    return dtx_disk_sync_name(ctx, path);
}

static double real_of(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

bool dtx_sweep_record_read(const struct dtx_sweep *sweep, int trial, struct dtx_sweep_record *out)
{
    const struct dtx_sweep_trial *t = &sweep->trials.item[trial];
    char path[DTX_SWEEP_PATH], text[RECORD_BYTES] = "", expected[32];
    const char *id, *host, *checkpoint;
    json_int_t step;
    *out = (struct dtx_sweep_record){0};
    record_path(sweep, trial, path);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    if (DTX_MUTANT(sweep_record_exists_is_done)) {
        out->step = dtx_sweep_last_step(t);
        return true;
    }
    char *end = memchr(text, '\n', length);
    if (!end)
        return false;
    *end = '\0';
    snprintf(expected, sizeof expected, "%016llx\n", (unsigned long long)dtx_hash_text(text, 0));
    json_t *line = strcmp(end + 1, expected) == 0 ? json_loads(text, 0, NULL) : NULL;
    bool good = line && json_unpack(line, "{s:s, s:I, s:i, s:s, s:s}", "id", &id, "step", &step, "attempts",
                                    &out->attempts, "host", &host, "checkpoint", &checkpoint) == 0;
    if (good) {
        out->step = step;
        out->loss = real_of(line, "loss");
        out->train_loss = real_of(line, "train_loss");
        snprintf(out->host, sizeof out->host, "%s", host);
        snprintf(out->checkpoint, sizeof out->checkpoint, "%s", checkpoint);
        good = strcmp(id, t->id) == 0 && step == dtx_sweep_last_step(t) && (t->stem || isfinite(out->loss));
    }
    json_decref(line);
    return good;
}
