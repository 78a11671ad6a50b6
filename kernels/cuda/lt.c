/* cuBLASLt, opened at run time. */
#include "kernels/cuda/lt.h"

#include <cublasLt.h>
#include <stdio.h>

#include "kernels/base/library.h"

/* lt.h speaks of cuBLASLt without its header: the two must agree. */
_Static_assert(sizeof(struct lt_choice) == sizeof(cublasLtMatmulHeuristicResult_t), "lt_choice");
_Static_assert(offsetof(struct lt_choice, state) == offsetof(cublasLtMatmulHeuristicResult_t, state), "lt_choice");
_Static_assert(LT_NOT_SUPPORTED == (int)CUBLAS_STATUS_NOT_SUPPORTED, "status");
_Static_assert(LT_R_32F == (int)CUDA_R_32F && LT_R_16BF == (int)CUDA_R_16BF, "types");
_Static_assert(LT_COMPUTE_32F == (int)CUBLAS_COMPUTE_32F && LT_TRANSPOSE == (int)CUBLAS_OP_T, "compute");
_Static_assert(LT_DESC_TRANSPOSE_A == (int)CUBLASLT_MATMUL_DESC_TRANSA, "description");
_Static_assert(LT_DESC_TRANSPOSE_B == (int)CUBLASLT_MATMUL_DESC_TRANSB, "description");
_Static_assert(LT_PREFER_WORK_BYTES == (int)CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, "preference");
_Static_assert(LT_PREFER_REDUCTION == (int)CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, "preference");
_Static_assert(LT_PREFER_ALIGNMENT_A == (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, "preference");
_Static_assert(LT_PREFER_ALIGNMENT_D == (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, "preference");

enum { MAJOR_OF = 10000 };

bool dtx_cuda_lt_load(struct dtx_cuda_lt *out, char *why, size_t size)
{
    char name[32];
    snprintf(name, sizeof name, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    const struct dtx_symbol symbols[] = {{"cublasLtGetVersion", &out->version},
                                         {"cublasLtCreate", &out->create},
                                         {"cublasLtDestroy", &out->destroy},
                                         {"cublasLtMatmulDescCreate", &out->desc_create},
                                         {"cublasLtMatmulDescDestroy", &out->desc_destroy},
                                         {"cublasLtMatmulDescSetAttribute", &out->desc_set},
                                         {"cublasLtMatrixLayoutCreate", &out->layout_create},
                                         {"cublasLtMatrixLayoutDestroy", &out->layout_destroy},
                                         {"cublasLtMatmulPreferenceCreate", &out->prefer_create},
                                         {"cublasLtMatmulPreferenceDestroy", &out->prefer_destroy},
                                         {"cublasLtMatmulPreferenceSetAttribute", &out->prefer_set},
                                         {"cublasLtMatmulAlgoGetHeuristic", &out->choose},
                                         {"cublasLtMatmulAlgoCheck", &out->check},
                                         {"cublasLtMatmul", &out->product}};
    void *library = dtx_library_open(name, symbols, sizeof symbols / sizeof *symbols, why, size);
    if (!library)
        return false;
    if (out->version() / MAJOR_OF != CUBLAS_VER_MAJOR) {
        snprintf(why, size, "%s is version %zu, but this build needs %d.x", name, out->version(), CUBLAS_VER_MAJOR);
        dtx_library_close(library);
        return false;
    }
    return true;
}
