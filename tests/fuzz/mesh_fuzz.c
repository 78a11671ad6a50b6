/*
 * Random configurations on all ranks that were started, each in f64 against one rank: losses, gradient norms, every
 * weight after some steps and an evaluation, by the bounds of tests/harness/mesh_run.h; copies of weights and optimizer
 * states must be alike bit for bit. Several small cases run side by side.
 *
 *   mesh_fuzz [--seconds N] [--cases N] [--seed N]   until either limit
 *   mesh_fuzz --case "tp=2 zero=1" …                 these, one after another
 *   mesh_fuzz --smaller "tp=2 zero=1"                those with one option at a plainer value, one after another
 *
 * Each case is printed ("case: …") before it runs, so that the last ones printed are known after a crash or a hang. The
 * first difference ends the program ("FAILED case: …"). tests/run_fuzz.sh starts it and makes failing cases small.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/rng.h"
#include "tests/fuzz/case.h"
#include "tests/harness/mesh_run.h"
#include "tests/harness/rank_check.h"

enum { STEPS = 4, MOST_CASES = 128 };
/* Of the communicators: these small models meet sums of both kinds, in one piece and in several. */
enum { PIECE_BYTES = 20000, SMALL_BYTES = 6000 };

struct outcome {
    double losses[STEPS], norms[STEPS];
    double evaluated; /* loss by the last weights */
    int64_t targets[STEPS], evaluated_targets;
    bool skipped;
    struct dtx_replica_report replicas; /* after the last step */
    int n;
    struct dtx_param_row *rows; /* [n] */
    double *weights;            /* all rows one after another */
};

static int64_t count_of(const struct dtx_param_row *row)
{
    return row->shape[0] * (row->ndim == 2 ? row->shape[1] : 1);
}

/* The batch of dtx_test_batch, with its unequal targets, or all of them, or those of the first sequence alone. */
static void make_batch(const struct fuzz_case *c, const struct dtx_test_model *m, int64_t step, int dp_rank,
                       int32_t *tokens, int32_t *targets, int32_t *doc_start)
{
    const char *kind = fuzz_value(c, FUZZ_TARGETS);
    int64_t each = m->global_batch / m->dp;
    dtx_test_batch(m, step, dp_rank, tokens, targets, doc_start);
    for (int64_t i = 0; i < each * m->length; i++)
        if (strcmp(kind, "all") == 0)
            targets[i] = tokens[i % m->length + 1 < m->length ? i + 1 : i];
        else if (strcmp(kind, "sparse") == 0 && (dp_rank > 0 || i >= m->length))
            targets[i] = -1;
}

static void train(const struct fuzz_case *c, struct dtx_engine *e, struct dtx_comm *ranks, struct outcome *out)
{
    const struct dtx_engine_config *config = dtx_engine_config_of(e);
    struct dtx_test_model m = {.dp = config->mesh[DTX_AXIS_DP],
                               .global_batch = config->batch.global_batch,
                               .length = config->batch.length,
                               .vocab = config->model.vocab};
    int64_t n = m.global_batch / m.dp * m.length;
    int32_t *buffer = malloc((size_t)(3 * n) * sizeof *buffer);
    struct dtx_engine_batch batch = {buffer, buffer + n, c->value[FUZZ_DOCUMENTS] ? buffer + 2 * n : NULL};
    for (int s = 0; s < STEPS; s++) {
        struct dtx_step_result result;
        make_batch(c, &m, s, dtx_engine_mesh(e)->rank[DTX_AXIS_DP], buffer, buffer + n, buffer + 2 * n);
        CHECK_OK(ranks, dtx_engine_step(e, &batch, s + 1, 2e-3, &result));
        out->losses[s] = result.loss;
        out->norms[s] = result.grad_norm;
        out->targets[s] = result.targets;
        out->skipped = out->skipped || result.skipped;
    }
    CHECK_OK(ranks, dtx_engine_replicas(e, &out->replicas));
    CHECK_OK(ranks, dtx_engine_evaluate(e, &batch, &out->evaluated, &out->evaluated_targets));
    free(buffer);
}

