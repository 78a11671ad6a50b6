/*
 * matmul. f32, and bf16 where the processor multiplies it, go through oneDNN; f64 and the rest through gemm_loops.h.
 *
 * C is cut into blocks of rows × COLUMNS and k into pieces of DEPTH, added in order; each is one oneDNN product planned
 * for one thread. Rows go from ROWS to MOST_ROWS, by the shape of C: larger ones are faster, but threads need blocks.
 * So no bit depends on the number of threads. Primitives are slow to make and kept by shape.
 */
#include <omp.h>
#include <dnnl.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/impl.h"

enum { ROWS = 256, MOST_ROWS = 1024, COLUMNS = 1024, ENOUGH_BLOCKS = 32, DEPTH = 4096, DIRECT_UNITS = 4 };

/* Everything that a primitive depends on. No padding: compared as bytes. */
struct product_key {
    int64_t m, n, k, lda, ldb, ldc;
    int64_t act, c, transpose_a, transpose_b, accumulate;
};

struct product {
    struct product_key key;
    dnnl_primitive_t primitive;
    dnnl_memory_t *a, *b, *c, *scratch; /* one a thread */
    size_t scratch_bytes;
};

struct dtx_cpu_products {
    int threads;
    dnnl_engine_t engine;
    dnnl_stream_t *streams; /* one a thread */
    struct product *table;
    int64_t count, capacity;
};

static enum dtx_status dnnl_check(struct dtx_ctx *ctx, dnnl_status_t status, const char *what)
{
    static const char *const names[] = {"success",         "out of memory", "invalid arguments", "unimplemented",
                                        "iterator at end", "runtime error", "not required"};
    if (status == dnnl_success)
        return DTX_OK;
    return dtx_fail(ctx, status == dnnl_out_of_memory ? DTX_E_MEMORY : DTX_E_LIBRARY, "oneDNN: %s: %s", what,
                    (size_t)status < sizeof names / sizeof *names ? names[status] : "unknown status");
}
#define DNNL_TRY(ctx, call) DTX_TRY(ctx, dnnl_check(ctx, call, #call))

void dtx_cpu_limit_libraries(struct dtx_ctx *ctx, int isa)
{
    static const dnnl_cpu_isa_t limits[] = {[DTX_ISA_PLAIN] = dnnl_cpu_isa_sse41,
                                            [DTX_ISA_AVX2] = dnnl_cpu_isa_avx2,
                                            [DTX_ISA_AVX512] = dnnl_cpu_isa_avx512_core,
                                            [DTX_ISA_AVX512_BF16] = dnnl_cpu_isa_avx512_core_bf16};
    if (dnnl_set_max_cpu_isa(limits[isa]) != dnnl_success && dnnl_get_effective_cpu_isa() != limits[isa])
        dtx_log(ctx, DTX_LOG_WARN,
                "oneDNN cannot be held to %s any more: products may differ from other ranks' in the last bits",
                dtx_isa_name(isa));
}

enum dtx_status dtx_cpu_products_create(struct dtx_ctx *ctx, int threads, struct dtx_cpu_products **out)
{
    void *memory, *streams;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_cpu_products), &memory));
    struct dtx_cpu_products *p = memory;
    enum dtx_status status = dtx_mem_alloc(ctx, threads, sizeof(dnnl_stream_t), &streams);
    if (status == DTX_OK) {
        p->threads = threads;
        p->streams = streams;
        status = dnnl_check(ctx, dnnl_engine_create(&p->engine, dnnl_cpu, 0), "dnnl_engine_create");
    }
    for (int t = 0; t < threads && status == DTX_OK; t++)
        status = dnnl_check(ctx, dnnl_stream_create(&p->streams[t], p->engine, dnnl_stream_default_flags),
                            "dnnl_stream_create");
    if (status != DTX_OK) {
        dtx_cpu_products_free(p);
        return status;
    }
    *out = p;
    return DTX_OK;
}

static void product_free(struct dtx_cpu_products *products, struct product *p)
{
    dnnl_memory_t *const lists[] = {p->a, p->b, p->c, p->scratch};
    for (int i = 0; i < 4; i++) {
        for (int t = 0; lists[i] && t < products->threads; t++)
            if (lists[i][t])
                dnnl_memory_destroy(lists[i][t]);
        dtx_mem_free(lists[i]);
    }
    if (p->primitive)
        dnnl_primitive_destroy(p->primitive);
}

void dtx_cpu_products_free(struct dtx_cpu_products *p)
{
    if (!p)
        return;
    for (int64_t i = 0; i < p->count; i++)
        product_free(p, &p->table[i]);
    dtx_mem_free(p->table);
    for (int t = 0; p->streams && t < p->threads; t++)
        if (p->streams[t])
            dnnl_stream_destroy(p->streams[t]);
    dtx_mem_free(p->streams);
    if (p->engine)
        dnnl_engine_destroy(p->engine);
    dtx_mem_free(p);
}

