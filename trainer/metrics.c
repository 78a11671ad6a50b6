#include "trainer/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "trainer/tfevents.h"

enum { LINE_BYTES = 1536, NUMBER_BYTES = 32, SCALARS = 16 };

struct dtx_metrics {
    int fd;
    int64_t bytes; /* length of whole lines in the file */
    char path[4096];
    struct dtx_tfevents *events;
    int n_lambda; /* what line and scalars have room for; -1 at first */
    char *line;
    struct dtx_scalar *scalars;
};

struct line {
    char *text;
    size_t n, capacity;
};

double dtx_step_tokens_per_s(const struct dtx_step_record *record)
{
    return record->seconds > 0 ? (double)record->targets / record->seconds : NAN;
}

double dtx_step_peak_share(const struct dtx_step_record *record)
{
    return record->seconds > 0 && record->peak_flops > 0 ? record->flops / record->seconds / record->peak_flops : NAN;
}

static void add_text(struct line *line, const char *text)
{
    size_t n = strlen(text);
    if (line->n + n >= line->capacity)
        return; /* cannot be: `reserve` counts the longest numbers */
    memcpy(line->text + line->n, text, n + 1);
    line->n += n;
}

/* The fewest digits that read back to the same bits. */
static void add_real(struct line *line, double value)
{
    char text[NUMBER_BYTES];
    if (!isfinite(value)) {
        add_text(line, DTX_MUTANT(metrics_nan_as_text) ? "nan" : "null");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    add_text(line, text);
}

static void add_key(struct line *line, const char *key)
{
    add_text(line, line->n > 1 ? ",\"" : "\"");
    add_text(line, key);
    add_text(line, "\":");
}

static void add_real_key(struct line *line, const char *key, double value)
{
    add_key(line, key);
    add_real(line, value);
}

static void add_int_key(struct line *line, const char *key, int64_t value)
{
    char text[NUMBER_BYTES];
    snprintf(text, sizeof text, "%lld", (long long)value);
    add_key(line, key);
    add_text(line, text);
}

static void make_line(struct line *line, const struct dtx_step_record *r, double wall_time)
{
    add_text(line, "{");
    add_int_key(line, "step", r->step);
    add_int_key(line, "steps", r->steps);
    add_real_key(line, "loss", r->loss);
    add_real_key(line, "heldout_loss", r->heldout);
    add_real_key(line, "lr", r->lr);
    add_real_key(line, "grad_norm", r->grad_norm);
    add_real_key(line, "grad_norm_clipped", r->grad_norm_clipped);
    add_key(line, "skipped");
    add_text(line, r->skipped ? "true" : "false");
    add_real_key(line, "loss_z", r->loss_z);
    add_int_key(line, "rollbacks", r->rollbacks);
    add_int_key(line, "tokens", r->targets);
    add_int_key(line, "tokens_total", r->targets_total);
    add_real_key(line, "tokens_per_s", dtx_step_tokens_per_s(r));
    add_real_key(line, "flops_per_s", r->seconds > 0 ? r->flops / r->seconds : NAN);
    add_real_key(line, "peak_flops_per_s", r->peak_flops > 0 ? r->peak_flops : NAN);
    add_real_key(line, "peak_share", dtx_step_peak_share(r));
    add_real_key(line, "seconds", r->seconds);
    add_real_key(line, "data_wait_seconds", r->data_wait);
    if (r->slowest_ratio > 0) {
        add_int_key(line, "slowest_rank", r->slowest_rank);
        add_real_key(line, "slowest_ratio", r->slowest_ratio);
    }
    add_int_key(line, "memory_bytes", (int64_t)r->memory_bytes);
    add_real_key(line, "unix_time", wall_time);
    add_key(line, "lambda");
    add_text(line, "[");
    for (int l = 0; l < r->n_lambda; l++) {
        if (l > 0)
            add_text(line, ",");
        add_real(line, r->lambda[l]);
    }
    add_text(line, "]}\n");
}

static int make_scalars(struct dtx_scalar *s, const struct dtx_step_record *r)
{
    const struct dtx_scalar fixed[] = {
        {"train/loss", r->loss},
        {"train/lr", r->lr},
        {"train/grad_norm", r->grad_norm},
        {"train/grad_norm_clipped", r->grad_norm_clipped},
        {"train/skipped", r->skipped},
        {"train/rollbacks", (double)r->rollbacks},
        {"train/tokens_total", (double)r->targets_total},
        {"speed/tokens_per_s", dtx_step_tokens_per_s(r)},
        {"speed/step_seconds", r->seconds},
        {"speed/data_wait_seconds", r->data_wait},
        {"memory/gib", (double)r->memory_bytes / 1073741824.0},
    };
    int n = sizeof fixed / sizeof *fixed;
    memcpy(s, fixed, sizeof fixed);
    if (!isnan(r->heldout))
        s[n++] = (struct dtx_scalar){"heldout/loss", r->heldout};
    if (!isnan(r->loss_z))
        s[n++] = (struct dtx_scalar){"train/loss_z", r->loss_z};
    if (r->slowest_ratio > 0)
        s[n++] = (struct dtx_scalar){"speed/slowest_ratio", r->slowest_ratio};
    if (!isnan(dtx_step_peak_share(r)))
        s[n++] = (struct dtx_scalar){"speed/peak_share", dtx_step_peak_share(r)};
    for (int l = 0; l < r->n_lambda; l++, n++) {
        snprintf(s[n].tag, sizeof s[n].tag, "lambda/layer_%02d", l);
        s[n].value = r->lambda[l];
    }
    return n;
}

/* The number of layers is known with the first record and stays: this allocates once. */
static enum dtx_status reserve(struct dtx_ctx *ctx, struct dtx_metrics *m, int n_lambda)
{
    if (n_lambda <= m->n_lambda)
        return DTX_OK;
    void *line, *scalars;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, LINE_BYTES + NUMBER_BYTES * (int64_t)n_lambda, 1, &line));
    enum dtx_status status = dtx_mem_alloc(ctx, SCALARS + (int64_t)n_lambda, sizeof(struct dtx_scalar), &scalars);
    if (status != DTX_OK) {
        dtx_mem_free(line);
        return status;
    }
    dtx_mem_free(m->line);
    dtx_mem_free(m->scalars);
    m->line = line;
    m->scalars = scalars;
    m->n_lambda = n_lambda;
    return DTX_OK;
}

