/* test: label=long timeout=600 */
/*
 * Speed of the operations on one thread against the peak of square products measured between them: the products of
 * preset bench-124m, attention at t = 1024 and 4096, and all operations of one training step of that preset, added up.
 * Fails where attention misses the promise: differential at most 1.25 × softmax in time and at least 45 % of peak,
 * counting 32·d FLOP per (query, key) pair and head. Prints a table; best of several runs, so run it alone.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "tests/harness/op_case.h"

enum { D = 768, HEADS = 6, WIDTH = 64, FFN = 2048, VOCAB = 50304, TOKENS = 2048, SEQ = 1024, LAYERS = 12 };

struct bench {
    struct op_env *e;
    double peak;    /* FLOP/s */
    double seconds; /* of one step */
};

static struct dtx_tensor tensor(struct bench *b, enum dtx_dtype dtype, int ndim, const int64_t *dim)
{
    struct dtx_tensor t = {.dtype = dtype, .ndim = ndim};
    memcpy(t.dim, dim, (size_t)ndim * sizeof *dim);
    op_ok(b->e, dtx_tensor_alloc(b->e->backend, &t));
    int64_t n = dtx_tensor_count(&t);
    for (int64_t i = 0; i < n; i++) {
        float x = (float)(i * 7919 % 1009) / 1009 - 0.5f;
        if (dtype == DTX_F32)
            ((float *)t.data)[i] = x;
        else if (dtype == DTX_BF16)
            ((uint16_t *)t.data)[i] = dtx_f32_to_bf16(x);
        else if (dtype == DTX_F64)
            ((double *)t.data)[i] = 0.5;
        else if (dtype == DTX_I32)
            ((int32_t *)t.data)[i] = (int32_t)(i * 7919 % 50257);
    }
    return t;
}

static void release(struct bench *b, struct dtx_tensor *t)
{
    dtx_tensor_free(b->e->backend, t);
}

/* Best time of `call` over at least three runs; adds it `count` times to the step. */
#define BEST(b, count, call)                                                                                           \
    ({                                                                                                                 \
        double best = INFINITY;                                                                                        \
        for (int run = 0; run < 4; run++) {                                                                            \
            double start = dtx_clock_now();                                                                            \
            op_ok((b)->e, call);                                                                                       \
            best = fmin(best, dtx_clock_now() - start);                                                                \
        }                                                                                                              \
        (b)->seconds += (count)*best;                                                                                  \
        best;                                                                                                          \
    })

static double product(struct bench *b, int count, enum dtx_dtype c, int64_t m, int64_t n, int64_t k, bool ta, bool tb,
                      bool accumulate)
{
    struct dtx_matmul_args args = {.a = tensor(b, b->e->act, OP_DIMS(ta ? k : m, ta ? m : k)),
                                   .b = tensor(b, b->e->act, OP_DIMS(tb ? n : k, tb ? k : n)),
                                   .c = tensor(b, c, OP_DIMS(m, n)),
                                   .transpose_a = ta,
                                   .transpose_b = tb,
                                   .accumulate = accumulate};
    args.work = tensor(b, DTX_U8, OP_DIMS((int64_t)dtx_matmul_work_bytes(b->e->queue, &args)));
    double seconds = BEST(b, count, dtx_matmul(b->e->queue, &args));
    release(b, &args.a);
    release(b, &args.b);
    release(b, &args.c);
    release(b, &args.work);
    return 2.0 * (double)m * (double)n * (double)k / seconds;
}

static void find_peak(struct bench *b)
{
    for (int64_t n = 512; n <= 2048; n *= 2)
        b->peak = fmax(b->peak, product(b, 0, DTX_F32, n, n, n, false, false, false));
    printf("%s: peak %.1f GFLOP/s\n", dtx_dtype_name(b->e->act), b->peak / 1e9);
}