static dnnl_data_type_t dnnl_type(int64_t dtype)
{
    return dtype == DTX_BF16 ? dnnl_bf16 : dnnl_f32;
}

static enum dtx_status describe(struct dtx_ctx *ctx, dnnl_memory_desc_t *md, int64_t rows, int64_t columns,
                                int64_t step, bool transpose, int64_t dtype)
{
    dnnl_dims_t dims = {rows, columns}, strides = {transpose ? 1 : step, transpose ? step : 1};
    DNNL_TRY(ctx, dnnl_memory_desc_init_by_strides(md, 2, dims, dnnl_type(dtype), strides));
    return DTX_OK;
}

static enum dtx_status make_memories(struct dtx_ctx *ctx, struct dtx_cpu_products *products,
                                     const dnnl_memory_desc_t *md, dnnl_memory_t **out)
{
    void *list;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, products->threads, sizeof(dnnl_memory_t), &list));
    *out = list;
    for (int t = 0; t < products->threads; t++)
        DNNL_TRY(ctx, dnnl_memory_create(&(*out)[t], md, products->engine, DNNL_MEMORY_NONE));
    return DTX_OK;
}

static enum dtx_status make_primitive(struct dtx_ctx *ctx, struct dtx_cpu_products *products, struct product *p,
                                      const dnnl_matmul_desc_t *desc, dnnl_primitive_desc_t *pd)
{
    dnnl_primitive_attr_t attr;
    DNNL_TRY(ctx, dnnl_primitive_attr_create(&attr));
    dnnl_post_ops_t post = NULL;
    dnnl_status_t status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status == dnnl_success && p->key.accumulate) {
        status = dnnl_post_ops_create(&post);
        if (status == dnnl_success)
            status = dnnl_post_ops_append_sum(post, 1.0f);
        if (status == dnnl_success)
            status = dnnl_primitive_attr_set_post_ops(attr, post);
    }
    /* The plan depends on the number of OpenMP threads at this moment. */
    int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_create(pd, desc, attr, products->engine, NULL);
    if (status == dnnl_success)
        status = dnnl_primitive_create(&p->primitive, *pd);
    omp_set_num_threads(threads);
    if (post)
        dnnl_post_ops_destroy(post);
    dnnl_primitive_attr_destroy(attr);
    return dnnl_check(ctx, status, "making a matrix product");
}

static enum dtx_status product_make(struct dtx_ctx *ctx, struct dtx_cpu_products *products, struct product *p)
{
    const struct product_key *key = &p->key;
    dnnl_memory_desc_t a, b, c;
    DTX_TRY(ctx, describe(ctx, &a, key->m, key->k, key->lda, key->transpose_a, key->act));
    DTX_TRY(ctx, describe(ctx, &b, key->k, key->n, key->ldb, key->transpose_b, key->act));
    DTX_TRY(ctx, describe(ctx, &c, key->m, key->n, key->ldc, false, key->c));
    dnnl_matmul_desc_t desc;
    DNNL_TRY(ctx, dnnl_matmul_desc_init(&desc, &a, &b, NULL, &c));
    dnnl_primitive_desc_t pd = NULL;
    DTX_TRY(ctx, make_primitive(ctx, products, p, &desc, &pd));
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    p->scratch_bytes = dtx_round_up((int64_t)dnnl_memory_desc_get_size(scratch), 64);
    enum dtx_status status = make_memories(ctx, products, scratch, &p->scratch);
    if (status == DTX_OK)
        status = make_memories(ctx, products, &a, &p->a);
    if (status == DTX_OK)
        status = make_memories(ctx, products, &b, &p->b);
    if (status == DTX_OK)
        status = make_memories(ctx, products, &c, &p->c);
    dnnl_primitive_desc_destroy(pd);
    return status;
}

/* The product with this key, made when it is new. `out` is an index: the table may move. */
static enum dtx_status product_find(struct dtx_ctx *ctx, struct dtx_cpu_products *products,
                                    const struct product_key *key, int64_t *out)
{
    for (int64_t i = 0; i < products->count; i++)
        if (memcmp(&products->table[i].key, key, sizeof *key) == 0) {
            *out = i;
            return DTX_OK;
        }
    void *table;
    DTX_TRY(ctx,
            dtx_mem_grow(ctx, products->table, products->count, sizeof *products->table, &products->capacity, &table));
    products->table = table;
    struct product *p = &products->table[products->count];
    *p = (struct product){.key = *key};
    enum dtx_status status = product_make(ctx, products, p);
    if (status != DTX_OK) {
        product_free(products, p);
        return status;
    }
    *out = products->count++;
    return DTX_OK;
}

