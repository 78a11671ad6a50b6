/* cuBLASLt, opened at run time. */
#include "kernels/cuda/lt.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* lt.h speaks of cuBLASLt without its header: the two must agree. */
_Static_assert(sizeof(struct lt_choice) == sizeof(cublasLtMatmulHeuristicResult_t), "lt_choice");
_Static_assert(offsetof(struct lt_choice, state) == offsetof(cublasLtMatmulHeuristicResult_t, state), "lt_choice");
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
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why, size, "%s", dlerror());
        return false;
    }
    const struct {
        void *slot;
        const char *name;
    } list[] = {{&out->version, "cublasLtGetVersion"},
                {&out->create, "cublasLtCreate"},
                {&out->destroy, "cublasLtDestroy"},
                {&out->desc_create, "cublasLtMatmulDescCreate"},
                {&out->desc_destroy, "cublasLtMatmulDescDestroy"},
                {&out->desc_set, "cublasLtMatmulDescSetAttribute"},
                {&out->layout_create, "cublasLtMatrixLayoutCreate"},
                {&out->layout_destroy, "cublasLtMatrixLayoutDestroy"},
                {&out->prefer_create, "cublasLtMatmulPreferenceCreate"},
                {&out->prefer_destroy, "cublasLtMatmulPreferenceDestroy"},
                {&out->prefer_set, "cublasLtMatmulPreferenceSetAttribute"},
                {&out->choose, "cublasLtMatmulAlgoGetHeuristic"},
                {&out->check, "cublasLtMatmulAlgoCheck"},
                {&out->product, "cublasLtMatmul"}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        void *function = dlsym(library, list[i].name);
        if (!function) {
            snprintf(why, size, "%s has no %s", name, list[i].name);
            dlclose(library);
            return false;
        }
        memcpy(list[i].slot, &function, sizeof function);
    }
    if (out->version() / MAJOR_OF != CUBLAS_VER_MAJOR) {
        snprintf(why, size, "%s is version %zu, but this build needs %d.x", name, out->version(), CUBLAS_VER_MAJOR);
        dlclose(library);
        return false;
    }
    return true;
}