/* A weight [n,k]: y = x·wᵀ, dx = dy·w, dw += dyᵀ·x. */
static void weight(struct bench *b, const char *name, int count, int64_t n, int64_t k, enum dtx_dtype y)
{
    double f = product(b, count, y, TOKENS, n, k, false, true, false);
    double x = product(b, count, b->e->act, TOKENS, k, n, false, false, false);
    double w = product(b, count, DTX_F32, n, k, TOKENS, true, false, true);
    printf("%s: %-12s y %5.1f  dx %5.1f  dw %5.1f %% of peak\n", dtx_dtype_name(b->e->act), name, 100 * f / b->peak,
           100 * x / b->peak, 100 * w / b->peak);
}

/* Seconds of forward (diff: with its norm), dots and backward of `heads` differential heads or twice as many plain
 * ones, added `count` times to the step. */
static double attention(struct bench *b, int count, int maps, int64_t heads, int64_t samples, int64_t t)
{
    enum dtx_dtype act = b->e->act;
    int64_t h = heads * 2 / maps, dv = WIDTH * maps, sub = 2 * heads, wide[4] = {samples, t, sub, WIDTH};
    int64_t values[4] = {samples, t, h, dv}, stats[3] = {samples, sub, t};
    struct dtx_tensor q = tensor(b, act, 4, wide), k = tensor(b, act, 4, wide), v = tensor(b, act, 4, values);
    struct dtx_tensor o = tensor(b, act, 4, values), o2 = tensor(b, act, 4, values), d = tensor(b, act, 4, values);
    struct dtx_tensor lse = tensor(b, DTX_F32, 3, stats), dsum = tensor(b, DTX_F32, 3, stats);
    struct dtx_tensor dq = tensor(b, act, 4, wide), dk = tensor(b, act, 4, wide), dvalue = tensor(b, act, 4, values);
    struct dtx_tensor lambda = tensor(b, DTX_F32, OP_DIMS(1)), dlambda = tensor(b, DTX_F32, OP_DIMS(h));
    struct dtx_attn_fwd_args forward = {.q = q, .k = k, .v = v, .lambda = lambda, .maps = maps, .scale = 0.125, .o = o};
    forward.o2 = o2;
    forward.lse = lse;
    struct dtx_tensor gain = tensor(b, DTX_F32, OP_DIMS(dv)), y = tensor(b, act, 4, values);
    struct dtx_tensor rstd = tensor(b, DTX_F32, OP_DIMS(samples, t, h));
    if (maps == 2)
        forward.norm = (struct dtx_attn_norm){gain, y, rstd, 1e-5, 0.5};
    struct dtx_attn_dots_args dots = {d, o, o2, lambda, dsum, dlambda, maps};
    struct dtx_attn_bwd_args backward = {
        .q = q, .k = k, .v = v, .lambda = lambda, .maps = maps, .scale = 0.125, .do_ = d};
    backward.lse = lse;
    backward.dsum = dsum;
    backward.dq = dq;
    backward.dk = dk;
    backward.dv = dvalue;
    forward.work = tensor(b, DTX_U8, OP_DIMS((int64_t)dtx_attn_fwd_work_bytes(b->e->queue, &forward)));
    backward.work = tensor(b, DTX_U8, OP_DIMS((int64_t)dtx_attn_bwd_work_bytes(b->e->queue, &backward)));
    double seconds = BEST(b, count, dtx_attn_fwd(b->e->queue, &forward));
    seconds += BEST(b, count, dtx_attn_dots(b->e->queue, &dots));
    seconds += BEST(b, count, dtx_attn_bwd(b->e->queue, &backward));
    struct dtx_tensor *all[] = {&q,  &k,      &v,      &o,       &o2,   &d, &lse,  &dsum,         &dq,
                                &dk, &dvalue, &lambda, &dlambda, &gain, &y, &rstd, &forward.work, &backward.work};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        release(b, all[i]);
    return seconds;
}

