#include "trainer/health.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/* A window without noise (a toy, a text learned by heart) still has this standard deviation, as a share of its mean. */
static const double least_deviation = 2e-3;

static enum dtx_health_action action_of(const struct dtx_opt *opt, const char *key)
{
    static const char *const names[] = {"none", "warn", "skip", "rollback", "stop"};
    int i = DTX_HEALTH_STOP;
    while (i > 0 && strcmp(names[i], dtx_opt_text(opt, key)) != 0)
        i--;
    return (enum dtx_health_action)i;
}

bool dtx_health_rolls_back(const struct dtx_opt *opt)
{
    return action_of(opt, "health.nonfinite") == DTX_HEALTH_ROLLBACK ||
           action_of(opt, "health.spike") == DTX_HEALTH_ROLLBACK ||
           action_of(opt, "health.norm") == DTX_HEALTH_ROLLBACK;
}

enum dtx_status dtx_health_open(struct dtx_ctx *ctx, const struct dtx_opt *opt, struct dtx_health *out)
{
    void *memory;
    *out = (struct dtx_health){.nonfinite = action_of(opt, "health.nonfinite"),
                               .spike = action_of(opt, "health.spike"),
                               .norm = action_of(opt, "health.norm"),
                               .window = (int)dtx_opt_int(opt, "health.window"),
                               .max_skips = (int)dtx_opt_int(opt, "health.max_skips"),
                               .max_rollbacks = (int)dtx_opt_int(opt, "health.max_rollbacks"),
                               .z = dtx_opt_real(opt, "health.z"),
                               .max_norm = dtx_opt_real(opt, "health.max_grad_norm")};
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 2 * (int64_t)out->window, sizeof *out->losses, &memory));
    out->losses = memory;
    out->norms = out->losses + out->window;
    return DTX_OK;
}

void dtx_health_close(struct dtx_health *h)
{
    dtx_mem_free(h->losses);
    *h = (struct dtx_health){0};
}

static void copy(const struct dtx_health *from, struct dtx_health *to)
{
    memcpy(to->losses, from->losses, 2 * (size_t)from->window * sizeof *from->losses);
    to->seen = from->seen;
    to->skipped = from->skipped;
}

void dtx_health_keep(struct dtx_health *h, struct dtx_health *then)
{
    h->rollbacks = 0;
    copy(h, then);
}

void dtx_health_return(const struct dtx_health *then, struct dtx_health *h)
{
    copy(then, h);
    h->rollbacks++;
    h->all_rollbacks++;
}

/* How many standard deviations `value` lies above the mean of a full window. Sums run from the oldest step on, wherever
 * it lies, so a resumed run has the same bits. */
static double z_of(const struct dtx_health *h, const double *values, double value, double *mean)
{
    double sum = 0, squares = 0;
    for (int64_t k = h->seen - h->window; k < h->seen; k++)
        sum += values[k % h->window];
    *mean = sum / h->window;
    for (int64_t k = h->seen - h->window; k < h->seen; k++) {
        double d = values[k % h->window] - *mean;
        squares += d * d;
    }
    return (value - *mean) / fmax(sqrt(squares / h->window), least_deviation * fabs(*mean));
}

/* One cause; the gravest counts. */
static void find(struct dtx_health_verdict *v, enum dtx_health_action action, const char *why)
{
    if (action <= v->action)
        return;
    v->action = action;
    snprintf(v->why, sizeof v->why, "%s", why);
}

static void judge_finite(const struct dtx_health *h, const struct dtx_step_result *r, struct dtx_health_verdict *v)
{
    char why[160];
    double mean, z;
    bool full = h->seen >= h->window;
    if (full) {
        v->z = z_of(h, h->losses, r->loss, &mean);
        snprintf(why, sizeof why, "a loss spike: %.6g is %.1f standard deviations above %.6g, the mean of %d steps",
                 r->loss, v->z, mean, h->window);
        if (v->z > h->z)
            find(v, h->spike, why);
    }
    if (h->max_norm > 0 && r->grad_norm > h->max_norm) {
        snprintf(why, sizeof why, "gradient norm %.6g is above health.max_grad_norm %g", r->grad_norm, h->max_norm);
        find(v, h->norm, why);
    }
    if (h->max_norm == 0 && full && (z = z_of(h, h->norms, r->grad_norm, &mean)) > h->z) {
        snprintf(why, sizeof why, "gradient norm %.6g is %.1f standard deviations above %.6g, the mean of %d steps",
                 r->grad_norm, z, mean, h->window);
        find(v, h->norm, why);
    }
}

