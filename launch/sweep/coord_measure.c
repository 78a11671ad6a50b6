/* One model's few steps, and what its activations did. */
#include <math.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "launch/sweep/coord.h"

/* All coordinates of one model, kind after kind. */
struct coordinates {
    int64_t n[DTX_COORD_KINDS];
    double *at[DTX_COORD_KINDS], *memory;
};

struct trial {
    struct dtx_ctx *ctx;
    const struct dtx_engine_config *config;
    struct dtx_engine *engine;
    int32_t *tokens, *targets; /* [sequences·length] */
    int64_t probes;            /* the first sequences, whose activations are looked at */
    double *stream[2];         /* [length·width]: the input of two layers one after another */
};

static enum dtx_status coordinates_make(const struct trial *t, struct coordinates *c)
{
    const struct dtx_model_config *m = &t->config->model;
    int64_t rows = t->probes * t->config->batch.length, all = 0;
    void *memory;
    const int64_t n[DTX_COORD_KINDS] = {[DTX_COORD_EMBED] = rows * m->width,
                                        [DTX_COORD_Q] = rows * m->width * m->layers,
                                        [DTX_COORD_ATTN] = rows * m->width * m->layers,
                                        [DTX_COORD_GATE] = rows * m->ffn * m->layers,
                                        [DTX_COORD_FFN] = rows * m->width * m->layers,
                                        [DTX_COORD_STREAM] = rows * m->width,
                                        [DTX_COORD_LOGITS] = t->probes * m->vocab,
                                        [DTX_COORD_LAMBDA] = m->layers};
    for (int k = 0; k < DTX_COORD_KINDS; k++)
        all += n[k];
    DTX_TRY(t->ctx, dtx_mem_alloc(t->ctx, all, sizeof(double), &memory));
    c->memory = memory;
    all = 0;
    for (int k = 0; k < DTX_COORD_KINDS; all += n[k++]) {
        c->n[k] = n[k];
        c->at[k] = c->memory + all;
    }
    return DTX_OK;
}

/* Text that can be learned: mostly each token has one follower, the others come by chance, frequent ones more often. */
static void make_batch(struct trial *t)
{
    const struct dtx_batch_config *b = &t->config->batch;
    int64_t vocab = t->config->model.vocab;
    uint64_t key = dtx_rng_key(1, "coordcheck.text");
    for (int64_t s = 0; s < b->micro_batch; s++) {
        int64_t token = s % vocab;
        for (int64_t i = 0; i < b->length; i++) {
            uint64_t at = (uint64_t)(s * b->length + i) * 2;
            t->tokens[s * b->length + i] = (int32_t)token;
            int64_t by_chance = (int64_t)pow((double)vocab, dtx_rng_uniform(key, at + 1)) - 1;
            token = dtx_rng_uniform(key, at) < 0.7 ? (token * 7 + 3) % vocab : dtx_min64(by_chance, vocab - 1);
            t->targets[s * b->length + i] = (int32_t)token;
        }
    }
}

/* Adds a layer's tensor behind what is there of its kind: *used of them. */
static enum dtx_status take(struct trial *t, int layer, const char *name, struct coordinates *c,
                            enum dtx_coord_kind kind, int64_t *used)
{
    int64_t n;
    DTX_TRY(t->ctx, dtx_engine_activation(t->engine, layer, name, c->at[kind] + *used, c->n[kind] - *used, &n));
    *used += n;
    return DTX_OK;
}

/* Activations of one sequence. The engine's layers: embedding, then attention and ffn in turn, head. */
static enum dtx_status look_at_sequence(struct trial *t, int64_t sequence, struct coordinates *c,
                                        int64_t used[DTX_COORD_KINDS])
{
    const struct dtx_model_config *m = &t->config->model;
    int64_t length = t->config->batch.length, n, size = length * m->width;
    double branch = dtx_transfer_branch(&m->transfer);
    int head = (int)(2 * m->layers + 1);
    DTX_TRY(t->ctx, dtx_engine_logits(t->engine, t->tokens + sequence * length, 0, length,
                                      c->at[DTX_COORD_LOGITS] + sequence * m->vocab));
    DTX_TRY(t->ctx, take(t, 1, "x", c, DTX_COORD_EMBED, &used[DTX_COORD_EMBED]));
    DTX_TRY(t->ctx, take(t, head, "x", c, DTX_COORD_STREAM, &used[DTX_COORD_STREAM]));
    for (int l = 1; l <= head; l++) {
        bool ffn = l % 2 == 0;
        double *x = t->stream[l % 2], *before = t->stream[!(l % 2)];
        DTX_TRY(t->ctx, dtx_engine_activation(t->engine, l, "x", x, size, &n));
        enum dtx_coord_kind kind = ffn ? DTX_COORD_ATTN : DTX_COORD_FFN;
        for (int64_t i = 0; l > 1 && i < size; i++)
            c->at[kind][used[kind]++] = (x[i] - before[i]) / branch;
        if (l == head)
            break;
        kind = ffn ? DTX_COORD_GATE : DTX_COORD_Q;
        DTX_TRY(t->ctx, take(t, l, ffn ? "g" : "q", c, kind, &used[kind]));
    }
    return DTX_OK;
}

