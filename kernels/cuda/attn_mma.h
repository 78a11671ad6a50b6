/*
 * Tiles and products of the tensor-core attention kernels (sm_80).
 *
 * A block has 8 warps. Warps 4m … 4m+3 form group m and work for map m; with one map all 8 are group 0. A warp owns 16
 * rows of its block's tile, so a block has 128/maps rows. A row of q or k holds all maps of a head side by side and is
 * as wide as a row of v: every tile in shared memory is [rows][WIDTH + 8] bf16; the 8 make rows fall into other banks.
 */
#ifndef DTX_KERNELS_CUDA_ATTN_MMA_H
#define DTX_KERNELS_CUDA_ATTN_MMA_H

#include "kernels/cuda/attn.h"
#include "kernels/device/block.h"
#include "kernels/device/mma.h"

enum { ATTN_THREADS = 256 };
constexpr float ATTN_LOG2E = 1.44269504f, ATTN_LN2 = 0.69314718f;

/* The tiles of KEYS keys [begin, end) of which some query of [i0, i0 + ROWS) sees a key. All threads of a block, at
 * least ROWS, call it. scratch: 32. */
struct attn_tiles {
    int begin, end;
};
template <int ROWS, int KEYS> DTX_FN attn_tiles attn_tiles_seen(const attn_job &p, int b, int i0, int *scratch)
{
    const int tid = (int)threadIdx.x, last = attn_last_key(p, i0 + ROWS - 1 < p.tq ? i0 + ROWS - 1 : p.tq - 1);
    int first = 0;
    if (p.doc_start)
        first = -dtx_block_max(i0 + tid < p.tq && tid < ROWS ? -attn_first_key(p, b, i0 + tid) : -p.tk, scratch);
    return {first / KEYS, last < first ? first / KEYS : last / KEYS + 1};
}

template <int D, int MAPS> struct attn_width {
    enum { WIDTH = D * MAPS, PITCH = WIDTH + 8, ROWS = 128 / MAPS };
};

/* Starts copies of rows first … first + N − 1 of a matrix with `stride` elements a row; rows from `end` on are 0. */
template <int N, int WIDTH>
DTX_FN void attn_tile_copy(dtx_bf16 *to, const dtx_bf16 *from, int64_t stride, int first, int end)
{
    constexpr int CHUNKS = WIDTH / 8;
    for (int x = (int)threadIdx.x; x < N * CHUNKS; x += ATTN_THREADS) {
        int r = x / CHUNKS, c = x % CHUNKS * 8;
        bool valid = first + r < end;
        dtx_copy_16(to + r * (WIDTH + 8) + c, from + (valid ? (first + r) * stride : 0) + c, valid);
    }
}

/* sum [16,N] += a [16,K]·b [N,K]ᵀ, both rows of shared memory. */
template <int N, int K, int PITCH>
DTX_FN void attn_mma_rows(float (&sum)[N / 8][4], const dtx_bf16 *a, const dtx_bf16 *b)
{
    int lane = (int)threadIdx.x & 31;
    const dtx_bf16 *a_row = a + (lane & 15) * PITCH + (lane >> 4) * 8;
    const dtx_bf16 *b_row = b + ((lane & 7) + (lane >> 4) * 8) * PITCH + (lane >> 3 & 1) * 8;
    DTX_UNROLL for (int k = 0; k < K; k += 16)
    {
        uint32_t fa[4];
        dtx_matrix_load(fa, a_row + k);
        DTX_UNROLL for (int n = 0; n < N / 16; n++)
        {
            uint32_t fb[4];
            dtx_matrix_load(fb, b_row + n * 16 * PITCH + k);
            dtx_mma_bf16(sum[2 * n], fa, fb[0], fb[1]);
            dtx_mma_bf16(sum[2 * n + 1], fa, fb[2], fb[3]);
        }
    }
}

/* sum [16,N] += a [16,K] in registers · b [K,N], rows of shared memory. */
template <int N, int K, int PITCH>
DTX_FN void attn_mma_columns(float (&sum)[N / 8][4], const uint32_t (&a)[K / 16][4], const dtx_bf16 *b)
{
    int lane = (int)threadIdx.x & 31;
    const dtx_bf16 *b_row = b + (lane & 15) * PITCH + (lane >> 4) * 8;
    DTX_UNROLL for (int k = 0; k < K / 16; k++)
    {
        DTX_UNROLL for (int n = 0; n < N / 16; n++)
        {
            uint32_t fb[4];
            dtx_matrix_load_transposed(fb, b_row + k * 16 * PITCH + n * 16);
            dtx_mma_bf16(sum[2 * n], a[k], fb[0], fb[1]);
            dtx_mma_bf16(sum[2 * n + 1], a[k], fb[2], fb[3]);
        }
    }
}

/* Sums [16,K], rounded, as the left operand of the next product. */
template <int K> DTX_FN void attn_to_operand(uint32_t (&a)[K / 16][4], const float (&s)[K / 8][4])
{
    DTX_UNROLL for (int k = 0; k < K / 16; k++)
    {
        DTX_UNROLL for (int x = 0; x < 4; x++)
        {
            const float *pair = &s[2 * k + x / 2][x % 2 * 2];
            a[k][x] = dtx_pack_bf16(pair[0], pair[1]);
        }
    }
}

template <int N> DTX_FN void attn_clear(float (&s)[N][4])
{
    DTX_UNROLL for (int n = 0; n < N; n++)
    {
        DTX_UNROLL for (int x = 0; x < 4; x++) s[n][x] = 0.f;
    }
}

/* Two neighbours of a result: bf16, or fp32 (added to what is there when `add`). */
DTX_FN void attn_put(void *base, int64_t at, float x, float y, bool wide, bool add)
{
    if (!wide) {
        *(uint32_t *)((dtx_bf16 *)base + at) = dtx_pack_bf16(x, y);
        return;
    }
    float *out = (float *)base + at;
    out[0] = add ? out[0] + x : x;
    out[1] = add ? out[1] + y : y;
}

#endif
