/* test: label=numeric timeout=240 */
/*
 * The figures of trainer/selfcheck_figures.c against tests/ref, and then the engine on one rank against the figures: in
 * f64, and in fp32 with every instruction set of this processor as `dtx doctor --ranks` has it. Large models by fp32
 * alone, without `--all` (numeric.selfcheck_long).
 *
 *   test_numeric_selfcheck_reference --write >trainer/selfcheck_figures.c     makes that file anew
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/engine.h"
#include "tests/ref/model.h"
#include "trainer/selfcheck.h"

enum { STEPS = DTX_SELFCHECK_STEPS };
#define REFERENCE 1e-8 /* figures have ten digits */

/* The shapes that are shipped: heads, key/value heads, width of a head, layers. */
static const struct dtx_selfcheck_model shapes[] = {{.heads = 16, .kv_heads = 8, .head_dim = 4, .layers = 4},
                                                    {.heads = 16, .kv_heads = 8, .head_dim = 4, .layers = 16},
                                                    {.heads = 16, .kv_heads = 8, .head_dim = 4, .layers = 64},
                                                    {.heads = 24, .kv_heads = 24, .head_dim = 4, .layers = 4},
                                                    {.heads = 24, .kv_heads = 24, .head_dim = 4, .layers = 16},
                                                    {.heads = 64, .kv_heads = 64, .head_dim = 2, .layers = 4},
                                                    {.heads = 64, .kv_heads = 64, .head_dim = 2, .layers = 16}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const struct dtx_engine_config one_rank = {.mesh = {1, 1, 1, 1}, .schedule = "1f1b"};

static void reference(const struct dtx_selfcheck_model *shape, double *losses, double *norms, double *rows)
{
    enum { N = DTX_SELFCHECK_SEQUENCES * DTX_SELFCHECK_LENGTH };
    struct dtx_engine_config c;
    int32_t tokens[N], targets[N];
    double lr[STEPS];
    dtx_selfcheck_config(shape, &one_rank, &c);
    dtx_selfcheck_batch(0, DTX_SELFCHECK_SEQUENCES, DTX_SELFCHECK_LENGTH, tokens, targets);
    struct ref_model m = {.layers = shape->layers,
                          .heads = shape->heads,
                          .kv_heads = shape->kv_heads,
                          .head_dim = shape->head_dim,
                          .ffn = DTX_SELFCHECK_FFN,
                          .vocab = DTX_SELFCHECK_VOCAB,
                          .sequences = DTX_SELFCHECK_SEQUENCES,
                          .length = DTX_SELFCHECK_LENGTH,
                          .tokens = tokens,
                          .targets = targets,
                          .seed = (uint64_t)c.seed,
                          .theta = c.model.rope_theta,
                          .norm_eps = c.model.norm_eps,
                          .beta1 = c.optim.beta1,
                          .beta2 = c.optim.beta2,
                          .eps = c.optim.eps,
                          .decay = c.optim.decay,
                          .clip = c.optim.clip};
    for (int s = 0; s < STEPS; s++)
        lr[s] = dtx_selfcheck_lr(s + 1);
    ref_model_steps(&m, STEPS, lr, losses, norms, rows);
}

static double *rows_of(const struct dtx_selfcheck_model *m)
{
    return calloc((size_t)m->layers * REF_MODEL_ROWS + 2, sizeof(double));
}

static void print_three(const char *name, const double *values)
{
    printf(", .%s = {%.10g, %.10g, %.10g}", name, values[0], values[1], values[2]);
}

/* Through clang-format it is the file. */
static void write_figures(void)
{
    double losses[SHAPES][STEPS], norms[SHAPES][STEPS];
    printf(
        "/* Made by test_numeric_selfcheck_reference --write, in double precision: do not edit. Norms of gradients, a\n"
        " * line for the embedding, one for each block and one for the final norm. */\n"
        "#include \"trainer/selfcheck.h\"\n\n/* clang-format off */\n");
    for (int i = 0; i < SHAPES; i++) {
        double *rows = rows_of(&shapes[i]);
        reference(&shapes[i], losses[i], norms[i], rows);
        printf("static const double gradients_%d_%d[] = {\n    %.10g,", shapes[i].heads, shapes[i].layers, rows[0]);
        for (int l = 0; l < shapes[i].layers; l++)
            for (int k = 0; k < REF_MODEL_ROWS; k++)
                printf("%s%.10g,", k ? " " : "\n    ", rows[1 + l * REF_MODEL_ROWS + k]);
        printf("\n    %.10g};\n\n", rows[1 + shapes[i].layers * REF_MODEL_ROWS]);
        free(rows);
    }
    printf("static const struct dtx_selfcheck_model models[] = {\n");
    for (int i = 0; i < SHAPES; i++) {
        printf("    {%d, %d, %d, %d", shapes[i].heads, shapes[i].kv_heads, shapes[i].head_dim, shapes[i].layers);
        print_three("loss", losses[i]);
        print_three("norm", norms[i]);
        printf(", .gradient = gradients_%d_%d},\n", shapes[i].heads, shapes[i].layers);
    }
    printf("};\n/* clang-format on */\n\nconst struct dtx_selfcheck_model *dtx_selfcheck_models(int *n)\n{\n"
           "    *n = sizeof models / sizeof *models;\n    return models;\n}\n");
}

static int worse(const struct dtx_selfcheck_model *m, const char *by, const char *what, int i, double got,
                 double expected, double bound)
{
    if (fabs(got - expected) <= bound * fabs(expected))
        return 0;
    printf("FAILED: %d heads, %d layers, %s: %s %d is %.10g, shipped %.10g\n", m->heads, m->layers, by, what, i, got,
           expected);
    return 1;
}

static int compare(const struct dtx_selfcheck_model *m, const char *by, const double *losses, const double *norms,
                   const double *rows, double bound)
{
    int failures = 0;
    for (int s = 0; s < STEPS; s++) {
        failures += worse(m, by, "loss of step", s + 1, losses[s], m->loss[s], bound);
        failures += worse(m, by, "norm of step", s + 1, norms[s], m->norm[s], bound);
    }
    for (int i = 0; i < m->layers * REF_MODEL_ROWS + 2; i++)
        failures += worse(m, by, "gradient of row", i, rows[i], m->gradient[i], bound);
    return failures;
}

/* The figures begin with weights that are fp32 numbers. */
static void round_weights(struct dtx_engine *e)
{
    struct dtx_params *p = dtx_engine_params(e);
    for (int i = 0; i < p->n; i++) {
        double *values = malloc((size_t)p->item[i].count * sizeof *values);
        dtx_tensor_get(dtx_engine_queue(e), &p->item[i].master, values);
        for (int64_t k = 0; k < p->item[i].count; k++)
            values[k] = (float)values[k];
        dtx_tensor_set(dtx_engine_queue(e), &p->item[i].master, values);
        free(values);
    }
    dtx_params_refresh(p, dtx_engine_queue(e));
}

static int check_f64(const struct dtx_selfcheck_model *m)
{
    struct dtx_engine_config config;
    struct dtx_test_engine o;
    struct dtx_step_result result;
    int rows = m->layers * REF_MODEL_ROWS + 2, n = DTX_SELFCHECK_SEQUENCES * DTX_SELFCHECK_LENGTH;
    int32_t *tokens = calloc(2 * (size_t)n, sizeof *tokens);
    double losses[STEPS], norms[STEPS], *squares = calloc(2 * (size_t)rows, sizeof *squares);
    struct dtx_engine_batch batch = {tokens, tokens + n, NULL};
    dtx_selfcheck_config(m, &one_rank, &config);
    config.dtype = DTX_F64;
    dtx_test_engine_open(&o, &config, dtx_isa_detect());
    dtx_selfcheck_batch(0, DTX_SELFCHECK_SEQUENCES, DTX_SELFCHECK_LENGTH, tokens, tokens + n);
    round_weights(o.engine);
    int failures = dtx_engine_params(o.engine)->n != rows;
    for (int s = 0; s < STEPS && !failures; s++) {
        failures += dtx_engine_step(o.engine, &batch, s + 1, dtx_selfcheck_lr(s + 1), &result) != DTX_OK;
        losses[s] = result.loss;
        norms[s] = result.grad_norm;
        failures += !(result.clip < 1);
        if (s == 0)
            dtx_engine_row_squares(o.engine, squares, squares + rows);
    }
    for (int i = 0; i < rows; i++)
        squares[i] = sqrt(squares[i]);
    if (!failures)
        failures = compare(m, "engine in f64", losses, norms, squares, REFERENCE);
    else
        printf("FAILED: %d heads, %d layers: the engine: %s\n", m->heads, m->layers, o.ctx.error.text);
    dtx_test_engine_close(&o);
    free(tokens), free(squares);
    return failures;
}

static int check_f32(const struct dtx_selfcheck_model *m, int isa)
{
    struct dtx_ctx ctx;
    struct dtx_backend *backend;
    struct dtx_selfcheck_result r;
    dtx_ctx_init(&ctx);
    if (dtx_backend_open(&ctx, "cpu", 1, isa, &backend) != DTX_OK ||
        dtx_selfcheck_alone(&ctx, backend, m, &one_rank, NULL, &r) != DTX_OK) {
        printf("FAILED: %s\n", ctx.error.text);
        return 1;
    }
    dtx_backend_close(backend);
    printf("%d heads, %2d layers, %-11s losses %.1e norms %.1e gradients %.1e lambda %.1e of %d figures %s\n", m->heads,
           m->layers, dtx_isa_name(isa), r.worst[0], r.worst[1], r.worst[2], r.worst[3], r.figures, r.text);
    return r.wrong;
}

int main(int argc, char **argv)
{
    int n, failures = 0;
    const struct dtx_selfcheck_model *models = dtx_selfcheck_models(&n);
    bool all = argc > 1 && strcmp(argv[1], "--all") == 0;
    if (argc > 1 && strcmp(argv[1], "--write") == 0) {
        write_figures();
        return 0;
    }
    failures += n != SHAPES;
    for (int i = 0; i < n; i++) {
        const struct dtx_selfcheck_model *m = &models[i];
        double losses[STEPS], norms[STEPS], *rows = rows_of(m);
        bool whole = all || (m->layers == 4 && m->heads < 64);
        if (whole) {
            reference(m, losses, norms, rows);
            failures += compare(m, "reference", losses, norms, rows, REFERENCE);
            failures += check_f64(m);
        }
        free(rows);
        for (int isa = whole ? DTX_ISA_PLAIN : dtx_isa_detect(); isa <= dtx_isa_detect(); isa++)
            failures += check_f32(m, isa);
    }
    return failures != 0;
}