static struct outcome run(const struct fuzz_case *c, bool reference, struct dtx_comm *ranks)
{
    struct outcome out = {0};
    struct dtx_ctx *ctx = ranks->ctx;
    struct dtx_opt *opt;
    struct dtx_engine_config config;
    struct dtx_backend *backend;
    struct dtx_engine *e;
    bool valid = fuzz_config(ctx, c, reference, &opt, &config);
    CHECK_THAT(ranks, valid, "%s", "the product refuses this case");
    CHECK_OK(ranks, dtx_backend_open(ctx, "cpu", 1, dtx_isa_detect(), &backend));
    CHECK_OK(ranks, dtx_engine_create(ctx, &config, ranks, backend, &e));
    train(c, e, ranks, &out);
    struct dtx_params *p = dtx_engine_params(e);
    out.n = p->n;
    out.rows = malloc((size_t)p->n * sizeof *out.rows);
    out.weights = malloc((size_t)dtx_params_total(p) * sizeof *out.weights);
    double *next = out.weights;
    for (int i = 0; i < p->n; i++) {
        out.rows[i] = p->item[i].row;
        CHECK_OK(ranks, dtx_test_gather(e, i, 'w', next));
        next += count_of(&out.rows[i]);
    }
    dtx_engine_free(e);
    dtx_backend_close(backend);
    dtx_opt_free(opt);
    return out;
}

/* The first thing that differs, in words; false when all is equal. NaN differs from everything. */
static bool differ(const struct outcome *got, const struct outcome *ref, char *why, size_t bytes)
{
    if (got->skipped || ref->skipped)
        return snprintf(why, bytes, "a step was skipped");
    for (int s = 0; s < STEPS; s++) {
        double loss = fabs(got->losses[s] - ref->losses[s]) / fabs(ref->losses[s]);
        double norm = fabs(got->norms[s] - ref->norms[s]) / ref->norms[s];
        if (got->targets[s] != ref->targets[s])
            return snprintf(why, bytes, "step %d: %lld targets instead of %lld", s + 1, (long long)got->targets[s],
                            (long long)ref->targets[s]);
        if (!(loss <= DTX_MESH_F64_LOSS))
            return snprintf(why, bytes, "loss of step %d: %.3g, bound %.3g", s + 1, loss, DTX_MESH_F64_LOSS);
        if (!(norm <= DTX_MESH_F64_VALUE))
            return snprintf(why, bytes, "gradient norm of step %d: %.3g, bound %.3g", s + 1, norm, DTX_MESH_F64_VALUE);
    }
    if (got->replicas.tensors != 0)
        return snprintf(why, bytes, "%s", got->replicas.text);
    double evaluated = fabs(got->evaluated - ref->evaluated) / fabs(ref->evaluated);
    if (got->evaluated_targets != ref->evaluated_targets || !(evaluated <= DTX_MESH_F64_LOSS))
        return snprintf(why, bytes, "evaluation: %.3g, bound %.3g, %lld targets of %lld", evaluated, DTX_MESH_F64_LOSS,
                        (long long)got->evaluated_targets, (long long)ref->evaluated_targets);
    if (got->n != ref->n)
        return snprintf(why, bytes, "%d weights instead of %d", got->n, ref->n);
    int64_t at = 0;
    for (int i = 0; i < ref->n; i++) {
        double distance = dtx_test_relative(got->weights + at, ref->weights + at, count_of(&ref->rows[i]));
        if (!(distance <= DTX_MESH_F64_VALUE))
            return snprintf(why, bytes, "weight %s: %.3g, bound %.3g", ref->rows[i].name, distance, DTX_MESH_F64_VALUE);
        at += count_of(&ref->rows[i]);
    }
    return false;
}

static void release(struct outcome *o)
{
    free(o->rows);
    free(o->weights);
}

/* One case on the ranks of `part`; its first rank makes the reference and prints a difference. True: all is equal. */
static bool check(const struct fuzz_case *c, struct dtx_comm *part)
{
    struct outcome ref = {0}, got;
    char why[1024], text[FUZZ_TEXT];
    bool equal = true;
    if (part->rank == 0) {
        struct dtx_comm *self;
        CHECK_OK(part, dtx_comm_self(part->ctx, &self));
        ref = run(c, true, self);
        dtx_comm_free(self);
    }
    got = run(c, false, part);
    if (part->rank == 0 && differ(&got, &ref, why, sizeof why)) {
        fuzz_print(c, text);
        printf("%s\nFAILED case: %s\n", why, text);
        fflush(stdout);
        equal = false;
    }
    release(&got);
    release(&ref);
    return equal;
}

