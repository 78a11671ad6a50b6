#if defined(__x86_64__)
#define DTX_CPU_TABLE dtx_cpu_loops_avx512bf16
#include "kernels/cpu/loops_isa.h"
#endif
