/*
 * matmul with operands rounded to 8-bit floats: their rounded copies, which bf16 holds exactly, are multiplied as bf16,
 * and the product by both scales.
 *
 * Workspace: the product's scale [1], a largest |x| [1], padding to 64 bytes; a's copy; b's copy; the product's own.
 */
#include "kernels/cpu/impl.h"
#include "kernels/round.h"

enum { HEADER = 64, ELEMENTS = 1 << 14 };

struct cast {
    const struct dtx_tensor *x;
    uint16_t *y;
    float stretch;
    bool e5m2;
};

static void cast_elements(const void *job, int64_t first, int64_t last)
{
    const struct cast *c = job;
    const uint16_t *narrow = c->x->data;
    const float *wide = c->x->data;
    bool bf16 = c->x->dtype == DTX_BF16;
    for (int64_t i = first; i < last; i++) {
        float x = bf16 ? dtx_bf16_to_f32(narrow[i]) : wide[i];
        c->y[i] = dtx_f32_to_bf16(dtx_round_fp8(x * c->stretch, c->e5m2));
    }
}

static size_t copy_bytes(const struct dtx_tensor *x)
{
    return (size_t)dtx_round_up(dtx_tensor_count(x) * (int64_t)sizeof(uint16_t), HEADER);
}

static size_t own_bytes(const struct dtx_matmul_args *args)
{
    return HEADER + copy_bytes(&args->a) + copy_bytes(&args->b);
}

/* The product of the copies in `work`, which may be absent where only bytes are asked for. */
static struct dtx_matmul_args product_of(const struct dtx_matmul_args *args, char *work)
{
    struct dtx_matmul_args p = *args;
    p.fp8 = DTX_FP8_NONE;
    p.a.dtype = p.b.dtype = DTX_BF16;
    p.scale = dtx_tensor_1d(work, DTX_F32, 1);
    p.work = (struct dtx_tensor){0};
    if (!work)
        return p;
    p.a.data = work + HEADER;
    p.b.data = work + HEADER + copy_bytes(&args->a);
    p.work = dtx_tensor_1d(work + own_bytes(args), DTX_U8, (int64_t)(dtx_tensor_bytes(&args->work) - own_bytes(args)));
    return p;
}

size_t dtx_cpu_fp8_work_bytes(struct dtx_queue *queue, const struct dtx_matmul_args *args)
{
    struct dtx_matmul_args p = product_of(args, NULL);
    p.scale.data = &p; /* there is one; nobody reads it */
    return own_bytes(args) + dtx_cpu_matmul_work_bytes(queue, &p);
}

/* y = round(stretch·x); returns 1 / stretch. */
static float cast(struct dtx_queue *queue, const struct dtx_tensor *x, bool e5m2, float *most, void *y)
{
    const struct dtx_tensor pair[] = {*x, dtx_tensor_1d(most, DTX_F32, 1)};
    int64_t n = dtx_tensor_count(x);
    dtx_cpu_of(queue)->loops->amax[x->dtype](pair, 0, n);
    struct cast job = {x, y, dtx_fp8_stretch(*most, e5m2), e5m2};
    dtx_cpu_parallel(queue, cast_elements, &job, n, ELEMENTS);
    return 1 / job.stretch;
}

enum dtx_status dtx_cpu_fp8_matmul(struct dtx_queue *queue, const struct dtx_matmul_args *args)
{
    DTX_TRY(queue->backend->ctx, dtx_need_work(queue, "matmul", &args->work, dtx_cpu_fp8_work_bytes(queue, args)));
    struct dtx_matmul_args p = product_of(args, args->work.data);
    float *scale = args->work.data;
    float a = cast(queue, &args->a, args->fp8 == DTX_FP8_E5M2, scale + 1, p.a.data);
    float b = cast(queue, &args->b, false, scale + 1, p.b.data);
    if (DTX_MUTANT(fp8_scale_of_b_forgotten))
        b = 1;
    *scale = a * b * (args->scale.data ? *(const float *)args->scale.data : 1);
    return dtx_cpu_matmul(queue, &p);
}
