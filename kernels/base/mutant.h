/*
 * Planted faults. In a normal build DTX_MUTANT(name) is the constant false. In a build with -DDTX_MUTANTS the fault
 * whose name stands in the environment variable DTX_MUTANT is active: one build serves every mutant
 * (tests/run.sh mutants). Each name must be listed in tests/mutants.txt with the test that must catch it.
 */
#ifndef DTX_KERNELS_BASE_MUTANT_H
#define DTX_KERNELS_BASE_MUTANT_H

#ifdef DTX_MUTANTS
#include <stdlib.h>
#include <string.h>
static inline int dtx_mutant_active(const char *name)
{
    const char *chosen = getenv("DTX_MUTANT");
    return chosen && strcmp(chosen, name) == 0;
}
#define DTX_MUTANT(name) dtx_mutant_active(#name)
#else
#define DTX_MUTANT(name) 0
#endif

#endif
