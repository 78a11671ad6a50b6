/*
 * matmul with operands rounded to 8-bit floats: the largest |x| of each, their scales, rounded copies, then a product
 * by cuBLASLt; where that cannot (devices before 8.9, odd shapes), copies in bf16, which holds the same numbers, by
 * gemm.cu.
 *
 * Workspace: struct scales and the parts of the largest |x| in HEADER bytes; a's copy; b's copy; cuBLASLt's.
 */
#include "kernels/cuda/impl.h"
#include "kernels/cuda/lt.h"

static const int TILE = 32, ROWS = THREADS / TILE, HEADER = 2048;

struct scales {
    float most[2], stretch[2]; /* of a and b: the largest |x|; what x is multiplied by before it is rounded */
    float scale[2], both;      /* what products are multiplied by: for a (times the call's scale) and b, and together */
};

DTX_KERNEL(1, 1) scales_kernel(struct scales *s, const float *scale, bool e5m2)
{
    for (int i = 0; i < 2; i++)
        s->stretch[i] = dtx_fp8_stretch(s->most[i], e5m2 && i == 0);
    s->scale[0] = 1 / s->stretch[0] * (scale ? *scale : 1);
    s->scale[1] = 1 / s->stretch[1];
    s->both = s->scale[0] * s->scale[1];
}

struct fp8_byte {
    uint8_t bits;
};

/* The code of a number that dtx_round_fp8 made: sign, exponent, mantissa; all ones but the sign: NaN. */
DTX_FN void put(fp8_byte *to, float x, bool e5m2)
{
    const int mantissa = e5m2 ? 2 : 3, least = e5m2 ? 127 - 14 : 127 - 6;
    uint32_t bits = dtx_bits_of(x), sign = bits >> 24 & 0x80, exponent = bits >> 23 & 255;
    uint32_t code = (exponent - least + 1) << mantissa | (bits >> (23 - mantissa) & ((1u << mantissa) - 1));
    if ((int)exponent < least) /* a multiple of the least number */
        code = (uint32_t)((x < 0 ? -x : x) / dtx_float_of((uint32_t)(least - mantissa) << 23));
    to->bits = (uint8_t)(sign | (x != x ? 0x7f : code));
}
DTX_FN void put(dtx_bf16 *to, float x, bool)
{
    dtx_store(to, x);
}

struct cast_job {
    const void *x;
    void *y;
    const float *stretch;
    int64_t rows, columns, row_tiles;
    bool e5m2, transpose; /* y is [columns,rows] */
};

/* A block: a tile of x. */
template <class T, class Y> DTX_KERNEL(THREADS, 1) cast_kernel(DTX_ARGUMENT(struct cast_job) job)
{
    DTX_SHARED(float, tile, TILE *(TILE + 1));
    int64_t row = blockIdx.x % job.row_tiles * TILE, column = blockIdx.x / job.row_tiles * TILE;
    int i = threadIdx.x / TILE, j = threadIdx.x % TILE;
    const T *x = (const T *)job.x;
    Y *y = (Y *)job.y;
    for (int r = i; r < TILE; r += ROWS)
        if (row + r < job.rows && column + j < job.columns)
            tile[r * (TILE + 1) + j] =
                dtx_round_fp8((float)dtx_load(x + (row + r) * job.columns + column + j) * *job.stretch, job.e5m2);
    dtx_block_sync();
    for (int r = i; r < TILE; r += ROWS) {
        if (!job.transpose && row + r < job.rows && column + j < job.columns)
            put(y + (row + r) * job.columns + column + j, tile[r * (TILE + 1) + j], job.e5m2);
        if (job.transpose && column + r < job.columns && row + j < job.rows)
            put(y + (column + r) * job.rows + row + j, tile[j * (TILE + 1) + r], job.e5m2);
    }
}

template <class Y>
static enum dtx_status cast(struct dtx_queue *queue, const struct dtx_tensor *x, const float *stretch, bool e5m2,
                            bool transpose, void *y)
{
    struct cast_job job = {.x = x->data,
                           .y = y,
                           .stretch = stretch,
                           .rows = x->dim[0],
                           .columns = x->dim[1],
                           .row_tiles = dtx_div_up(x->dim[0], TILE),
                           .e5m2 = e5m2,
                           .transpose = transpose};
    int64_t blocks = job.row_tiles * dtx_div_up(job.columns, TILE);
    return x->dtype == DTX_BF16 ? launch(queue, "matmul", cast_kernel<dtx_bf16, Y>, blocks, THREADS, 0, job)
                                : launch(queue, "matmul", cast_kernel<float, Y>, blocks, THREADS, 0, job);
}

static size_t copy_bytes(const struct dtx_tensor *x)
{
    return (size_t)dtx_round_up(dtx_tensor_count(x) * (int64_t)sizeof(dtx_bf16), 256);
}

size_t DTX_DEVICE(fp8_work_bytes)(struct dtx_queue *queue, const struct dtx_matmul_args *args)
{
    return HEADER + copy_bytes(&args->a) + copy_bytes(&args->b) +
           (DTX_DEVICE(products)(queue) ? DTX_DEVICE(lt_fp8_work_bytes)() : 0);
}

enum dtx_status DTX_DEVICE(fp8_matmul)(struct dtx_queue *queue, const struct dtx_matmul_args *args)
{
    struct dtx_ctx *ctx = queue->backend->ctx;
    char *work = (char *)args->work.data;
    struct scales *s = (struct scales *)work;
    void *parts = work + sizeof *s, *a = work + HEADER, *b = work + HEADER + copy_bytes(&args->a);
    void *rest = work + HEADER + copy_bytes(&args->a) + copy_bytes(&args->b);
    const bool e5m2 = args->fp8 == DTX_FP8_E5M2;
    bool done = false;
    DTX_TRY(ctx, DTX_DEVICE(largest)(queue, &args->a, parts, &s->most[0]));
    DTX_TRY(ctx, DTX_DEVICE(largest)(queue, &args->b, parts, &s->most[1]));
    DTX_TRY(ctx, launch(queue, "matmul", scales_kernel, 1, 1, 0, s, (const float *)args->scale.data, e5m2));
    DTX_TRY(ctx, DTX_DEVICE(lt_fp8_fits)(queue, args, &done));
    if (done) {
        const struct lt_fp8 operands = {a, b, &s->scale[0], &s->scale[1]};
        DTX_TRY(ctx, cast<fp8_byte>(queue, &args->a, &s->stretch[0], e5m2,
                                    args->transpose_a && !DTX_MUTANT(cuda_fp8_as_it_lies), a));
        DTX_TRY(ctx, cast<fp8_byte>(queue, &args->b, &s->stretch[1], false, !args->transpose_b, b));
        DTX_TRY(ctx, DTX_DEVICE(lt_fp8_matmul)(queue, args, &operands, rest, &done));
    }
    if (done)
        return DTX_OK;
    struct dtx_matmul_args own = *args;
    own.a.data = a;
    own.b.data = b;
    own.a.dtype = own.b.dtype = DTX_BF16;
    own.scale = dtx_tensor_1d(&s->both, DTX_F32, 1);
    DTX_TRY(ctx, cast<dtx_bf16>(queue, &args->a, &s->stretch[0], e5m2, false, a));
    DTX_TRY(ctx, cast<dtx_bf16>(queue, &args->b, &s->stretch[1], false, false, b));
    return DTX_DEVICE(own_matmul)(queue, &own);
}
