#include "trainer/run_status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/meter.h"
#include "kernels/base/mutant.h"

/* A cause of several lines becomes one. */
static void put_line(FILE *file, const char *key, const char *text)
{
    fprintf(file, "%s: ", key);
    for (const char *c = text; *c; c++)
        fputc(*c == '\n' ? ' ' : *c, file);
    fputc('\n', file);
}

static void put_page(FILE *file, const struct dtx_run_page *p, const char *state, enum dtx_status status,
                     const char *cause, const char *host)
{
    char left[16] = "";
    fprintf(file, "state: %s\nstep: %lld\nsteps: %lld\n", state, (long long)p->step, (long long)p->steps);
    if (!isnan(p->left_seconds)) {
        dtx_format_duration(p->left_seconds, left);
        fprintf(file, "left: %.0f s (%s)\n", p->left_seconds, left);
    }
    fprintf(file, "attempt: %lld\ncheckpoint: %s\nlocal_checkpoint: %s\n", (long long)p->attempt, p->checkpoint,
            p->local);
    put_line(file, "before", p->before);
    put_line(file, "cause", cause);
    fprintf(file, "kind: %s\ncode: %d\ntime: %.0f\nhost: %s\n", dtx_status_name(status), dtx_status_exit_code(status),
            dtx_clock_wall(), host);
}

/* `suffix`: of the file that becomes the page: writers on other ranks and threads have their own. */
static void write_page(const struct dtx_ctx *ctx, const char *run_dir, const struct dtx_run_page *page,
                       const char *state, enum dtx_status status, const char *cause, const char *suffix, bool sync)
{
    char path[4096], temporary[4096 + 8];
    snprintf(path, sizeof path, "%s/status", run_dir);
    snprintf(temporary, sizeof temporary, "%s%s", path, suffix);
    FILE *file = fopen(temporary, "w");
    bool written = file != NULL;
    if (file) {
        put_page(file, page, state, status, cause, ctx->host);
        written = fflush(file) == 0 && (!sync || fsync(fileno(file)) == 0);
        written = fclose(file) == 0 && written;
    }
    if (!written || rename(temporary, path) != 0)
        dtx_log(ctx, DTX_LOG_WARN, "%s could not be written", path);
}

void dtx_run_status_write(const struct dtx_ctx *ctx, const char *run_dir, const struct dtx_run_page *page,
                          const char *state, enum dtx_status status, const char *cause)
{
    write_page(ctx, run_dir, page, state, status, cause, ".new", true);
}

void dtx_run_status_refresh(const struct dtx_ctx *ctx, const char *run_dir, struct dtx_run_page *page)
{
    double now = dtx_clock_now();
    if (now - page->written < 1 || DTX_MUTANT(status_not_refreshed))
        return;
    page->written = now;
    write_page(ctx, run_dir, page, "running", DTX_OK, "", ".new", false);
}

bool dtx_run_status_read(const char *run_dir, const char *key, char *text, size_t bytes)
{
    char path[4096], line[4096];
    size_t length = strlen(key);
    bool found = false;
    snprintf(path, sizeof path, "%s/status", run_dir);
    FILE *file = fopen(path, "r");
    while (file && !found && fgets(line, sizeof line, file))
        if (strncmp(line, key, length) == 0 && strncmp(line + length, ": ", 2) == 0) {
            snprintf(text, bytes, "%.*s", (int)strcspn(line + length + 2, "\n"), line + length + 2);
            found = true;
        }
    if (file)
        fclose(file);
    return found;
}

static int64_t read_number(const char *run_dir, const char *key)
{
    char text[32];
    return dtx_run_status_read(run_dir, key, text, sizeof text) ? atoll(text) : 0;
}

/* What the page in run_dir says. */
static void read_page(const char *run_dir, struct dtx_run_page *page)
{
    *page = (struct dtx_run_page){.step = read_number(run_dir, "step"),
                                  .steps = read_number(run_dir, "steps"),
                                  .left_seconds = NAN,
                                  .attempt = read_number(run_dir, "attempt"),
                                  .checkpoint = "-",
                                  .local = "-"};
    dtx_run_status_read(run_dir, "checkpoint", page->checkpoint, sizeof page->checkpoint);
    dtx_run_status_read(run_dir, "local_checkpoint", page->local, sizeof page->local);
    dtx_run_status_read(run_dir, "before", page->before, sizeof page->before);
}

void dtx_run_page_begin(const char *run_dir, int64_t attempt, struct dtx_run_page *page)
{
    char state[32] = "", cause[400] = "";
    read_page(run_dir, page);
    bool known = dtx_run_status_read(run_dir, "state", state, sizeof state) && !DTX_MUTANT(status_before_forgotten);
    dtx_run_status_read(run_dir, "cause", cause, sizeof cause);
    page->before[0] = '\0';
    if (known && strcmp(state, "running") == 0)
        snprintf(page->before, sizeof page->before, "attempt %lld: ended without a word at step %lld or later",
                 (long long)page->attempt, (long long)page->step);
    else if (known)
        snprintf(page->before, sizeof page->before, "attempt %lld: %s%s%s", (long long)page->attempt, state,
                 cause[0] ? ", " : "", cause);
    page->attempt = attempt > 0 ? attempt : page->attempt + 1;
}

void dtx_run_status_fail(const struct dtx_ctx *ctx, const char *run_dir, const char *cause)
{
    struct dtx_run_page page;
    read_page(run_dir, &page);
    write_page(ctx, run_dir, &page, "failed", DTX_E_PEER, cause, ".failed", true);
}
