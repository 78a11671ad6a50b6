#include "trainer/selfcheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/base/rng.h"
#include "parallel/schedule.h"
#include "trainer/attn.h"
#include "trainer/optim.h"

enum { SEED = 17, SHOWN = 6, KINDS_SHOWN = 24 };

static int64_t greatest_divisor(int64_t a, int64_t b)
{
    return b == 0 ? a : greatest_divisor(b, a % b);
}

const struct dtx_selfcheck_model *dtx_selfcheck_choose(const struct dtx_engine_config *run, char *why, size_t bytes)
{
    int n, tp = run->mesh[DTX_AXIS_TP];
    const struct dtx_selfcheck_model *models = dtx_selfcheck_models(&n), *found = NULL;
    int64_t parts = (int64_t)run->mesh[DTX_AXIS_PP] * dtx_max64(run->split.chunks, 1);
    for (int i = 0; i < n; i++) {
        const struct dtx_selfcheck_model *m = &models[i];
        int64_t width = (int64_t)m->layers * m->heads * m->head_dim;
        if (m->kv_heads % tp == 0 && m->layers >= parts &&
            (!found || width < (int64_t)found->layers * found->heads * found->head_dim))
            found = m;
    }
    if (!found)
        snprintf(why, bytes, "no figures for %d tensor ranks and %lld parts of a pipeline are shipped", tp,
                 (long long)parts);
    return found;
}

/* Micro-batches of a data rank: what the schedule takes, and each sequence as often as the others. */
static int micro_batches(const struct dtx_engine_config *c)
{
    const struct dtx_schedule *schedule = dtx_schedule_find(c->schedule);
    int dp = c->mesh[DTX_AXIS_DP], pp = c->mesh[DTX_AXIS_PP];
    int step = schedule && pp > 1 ? dtx_schedule_multiple(schedule, pp, c->split.chunks) : 1, n = step;
    while ((int64_t)n * dp % DTX_SELFCHECK_SEQUENCES && !DTX_MUTANT(selfcheck_sequences_uneven))
        n += step;
    return n;
}

void dtx_selfcheck_config(const struct dtx_selfcheck_model *m, const struct dtx_engine_config *run,
                          struct dtx_engine_config *c)
{
    memset(c, 0, sizeof *c);
    c->model = (struct dtx_model_config){.layers = m->layers,
                                         .width = 2 * (int64_t)m->heads * m->head_dim,
                                         .heads = m->heads,
                                         .kv_heads = m->kv_heads,
                                         .head_dim = m->head_dim,
                                         .ffn = DTX_SELFCHECK_FFN,
                                         .vocab = DTX_SELFCHECK_VOCAB,
                                         .attention = dtx_attn_find("diff"),
                                         .tied = true,
                                         .rope_theta = 10000,
                                         .norm_eps = 1e-5,
                                         .subnorm = DTX_SUBNORM_AFFINE,
                                         .lambda_init = NAN};
    c->optim = (struct dtx_optim_config){.variant = dtx_optim_find("adamw"),
                                         .beta1 = 0.9,
                                         .beta2 = 0.95,
                                         .eps = 1e-6,
                                         .decay = 0.1,
                                         .clip = 0.25, /* below the norm of every step */
                                         .decay_embeddings = true};
    c->dtype = DTX_F32;
    c->seed = SEED;
    memcpy(c->mesh, run->mesh, sizeof c->mesh);
    c->ring = run->ring;
    c->sequence = run->sequence;
    c->schedule = run->mesh[DTX_AXIS_PP] > 1 ? run->schedule : "1f1b";
    c->split.chunks = run->mesh[DTX_AXIS_PP] > 1 ? run->split.chunks : 1;
    c->split.by_flops = run->split.by_flops;
    c->zero = run->zero;
    c->overlap = run->overlap;
    c->graphs = run->graphs;
    c->bucket_bytes = dtx_min64(run->bucket_bytes, 256 << 10); /* several */
    c->recompute = run->recompute;
    int64_t tp = c->mesh[DTX_AXIS_TP], cp = c->mesh[DTX_AXIS_CP], chunks = cp > 1 ? 2 * cp : 1, rows = cp * tp;
    c->batch.length = dtx_round_up(DTX_SELFCHECK_LENGTH, chunks / greatest_divisor(chunks, rows) * rows);
    c->batch.micro_batch = 1;
    c->batch.micro_batches = micro_batches(c);
    c->batch.global_batch = (int64_t)c->batch.micro_batches * c->mesh[DTX_AXIS_DP];
}

