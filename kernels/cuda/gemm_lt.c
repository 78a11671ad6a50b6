/*
 * Products through cuBLASLt, for f32, bf16 and 8-bit floats. cuBLASLt thinks in columns: the rows of c are its columns,
 * so it makes cᵀ = op(b)ᵀ·op(a)ᵀ from the same memory.
 *
 * The algorithm is chosen once for a kind of product (n, k, layouts, dtypes), for REFERENCE_ROWS rows, whatever m is;
 * splitting k is not allowed. So a row of c does not depend on m, and no result on timing. Where the chosen algorithm
 * cannot make a shape, dtx's own kernel does.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/cuda/lt.h"

/* NVIDIA advises 32 MiB of workspace on Hopper; the stand-in needs none. */
#ifdef DTX_EMU
enum { WORK_BYTES = 1 << 12 };
#else
enum { WORK_BYTES = 32 << 20 };
#endif
enum { REFERENCE_ROWS = 4096, ALIGNMENT = 16 };

/* What an algorithm depends on. No padding: compared as bytes. */
struct kind {
    int64_t n, k;
    int32_t a, b, c, transpose_a, transpose_b, scaled; /* types are cuBLASLt's; scaled: fp8 */
};

struct algorithm {
    struct kind kind;
    struct lt_algorithm chosen;
    bool there;
};

struct dtx_cuda_products {
    struct dtx_cuda_lt lt;
    void *handle;
    struct algorithm *table;
    int64_t count, capacity;
};

/* One call's descriptors: a and b are cuBLASLt's, that is, b and a. */
struct call {
    void *desc, *a, *b, *c;
};

enum dtx_status DTX_DEVICE(products_create)(struct dtx_ctx *ctx, struct dtx_cuda_products **out)
{
    char why[256] = "cublasLtCreate fails";
    void *memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_cuda_products), &memory));
    struct dtx_cuda_products *p = memory;
    if (!DTX_DEVICE(lt_load)(&p->lt, why, sizeof why) || p->lt.create(&p->handle) != 0) {
        dtx_mem_free(p);
        p = NULL;
        if (ctx->rank == 0)
            dtx_log(ctx, DTX_LOG_WARN, "cuBLASLt cannot be used (%s): products take dtx's own, slower kernels", why);
    }
    *out = p;
    return DTX_OK;
}

void DTX_DEVICE(products_free)(struct dtx_cuda_products *p)
{
    if (!p)
        return;
    p->lt.destroy(p->handle);
    dtx_mem_free(p->table);
    dtx_mem_free(p);
}

static bool aligned(const struct dtx_tensor *t)
{
    return ((uintptr_t)t->data & (ALIGNMENT - 1)) == 0;
}

/* Products that go to the library: shapes and dtypes alone, so that a query is the call's. */
static bool fits(struct dtx_queue *queue, const struct dtx_matmul_args *args)
{
    return DTX_DEVICE(products)(queue) && args->a.dtype != DTX_F64 && !args->scale.data && dtx_tensor_count(&args->a) &&
           dtx_tensor_count(&args->b);
}

size_t DTX_DEVICE(lt_work_bytes)(struct dtx_queue *queue, const struct dtx_matmul_args *args)
{
    return fits(queue, args) ? WORK_BYTES : 0;
}

static int lt_type(enum dtx_dtype dtype)
{
    return dtype == DTX_BF16 ? LT_R_16BF : LT_R_32F;
}

static void call_free(const struct dtx_cuda_lt *lt, struct call *call)
{
    void *const layouts[] = {call->a, call->b, call->c};
    for (int i = 0; i < 3; i++)
        if (layouts[i])
            lt->layout_destroy(layouts[i]);
    if (call->desc)
        lt->desc_destroy(call->desc);
}

/* A row-major [rows,columns] is a column-major [columns,rows]. */
static int make_layout(const struct dtx_cuda_lt *lt, void **out, int type, int64_t rows, int64_t columns)
{
    return lt->layout_create(out, type, (uint64_t)columns, (uint64_t)rows, columns);
}