/* The last of several chances. */
static void count_chances(const struct dtx_health *h, struct dtx_health_verdict *v)
{
    size_t used = strlen(v->why);
    if (v->action == DTX_HEALTH_SKIP && h->skipped + 1 >= h->max_skips) {
        v->action = DTX_HEALTH_STOP;
        snprintf(v->why + used, sizeof v->why - used, "; %d steps in a row were not fit to be taken (health.max_skips)",
                 h->max_skips);
    } else if (v->action == DTX_HEALTH_ROLLBACK && h->rollbacks >= h->max_rollbacks) {
        v->action = DTX_HEALTH_STOP;
        snprintf(
            v->why + used, sizeof v->why - used,
            "; %d rollback%s to one snapshot did not help (health.max_rollbacks): go on from an earlier checkpoint",
            h->rollbacks, h->rollbacks == 1 ? "" : "s");
    }
}

void dtx_health_judge(const struct dtx_health *h, const struct dtx_step_result *r, struct dtx_health_verdict *out)
{
    char why[96];
    *out = (struct dtx_health_verdict){.z = NAN};
    if (!isfinite(r->loss) || !isfinite(r->grad_norm)) {
        snprintf(why, sizeof why, "loss %g, gradient norm %g: not finite", r->loss, r->grad_norm);
        find(out, DTX_MUTANT(nonfinite_not_skipped) ? DTX_HEALTH_NONE : h->nonfinite, why);
    } else if (r->targets > 0) {
        judge_finite(h, r, out);
    }
    count_chances(h, out);
}

void dtx_health_judge_weights(const struct dtx_health *h, bool finite, struct dtx_health_verdict *v)
{
    if (finite)
        return;
    v->action = DTX_HEALTH_NONE;
    find(v, DTX_HEALTH_ROLLBACK, "the update left weights or optimizer states that are not finite");
    count_chances(h, v);
}

void dtx_health_note(struct dtx_health *h, const struct dtx_step_result *r)
{
    h->skipped = r->skipped ? h->skipped + 1 : 0;
    if (r->targets == 0 || !isfinite(r->loss) || !isfinite(r->grad_norm) ||
        (r->skipped && !DTX_MUTANT(health_remembers_skipped)))
        return;
    h->losses[h->seen % h->window] = r->loss;
    h->norms[h->seen % h->window] = r->grad_norm;
    h->seen++;
}

static const char first_line[] = "dtx health 1\n", last_line[] = "end\n";
enum { LINE = 64 }; /* two numbers of at most 24 characters */

enum dtx_status dtx_health_write(struct dtx_ctx *ctx, const struct dtx_health *h, char **text)
{
    void *memory;
    int64_t n = dtx_min64(h->seen, h->window);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, (n + 4) * LINE, 1, &memory));
    char *at = memory;
    at += sprintf(at, "%sskipped %d\nrollbacks %" PRId64 "\n", first_line, h->skipped, h->all_rollbacks);
    for (int64_t k = h->seen - n; k < h->seen; k++)
        at += sprintf(at, "%.17g %.17g\n", h->losses[k % h->window], h->norms[k % h->window]);
    sprintf(at, "%s", last_line);
    *text = memory;
    return DTX_OK;
}

/* "WORD N\n", N from 0 to `most`. */
static bool read_count(const char **at, const char *word, int64_t most, int64_t *out)
{
    char *end;
    size_t n = strlen(word);
    if (strncmp(*at, word, n) != 0 || !isdigit((unsigned char)(*at)[n]))
        return false;
    errno = 0;
    *out = strtoll(*at + n, &end, 10);
    if (errno != 0 || *out > most || *end != '\n')
        return false;
    *at = end + 1;
    return true;
}

/* A finite number and the character behind it. */
static bool read_real(const char **at, char behind, double *out)
{
    char *end;
    if (!isdigit((unsigned char)**at) && **at != '-')
        return false;
    *out = strtod(*at, &end);
    if (end == *at || *end != behind || !isfinite(*out)) /* "1e999", "-inf" */
        return false;
    *at = end + 1;
    return true;
}

enum dtx_status dtx_health_read(struct dtx_ctx *ctx, const char *text, struct dtx_health *h)
{
    int64_t skipped, rollbacks, seen = 0;
    double loss = 0, norm = 0;
    const char *at = text;
    if (!text || !*text || DTX_MUTANT(health_forgotten_on_resume))
        return DTX_OK;
    bool good = strncmp(at, first_line, sizeof first_line - 1) == 0;
    at += good ? sizeof first_line - 1 : 0;
    good =
        good && read_count(&at, "skipped ", INT_MAX, &skipped) && read_count(&at, "rollbacks ", INT64_MAX, &rollbacks);
    for (; good && strcmp(at, last_line) != 0; seen++) {
        good = read_real(&at, ' ', &loss) && read_real(&at, '\n', &norm);
        h->losses[seen % h->window] = loss;
        h->norms[seen % h->window] = norm;
    }
    if (!good)
        return dtx_fail(ctx, DTX_E_FORMAT,
                        "the checkpoint's /health is not what dtx writes, from its byte %lld on: '%.60s'",
                        (long long)(at - text), at);
    h->seen = seen;
    h->skipped = (int)skipped;
    h->all_rollbacks = rollbacks;
    return DTX_OK;
}