/* Cases side by side; together they have at most the world's ranks. */
static bool check_round(struct dtx_comm *world, const struct fuzz_case *cases, int n)
{
    struct dtx_comm *part;
    int mine = -1, first = 0;
    for (int i = 0; i < n; i++) {
        char text[FUZZ_TEXT];
        fuzz_print(&cases[i], text);
        if (world->rank == 0)
            printf("%scase: %s\n", i ? "" : "round\n", text);
        if (world->rank >= first && world->rank < first + fuzz_ranks(&cases[i]))
            mine = i;
        first += fuzz_ranks(&cases[i]);
    }
    fflush(stdout);
    CHECK_OK(world, dtx_comm_split(world, mine, world->rank, "part", &part));
    int64_t failed = part ? !check(&cases[mine], part) : 0;
    dtx_comm_free(part);
    struct dtx_tensor all = dtx_tensor_1d(&failed, DTX_I64, 1);
    CHECK_OK(world, dtx_comm_all_reduce_sum(world, NULL, &all));
    return failed == 0;
}

static bool check_random(struct dtx_comm *world, double seconds, int most, uint64_t seed)
{
    struct fuzz_coverage *coverage = calloc(1, sizeof *coverage);
    struct fuzz_case round[MOST_CASES];
    double start = dtx_clock_now();
    int n = 0, done = 0, drawn = 0, again = 1;
    bool equal = true;
    coverage->key = dtx_rng_key(seed, "mesh fuzz");
    while (again && equal) {
        int used = n ? fuzz_ranks(&round[0]) : 0;
        bool full = false;
        while (!full && n < MOST_CASES && drawn < most) {
            round[n] = fuzz_draw(world->ctx, coverage, world->size);
            drawn++;
            used += fuzz_ranks(&round[n++]);
            full = used > world->size;
        }
        int now = full ? n - 1 : n; /* the one that did not fit opens the next round */
        equal = check_round(world, round, now);
        done += now;
        round[0] = round[full ? now : 0];
        n = full ? 1 : 0;
        again = (n > 0 || drawn < most) && dtx_clock_now() - start < seconds;
        CHECK_OK(world, dtx_comm_broadcast_bytes(world, &again, sizeof again, 0));
    }
    if (n > 0)
        fuzz_count(coverage, &round[0], -1);
    if (world->rank == 0) {
        if (equal)
            fuzz_report(coverage);
        printf("mesh fuzz: %d cases %s, seed %llu, %.0f s\n", done, equal ? "clean" : "run, one of them FAILED",
               (unsigned long long)seed, dtx_clock_now() - start);
    }
    free(coverage);
    return equal;
}

static bool check_list(struct dtx_comm *world, const struct fuzz_case *cases, int n)
{
    for (int i = 0; i < n; i++)
        if (!check_round(world, &cases[i], 1))
            return false;
    if (world->rank == 0)
        printf("mesh fuzz: %d cases clean\n", n);
    return true;
}

static struct fuzz_case parse(struct dtx_comm *world, const char *text)
{
    struct fuzz_case c;
    bool known = fuzz_parse(text, &c);
    CHECK_THAT(world, known && fuzz_valid(world->ctx, &c, world->size), "'%s' is no valid case", text);
    return c;
}

int main(int argc, char **argv)
{
    struct dtx_ctx ctx;
    struct dtx_comm *world;
    struct fuzz_case cases[MOST_CASES];
    double seconds = 300;
    int most = 1000000, n = 0;
    uint64_t seed = 1;
    bool listed = false;
    dtx_ctx_init(&ctx);
    struct dtx_comm_options options = dtx_comm_options_default();
    options.piece_bytes = PIECE_BYTES;
    options.small_bytes = SMALL_BYTES;
    if (dtx_comm_open_world_with(&ctx, &options, &world) != DTX_OK)
        return 1;
    CHECK_THAT(world, !fuzz_missing_schedule(), "add schedule %s to tests/fuzz/case.c", fuzz_missing_schedule());
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        listed = listed || strcmp(name, "--case") == 0 || strcmp(name, "--smaller") == 0;
        if (strcmp(name, "--seconds") == 0)
            seconds = atof(value);
        else if (strcmp(name, "--cases") == 0)
            most = atoi(value);
        else if (strcmp(name, "--seed") == 0)
            seed = strtoull(value, NULL, 10);
        else if (strcmp(name, "--case") == 0 && n < MOST_CASES)
            cases[n++] = parse(world, value);
        else if (strcmp(name, "--smaller") == 0) {
            struct fuzz_case whole = parse(world, value);
            n = fuzz_smaller(&ctx, &whole, world->size, cases, MOST_CASES);
        } else
            CHECK_THAT(world, false, "unknown option %s", name);
    }
    bool equal = listed ? check_list(world, cases, n) : check_random(world, seconds, most, seed);
    dtx_comm_close_world(world);
    return !equal;
}
