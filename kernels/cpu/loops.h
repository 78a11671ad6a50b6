/*
 * The inner loops of the CPU backend, one table per instruction set. Every family is written once (<family>_loops.h)
 * and compiled for each instruction set and activation dtype by loops_<isa>.c; <family>.c cuts the work over threads.
 *
 * A loop works on units [first, last) of the operation's outermost independent dimension; the result of a unit depends
 * on nothing but the arguments, so it is the same for every cut.
 */
#ifndef DTX_KERNELS_CPU_LOOPS_H
#define DTX_KERNELS_CPU_LOOPS_H

#include "kernels/backend.h"

/* args: the operation's argument struct, or a struct of <family>.c that holds it. */
typedef void dtx_cpu_loop(const void *args, int64_t first, int64_t last);

enum { DTX_CPU_ACTS = 3 }; /* DTX_F64, DTX_F32, DTX_BF16: indices of the rows below */

#define DTX_CPU_LOOPS(X)                                                                                               \
    X(add)                                                                                                             \
    X(sqnorm)                                                                                                          \
    X(gemm)                                                                                                            \
    X(amax)                                                                                                            \
    X(embed_fwd)                                                                                                       \
    X(embed_bwd)                                                                                                       \
    X(rmsnorm_fwd)                                                                                                     \
    X(rmsnorm_bwd)                                                                                                     \
    X(rope)                                                                                                            \
    X(swiglu_fwd)                                                                                                      \
    X(swiglu_bwd)                                                                                                      \
    X(attn_fwd)                                                                                                        \
    X(attn_merge)                                                                                                      \
    X(attn_finish)                                                                                                     \
    X(attn_dots)                                                                                                       \
    X(attn_bwd_q)                                                                                                      \
    X(attn_pack)                                                                                                       \
    X(attn_tiles_fwd)                                                                                                  \
    X(attn_tiles_bwd)                                                                                                  \
    X(attn_tiles_dq)                                                                                                   \
    X(attn_bwd_kv)                                                                                                     \
    X(xent_max)                                                                                                        \
    X(xent_sum)                                                                                                        \
    X(xent_bwd)                                                                                                        \
    X(adamw)

struct dtx_cpu_loops {
#define DTX_CPU_LOOP(name) dtx_cpu_loop *name[DTX_CPU_ACTS];
    DTX_CPU_LOOPS(DTX_CPU_LOOP)
#undef DTX_CPU_LOOP
};

extern const struct dtx_cpu_loops dtx_cpu_loops_plain, dtx_cpu_loops_avx2, dtx_cpu_loops_avx512,
    dtx_cpu_loops_avx512bf16;

/* Rows of one block of rmsnorm_bwd's sum over rows. */
enum { DTX_CPU_NORM_ROWS = 64, DTX_CPU_SQNORM_BLOCK = 1024 };

/* c = op(a)·op(b) (+ c), c of master dtype; the unit is a block of C, DTX_CPU_GEMM_ROWS × DTX_CPU_GEMM_COLUMNS. */
enum { DTX_CPU_GEMM_ROWS = 64, DTX_CPU_GEMM_COLUMNS = 16 };
struct dtx_cpu_gemm {
    const void *a, *b;
    void *c;
    int64_t m, n, k;
    bool transpose_a, transpose_b, accumulate;
};

/* rmsnorm_bwd: the unit is a block of DTX_CPU_NORM_ROWS rows; partial: master [blocks, w] or NULL. */
struct dtx_cpu_rmsnorm_bwd {
    const struct dtx_rmsnorm_bwd_args *args;
    void *partial;
};

/* gemm: rows of the register tile and depth of a packed panel of b. An element of c is a sum over k in index order
 * within each panel, the panels added in order. */
enum { GEMM_TILE = 4, GEMM_DEPTH = 256 };
/* Plain attention: columns of a result kept on the stack; wider heads take several rounds. */
enum { ATTN_CHUNK = 256 };

#endif