double dtx_selfcheck_lr(int64_t step)
{
    return 2e-3 / (double)step;
}

static int32_t token_at(int64_t sequence, int64_t t)
{
    uint64_t place = (uint64_t)(sequence * (DTX_SELFCHECK_LENGTH + 1) + t);
    return (int32_t)(dtx_rng_uniform(dtx_rng_key(SEED, "selfcheck"), place) * DTX_SELFCHECK_VOCAB);
}

/* Sequences have 32, 21, 16 and 4 targets: a mean over ranks or micro-batches is none over targets. */
static bool has_target(int64_t sequence, int64_t t)
{
    return t < DTX_SELFCHECK_LENGTH && (sequence == 0   ? true
                                        : sequence == 1 ? t % 3 != 0
                                        : sequence == 2 ? t >= 16
                                                        : t % 8 == 7);
}

void dtx_selfcheck_batch(int64_t first, int64_t n, int64_t length, int32_t *tokens, int32_t *targets)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t t = 0; t < length; t++) {
            int64_t sequence = (first + i) % DTX_SELFCHECK_SEQUENCES, at = i * length + t;
            tokens[at] = token_at(sequence, dtx_min64(t, DTX_SELFCHECK_LENGTH));
            targets[at] = has_target(sequence, t) ? token_at(sequence, t + 1) : -1;
        }
}

/* What a run gave beside what it should: of each kind of figure ("attn.lambda_q1", "loss") the worst. */
struct comparison {
    struct dtx_selfcheck_result *result;
    struct kind {
        const char *name;
        int n;        /* wrong ones */
        double worst; /* times its bound */
        char text[128];
    } kinds[KINDS_SHOWN];
    int n_kinds;
    double lambda_scale;
};

enum { LOSS, NORM, GRADIENT, LAMBDA, KINDS };
static const double bounds[KINDS] = {DTX_SELFCHECK_LOSS, DTX_SELFCHECK_NORM, DTX_SELFCHECK_GRAD, DTX_SELFCHECK_LAMBDA};

static int kind_of(const char *weight)
{
    return strstr(weight, ".lambda_") ? LAMBDA : GRADIENT;
}

/* scale: what the difference is measured by. */
static double difference(double got, double expected, double scale)
{
    double off = fabs(got - expected) / scale;
    return isnan(off) ? INFINITY : off;
}

/* λ's gradient is a sum over all rows and heads that nearly cancels in some layers, and its error is that of the terms:
 * a λ vector's difference is measured by the mean of all layers' norms where its own is smaller. */
static double lambda_scale(const struct dtx_params *p, const double *gradient)
{
    double sum = 0;
    int n = 0;
    for (int i = 0; i < p->n; i++)
        if (kind_of(p->item[i].row.name) == LAMBDA) {
            sum += gradient[i];
            n++;
        }
    return sum / n;
}

