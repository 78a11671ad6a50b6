#include "kernels/base/command.h"
#include "launch/sweep/coord.h"

extern const struct dtx_command dtx_command_coordcheck;

const struct dtx_command dtx_command_coordcheck = {
    "sweep coordcheck", "does a rule (μP, CompleteP) transfer over width and depth?", dtx_sweep_coordcheck};
