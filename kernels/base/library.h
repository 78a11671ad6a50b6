/*
 * Shared libraries opened at run time, so that the program starts where they are missing.
 */
#ifndef DTX_KERNELS_BASE_LIBRARY_H
#define DTX_KERNELS_BASE_LIBRARY_H

#include <stddef.h>

/* slot: the address of a pointer to the function. */
struct dtx_symbol {
    const char *name;
    void *slot;
};

/* Opens library `name` and fills the slots. NULL when it or a function is missing; the reason is then in `why`. */
void *dtx_library_open(const char *name, const struct dtx_symbol *symbols, size_t count, char *why, size_t size);
/* Accepts NULL. The functions are then no more. */
void dtx_library_close(void *library);

#endif