static int call_make(const struct dtx_cuda_lt *lt, const struct kind *kind, int64_t m, struct call *out)
{
    const int32_t transpose = LT_TRANSPOSE;
    int64_t n = kind->n, k = kind->k;
    *out = (struct call){0};
    int code = lt->desc_create(&out->desc, LT_COMPUTE_32F, LT_R_32F);
    if (!code && kind->transpose_b)
        code = lt->desc_set(out->desc, LT_DESC_TRANSPOSE_A, &transpose, sizeof transpose);
    if (!code && kind->transpose_a)
        code = lt->desc_set(out->desc, LT_DESC_TRANSPOSE_B, &transpose, sizeof transpose);
    if (!code)
        code = make_layout(lt, &out->a, kind->b, kind->transpose_b ? n : k, kind->transpose_b ? k : n);
    if (!code)
        code = make_layout(lt, &out->b, kind->a, kind->transpose_a ? k : m, kind->transpose_a ? m : k);
    if (!code)
        code = make_layout(lt, &out->c, kind->c, m, n);
    return code;
}

/* The best algorithm for the reference number of rows that does not split k. */
static int choose(struct dtx_cuda_products *p, struct algorithm *entry)
{
    const struct dtx_cuda_lt *lt = &p->lt;
    const uint64_t most = WORK_BYTES;
    const uint32_t no_split = 0, alignment = ALIGNMENT;
    void *preference = NULL;
    struct call call;
    struct lt_choice best = {0};
    int found = 0, code = call_make(lt, &entry->kind, REFERENCE_ROWS, &call);
    if (!code)
        code = lt->prefer_create(&preference);
    if (!code)
        code = lt->prefer_set(preference, LT_PREFER_WORK_BYTES, &most, sizeof most);
    if (!code)
        code = lt->prefer_set(preference, LT_PREFER_REDUCTION, &no_split, sizeof no_split);
    for (int which = LT_PREFER_ALIGNMENT_A; which <= LT_PREFER_ALIGNMENT_D && !code; which++)
        code = lt->prefer_set(preference, which, &alignment, sizeof alignment);
    if (!code)
        code = lt->choose(p->handle, call.desc, call.a, call.b, call.c, call.c, preference, 1, &best, &found);
    entry->there = !code && found > 0 && best.state == 0;
    if (entry->there)
        entry->chosen = best.algorithm;
    if (code == LT_NOT_SUPPORTED)
        code = 0; /* no algorithm at all is an answer too */
    if (preference)
        lt->prefer_destroy(preference);
    call_free(lt, &call);
    return code;
}

static enum dtx_status find(struct dtx_ctx *ctx, struct dtx_cuda_products *p, const struct kind *kind,
                            struct algorithm **out)
{
    for (int64_t i = 0; i < p->count; i++)
        if (memcmp(&p->table[i].kind, kind, sizeof *kind) == 0) {
            *out = &p->table[i];
            return DTX_OK;
        }
    void *table;
    DTX_TRY(ctx, dtx_mem_grow(ctx, p->table, p->count, sizeof *p->table, &p->capacity, &table));
    p->table = table;
    struct algorithm *entry = &p->table[p->count];
    entry->kind = *kind;
    int code = choose(p, entry);
    if (code)
        return dtx_fail(ctx, DTX_E_LIBRARY, "cuBLASLt: choosing an algorithm for n %lld, k %lld: status %d",
                        (long long)kind->n, (long long)kind->k, code);
    p->count++;
    *out = entry;
    return DTX_OK;
}