enum { TAIL_ROWS = 1, TAIL_COLUMNS = 2, TAIL_DEPTH = 4, LATER_DEPTH = 8 };

/* How one call is carried out. */
struct plan {
    int64_t m, n, k;
    int64_t rows; /* of a block of c */
    bool library; /* oneDNN */
    bool staged;  /* the product goes to a master buffer in work first: scale, or bf16 results of the plain loops */
    bool accumulate;
    int64_t product[16]; /* by bits: tail of rows, tail of columns, tail of k, not the first piece of k */
    size_t scratch_bytes, stage_bytes;
};

static enum dtx_status make_plan(struct dtx_queue *queue, const struct dtx_matmul_args *args, struct plan *plan)
{
    struct dtx_cpu *cpu = dtx_cpu_of(queue);
    enum dtx_dtype act = args->a.dtype, master = dtx_dtype_master(act);
    *plan = (struct plan){.m = args->a.dim[args->transpose_a ? 1 : 0],
                          .k = args->a.dim[args->transpose_a ? 0 : 1],
                          .n = args->b.dim[args->transpose_b ? 0 : 1]};
    plan->rows = ROWS;
    while (plan->rows < MOST_ROWS &&
           dtx_div_up(plan->m, 2 * plan->rows) * dtx_div_up(plan->n, COLUMNS) >= ENOUGH_BLOCKS)
        plan->rows *= 2;
    plan->library = plan->m && plan->n && plan->k && queue->backend->isa > DTX_ISA_PLAIN &&
                    (act == DTX_F32 || (act == DTX_BF16 && queue->backend->isa == DTX_ISA_AVX512_BF16));
    plan->staged = args->scale.data || (args->c.dtype != master && (!plan->library || plan->k > DEPTH));
    plan->accumulate = args->accumulate && !plan->staged;
    plan->stage_bytes = plan->staged ? (size_t)(plan->m * plan->n) * dtx_dtype_bytes(master) : 0;
    plan->stage_bytes = (plan->stage_bytes + 63) / 64 * 64;
    for (int tail = 0; plan->library && tail < 16; tail++) {
        int64_t rows = tail & TAIL_ROWS ? plan->m % plan->rows : dtx_min64(plan->m, plan->rows);
        int64_t columns = tail & TAIL_COLUMNS ? plan->n % COLUMNS : dtx_min64(plan->n, COLUMNS);
        int64_t depth = tail & TAIL_DEPTH ? plan->k % DEPTH : dtx_min64(plan->k, DEPTH);
        if (!rows || !columns || !depth || (tail & LATER_DEPTH && plan->k <= DEPTH))
            continue;
        struct product_key key = {.m = rows,
                                  .n = columns,
                                  .k = depth,
                                  .lda = args->transpose_a ? plan->m : plan->k,
                                  .ldb = args->transpose_b ? plan->k : plan->n,
                                  .ldc = plan->n,
                                  .act = act,
                                  .c = plan->staged ? master : args->c.dtype,
                                  .transpose_a = args->transpose_a,
                                  .transpose_b = args->transpose_b,
                                  .accumulate = plan->accumulate || tail & LATER_DEPTH};
        DTX_TRY(queue->backend->ctx, product_find(queue->backend->ctx, cpu->products, &key, &plan->product[tail]));
        size_t bytes = cpu->products->table[plan->product[tail]].scratch_bytes;
        plan->scratch_bytes = bytes > plan->scratch_bytes ? bytes : plan->scratch_bytes;
    }
    return DTX_OK;
}

size_t dtx_cpu_matmul_work_bytes(struct dtx_queue *queue, const struct dtx_matmul_args *args)
{
    struct plan plan;
    if (args->fp8)
        return dtx_cpu_fp8_work_bytes(queue, args);
    if (make_plan(queue, args, &plan) != DTX_OK)
        return 0; /* the call itself will report the cause */
    return plan.stage_bytes + plan.scratch_bytes * (size_t)queue->backend->threads;
}