/* Counts one figure. `name` begins with "layers.NN." or "step N " where there are several of its kind. */
static void compare(struct comparison *c, int kind, const char *name, double got, double expected)
{
    struct dtx_selfcheck_result *r = c->result;
    double off = difference(got, expected, kind == LAMBDA ? fmax(expected, c->lambda_scale) : expected);
    r->figures++;
    r->worst[kind] = fmax(r->worst[kind], off);
    if (off <= bounds[kind])
        return;
    r->wrong++;
    const char *rest = strncmp(name, "layers.", 7) == 0 ? strchr(name + 7, '.')
                       : strncmp(name, "step", 4) == 0  ? name + 6
                                                        : NULL;
    int i = 0;
    rest = rest ? rest : name;
    while (i < c->n_kinds && strcmp(c->kinds[i].name, rest) != 0)
        i++;
    if (i == KINDS_SHOWN)
        return;
    struct kind *k = &c->kinds[i];
    if (i == c->n_kinds) {
        c->n_kinds++;
        *k = (struct kind){.name = rest};
    }
    k->n++;
    if (off / bounds[kind] <= k->worst)
        return;
    k->worst = off / bounds[kind];
    snprintf(k->text, sizeof k->text, "%s%s %.6g, expected %.6g", name, kind < GRADIENT ? "" : ": gradient norm", got,
             expected);
}

static int by_worst(const void *a, const void *b)
{
    double x = ((const struct kind *)a)->worst, y = ((const struct kind *)b)->worst;
    return (x < y) - (x > y);
}

/* "layers.03.attn.out: gradient norm 1.2, expected 1.1 (and 3 more of attn.out); …" */
static void describe(struct comparison *c)
{
    char *text = c->result->text;
    size_t used = 0, bytes = sizeof c->result->text;
    qsort(c->kinds, (size_t)c->n_kinds, sizeof *c->kinds, by_worst);
    for (int i = 0; i < c->n_kinds && i < SHOWN && used < bytes; i++) {
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i ? "; " : "", c->kinds[i].text);
        if (c->kinds[i].n > 1 && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, " (and %d more of the kind)", c->kinds[i].n - 1);
    }
    if (c->n_kinds > SHOWN && used < bytes)
        snprintf(text + used, bytes - used, "; and %d kinds more", c->n_kinds - SHOWN);
}

static void compare_all(const struct dtx_params *p, const struct dtx_selfcheck_model *m, const double *losses,
                        const double *norms, const double *squares, struct dtx_selfcheck_result *result)
{
    static const char *const steps[][2] = {{"step 1 loss", "step 1 norm of all gradients"},
                                           {"step 2 loss", "step 2 norm of all gradients"},
                                           {"step 3 loss", "step 3 norm of all gradients"}};
    struct comparison c = {.result = result, .lambda_scale = lambda_scale(p, m->gradient)};
    for (int s = 0; s < DTX_SELFCHECK_STEPS; s++) {
        compare(&c, LOSS, steps[s][0], losses[s], m->loss[s]);
        compare(&c, NORM, steps[s][1], norms[s], m->norm[s]);
    }
    for (int i = 0; i < p->n && !DTX_MUTANT(selfcheck_gradients_not_compared); i++)
        compare(&c, kind_of(p->item[i].row.name), p->item[i].row.name, sqrt(squares[i]), m->gradient[i]);
    describe(&c);
}

/* Σ x² of this rank's part of a row, of the whole one's elements. */
static double part_square(const struct dtx_param *item, const struct dtx_mesh *mesh, const double *whole)
{
    struct dtx_box boxes[DTX_MAX_BOXES];
    const struct dtx_param_row *row = &item->row;
    int64_t columns = row->ndim == 2 ? row->shape[1] : 1;
    int n = dtx_shard_boxes(&row->place, row->ndim, row->shape, row->padded, mesh->rank[DTX_AXIS_TP],
                            mesh->size[DTX_AXIS_TP], boxes);
    double sum = 0;
    for (int b = 0; b < n; b++)
        for (int64_t r = 0; r < boxes[b].extent[0]; r++)
            for (int64_t c = 0; c < (row->ndim == 2 ? boxes[b].extent[1] : 1); c++) {
                double x = whole[(boxes[b].global[0] + r) * columns + (row->ndim == 2 ? boxes[b].global[1] : 0) + c];
                sum += x * x;
            }
    return sum;
}