/* c = op(a)·op(b) (+ c), a's and b's memory as `kind` says; scales: of fp8, else NULL. */
static enum dtx_status run(struct dtx_queue *queue, const struct dtx_matmul_args *args, const struct kind *kind,
                           const struct lt_fp8 *operands, void *work, bool *done)
{
    struct dtx_ctx *ctx = queue->backend->ctx;
    struct dtx_cuda_products *p = DTX_DEVICE(products)(queue);
    struct algorithm *entry;
    struct call call;
    struct lt_choice need;
    const float one = 1, beta = args->accumulate && !DTX_MUTANT(cuda_lt_overwrites) ? 1 : 0;
    *done = false;
    DTX_TRY(ctx, find(ctx, p, kind, &entry));
    if (!entry->there)
        return DTX_OK;
    int code = call_make(&p->lt, kind, args->c.dim[0], &call);
    if (!code && kind->scaled)
        code = p->lt.desc_set(call.desc, LT_DESC_SCALE_A, &operands->b_scale, sizeof operands->b_scale);
    if (!code && kind->scaled)
        code = p->lt.desc_set(call.desc, LT_DESC_SCALE_B, &operands->a_scale, sizeof operands->a_scale);
    if (!code && p->lt.check(p->handle, call.desc, call.a, call.b, call.c, call.c, &entry->chosen, &need) == 0 &&
        need.work_bytes <= WORK_BYTES) {
        code = p->lt.product(p->handle, call.desc, &one, operands->b, call.a, operands->a, call.b, &beta, args->c.data,
                             call.c, args->c.data, call.c, &entry->chosen, work, WORK_BYTES, DTX_DEVICE(stream)(queue));
        *done = code == 0;
    }
    call_free(&p->lt, &call);
    if (code)
        return dtx_fail(ctx, DTX_E_LIBRARY, "cuBLASLt: product of m %lld, n %lld, k %lld: status %d",
                        (long long)args->c.dim[0], (long long)kind->n, (long long)kind->k, code);
    return DTX_OK;
}

enum dtx_status DTX_DEVICE(lt_matmul)(struct dtx_queue *queue, const struct dtx_matmul_args *args, bool *done)
{
    *done = false;
    if (!fits(queue, args) || !aligned(&args->a) || !aligned(&args->b) || !aligned(&args->c))
        return DTX_OK;
    struct kind kind = {.n = args->c.dim[1],
                        .k = args->a.dim[args->transpose_a ? 0 : 1],
                        .a = lt_type(args->a.dtype),
                        .b = lt_type(args->b.dtype),
                        .c = lt_type(args->c.dtype),
                        .transpose_a = args->transpose_a,
                        .transpose_b = args->transpose_b};
    return run(queue, args, &kind, &(struct lt_fp8){.a = args->a.data, .b = args->b.data}, args->work.data, done);
}

/* cuBLASLt makes these products from rows along k alone, of whole 16 bytes. */
static struct kind fp8_kind(const struct dtx_matmul_args *args)
{
    return (struct kind){.n = args->c.dim[1],
                         .k = args->a.dim[args->transpose_a ? 0 : 1],
                         .a = args->fp8 == DTX_FP8_E5M2 ? LT_R_8F_E5M2 : LT_R_8F_E4M3,
                         .b = LT_R_8F_E4M3,
                         .c = lt_type(args->c.dtype),
                         .transpose_b = true,
                         .scaled = true};
}

size_t DTX_DEVICE(lt_fp8_work_bytes)(void)
{
    return WORK_BYTES;
}

enum dtx_status DTX_DEVICE(lt_fp8_fits)(struct dtx_queue *queue, const struct dtx_matmul_args *args, bool *fits)
{
    struct dtx_cuda_products *p = DTX_DEVICE(products)(queue);
    struct kind kind = fp8_kind(args);
    struct algorithm *entry;
    *fits = p && kind.n && kind.k && args->c.dim[0] && kind.n % 16 == 0 && kind.k % 16 == 0 && aligned(&args->c);
    if (!*fits)
        return DTX_OK;
    DTX_TRY(queue->backend->ctx, find(queue->backend->ctx, p, &kind, &entry));
    *fits = entry->there;
    return DTX_OK;
}

enum dtx_status DTX_DEVICE(lt_fp8_matmul)(struct dtx_queue *queue, const struct dtx_matmul_args *args,
                                          const struct lt_fp8 *operands, void *work, bool *done)
{
    struct kind kind = fp8_kind(args);
    return run(queue, args, &kind, operands, work, done);
}
