/* test: label=unit timeout=120 */
/* Element offsets above 2^31, in sparse memory that takes no room: embed, rope, attention, sqnorm. */
#include <string.h>
#include <sys/mman.h>

#include "tests/harness/op_case.h"

static void *sparse(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        skip();
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

static void embed(void **state)
{
    (void)state;
    op_run_once(DTX_F32, 1, dtx_isa_detect(), embed_case, NULL);
}

static void rope(void **state)
{
    (void)state;
    op_run_once(DTX_F32, 1, dtx_isa_detect(), rope_case, NULL);
}

static void attn(void **state)
{
    (void)state;
    op_run_once(DTX_F32, 1, DTX_ISA_PLAIN, attn_case, NULL);
}

static void sqnorm(void **state)
{
    (void)state;
    op_run_once(DTX_F32, 2, dtx_isa_detect(), sqnorm_case, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(embed), cmocka_unit_test(rope), cmocka_unit_test(attn),
                                       cmocka_unit_test(sqnorm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