/* Does this rank hold another gradient than a rank alone makes there? */
static bool differs_here(const struct dtx_params *p, const struct dtx_selfcheck_model *m, const double *here,
                         const double *whole)
{
    double lambda = lambda_scale(p, m->gradient);
    for (int i = 0; i < p->n; i++) {
        const struct dtx_param *item = &p->item[i];
        int kind = kind_of(item->row.name);
        double expected = item->held ? sqrt(part_square(item, p->mesh, whole)) : 0;
        double scale = kind == LAMBDA ? fmax(expected, lambda) : expected;
        if (item->held && (here[i] > 0 || expected > 0) &&
            !(difference(sqrt(here[i]), expected, scale) <= 4 * bounds[kind]))
            return true;
        whole += item->row.shape[0] * (item->row.ndim == 2 ? item->row.shape[1] : 1);
    }
    return false;
}

/* One run of the model. */
struct trial {
    struct dtx_engine *engine;
    const struct dtx_selfcheck_model *model;
    const double *whole; /* gradients of step 1 by one rank, or NULL */
    bool wanted;         /* this only rank's gradients are: */
    double *keep;        /* … here, row after row */
    int32_t *tokens, *targets;
    double *squares; /* of rows: of the whole mesh, then of this rank */
    float *row;      /* the largest one */
    struct dtx_selfcheck_result *result;
};

static int64_t elements(const struct dtx_param *item)
{
    return item->row.shape[0] * (item->row.ndim == 2 ? item->row.shape[1] : 1);
}

static enum dtx_status make_buffers(struct trial *t)
{
    const struct dtx_params *p = dtx_engine_params(t->engine);
    const struct dtx_engine_config *c = dtx_engine_config_of(t->engine);
    int64_t n = c->batch.micro_batches * c->batch.micro_batch * c->batch.length, largest = 1;
    void *memory;
    for (int i = 0; i < p->n; i++)
        largest = dtx_max64(largest, elements(&p->item[i]));
    DTX_TRY(p->ctx, dtx_mem_alloc(p->ctx, 2 * n, sizeof *t->tokens, &memory));
    t->tokens = memory;
    t->targets = t->tokens + n;
    DTX_TRY(p->ctx, dtx_mem_alloc(p->ctx, 2 * (int64_t)p->n, sizeof *t->squares, &memory));
    t->squares = memory;
    DTX_TRY(p->ctx, dtx_mem_alloc(p->ctx, t->wanted ? largest : 1, sizeof *t->row, &memory));
    t->row = memory;
    if (t->wanted)
        DTX_TRY(p->ctx, dtx_mem_alloc(p->ctx, dtx_params_total(p), sizeof *t->keep, &memory));
    t->keep = t->wanted ? memory : NULL;
    return DTX_OK;
}

static enum dtx_status keep_gradients(struct trial *t)
{
    const struct dtx_params *p = dtx_engine_params(t->engine);
    double *next = t->keep;
    for (int i = 0; i < p->n; i++) {
        DTX_TRY(p->ctx, dtx_tensor_get(dtx_engine_queue(t->engine), &p->item[i].reduced, t->row));
        for (int64_t k = 0; k < elements(&p->item[i]); k++)
            *next++ = t->row[k];
    }
    return DTX_OK;
}

/* Copies that are no more alike are one more fault; this rank's, if most others agree on something else. */
static enum dtx_status compare_copies(struct trial *t)
{
    struct dtx_selfcheck_result *r = t->result;
    struct dtx_comm *ranks = dtx_engine_mesh(t->engine)->world;
    struct dtx_replica_report copies;
    DTX_TRY(ranks->ctx, dtx_engine_replicas(t->engine, &copies));
    if (copies.tensors == 0 || DTX_MUTANT(selfcheck_copies_not_compared))
        return DTX_OK;
    r->wrong++;
    size_t used = strlen(r->text);
    const char *end = strstr(copies.text, "; ");
    int length = end ? (int)(end - copies.text) : (int)strlen(copies.text);
    snprintf(r->text + used, sizeof r->text - used, "%scopies differ in %lld tensors after %d steps: %.*s",
             used ? "; " : "", (long long)copies.tensors, DTX_SELFCHECK_STEPS, length, copies.text);
    for (int i = 0; i < copies.first.n_ranks && i < DTX_REPLICA_RANKS && copies.first.majority; i++)
        r->here = r->here || copies.first.ranks[i] == ranks->rank;
    return DTX_OK;
}