static enum dtx_status look(struct trial *t, struct coordinates *c)
{
    int64_t used[DTX_COORD_KINDS] = {0};
    int lambdas;
    for (int64_t s = 0; s < t->probes; s++)
        DTX_TRY(t->ctx, look_at_sequence(t, s, c, used));
    return dtx_engine_lambda(t->engine, c->at[DTX_COORD_LAMBDA], &lambdas);
}

/* Adds mean squares, and the squares of those; the seeds' mean is taken at the end. */
static void add_step(const struct coordinates *now, const struct coordinates *first, int step,
                     struct dtx_coord_point *out)
{
    for (int k = 0; k < DTX_COORD_KINDS; k++) {
        double size = 0, change = 0;
        for (int64_t i = 0; i < now->n[k]; i++) {
            double d = now->at[k][i] - first->at[k][i];
            size += now->at[k][i] * now->at[k][i];
            change += d * d;
        }
        out->size[k][step] += size / (double)now->n[k];
        change /= (double)now->n[k];
        out->change[k][step] += change;
        out->error[k][step] += change * change;
    }
}

static enum dtx_status train(struct trial *t, int steps, double lr, struct coordinates *first, struct coordinates *now,
                             struct dtx_coord_point *out)
{
    struct dtx_engine_batch batch = {t->tokens, t->targets, NULL};
    struct dtx_step_result result;
    DTX_TRY(t->ctx, look(t, first));
    add_step(first, first, 0, out);
    for (int s = 1; s <= steps; s++) {
        DTX_TRY(t->ctx, dtx_engine_step(t->engine, &batch, s, lr, &result));
        DTX_TRY(t->ctx, dtx_engine_settle(t->engine));
        out->loss[s - 1] += result.loss;
        DTX_TRY(t->ctx, look(t, now));
        add_step(now, first, s, out);
    }
    return DTX_OK;
}

static enum dtx_status open_trial(struct trial *t, struct coordinates *first, struct coordinates *now)
{
    const struct dtx_batch_config *b = &t->config->batch;
    int64_t n = b->micro_batch * b->length;
    void *memory;
    t->probes = dtx_min64(b->micro_batch, DTX_COORD_PROBES);
    DTX_TRY(t->ctx, dtx_mem_alloc(t->ctx, 2 * n, sizeof(int32_t), &memory));
    t->tokens = memory;
    t->targets = t->tokens + n;
    DTX_TRY(t->ctx, dtx_mem_alloc(t->ctx, 2 * b->length * t->config->model.width, sizeof(double), &memory));
    t->stream[0] = memory;
    t->stream[1] = t->stream[0] + b->length * t->config->model.width;
    make_batch(t);
    DTX_TRY(t->ctx, coordinates_make(t, first));
    return coordinates_make(t, now);
}

static enum dtx_status run_seeds(struct trial *t, struct dtx_backend *backend, struct dtx_comm *self, int seeds,
                                 int steps, double lr, struct dtx_coord_point *out)
{
    struct coordinates first = {0}, now = {0};
    struct dtx_engine_config config = *t->config;
    enum dtx_status status = open_trial(t, &first, &now);
    for (int seed = 1; seed <= seeds && status == DTX_OK; seed++) {
        config.seed = seed;
        t->engine = NULL;
        status = dtx_engine_create(t->ctx, &config, self, backend, &t->engine);
        if (status == DTX_OK)
            status = train(t, steps, lr, &first, &now, out);
        dtx_engine_free(t->engine);
    }
    dtx_mem_free(t->tokens);
    dtx_mem_free(t->stream[0]);
    dtx_mem_free(first.memory);
    dtx_mem_free(now.memory);
    return status;
}

enum dtx_status dtx_coord_measure(struct dtx_ctx *ctx, const struct dtx_engine_config *config,
                                  struct dtx_backend *backend, int seeds, int steps, double lr,
                                  struct dtx_coord_point *out)
{
    struct trial t = {.ctx = ctx, .config = config};
    struct dtx_coord_point sum = {.width = config->model.width, .layers = config->model.layers};
    struct dtx_comm *self;
    DTX_TRY(ctx, dtx_comm_self(ctx, &self));
    enum dtx_status status = run_seeds(&t, backend, self, seeds, steps, lr, &sum);
    dtx_comm_free(self);
    DTX_TRY(ctx, status);
    for (int s = 0; s <= steps; s++) {
        for (int k = 0; k < DTX_COORD_KINDS; k++) {
            double mean = sum.change[k][s] / seeds, spread = fmax(0, sum.error[k][s] / seeds - mean * mean);
            sum.size[k][s] = sqrt(sum.size[k][s] / seeds);
            sum.change[k][s] = sqrt(mean);
            /* ln change is half of ln mean */
            sum.error[k][s] = seeds > 1 && mean > 0 ? 0.5 * sqrt(spread / (seeds - 1)) / mean : 0;
        }
        if (s < steps)
            sum.loss[s] /= seeds;
    }
    *out = sum;
    return DTX_OK;
}
