/*
 * The part of cuBLASLt that dtx calls, as a table: the library opened at run time (lt.c), or the stand-in of the
 * emulator (kernels/simt/lt.cc). Handles are opaque; every function returns a cublasStatus_t as int, 0 when all is
 * well. Numbers are cuBLASLt's own (cublasLt.h 12 and 13).
 */
#ifndef DTX_KERNELS_CUDA_LT_H
#define DTX_KERNELS_CUDA_LT_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/device/names.h"

enum { LT_R_32F = 0, LT_R_16BF = 14, LT_R_8F_E4M3 = 28, LT_R_8F_E5M2 = 29, LT_COMPUTE_32F = 68, LT_NOT_SUPPORTED = 15 };
enum { LT_DESC_TRANSPOSE_A = 3, LT_DESC_TRANSPOSE_B = 4, LT_TRANSPOSE = 1, LT_DESC_SCALE_A = 17, LT_DESC_SCALE_B = 18 };
enum { LT_PREFER_WORK_BYTES = 1, LT_PREFER_REDUCTION = 3, LT_PREFER_ALIGNMENT_A = 5, LT_PREFER_ALIGNMENT_D = 8 };

struct lt_algorithm {
    uint64_t data[8];
};

struct lt_choice { /* cublasLtMatmulHeuristicResult_t */
    struct lt_algorithm algorithm;
    size_t work_bytes;
    int state;
    float waves;
    int reserved[4];
};

struct dtx_cuda_lt {
    size_t (*version)(void);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*desc_create)(void **desc, int compute, int scale);
    int (*desc_destroy)(void *desc);
    int (*desc_set)(void *desc, int attribute, const void *value, size_t bytes);
    int (*layout_create)(void **layout, int type, uint64_t rows, uint64_t columns, int64_t step);
    int (*layout_destroy)(void *layout);
    int (*prefer_create)(void **preference);
    int (*prefer_destroy)(void *preference);
    int (*prefer_set)(void *preference, int attribute, const void *value, size_t bytes);
    int (*choose)(void *handle, void *desc, void *a, void *b, void *c, void *d, void *preference, int wanted,
                  struct lt_choice *out, int *found);
    int (*check)(void *handle, void *desc, void *a, void *b, void *c, void *d, const struct lt_algorithm *algorithm,
                 struct lt_choice *out);
    int (*product)(void *handle, void *desc, const void *alpha, const void *a, void *a_layout, const void *b,
                   void *b_layout, const void *beta, const void *c, void *c_layout, void *d, void *d_layout,
                   const struct lt_algorithm *algorithm, void *work, size_t work_bytes, void *stream);
};

#ifdef __cplusplus
extern "C" {
#endif

/* Fills the table, or returns false and says why. */
bool DTX_DEVICE(lt_load)(struct dtx_cuda_lt *out, char *why, size_t size);

/* Products by shape: gemm_lt.c. *out is NULL, with a line in the log, where there is no cuBLASLt. */
struct dtx_cuda_products;
enum dtx_status DTX_DEVICE(products_create)(struct dtx_ctx *ctx, struct dtx_cuda_products **out);
void DTX_DEVICE(products_free)(struct dtx_cuda_products *products);
struct dtx_cuda_products *DTX_DEVICE(products)(struct dtx_queue *queue);

/* Operands in 8-bit floats, of which a is [m,k], b [n,k]; each is multiplied by its scale, on the device. */
struct lt_fp8 {
    const void *a, *b;
    const float *a_scale, *b_scale;
};

/* Bytes of workspace for cuBLASLt; 0 for products that it is not asked for. */
size_t DTX_DEVICE(lt_work_bytes)(struct dtx_queue *queue, const struct dtx_matmul_args *args);
/* Makes the product if the library can (*done), without amax; work: lt_work_bytes. */
enum dtx_status DTX_DEVICE(lt_matmul)(struct dtx_queue *queue, const struct dtx_matmul_args *args, bool *done);
/* The same of fp8's operands. Whether the library can, by shapes alone, and then the product in `work` (WORK_BYTES). */
enum dtx_status DTX_DEVICE(lt_fp8_fits)(struct dtx_queue *queue, const struct dtx_matmul_args *args, bool *fits);
size_t DTX_DEVICE(lt_fp8_work_bytes)(void);
enum dtx_status DTX_DEVICE(lt_fp8_matmul)(struct dtx_queue *queue, const struct dtx_matmul_args *args,
                                          const struct lt_fp8 *operands, void *work, bool *done);

/* gemm.cu: the product by dtx's own kernel; max |x| [1] (master), partial: LT_LARGEST_PARTS of it. */
enum { LT_LARGEST_PARTS = 256 };
enum dtx_status DTX_DEVICE(own_matmul)(struct dtx_queue *queue, const struct dtx_matmul_args *args);
enum dtx_status DTX_DEVICE(largest)(struct dtx_queue *queue, const struct dtx_tensor *x, void *partial, void *out);
/* gemm_fp8.cu: matmul with fp8. */
size_t DTX_DEVICE(fp8_work_bytes)(struct dtx_queue *queue, const struct dtx_matmul_args *args);
enum dtx_status DTX_DEVICE(fp8_matmul)(struct dtx_queue *queue, const struct dtx_matmul_args *args);

#ifdef __cplusplus
}
#endif

#endif
