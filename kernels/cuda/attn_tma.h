/*
 * Tiles and products of the attention kernels of sm_90a.
 *
 * A block has three warp groups: the first starts tile loads, the other two multiply (wgmma), 64 rows of a tile each.
 * Tiles are panels of 64 columns ([rows][128 bytes], swizzled), one behind the other. They travel through rings: a
 * stage is "full" when its loads have landed and "free" when all eight warps that multiply are done with it.
 */
#ifndef DTX_KERNELS_CUDA_ATTN_TMA_H
#define DTX_KERNELS_CUDA_ATTN_TMA_H

#include "kernels/cuda/attn_mma.h"
#include "kernels/device/hopper.h"

enum { ATTN_TMA_THREADS = 384, ATTN_TMA_STEP = 64, ATTN_TMA_STEP_PANEL = ATTN_TMA_STEP * 128 };

template <int STAGES> struct attn_ring {
    uint64_t full[STAGES], free[STAGES];
};

/* `loaders`: how many arrivals make a stage full, beside the bytes. One thread calls it. */
template <int STAGES> DTX_FN void attn_ring_init(attn_ring<STAGES> *ring, int loaders)
{
    for (int s = 0; s < STAGES; s++) {
        dtx_arrival_init(&ring->full[s], loaders);
        dtx_arrival_init(&ring->free[s], 8);
    }
}
/* The x-th tile: its loader waits until the stage is free of tile x − STAGES. */
template <int STAGES> DTX_FN void attn_ring_claim(attn_ring<STAGES> *ring, int x)
{
    if (x >= STAGES)
        dtx_arrival_wait(&ring->free[x % STAGES], (x / STAGES - (DTX_MUTANT(cuda_attn_phase_wrong) ? 0 : 1)) & 1);
}
template <int STAGES> DTX_FN void attn_ring_wait(attn_ring<STAGES> *ring, int x)
{
    if (!DTX_MUTANT(cuda_attn_tile_unwaited))
        dtx_arrival_wait(&ring->full[x % STAGES], x / STAGES & 1);
}
template <int STAGES> DTX_FN void attn_ring_release(attn_ring<STAGES> *ring, int x)
{
    dtx_warp_sync();
    if ((threadIdx.x & 31) == 0)
        dtx_arrive(&ring->free[x % STAGES]);
}

/* Starts the load of a tile of PANELS panels at (head, row, sample); the caller has announced its bytes. */
template <int PANELS>
DTX_FN void attn_tile_load(unsigned char *to, int panel_bytes, const dtx_tile_map *map, uint64_t *barrier, int head,
                           int row, int b)
{
    for (int x = 0; x < PANELS; x++)
        dtx_tile_load(to + x * panel_bytes, map, barrier, x * 64, head, row, b);
}

/* sum [64,8N] = a [64,K]·b [8N,K]ᵀ: rows of panels, `a_panel` and `b_panel` bytes apart. A committed group. */
template <int K, int N>
DTX_FN void attn_tma_rows(float (&sum)[N][4], const unsigned char *a, int a_panel, const unsigned char *b, int b_panel)
{
    const uint64_t first_a = dtx_panel(a), first_b = dtx_panel(b);
    dtx_group_mma_begin(sum);
    DTX_UNROLL for (int k = 0; k < K / 16; k++)
        dtx_group_mma_rows(sum, dtx_panel_behind(first_a, k / 4 * a_panel + k % 4 * 32),
                           dtx_panel_behind(first_b, k / 4 * b_panel + k % 4 * 32), k > 0);
    dtx_group_mma_commit();
}

/* sum [64,8N] += a [64,16K] in registers · b [16K,8N], rows of panels `b_panel` bytes apart. A committed group. */
template <int N, int K>
DTX_FN void attn_tma_columns(float (&sum)[N][4], const uint32_t (&a)[K][4], const unsigned char *b, int b_panel)
{
    const uint64_t first = dtx_panel(b, b_panel);
    if (!DTX_MUTANT(cuda_attn_fence_missing))
        dtx_group_mma_begin(sum);
    DTX_UNROLL for (int k = 0; k < K; k++) dtx_group_mma_columns(sum, a[k], dtx_panel_behind(first, k * 2048));
    dtx_group_mma_commit();
}

/* The map of a tensor [b, positions, heads, width] in boxes of `rows` positions × 64 columns. */
static inline int attn_tile_map(dtx_tile_map *map, const void *base, int width, int heads, int positions, int b,
                                int rows)
{
    const int64_t row = (int64_t)heads * width;
#if defined(__CUDACC__)
    typedef CUresult encode_function(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                     const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                     CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    void *encode = NULL;
    cudaDriverEntryPointQueryResult found;
    int code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
    if (code || !encode)
        return code ? code : (int)cudaErrorNotSupported;
    const cuuint64_t size[4] = {(cuuint64_t)width, (cuuint64_t)heads, (cuuint64_t)positions, (cuuint64_t)b};
    const cuuint64_t stride[3] = {(cuuint64_t)width * 2, (cuuint64_t)row * 2, (cuuint64_t)(row * positions) * 2};
    const cuuint32_t box[4] = {64, 1, (cuuint32_t)rows, 1}, step[4] = {1, 1, 1, 1};
    CUresult result = ((encode_function *)encode)(
        map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)base, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? 0 : (int)cudaErrorInvalidValue;
#else
    *map = {(const dtx_bf16 *)base, {width, heads, positions, b}, {1, width, row, row * positions}, {64, 1, rows, 1}};
    return 0;
#endif
}

#endif
