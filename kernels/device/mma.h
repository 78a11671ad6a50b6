/*
 * Tensor cores by warp (sm_80): bf16 fragments and fp32 sums of m16n8k16. Lane l holds, with g = l/4 and i = l%4:
 *   a: rows g, g+8 × columns 2i.. and 2i+8..    b: rows 2i.., 2i+8.. × column g    c: rows g, g+8 × columns 2i, 2i+1
 */
#ifndef DTX_KERNELS_DEVICE_MMA_H
#define DTX_KERNELS_DEVICE_MMA_H

#include "kernels/device/copy.h"

#if !defined(__CUDACC__)
struct dtx_simt_mma_in {
    const uint32_t *a;
    uint32_t b[2];
};
void dtx_simt_mma(const void *const *in, void *const *out, const void *argument);
void dtx_simt_matrix(const void *const *in, void *const *out, const void *transposed);
#endif

/* c += a·b */
DTX_FN void dtx_mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, dtx_site site = {})
{
#if defined(__CUDACC__)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    dtx_simt_mma_in in = {a, {b0, b1}};
    dtx_simt_meet(0xffffffffu, "mma", site, &in, c, dtx_simt_mma, nullptr);
#endif
}

/* Four 8×8 matrices of 16-bit elements from shared memory; lane l gives the address of row l%8 of matrix l/8. */
DTX_FN void dtx_matrix_load(uint32_t (&r)[4], const void *row, dtx_site site = {})
{
#if defined(__CUDACC__)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(dtx_shared_address(row))
                 : "memory");
#else
    dtx_simt_check_access(row, 16, 16, "matrix load", site);
    dtx_simt_meet(0xffffffffu, "matrix load", site, row, r, dtx_simt_matrix, nullptr);
#endif
}
DTX_FN void dtx_matrix_load_transposed(uint32_t (&r)[4], const void *row, dtx_site site = {})
{
#if defined(__CUDACC__)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(dtx_shared_address(row))
                 : "memory");
#else
    dtx_simt_check_access(row, 16, 16, "matrix load", site);
    dtx_simt_meet(0xffffffffu, "transposed matrix load", site, row, r, dtx_simt_matrix, "");
#endif
}

#endif
