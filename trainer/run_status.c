#include "trainer/run_status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/clock.h"

void dtx_run_status_write(const struct dtx_ctx *ctx, const char *run_dir, const char *state, int64_t step,
                          int64_t steps, enum dtx_status status, const char *cause)
{
    char path[4096], temporary[4096 + 8];
    snprintf(path, sizeof path, "%s/status", run_dir);
    snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE *file = fopen(temporary, "w");
    bool written = file != NULL;
    if (file) {
        fprintf(file, "state: %s\nstep: %lld\nsteps: %lld\ncode: %d\nkind: %s\ntime: %.0f\nhost: %s\ncause: ", state,
                (long long)step, (long long)steps, dtx_status_exit_code(status), dtx_status_name(status),
                dtx_clock_wall(), ctx->host);
        for (const char *c = cause; *c; c++)
            fputc(*c == '\n' ? ' ' : *c, file);
        fputc('\n', file);
        written = fflush(file) == 0 && fsync(fileno(file)) == 0;
        written = fclose(file) == 0 && written;
    }
    if (!written || rename(temporary, path) != 0)
        dtx_log(ctx, DTX_LOG_WARN, "%s could not be written", path);
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

void dtx_run_status_fail(const struct dtx_ctx *ctx, const char *run_dir, const char *cause)
{
    char step[32] = "0", steps[32] = "0";
    dtx_run_status_read(run_dir, "step", step, sizeof step);
    dtx_run_status_read(run_dir, "steps", steps, sizeof steps);
    dtx_run_status_write(ctx, run_dir, "failed", atoll(step), atoll(steps), DTX_E_PEER, cause);
}