static enum dtx_status take_steps(struct trial *t)
{
    const struct dtx_params *p = dtx_engine_params(t->engine);
    const struct dtx_engine_config *c = dtx_engine_config_of(t->engine);
    struct dtx_engine_batch batch = {.tokens = t->tokens, .targets = t->targets};
    struct dtx_step_result step;
    double losses[DTX_SELFCHECK_STEPS], norms[DTX_SELFCHECK_STEPS];
    int64_t n = c->batch.micro_batches * c->batch.micro_batch;
    dtx_selfcheck_batch(n * dtx_engine_mesh(t->engine)->rank[DTX_AXIS_DP], n, c->batch.length, t->tokens, t->targets);
    for (int s = 0; s < DTX_SELFCHECK_STEPS; s++) {
        DTX_TRY(p->ctx, dtx_engine_step(t->engine, &batch, s + 1, dtx_selfcheck_lr(s + 1), &step));
        losses[s] = step.loss;
        norms[s] = step.grad_norm;
        if (s > 0)
            continue;
        dtx_engine_row_squares(t->engine, t->squares, t->squares + p->n);
        if (t->keep)
            DTX_TRY(p->ctx, keep_gradients(t));
    }
    compare_all(p, t->model, losses, norms, t->squares, t->result);
    t->result->here = t->whole && differs_here(p, t->model, t->squares + p->n, t->whole);
    return compare_copies(t);
}

/* Collective over ranks. */
static enum dtx_status run_trial(struct trial *t, struct dtx_comm *ranks, struct dtx_backend *backend,
                                 const struct dtx_engine_config *run)
{
    struct dtx_engine_config config;
    memset(t->result, 0, sizeof *t->result);
    dtx_selfcheck_config(t->model, run, &config);
    DTX_TRY(ranks->ctx, dtx_engine_create(ranks->ctx, &config, ranks, backend, &t->engine));
    enum dtx_status status = dtx_comm_agree(ranks, make_buffers(t));
    if (status == DTX_OK)
        status = take_steps(t);
    if (status == DTX_OK)
        dtx_engine_free(t->engine);
    else
        dtx_engine_halt(t->engine); /* the others may be anywhere */
    dtx_mem_free(t->tokens);
    dtx_mem_free(t->squares);
    dtx_mem_free(t->row);
    return status;
}

enum dtx_status dtx_selfcheck_run(struct dtx_comm *ranks, struct dtx_backend *backend,
                                  const struct dtx_selfcheck_model *model, const struct dtx_engine_config *run,
                                  const double *whole, struct dtx_selfcheck_result *result)
{
    struct trial t = {.model = model, .whole = whole, .result = result};
    DTX_TRY(ranks->ctx, run_trial(&t, ranks, backend, run));
    return DTX_OK;
}

enum dtx_status dtx_selfcheck_alone(struct dtx_ctx *ctx, struct dtx_backend *backend,
                                    const struct dtx_selfcheck_model *model, const struct dtx_engine_config *run,
                                    double **whole, struct dtx_selfcheck_result *result)
{
    struct dtx_engine_config config = *run;
    struct dtx_comm *self;
    struct trial t = {.model = model, .wanted = whole != NULL, .result = result};
    for (int a = 0; a < DTX_AXES; a++)
        config.mesh[a] = 1;
    DTX_TRY(ctx, dtx_comm_self(ctx, &self));
    enum dtx_status status = run_trial(&t, self, backend, &config);
    dtx_comm_free(self);
    if (status != DTX_OK) {
        dtx_mem_free(t.keep);
        return status;
    }
    if (whole)
        *whole = t.keep;
    return DTX_OK;
}
