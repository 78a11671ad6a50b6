#define DTX_CPU_TABLE dtx_cpu_loops_plain
#include "kernels/cpu/loops_isa.h"