/* The block of c whose first element is [i, j], all pieces of k in order. */
static dnnl_status_t run_block(struct dtx_cpu *cpu, const struct dtx_matmul_args *args, const struct plan *plan,
                               char *c, size_t c_bytes, char *scratch, int64_t i, int64_t j, int thread)
{
    size_t bytes = dtx_dtype_bytes(args->a.dtype);
    int block = (plan->m > plan->rows && i + plan->rows > plan->m ? TAIL_ROWS : 0) |
                (plan->n > COLUMNS && j + COLUMNS > plan->n ? TAIL_COLUMNS : 0);
    dnnl_status_t status = dnnl_success;
    for (int64_t k = 0; k < plan->k && status == dnnl_success; k += DEPTH) {
        int piece = (plan->k > DEPTH && k + DEPTH > plan->k ? TAIL_DEPTH : 0) |
                    (k && !DTX_MUTANT(matmul_piece_overwrites) ? LATER_DEPTH : 0);
        struct product *p = &cpu->products->table[plan->product[block | piece]];
        int64_t a_at = args->transpose_a ? k * plan->m + i : i * plan->k + k;
        int64_t b_at = args->transpose_b ? j * plan->k + k : k * plan->n + j;
        dnnl_memory_set_data_handle(p->a[thread], (char *)args->a.data + (size_t)a_at * bytes);
        dnnl_memory_set_data_handle(p->b[thread], (char *)args->b.data + (size_t)b_at * bytes);
        dnnl_memory_set_data_handle(p->c[thread], c + (size_t)(i * plan->n + j) * c_bytes);
        dnnl_memory_set_data_handle(p->scratch[thread], scratch + (size_t)thread * plan->scratch_bytes);
        const dnnl_exec_arg_t list[] = {{DNNL_ARG_SRC, p->a[thread]},
                                        {DNNL_ARG_WEIGHTS, p->b[thread]},
                                        {DNNL_ARG_DST, p->c[thread]},
                                        {DNNL_ARG_SCRATCHPAD, p->scratch[thread]}};
        status = dnnl_primitive_execute(p->primitive, cpu->products->streams[thread], 4, list);
    }
    return status;
}

static enum dtx_status run_library(struct dtx_queue *queue, const struct dtx_matmul_args *args, const struct plan *plan,
                                   void *c, enum dtx_dtype c_dtype)
{
    struct dtx_cpu *cpu = dtx_cpu_of(queue);
    int64_t row_blocks = dtx_div_up(plan->m, plan->rows), blocks = row_blocks * dtx_div_up(plan->n, COLUMNS);
    char *scratch = plan->scratch_bytes ? (char *)args->work.data + plan->stage_bytes : NULL;
    int threads = (int)dtx_min64(queue->backend->threads, blocks);
    dnnl_status_t failed = dnnl_success;
    /* Outside a parallel region oneDNN would take as many threads as OpenMP allows, whatever the plan. */
    int openmp_threads = omp_get_max_threads();
    omp_set_num_threads(1);
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (threads > 1)
    for (int64_t block = 0; block < blocks; block++) {
        dnnl_status_t status =
            run_block(cpu, args, plan, c, dtx_dtype_bytes(c_dtype), scratch, block % row_blocks * plan->rows,
                      block / row_blocks * COLUMNS, omp_get_thread_num());
        if (status != dnnl_success) {
#pragma omp atomic write
            failed = status;
        }
    }
    omp_set_num_threads(openmp_threads);
    return dnnl_check(queue->backend->ctx, failed, "dnnl_primitive_execute");
}

enum dtx_status dtx_cpu_matmul(struct dtx_queue *queue, const struct dtx_matmul_args *args)
{
    struct dtx_ctx *ctx = queue->backend->ctx;
    const struct dtx_cpu_loops *loops = dtx_cpu_of(queue)->loops;
    enum dtx_dtype act = args->a.dtype, master = dtx_dtype_master(act);
    struct plan plan;
    if (args->fp8)
        return dtx_cpu_fp8_matmul(queue, args);
    DTX_TRY(ctx, make_plan(queue, args, &plan));
    size_t need = plan.stage_bytes + plan.scratch_bytes * (size_t)queue->backend->threads;
    DTX_TRY(ctx, dtx_need_work(queue, "matmul", &args->work, need));
    void *c = plan.staged ? args->work.data : args->c.data;
    if (plan.library) {
        DTX_TRY(ctx, run_library(queue, args, &plan, c, plan.staged ? master : args->c.dtype));
    } else {
        struct dtx_cpu_gemm job = {args->a.data,      args->b.data,   c, plan.m, plan.n, plan.k, args->transpose_a,
                                   args->transpose_b, plan.accumulate};
        int64_t units = dtx_div_up(plan.m, DTX_CPU_GEMM_ROWS) * dtx_div_up(plan.n, DTX_CPU_GEMM_COLUMNS);
        dtx_cpu_parallel(queue, loops->gemm[act], &job, units, DIRECT_UNITS);
    }
    int64_t count = plan.m * plan.n;
    if (plan.staged) {
        double scale = 1;
        if (args->scale.data)
            scale = master == DTX_F64 ? *(const double *)args->scale.data : *(const float *)args->scale.data;
        struct dtx_add_args add = {.x = dtx_tensor_1d(c, master, count), .z = args->c, .alpha = scale};
        if (args->accumulate)
            add.y = args->c;
        DTX_TRY(ctx, dtx_cpu_add(queue, &add));
    }
    if (args->amax.data) {
        const struct dtx_tensor pair[] = {args->c, args->amax};
        loops->amax[args->c.dtype](pair, 0, count);
    }
    return DTX_OK;
}