static enum dtx_status append(struct dtx_ctx *ctx, struct dtx_metrics *m, const struct line *line)
{
    size_t done = 0;
    while (done < line->n) {
        ssize_t n = write(m->fd, line->text + done, line->n - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            int cause = n < 0 ? errno : ENOSPC;
            if (!DTX_MUTANT(metrics_keeps_torn_line) && ftruncate(m->fd, m->bytes) != 0)
                dtx_log(ctx, DTX_LOG_WARN, "%s: a torn line stays: %s", m->path, strerror(errno));
            return dtx_fail(ctx, DTX_E_IO, "%s: cannot append %zu bytes: %s", m->path, line->n, strerror(cause));
        }
        done += (size_t)n;
    }
    m->bytes += (int64_t)line->n;
    return DTX_OK;
}

enum dtx_status dtx_metrics_write(struct dtx_ctx *ctx, struct dtx_metrics *metrics,
                                  const struct dtx_step_record *record)
{
    double now = dtx_clock_wall();
    DTX_TRY(ctx, reserve(ctx, metrics, record->n_lambda));
    struct line line = {metrics->line, 0, LINE_BYTES + NUMBER_BYTES * (size_t)metrics->n_lambda};
    make_line(&line, record, now);
    DTX_TRY(ctx, append(ctx, metrics, &line));
    int n = make_scalars(metrics->scalars, record);
    DTX_TRY(ctx, dtx_tfevents_write(ctx, metrics->events, now, record->step, metrics->scalars, n));
    return DTX_OK;
}

static enum dtx_status open_file(struct dtx_ctx *ctx, struct dtx_metrics *m)
{
    m->fd = open(m->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (m->fd < 0)
        return dtx_fail(ctx, DTX_E_IO, "%s: cannot open for writing: %s", m->path, strerror(errno));
    m->bytes = lseek(m->fd, 0, SEEK_END);
    if (m->bytes < 0)
        return dtx_fail(ctx, DTX_E_IO, "%s: cannot seek: %s", m->path, strerror(errno));
    return DTX_OK;
}

enum dtx_status dtx_metrics_open(struct dtx_ctx *ctx, const char *run, int64_t resume_step, struct dtx_metrics **out)
{
    void *p;
    char folder[4096];
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_metrics), &p));
    struct dtx_metrics *m = p;
    enum dtx_status status = DTX_OK;
    m->fd = -1;
    m->n_lambda = -1;
    if (snprintf(m->path, sizeof m->path, "%s/metrics.jsonl", run) >= (int)sizeof m->path ||
        snprintf(folder, sizeof folder, "%s/tensorboard", run) >= (int)sizeof folder)
        status = dtx_fail(ctx, DTX_E_CONFIG, "%.200s…: the name of the run's folder is too long", run);
    if (status == DTX_OK)
        status = dtx_metrics_cut(ctx, m->path, resume_step);
    if (status == DTX_OK)
        status = open_file(ctx, m);
    if (status == DTX_OK)
        status = dtx_tfevents_open(ctx, folder, resume_step + 1, &m->events);
    if (status != DTX_OK) {
        dtx_error_frame(ctx, __FILE__, __LINE__, __func__);
        dtx_metrics_close(ctx, m);
        return status;
    }
    *out = m;
    return DTX_OK;
}

enum dtx_status dtx_metrics_sync(struct dtx_ctx *ctx, struct dtx_metrics *metrics)
{
    if (fsync(metrics->fd) != 0)
        return dtx_fail(ctx, DTX_E_IO, "%s: cannot write to the disk: %s", metrics->path, strerror(errno));
    return DTX_OK;
}

enum dtx_status dtx_metrics_close(struct dtx_ctx *ctx, struct dtx_metrics *metrics)
{
    if (!metrics)
        return DTX_OK;
    enum dtx_status status = dtx_tfevents_close(ctx, metrics->events);
    if (metrics->fd >= 0) {
        if (status == DTX_OK)
            status = dtx_metrics_sync(ctx, metrics);
        if (close(metrics->fd) != 0 && status == DTX_OK)
            status = dtx_fail(ctx, DTX_E_IO, "%s: cannot close: %s", metrics->path, strerror(errno));
    }
    dtx_mem_free(metrics->line);
    dtx_mem_free(metrics->scalars);
    dtx_mem_free(metrics);
    return status;
}
