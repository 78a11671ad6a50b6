/* All loops for one instruction set: included by loops_<isa>.c with DTX_CPU_TABLE, the table's name, defined. */
#include <omp.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/cpu/attn.h"
#include "kernels/cpu/loops.h"
#include "kernels/cpu/simd.h"

#define ACT   f64
#define MST   f64
#define PAIRS 0
#include "kernels/cpu/loops_act.h"
#undef ACT
#undef MST
#define ACT f32
#define MST f32
#include "kernels/cpu/loops_act.h"
#undef ACT
#define ACT bf16
#if defined(__AVX512BF16__)
#undef PAIRS
#define PAIRS 1
#endif
#include "kernels/cpu/loops_act.h"
#undef ACT
#undef MST

const struct dtx_cpu_loops DTX_CPU_TABLE = {
#define DTX_CPU_LOOP(name) .name = {name##_f64, name##_f32, name##_bf16},
    DTX_CPU_LOOPS(DTX_CPU_LOOP)
#undef DTX_CPU_LOOP
};
