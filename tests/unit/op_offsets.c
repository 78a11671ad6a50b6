/* test: label=unit timeout=300 */
/* Element offsets above 2^31 in every family of operations, in memory that takes no room: zero pages to read, one piece
 * mapped again and again to write. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/harness/op_case.h"

static void *sparse(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        skip();
    return p;
}

/* To be written: every 4 MiB but the last are the same memory. An offset that wraps ends in front of it, which stops
 * the test, or in the shared part, and the last elements are not what they must be. */
enum { PIECE = 4 << 20 };
static void *shared(size_t bytes)
{
    size_t whole = (bytes + PIECE - 1) / PIECE * PIECE;
    int fd = memfd_create("shared", MFD_CLOEXEC);
    assert_true(fd >= 0 && ftruncate(fd, PIECE) == 0);
    char *p = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        skip();
    for (size_t at = 0; at < whole; at += PIECE) {
        bool last = at + PIECE == whole;
        int flags = MAP_FIXED | (last ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
        assert_true(mmap(p + at, PIECE, PROT_READ | PROT_WRITE, flags, last ? -1 : fd, 0) != MAP_FAILED);
    }
    close(fd);
    return p;
}

enum { WIDTH = 64 };
static const int64_t FAR_ROW = ((int64_t)1 << 31) / WIDTH + 7;

static void embed_case(struct op_env *e, const void *data)
{
    (void)data;
    size_t bytes = (size_t)(FAR_ROW + 1) * WIDTH * sizeof(float);
    float *memory = sparse(bytes), dout[WIDTH];
    for (int i = 0; i < WIDTH; i++)
        dout[i] = memory[FAR_ROW * WIDTH + i] = (float)i;
    struct op_array tokens = op_indices(e, (int32_t[]){(int32_t)FAR_ROW}, OP_DIMS(1));
    struct op_array out = op_output(e, DTX_F32, OP_DIMS(1, WIDTH));
    struct dtx_tensor table = dtx_tensor_2d(memory, DTX_F32, FAR_ROW + 1, WIDTH);
    op_ok(e, dtx_embed_fwd(e->queue, &(struct dtx_embed_fwd_args){tokens.t, table, out.t, 0}));
    assert_memory_equal(out.t.data, dout, sizeof dout);
    struct dtx_tensor gradient = dtx_tensor_2d(dout, DTX_F32, 1, WIDTH);
    op_ok(e, dtx_embed_bwd(e->queue, &(struct dtx_embed_bwd_args){tokens.t, gradient, table, 0}));
    for (int i = 0; i < WIDTH; i++)
        assert_true(memory[FAR_ROW * WIDTH + i] == 2 * dout[i]);
    munmap(memory, bytes);
}

static void rope_case(struct op_env *e, const void *data)
{
    (void)data;
    size_t bytes = (size_t)(FAR_ROW + 1) * WIDTH * sizeof(float);
    float *memory = sparse(bytes);
    for (int i = 0; i < WIDTH; i++)
        memory[FAR_ROW * WIDTH + i] = i % 2; /* a quarter turn: cos 0, sin 1 */
    struct op_array x = op_random(e, "x", DTX_F32, 1, OP_DIMS(1, 1, 1, WIDTH));
    struct op_array y = op_output(e, DTX_F32, OP_DIMS(1, 1, 1, WIDTH));
    struct dtx_rope_args args = {.x = x.t, .y = y.t, .first = FAR_ROW};
    args.table = dtx_tensor_2d(memory, DTX_F32, FAR_ROW + 1, WIDTH);
    op_ok(e, dtx_rope(e->queue, &args));
    op_read(e, &y);
    for (int i = 0; i < WIDTH; i += 2)
        assert_true(y.value[i] == -x.value[i + 1] && y.value[i + 1] == x.value[i]);
    munmap(memory, bytes);
}

/* One query far behind a cache, in a document of three tokens: o is the mean of three values. */
static void attn_case(struct op_env *e, const void *data)
{
    (void)data;
    int64_t keys = FAR_ROW + 1;
    size_t k_bytes = (size_t)keys * WIDTH * sizeof(float), v_bytes = (size_t)keys * 2 * sizeof(float);
    float *k = sparse(k_bytes), *v = sparse(v_bytes);
    for (int i = 0; i < 4; i++) /* the fourth is outside the document */
        v[(keys - 1 - i) * 2] = i < 3 ? 1 + (float)i : 1000;
    struct op_array q = op_random(e, "q", DTX_F32, 1, OP_DIMS(1, 1, 1, WIDTH));
    struct op_array o = op_output(e, DTX_F32, OP_DIMS(1, 1, 1, 2)), lse = op_output(e, DTX_F32, OP_DIMS(1, 1, 1));
    struct op_array start = op_indices(e, (int32_t[]){(int32_t)(keys - 3)}, OP_DIMS(1, 1));
    struct dtx_attn_fwd_args args = {.q = q.t, .doc_start = start.t, .q_first = keys - 1, .maps = 1, .scale = 1};
    args.k = dtx_tensor_4d(k, DTX_F32, 1, keys, 1, WIDTH);
    args.v = dtx_tensor_4d(v, DTX_F32, 1, keys, 1, 2);
    args.o = o.t;
    args.lse = lse.t;
    op_ok(e, dtx_attn_fwd(e->queue, &args));
    op_read(e, &o);
    op_read(e, &lse);
    assert_true(fabs(o.value[0] - 2) < 1e-6 && o.value[1] == 0 && fabs(lse.value[0] - log(3)) < 1e-6);
    munmap(k, k_bytes);
    munmap(v, v_bytes);
}

static void sqnorm_case(struct op_env *e, const void *data)
{
    (void)data;
    int64_t n = ((int64_t)1 << 31) + 5000, blocks = (n + 1023) / 1024;
    float *x = sparse((size_t)n * sizeof *x);
    double *parts = sparse((size_t)blocks * sizeof *parts), sum[1];
    x[5] = 2;
    x[n - 1] = 3;
    struct dtx_sqnorm_args args = {dtx_tensor_1d(x, DTX_F32, n), dtx_tensor_1d(parts, DTX_F64, blocks),
                                   dtx_tensor_1d(sum, DTX_F64, 1)};
    op_ok(e, dtx_sqnorm(e->queue, &args));
    assert_true(sum[0] == 13 && parts[blocks - 1] == 9);
    munmap(x, (size_t)n * sizeof *x);
    munmap(parts, (size_t)blocks * sizeof *parts);
}

/* Rows of a million elements: the last begins at 2^31. */
enum { LONG_ROW = 1 << 20, LONG_ROWS = 2049 };
static const int64_t FAR = (int64_t)LONG_ROW * LONG_ROWS;

static void norm_case(struct op_env *e, const void *data)
{
    (void)data;
    size_t bytes = (size_t)FAR * sizeof(float);
    float *x = sparse(bytes), *y = shared(bytes), *row = y + FAR - LONG_ROW;
    for (int64_t i = FAR - LONG_ROW; i < FAR; i++)
        x[i] = 2;
    struct op_array rstd = op_output(e, DTX_F32, OP_DIMS(LONG_ROWS));
    struct dtx_rmsnorm_fwd_args args = {.x = dtx_tensor_2d(x, DTX_F32, LONG_ROWS, LONG_ROW),
                                        .y = dtx_tensor_2d(y, DTX_F32, LONG_ROWS, LONG_ROW),
                                        .rstd = rstd.t,
                                        .eps = 1e-5,
                                        .out_scale = 1};
    op_ok(e, dtx_rmsnorm_fwd(e->queue, &args));
    op_read(e, &rstd);
    assert_true(fabs(rstd.value[LONG_ROWS - 1] - 0.5) < 1e-5 && rstd.value[LONG_ROWS - 2] > 300);
    assert_true(fabsf(row[0] - 1) < 1e-5f && fabsf(row[LONG_ROW - 1] - 1) < 1e-5f && y[0] == 0);
    munmap(x, bytes);
    munmap(y, bytes);
}

static void elements_case(struct op_env *e, const void *data)
{
    (void)data;
    size_t bytes = (size_t)FAR * sizeof(float);
    float *x = sparse(bytes), *z = shared(bytes);
    struct dtx_tensor in = dtx_tensor_1d(x, DTX_F32, FAR), out = dtx_tensor_1d(z, DTX_F32, FAR);
    x[FAR - 1] = 3;
    op_ok(e, dtx_add(e->queue, &(struct dtx_add_args){.x = in, .z = out, .alpha = 1}));
    assert_true(z[FAR - 1] == 3 && z[FAR - 2] == 0 && z[0] == 0);
    op_ok(e, dtx_swiglu_fwd(e->queue, &(struct dtx_swiglu_fwd_args){in, in, out}));
    assert_true(fabsf(z[FAR - 1] - 8.573167f) < 1e-5f && z[FAR - 2] == 0 && z[0] == 0);
    munmap(x, bytes);
    munmap(z, bytes);
}

static void adamw_case(struct op_env *e, const void *data)
{
    (void)data;
    size_t bytes = (size_t)FAR * sizeof(float);
    float *gradient = sparse(bytes), *master = shared(bytes), *m = shared(bytes), *v = shared(bytes);
    double hyper[4] = {0.1, 1, 0.1, 0.05};
    gradient[FAR - 1] = 2;
    struct dtx_adamw_args args = {.master = dtx_tensor_1d(master, DTX_F32, FAR),
                                  .m = dtx_tensor_1d(m, DTX_F32, FAR),
                                  .v = dtx_tensor_1d(v, DTX_F32, FAR),
                                  .grad = dtx_tensor_1d(gradient, DTX_F32, FAR),
                                  .hyper = dtx_tensor_1d(hyper, DTX_F64, 4),
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .eps = 1e-8,
                                  .lr_mult = 1};
    op_ok(e, dtx_adamw(e->queue, &args));
    assert_true(fabsf(master[FAR - 1] + 0.1f) < 1e-6f && fabsf(m[FAR - 1] - 0.2f) < 1e-6f);
    assert_true(fabsf(v[FAR - 1] - 0.2f) < 1e-6f && master[FAR - 2] == 0 && master[0] == 0);
    munmap(gradient, bytes);
    munmap(master, bytes);
    munmap(m, bytes);
    munmap(v, bytes);
}

static void xent_case(struct op_env *e, const void *data)
{
    (void)data;
    size_t bytes = (size_t)FAR * sizeof(float);
    float *logits = sparse(bytes);
    static int32_t targets[LONG_ROWS];
    targets[LONG_ROWS - 1] = LONG_ROW - 1;
    logits[FAR - 1] = 20;
    struct dtx_tensor all = dtx_tensor_2d(logits, DTX_F32, LONG_ROWS, LONG_ROW);
    struct op_array max = op_output(e, DTX_F32, OP_DIMS(LONG_ROWS));
    struct op_array sums = op_output(e, DTX_F32, OP_DIMS(LONG_ROWS, 2));
    struct dtx_xent_max_args find = {.logits = all, .max = max.t, .valid = LONG_ROW};
    op_ok(e, dtx_xent_max(e->queue, &find));
    struct dtx_xent_sum_args sum = {.logits = all,
                                    .max = max.t,
                                    .targets = dtx_tensor_1d(targets, DTX_I32, LONG_ROWS),
                                    .sums = sums.t,
                                    .valid = LONG_ROW};
    op_ok(e, dtx_xent_sum(e->queue, &sum));
    op_read(e, &max);
    op_read(e, &sums);
    const double *last = sums.value + 2 * (LONG_ROWS - 1);
    assert_true(max.value[LONG_ROWS - 1] == 20 && max.value[LONG_ROWS - 2] == 0);
    assert_true(last[1] == 20 && fabs(last[0] - 1 - (LONG_ROW - 1) * exp(-20)) < 1e-3);
    munmap(logits, bytes);
}

/* A tall product, of one column each. */
static void matmul_case(struct op_env *e, const void *data)
{
    (void)data;
    size_t bytes = (size_t)(FAR_ROW + 1) * WIDTH * sizeof(float), column = (size_t)(FAR_ROW + 1) * sizeof(float);
    float *a = sparse(column), *c = shared(bytes), b[WIDTH];
    a[FAR_ROW] = 2;
    for (int i = 0; i < WIDTH; i++)
        b[i] = (float)i;
    struct dtx_matmul_args args = {.a = dtx_tensor_2d(a, DTX_F32, FAR_ROW + 1, 1),
                                   .b = dtx_tensor_2d(b, DTX_F32, 1, WIDTH),
                                   .c = dtx_tensor_2d(c, DTX_F32, FAR_ROW + 1, WIDTH)};
    args.work = op_work(e, dtx_matmul_work_bytes(e->queue, &args));
    op_ok(e, dtx_matmul(e->queue, &args));
    for (int i = 0; i < WIDTH; i++)
        assert_true(c[FAR_ROW * WIDTH + i] == 2 * b[i] && c[(FAR_ROW - 1) * WIDTH + i] == 0 && c[i] == 0);
    munmap(a, column);
    munmap(c, bytes);
}

/* The gradients of attn_case: keys are 0, so all three keys weigh the same and dv is do/3. */
static void attn_backward_case(struct op_env *e, const void *data)
{
    (void)data;
    int64_t keys = FAR_ROW + 1;
    size_t k_bytes = (size_t)keys * WIDTH * sizeof(float), v_bytes = (size_t)keys * 2 * sizeof(float);
    float *k = sparse(k_bytes), *v = sparse(v_bytes), *dk = shared(k_bytes), *dv = shared(v_bytes), q[WIDTH] = {1};
    for (int i = 0; i < 4; i++)
        v[(keys - 1 - i) * 2] = i < 3 ? 1 + (float)i : 1000;
    float do_[2] = {3, 0}, lse = logf(3), dsum = 6; /* do·o, o = 2 */
    struct op_array dq = op_output(e, DTX_F32, OP_DIMS(1, 1, 1, WIDTH));
    struct op_array start = op_indices(e, (int32_t[]){(int32_t)(keys - 3)}, OP_DIMS(1, 1));
    struct dtx_attn_bwd_args args = {.q = dtx_tensor_4d(q, DTX_F32, 1, 1, 1, WIDTH),
                                     .k = dtx_tensor_4d(k, DTX_F32, 1, keys, 1, WIDTH),
                                     .v = dtx_tensor_4d(v, DTX_F32, 1, keys, 1, 2),
                                     .doc_start = start.t,
                                     .q_first = keys - 1,
                                     .maps = 1,
                                     .scale = 1,
                                     .do_ = dtx_tensor_4d(do_, DTX_F32, 1, 1, 1, 2),
                                     .lse = dtx_tensor_3d(&lse, DTX_F32, 1, 1, 1),
                                     .dsum = dtx_tensor_3d(&dsum, DTX_F32, 1, 1, 1),
                                     .dq = dq.t,
                                     .dk = dtx_tensor_4d(dk, DTX_F32, 1, keys, 1, WIDTH),
                                     .dv = dtx_tensor_4d(dv, DTX_F32, 1, keys, 1, 2)};
    args.work = op_work(e, dtx_attn_bwd_work_bytes(e->queue, &args));
    op_ok(e, dtx_attn_bwd(e->queue, &args));
    for (int i = 0; i < 4; i++) { /* ds = (do·v − dsum)/3 = −1, 0, 1 times q */
        float want = i < 3 ? (float)(i - 1) : 0;
        assert_true(fabsf(dk[(keys - 1 - i) * WIDTH] - want) < 1e-5f && dk[(keys - 1 - i) * WIDTH + 1] == 0);
        assert_true(fabsf(dv[(keys - 1 - i) * 2] - (i < 3 ? 1.0f : 0.0f)) < 1e-5f);
    }
    munmap(k, k_bytes);
    munmap(v, v_bytes);
    munmap(dk, k_bytes);
    munmap(dv, v_bytes);
}

static const struct {
    const char *name;
    op_function *run;
    int threads;
    bool plain; /* the instruction set with the loops that address one element at a time */
} cases[] = {{"embed", embed_case, 1, false},       {"rope", rope_case, 1, false},
             {"attention", attn_case, 1, true},     {"attention backward", attn_backward_case, 1, true},
             {"sqnorm", sqnorm_case, 2, false},     {"rmsnorm", norm_case, 2, false},
             {"elements", elements_case, 2, false}, {"adamw", adamw_case, 2, false},
             {"xent", xent_case, 2, false},         {"matmul", matmul_case, 1, false}};

static void run(void **state)
{
    int i = *(int *)*state;
    op_run_once(DTX_F32, cases[i].threads, cases[i].plain ? DTX_ISA_PLAIN : dtx_isa_detect(), cases[i].run, NULL);
}

int main(void)
{
    enum { COUNT = sizeof cases / sizeof *cases };
    int index[COUNT], failed = 0;
    for (int i = 0; i < COUNT; i++) {
        index[i] = i;
        const struct CMUnitTest test[] = {{cases[i].name, run, NULL, NULL, &index[i]}};
        failed += cmocka_run_group_tests(test, NULL, NULL);
    }
    return failed > 0;
}
