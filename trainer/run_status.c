#include "trainer/run_status.h"

#include <stdio.h>
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
        fprintf(file, "state: %s\nstep: %lld\nsteps: %lld\ncode: %d\ntime: %.0f\nhost: %s\ncause: ", state,
                (long long)step, (long long)steps, dtx_status_exit_code(status), dtx_clock_wall(), ctx->host);
        for (const char *c = cause; *c; c++)
            fputc(*c == '\n' ? ' ' : *c, file);
        fputc('\n', file);
        written = fflush(file) == 0 && fsync(fileno(file)) == 0;
        written = fclose(file) == 0 && written;
    }
    if (!written || rename(temporary, path) != 0)
        dtx_log(ctx, DTX_LOG_WARN, "%s could not be written", path);
}
