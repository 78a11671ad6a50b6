/* Reading metrics.jsonl: for the cut on resume and for curves. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "trainer/metrics.h"

struct reader {
    FILE *file;
    const char *path;
    char *text; /* getline's */
    size_t capacity;
    int64_t number, end; /* of the current line: number from 1, offset behind it */
    int64_t n_bad;       /* lines so far that are no metrics */
    json_t *line;        /* the current line, NULL when it is no metrics */
    int64_t step;
};

static enum dtx_status reader_open(struct dtx_ctx *ctx, const char *path, struct reader *r)
{
    *r = (struct reader){.path = path};
    r->file = fopen(path, "re");
    if (!r->file)
        return dtx_fail(ctx, dtx_status_of_path(errno), "%s: cannot open: %s", path, strerror(errno));
    return DTX_OK;
}

static void reader_close(struct reader *r)
{
    json_decref(r->line);
    free(r->text);
    if (r->file)
        fclose(r->file);
}

/* The next line, false at the end. A line without its newline was torn by a crash: no metrics. */
static bool reader_next(struct reader *r)
{
    json_decref(r->line);
    r->line = NULL;
    ssize_t n = getline(&r->text, &r->capacity, r->file);
    if (n < 0)
        return false;
    r->number++;
    r->end += n;
    if (r->text[n - 1] == '\n' || DTX_MUTANT(metrics_takes_torn_line))
        r->line = json_loadb(r->text, (size_t)n, 0, NULL);
    json_t *step = json_object_get(r->line, "step");
    if (!json_is_integer(step)) {
        json_decref(r->line);
        r->line = NULL;
        r->n_bad++;
        return true;
    }
    r->step = json_integer_value(step);
    return true;
}

static enum dtx_status reader_check(struct dtx_ctx *ctx, const struct reader *r)
{
    if (ferror(r->file))
        return dtx_fail(ctx, DTX_E_IO, "%s: cannot read after line %lld: %s", r->path, (long long)r->number,
                        strerror(errno));
    return DTX_OK;
}

struct cut {
    int64_t end;       /* offset behind the last line that stays */
    int64_t last_step; /* of that line, 0 without one */
    int64_t n_good, n_later, n_bad, file_bytes;
};

static enum dtx_status find_cut(struct dtx_ctx *ctx, const char *path, int64_t step, struct cut *cut)
{
    struct reader r;
    *cut = (struct cut){0};
    DTX_TRY(ctx, reader_open(ctx, path, &r));
    bool later = false;
    while (reader_next(&r)) {
        if (!r.line)
            continue;
        cut->n_good++;
        later = later || r.step > step + DTX_MUTANT(metrics_cut_off_by_one);
        if (later) {
            cut->n_later++;
        } else {
            cut->end = r.end;
            cut->last_step = r.step;
        }
    }
    cut->n_bad = r.n_bad;
    cut->file_bytes = r.end;
    enum dtx_status status = reader_check(ctx, &r);
    reader_close(&r);
    return status;
}

/* Lines ascend in steps, so what stays is the file's beginning, and shortening is as atomic as a rename. */
static enum dtx_status shorten(struct dtx_ctx *ctx, const char *path, int64_t bytes)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return dtx_fail(ctx, DTX_E_IO, "%s: cannot open for writing: %s", path, strerror(errno));
    int failed = ftruncate(fd, bytes) != 0 || fsync(fd) != 0, cause = errno;
    close(fd);
    if (failed)
        return dtx_fail(ctx, DTX_E_IO, "%s: cannot shorten to %lld bytes: %s", path, (long long)bytes, strerror(cause));
    return DTX_OK;
}

enum dtx_status dtx_metrics_cut(struct dtx_ctx *ctx, const char *path, int64_t step)
{
    struct cut cut;
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return DTX_OK;
    DTX_TRY(ctx, find_cut(ctx, path, step, &cut));
    if (cut.n_good == 0 && cut.n_bad > 1)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: none of its %lld lines is a step's metrics; move the file away", path,
                        (long long)cut.n_bad);
    if (cut.last_step > 0 && cut.last_step < step)
        dtx_log(ctx, DTX_LOG_WARN, "%s: steps %lld to %lld are missing before the resumed run", path,
                (long long)cut.last_step + 1, (long long)step);
    if (cut.end == cut.file_bytes)
        return DTX_OK;
    if (cut.n_later > 0)
        dtx_log(ctx, DTX_LOG_INFO, "%s: removed %lld lines after step %lld, which come again", path,
                (long long)cut.n_later, (long long)step);
    DTX_TRY(ctx, shorten(ctx, path, cut.end));
    return DTX_OK;
}

static double real_of(const json_t *line, const char *key)
{
    json_t *value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static enum dtx_status grow(struct dtx_ctx *ctx, struct dtx_losses *l, int64_t *capacity)
{
    int64_t n = *capacity ? 2 * *capacity : 1024;
    void *step = realloc(l->step, (size_t)n * sizeof *l->step);
    l->step = step ? step : l->step;
    void *loss = realloc(l->loss, (size_t)n * sizeof *l->loss);
    l->loss = loss ? loss : l->loss;
    void *heldout = realloc(l->heldout, (size_t)n * sizeof *l->heldout);
    l->heldout = heldout ? heldout : l->heldout;
    if (!step || !loss || !heldout)
        return dtx_fail(ctx, DTX_E_MEMORY, "out of memory for the losses of %lld steps", (long long)n);
    *capacity = n;
    return DTX_OK;
}

static enum dtx_status read_lines(struct dtx_ctx *ctx, struct reader *r, struct dtx_losses *l)
{
    int64_t capacity = 0;
    while (reader_next(r)) {
        if (!r->line)
            continue;
        if (l->n == capacity)
            DTX_TRY(ctx, grow(ctx, l, &capacity));
        l->step[l->n] = r->step;
        l->loss[l->n] = real_of(r->line, "loss");
        l->heldout[l->n] = real_of(r->line, "heldout_loss");
        l->last_skipped = json_is_true(json_object_get(r->line, "skipped"));
        l->n++;
    }
    DTX_TRY(ctx, reader_check(ctx, r));
    if (l->n == 0)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: no line is a step's metrics (%lld lines)", r->path,
                        (long long)r->number);
    if (r->n_bad > 0)
        dtx_log(ctx, DTX_LOG_WARN, "%s: passed over %lld of %lld lines that are no metrics", r->path,
                (long long)r->n_bad, (long long)r->number);
    return DTX_OK;
}

enum dtx_status dtx_metrics_read_losses(struct dtx_ctx *ctx, const char *path, struct dtx_losses *out)
{
    char inside[4096];
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        if (snprintf(inside, sizeof inside, "%s/metrics.jsonl", path) >= (int)sizeof inside)
            return dtx_fail(ctx, DTX_E_CONFIG, "%.200s…: the name of the folder is too long", path);
        path = inside;
    }
    struct reader r;
    struct dtx_losses losses = {0};
    DTX_TRY(ctx, reader_open(ctx, path, &r));
    enum dtx_status status = read_lines(ctx, &r, &losses);
    reader_close(&r);
    if (status != DTX_OK) {
        dtx_losses_free(&losses);
        return status;
    }
    *out = losses;
    return DTX_OK;
}

void dtx_losses_free(struct dtx_losses *losses)
{
    free(losses->step);
    free(losses->loss);
    free(losses->heldout);
    *losses = (struct dtx_losses){0};
}