static void attention_promise(struct bench *b, int64_t t)
{
    double diff = INFINITY, plain = INFINITY, pairs = (double)t * (double)(t + 1) / 2;
    for (int i = 0; i < 3; i++) {
        diff = fmin(diff, attention(b, 0, 2, 1, 1, t));
        plain = fmin(plain, attention(b, 0, 1, 1, 1, t));
    }
    double share = 32 * WIDTH * pairs / diff / b->peak, share_plain = 28 * WIDTH * pairs / plain / b->peak;
    printf("%s: attention t %lld: diff %.1f ms (%.0f %% of peak), softmax %.1f ms (%.0f %%), ratio %.3f\n",
           dtx_dtype_name(b->e->act), (long long)t, diff * 1e3, 100 * share, plain * 1e3, 100 * share_plain,
           diff / plain);
    if (t == 4096) {
        assert_true(diff <= 1.25 * plain);
        assert_true(share >= 0.45);
    }
}

/* Everything of a step that is no product and no attention. */
static void elements(struct bench *b)
{
    struct dtx_queue *queue = b->e->queue;
    enum dtx_dtype act = b->e->act, f32 = DTX_F32;
    struct dtx_tensor x = tensor(b, act, OP_DIMS(TOKENS, D)), y = tensor(b, act, OP_DIMS(TOKENS, D));
    struct dtx_tensor gain = tensor(b, f32, OP_DIMS(D)), dgain = tensor(b, f32, OP_DIMS(D));
    struct dtx_tensor rstd = tensor(b, f32, OP_DIMS(TOKENS * HEADS)), table = tensor(b, f32, OP_DIMS(SEQ, WIDTH));
    struct dtx_rmsnorm_fwd_args norm = {x, gain, y, rstd, 1e-5, 1};
    norm.rstd.dim[0] = TOKENS;
    BEST(b, 2 * LAYERS + 1, dtx_rmsnorm_fwd(queue, &norm));
    struct dtx_rmsnorm_bwd_args back = {y, x, gain, norm.rstd, x, x, dgain, 1, {0}};
    struct dtx_tensor work = tensor(b, DTX_U8, OP_DIMS((int64_t)dtx_rmsnorm_bwd_work_bytes(queue, &back)));
    back.work = work;
    BEST(b, 2 * LAYERS + 1, dtx_rmsnorm_bwd(queue, &back));
    back.x = back.dx = dtx_tensor_view_2d(&x, TOKENS * HEADS, 2 * WIDTH);
    back.dy = dtx_tensor_view_2d(&y, TOKENS * HEADS, 2 * WIDTH);
    back.rstd = rstd;
    back.gain.dim[0] = back.dgain.dim[0] = 2 * WIDTH;
    back.residual = (struct dtx_tensor){0};
    BEST(b, LAYERS, dtx_rmsnorm_bwd(queue, &back));
    struct dtx_rope_args rope = {.x = dtx_tensor_view_4d(&x, TOKENS / SEQ, SEQ, 2 * HEADS, WIDTH), .table = table};
    rope.y = rope.x;
    BEST(b, 4 * LAYERS, dtx_rope(queue, &rope));
    struct dtx_add_args add = {.x = x, .y = y, .z = x, .alpha = 1};
    BEST(b, 2 * LAYERS, dtx_add(queue, &add));
    struct dtx_tensor g = tensor(b, act, OP_DIMS(TOKENS, FFN)), u = tensor(b, act, OP_DIMS(TOKENS, FFN));
    struct dtx_tensor h = tensor(b, act, OP_DIMS(TOKENS, FFN));
    struct dtx_swiglu_fwd_args swiglu = {g, u, h};
    struct dtx_swiglu_bwd_args swiglu_back = {h, g, u, g, u};
    BEST(b, LAYERS, dtx_swiglu_fwd(queue, &swiglu));
    BEST(b, LAYERS, dtx_swiglu_bwd(queue, &swiglu_back));
    struct dtx_tensor *all[] = {&x, &y, &gain, &dgain, &rstd, &table, &work, &g, &u, &h};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        release(b, all[i]);
}

