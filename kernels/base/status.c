#include "kernels/base/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void dtx_ctx_init(struct dtx_ctx *ctx)
{
    memset(ctx, 0, sizeof *ctx);
    ctx->size = 1;
    ctx->log_level = DTX_LOG_INFO;
    if (gethostname(ctx->host, sizeof ctx->host - 1) != 0)
        snprintf(ctx->host, sizeof ctx->host, "unknown");
}

void dtx_ctx_init_child(struct dtx_ctx *child, const struct dtx_ctx *parent)
{
    *child = *parent;
    dtx_error_clear(child);
}

void dtx_error_frame(struct dtx_ctx *ctx, const char *file, int line, const char *function)
{
    struct dtx_error *e = &ctx->error;
    if (e->n_frames < DTX_ERROR_FRAMES)
        e->frames[e->n_frames++] = (struct dtx_frame){file, function, line};
}

enum dtx_status dtx_fail_at(struct dtx_ctx *ctx, enum dtx_status status, const char *file, int line,
                            const char *function, const char *format, ...)
{
    struct dtx_error *e = &ctx->error;
    if (e->status != DTX_OK)
        return status;
    e->status = status;
    e->n_frames = 0;
    va_list ap;
    va_start(ap, format);
    vsnprintf(e->text, sizeof e->text, format, ap);
    va_end(ap);
    dtx_error_frame(ctx, file, line, function);
    return status;
}

void dtx_error_clear(struct dtx_ctx *ctx)
{
    ctx->error.status = DTX_OK;
    ctx->error.text[0] = '\0';
    ctx->error.n_frames = 0;
}

enum dtx_status dtx_error_take_from(struct dtx_ctx *ctx, struct dtx_ctx *helper)
{
    enum dtx_status status = helper->error.status;
    if (status != DTX_OK && ctx->error.status == DTX_OK)
        ctx->error = helper->error;
    dtx_error_clear(helper);
    return status;
}

void dtx_error_print(const struct dtx_ctx *ctx)
{
    const struct dtx_error *e = &ctx->error;
    char where[96] = "";
    if (ctx->size > 1)
        snprintf(where, sizeof where, " on rank %d (%s)", ctx->rank, ctx->host);
    fprintf(stderr, "dtx: error%s: %s\n", where, e->text[0] ? e->text : dtx_status_name(e->status));
    if (ctx->log_level <= DTX_LOG_DEBUG || e->status == DTX_E_INTERNAL)
        for (int i = 0; i < e->n_frames; i++)
            fprintf(stderr, "dtx:   at %s (%s:%d)\n", e->frames[i].function, e->frames[i].file, e->frames[i].line);
}

const char *dtx_status_name(enum dtx_status status)
{
    static const char *const names[] = {"ok",      "configuration", "input/output", "format",
                                        "memory",  "range",         "unsupported",  "library",
                                        "numeric", "peer failed",   "requeue",      "internal"};
    return (size_t)status < sizeof names / sizeof *names ? names[status] : "unknown";
}

int dtx_status_exit_code(enum dtx_status status)
{
    switch (status) {
    case DTX_OK:
        return 0;
    case DTX_E_CONFIG:
    case DTX_E_FORMAT:
    case DTX_E_UNSUPPORTED:
        return 78;
    case DTX_E_REQUEUE:
        return 75;
    default:
        return 1;
    }
}

enum dtx_status dtx_status_of_path(int cause)
{
    static const int wrong[] = {ENOENT, ENOTDIR, EISDIR, EACCES, EPERM, EROFS, ELOOP, ENAMETOOLONG};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (cause == wrong[i])
            return DTX_E_CONFIG;
    return DTX_E_IO;
}

void dtx_log(const struct dtx_ctx *ctx, enum dtx_log_level level, const char *format, ...)
{
    static const char *const prefix[] = {"debug: ", "", "warning: ", "error: "};
    if (level < ctx->log_level)
        return;
    char line[DTX_ERROR_TEXT];
    va_list ap;
    va_start(ap, format);
    vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    if (ctx->size > 1 && ctx->rank != 0)
        fprintf(stderr, "dtx: rank %d: %s%s\n", ctx->rank, prefix[level], line);
    else
        fprintf(stderr, "dtx: %s%s\n", prefix[level], line);
}
