/* embed_fwd, embed_bwd. */
#include "kernels/cuda/impl.h"

static const int EMBED_THREADS = 128;

/* A block: a row of out. O is T or its master. */
template <class T, class M, class O>
DTX_KERNEL(EMBED_THREADS, 1)
embed_fwd_kernel(const int32_t *tokens, const T *table, O *out, int64_t rows, int64_t width, int64_t first,
                 bool aligned)
{
    int64_t row = blockIdx.x, token = tokens[row] - first;
    bool here = token >= 0 && token < rows;
    for (int64_t i = threadIdx.x * PACK; i < width; i += EMBED_THREADS * PACK) {
        M v[PACK] = {0};
        if (here)
            load(table + token * width + i, width - i, aligned, v);
        store(out + row * width + i, width - i, aligned, v);
    }
}

/* Whether any thread's condition holds. */
DTX_FN bool block_any(bool condition, int *flag)
{
    dtx_block_sync();
    if (threadIdx.x == 0)
        *flag = 0;
    dtx_block_sync();
    if (condition)
        *flag = 1; /* all that write write the same */
    dtx_block_sync();
    return *flag;
}

/* A block: the token of one position. Only the first position of a token works: it adds the rows of all positions
 * with that token, in their order. So no two blocks write one row, and no sum depends on timing. */
template <class T, class M>
DTX_KERNEL(EMBED_THREADS, 1)
embed_bwd_kernel(const int32_t *tokens, const T *dout, M *dtable, int64_t n, int64_t rows, int64_t width, int64_t first)
{
    DTX_SHARED(int, flag, 1);
    DTX_SHARED(int32_t, ahead, EMBED_THREADS);
    int64_t position = blockIdx.x;
    int32_t mine = tokens[position];
    int64_t token = mine - first;
    if (token < 0 || token >= rows)
        return;
    for (int64_t before = position; before > 0; before -= EMBED_THREADS) {
        int64_t i = before - 1 - threadIdx.x;
        if (block_any(i >= 0 && tokens[i] == mine, flag) && !DTX_MUTANT(cuda_embed_twice))
            return;
    }
    for (int64_t start = position; start < n; start += EMBED_THREADS) {
        int64_t i = start + threadIdx.x;
        dtx_block_sync();
        ahead[threadIdx.x] = i < n ? tokens[i] : -1;
        if (!block_any(i < n && tokens[i] == mine, flag))
            continue;
        int64_t count = n - start < EMBED_THREADS ? n - start : EMBED_THREADS;
        for (int64_t column = threadIdx.x; column < width; column += EMBED_THREADS) {
            M sum = dtable[token * width + column];
            for (int64_t k = 0; k < count; k++)
                if (ahead[k] == mine)
                    sum += dtx_load(dout + (start + k) * width + column);
            dtable[token * width + column] = sum;
        }
    }
}

template <class T, class M, class O>
static enum dtx_status forward(struct dtx_queue *queue, const struct dtx_embed_fwd_args *args)
{
    int64_t width = args->table.dim[1];
    bool aligned = width % PACK == 0 && is_aligned(args->table.data) && is_aligned(args->out.data);
    return launch(queue, "embed_fwd", embed_fwd_kernel<T, M, O>, args->tokens.dim[0], EMBED_THREADS, 0,
                  (const int32_t *)args->tokens.data, (const T *)args->table.data, (O *)args->out.data,
                  args->table.dim[0], width, args->first, aligned);
}

template <class T, class M>
static enum dtx_status backward(struct dtx_queue *queue, const struct dtx_embed_bwd_args *args)
{
    int64_t n = args->tokens.dim[0];
    return launch(queue, "embed_bwd", embed_bwd_kernel<T, M>, n, EMBED_THREADS, 0, (const int32_t *)args->tokens.data,
                  (const T *)args->dout.data, (M *)args->dtable.data, n, args->dtable.dim[0], args->dtable.dim[1],
                  args->first);
}

enum dtx_status DTX_DEVICE(embed_fwd)(struct dtx_queue *queue, const struct dtx_embed_fwd_args *args)
{
    if (args->table.dtype == DTX_BF16 && args->out.dtype == DTX_F32)
        return forward<dtx_bf16, float, float>(queue, args);
#define CALL(T, M) forward<T, M, T>(queue, args)
    return BY_ACT(args->table.dtype, CALL);
#undef CALL
}

enum dtx_status DTX_DEVICE(embed_bwd)(struct dtx_queue *queue, const struct dtx_embed_bwd_args *args)
{
#define CALL(T, M) backward<T, M>(queue, args)
    return BY_ACT(args->dout.dtype, CALL);
#undef CALL
}