static void head_and_optimizer(struct bench *b)
{
    struct dtx_queue *queue = b->e->queue;
    enum dtx_dtype act = b->e->act, f32 = DTX_F32;
    struct dtx_tensor logits = tensor(b, f32, OP_DIMS(TOKENS, VOCAB)), max = tensor(b, f32, OP_DIMS(TOKENS));
    struct dtx_tensor sums = tensor(b, f32, OP_DIMS(TOKENS, 2)), targets = tensor(b, DTX_I32, OP_DIMS(TOKENS));
    struct dtx_tensor scale = tensor(b, f32, OP_DIMS(1)), loss = tensor(b, DTX_F64, OP_DIMS(TOKENS));
    struct dtx_tensor dlogits = act == f32 ? logits : tensor(b, act, OP_DIMS(TOKENS, VOCAB));
    struct dtx_xent_max_args a = {logits, max, VOCAB};
    struct dtx_xent_sum_args c = {logits, max, targets, sums, 0, VOCAB};
    struct dtx_xent_bwd_args d = {logits, max, sums, targets, scale, loss, dlogits, 0, VOCAB};
    BEST(b, 1, dtx_xent_max(queue, &a));
    BEST(b, 1, dtx_xent_sum(queue, &c));
    BEST(b, 1, dtx_xent_bwd(queue, &d));
    if (act != f32)
        release(b, &dlogits);
    struct dtx_tensor *first[] = {&logits, &max, &sums, &targets, &scale, &loss};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        release(b, first[i]);
    int64_t n = (int64_t)123591936 / 4; /* a quarter of the weights at a time */
    struct dtx_tensor w = tensor(b, f32, OP_DIMS(n)), m = tensor(b, f32, OP_DIMS(n)), v = tensor(b, f32, OP_DIMS(n));
    struct dtx_tensor grad = tensor(b, f32, OP_DIMS(n)), low = tensor(b, act, OP_DIMS(n));
    struct dtx_tensor hyper = tensor(b, DTX_F64, OP_DIMS(4)), sum = tensor(b, DTX_F64, OP_DIMS(1));
    struct dtx_tensor blocks = tensor(b, DTX_F64, OP_DIMS((n + 1023) / 1024));
    op_ok(b->e, dtx_tensor_zero(queue, &v));
    struct dtx_adamw_args adamw = {w, m, v, grad, low, hyper, 0.9, 0.95, 1e-8, 0.1, 1, false};
    struct dtx_sqnorm_args norm = {grad, blocks, sum};
    BEST(b, 4, dtx_adamw(queue, &adamw));
    BEST(b, 4, dtx_sqnorm(queue, &norm));
    BEST(b, 4, dtx_tensor_zero(queue, &grad));
    struct dtx_tensor *second[] = {&w, &m, &v, &grad, &low, &hyper, &sum, &blocks};
    for (size_t i = 0; i < sizeof second / sizeof *second; i++)
        release(b, second[i]);
}

static void speed_case(struct op_env *e, const void *data)
{
    (void)data;
    struct bench b = {.e = e};
    find_peak(&b);
    weight(&b, "q k v out", 4 * LAYERS, D, D, e->act);
    weight(&b, "gate up", 2 * LAYERS, FFN, D, e->act);
    weight(&b, "down", LAYERS, D, FFN, e->act);
    weight(&b, "head", 1, VOCAB, D, DTX_F32);
    double products = b.seconds;
    double attn = LAYERS * attention(&b, LAYERS, 2, HEADS, TOKENS / SEQ, SEQ), before = b.seconds;
    elements(&b);
    head_and_optimizer(&b);
    find_peak(&b);
    /* Model FLOP: 3 × forward (tests count K = (S + 1)/2 keys a query). */
    double flop = 3.0 * TOKENS * (LAYERS * (8.0 * D * D + 4.0 * D * (SEQ + 1) / 2 + 6.0 * D * FFN) + 2.0 * D * VOCAB);
    printf("%s: one step of bench-124m: products %.2f s, attention %.2f s, the rest %.2f s: %.1f %% of peak\n",
           dtx_dtype_name(e->act), products, attn, b.seconds - before, 100 * flop / b.seconds / b.peak);
    attention_promise(&b, 1024);
    attention_promise(&b, 4096);
}

static void speed(void **state)
{
    (void)state;
    for (enum dtx_dtype act = DTX_F32; act <= DTX_BF16; act++)
        if (act == DTX_F32 || dtx_isa_detect() == DTX_ISA_AVX512_BF16)
            op_run_once(act, 1, dtx_isa_detect(), speed_case, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(speed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
