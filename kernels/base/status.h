/*
 * Status codes, the error report and the per-thread context.
 *
 * Every function that can fail returns enum dtx_status and sets its outputs only on DTX_OK. The first function that
 * knows the cause calls dtx_fail() once; callers pass the status on with DTX_TRY, which adds one frame (file, line,
 * function) to the report. The report lives in the context, never in static data.
 *
 * A context belongs to one thread at a time. A helper thread works on its own context (dtx_ctx_init_child) and its
 * owner takes the error over with dtx_error_take_from.
 */
#ifndef DTX_KERNELS_BASE_STATUS_H
#define DTX_KERNELS_BASE_STATUS_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dtx_status {
    DTX_OK = 0,
    DTX_E_CONFIG,      /* the configuration or command line must be changed: exit code 78 */
    DTX_E_IO,          /* the operating system refused a file operation */
    DTX_E_FORMAT,      /* a file is not what it should be: exit code 78 */
    DTX_E_MEMORY,      /* an allocation failed */
    DTX_E_RANGE,       /* a value or shape is outside what the function accepts */
    DTX_E_UNSUPPORTED, /* this backend, library or build cannot do it: exit code 78 */
    DTX_E_LIBRARY,     /* an external library failed */
    DTX_E_NUMERIC,     /* NaN or Inf where none may be */
    DTX_E_PEER,        /* another rank failed; its own report names the cause */
    DTX_E_REQUEUE,     /* stopped early on request with all state saved: exit code 75 */
    DTX_E_INTERNAL     /* a broken invariant of dtx itself */
};

enum { DTX_ERROR_TEXT = 4096, DTX_ERROR_FRAMES = 16 };

struct dtx_frame {
    const char *file, *function;
    int line;
};

struct dtx_error {
    enum dtx_status status;
    char text[DTX_ERROR_TEXT]; /* what was wrong, where, what to do */
    struct dtx_frame frames[DTX_ERROR_FRAMES];
    int n_frames;
};

enum dtx_log_level { DTX_LOG_DEBUG, DTX_LOG_INFO, DTX_LOG_WARN, DTX_LOG_ERROR };

struct dtx_trace;

/* State of one thread of one rank. rank and size are MPI's; 0 and 1 before or without MPI. */
struct dtx_ctx {
    struct dtx_error error;
    int rank, size;
    char host[64];
    enum dtx_log_level log_level; /* messages under this level are not printed */
    double waited;                /* seconds that this thread has spent in collectives and waits for messages */
    struct dtx_trace *trace;      /* NULL: nothing is recorded (kernels/base/trace.h) */
};

void dtx_ctx_init(struct dtx_ctx *ctx);
/* A context for a helper thread of the same rank. */
void dtx_ctx_init_child(struct dtx_ctx *child, const struct dtx_ctx *parent);

/* Records the error and returns `status`. When one is already recorded, the older report stays. */
enum dtx_status dtx_fail_at(struct dtx_ctx *ctx, enum dtx_status status, const char *file, int line,
                            const char *function, const char *format, ...) __attribute__((format(printf, 6, 7)));
#define dtx_fail(ctx, status, ...) dtx_fail_at(ctx, status, __FILE__, __LINE__, __func__, __VA_ARGS__)
void dtx_error_frame(struct dtx_ctx *ctx, const char *file, int line, const char *function);
/* Forgets the recorded error: the caller has dealt with it. */
void dtx_error_clear(struct dtx_ctx *ctx);
/* Moves the error of a helper thread that has ended into `ctx`; returns its status. */
enum dtx_status dtx_error_take_from(struct dtx_ctx *ctx, struct dtx_ctx *helper);
/* Prints the report (text, then frames at debug level) on standard error. */
void dtx_error_print(const struct dtx_ctx *ctx);

/* Evaluates a call that returns enum dtx_status; on failure adds a frame and returns it. */
#define DTX_TRY(ctx, call)                                                                                             \
    do {                                                                                                               \
        enum dtx_status dtx_try_status = (call);                                                                       \
        if (dtx_try_status != DTX_OK) {                                                                                \
            dtx_error_frame(ctx, __FILE__, __LINE__, __func__);                                                        \
            return dtx_try_status;                                                                                     \
        }                                                                                                              \
    } while (0)
/* The same for functions with clean-up: stores the status in `status` and jumps to `label`. */
#define DTX_TRY_GOTO(ctx, status, call, label)                                                                         \
    do {                                                                                                               \
        (status) = (call);                                                                                             \
        if ((status) != DTX_OK) {                                                                                      \
            dtx_error_frame(ctx, __FILE__, __LINE__, __func__);                                                        \
            goto label;                                                                                                \
        }                                                                                                              \
    } while (0)

const char *dtx_status_name(enum dtx_status status);
/* 0 done, 75 requeue me, 78 fix the configuration or the file it names (trying again would not help), 1 everything
 * else. */
int dtx_status_exit_code(enum dtx_status status);
/* The status of an error number about a path that the user gave: DTX_E_CONFIG where the path is wrong (nothing there,
 * no permission, not a folder, …), else DTX_E_IO. */
enum dtx_status dtx_status_of_path(int cause);

void dtx_log(const struct dtx_ctx *ctx, enum dtx_log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
