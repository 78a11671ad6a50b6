/*
 * sm_90a: barriers in shared memory that count arrivals and bytes, tile loads by the tensor memory accelerator, and
 * products of a group of 128 threads (wgmma). Tiles are panels [rows][64] of bf16, 128 bytes a row, their 16-byte
 * pieces permuted as the hardware's 128-byte swizzle does; a panel starts at a multiple of 1,024 bytes.
 */
#ifndef DTX_KERNELS_DEVICE_HOPPER_H
#define DTX_KERNELS_DEVICE_HOPPER_H

#include "kernels/device/copy.h"

#if defined(__CUDACC__)
#include <cuda.h>
typedef CUtensorMap dtx_tile_map;
#else
struct dtx_tile_map {
    const dtx_bf16 *base;
    int64_t size[4], stride[4]; /* of each dimension, in elements; stride[0] = 1 */
    int box[4];
    char rest[40] = {}; /* as large as CUtensorMap, where PTX runs */
};
static_assert(sizeof(dtx_tile_map) == 128);
void dtx_simt_arrival_init(uint64_t *barrier, int count);
void dtx_simt_arrive(uint64_t *barrier, int bytes_expected, struct dtx_site site);
void dtx_simt_arrival_wait(uint64_t *barrier, int parity, struct dtx_site site);
void dtx_simt_tile_load(void *to, const dtx_tile_map *map, uint64_t *barrier, const int (&at)[4], struct dtx_site site);
/* The left operand: four registers, or (a NULL) a panel. `a_stays`: a wait that covers the product finds them unchanged
 * at a. A fence must have come since the last wait. */
void dtx_simt_group_mma(float *sum, int columns, const uint32_t *a, bool a_stays, uint64_t a_panel, uint64_t b_panel,
                        bool add, struct dtx_site site);
void dtx_simt_group_fence();
void dtx_simt_group_commit();
void dtx_simt_group_wait(int groups_left, struct dtx_site site);
#endif

/* `count` arrivals complete a phase; phases alternate between parity 0 and 1, the first is 0. */
DTX_FN void dtx_arrival_init(uint64_t *barrier, int count)
{
#if defined(__CUDACC__)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(dtx_shared_address(barrier)), "r"(count) : "memory");
#else
    dtx_simt_arrival_init(barrier, count);
#endif
}
/* After the inits, before the block's barrier. */
DTX_FN void dtx_arrival_init_done()
{
#if defined(__CUDACC__)
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
DTX_FN void dtx_arrive(uint64_t *barrier, dtx_site site = {})
{
#if defined(__CUDACC__)
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(dtx_shared_address(barrier)) : "memory");
#else
    dtx_simt_arrive(barrier, 0, site);
#endif
}
/* Arrives; the phase then also waits for `bytes` of tile loads. */
DTX_FN void dtx_arrive_expecting(uint64_t *barrier, int bytes, dtx_site site = {})
{
#if defined(__CUDACC__)
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(dtx_shared_address(barrier)), "r"(bytes)
                 : "memory");
#else
    dtx_simt_arrive(barrier, bytes, site);
#endif
}
/* Until the phase of this parity is complete. */
DTX_FN void dtx_arrival_wait(uint64_t *barrier, int parity, dtx_site site = {})
{
#if defined(__CUDACC__)
    asm volatile(
        "{\n.reg .pred p;\nWAIT_%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra WAIT_%=;\n}" ::"r"(
            dtx_shared_address(barrier)),
        "r"(parity)
        : "memory");
#else
    dtx_simt_arrival_wait(barrier, parity, site);
#endif
}

/* Starts the load of the map's box at the coordinates; outside the tensor is 0. One thread calls it. */
DTX_FN void dtx_tile_load(void *to, const dtx_tile_map *map, uint64_t *barrier, int c0, int c1, int c2, int c3,
                          dtx_site site = {})
{
#if defined(__CUDACC__)
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, "
                 "%6}], [%2];" ::"r"(dtx_shared_address(to)),
                 "l"(map), "r"(dtx_shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
                 : "memory");
#else
    const int at[4] = {c0, c1, c2, c3};
    dtx_simt_tile_load(to, map, barrier, at, site);
#endif
}

/* Registers of a thread, for all threads of a group of 128: producers give, consumers take. */
template <int Count> DTX_FN void dtx_registers_give()
{
#if defined(__CUDACC__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}
template <int Count> DTX_FN void dtx_registers_take()
{
#if defined(__CUDACC__) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}

/* The descriptor of a panel, or of a place in it: rows (or columns of k) in steps of 8 rows, 1,024 bytes apart; `next`:
 * bytes to the next panel of 64 columns, for operands that lie across panels. */
DTX_FN uint64_t dtx_panel(const void *p, int next = 16)
{
#if defined(__CUDACC__)
    uint32_t address = dtx_shared_address(p);
#else
    uint32_t address = (uint32_t)((const unsigned char *)p - dtx_simt_block_now()->dynamic);
#endif
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)((uint32_t)next >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* The place `bytes` behind it (a multiple of 16): one addition where many are in use. */
DTX_FN uint64_t dtx_panel_behind(uint64_t panel, int bytes)
{
    return panel + (uint64_t)(bytes >> 4);
}

#include "kernels/device/hopper_mma.h"

#endif
