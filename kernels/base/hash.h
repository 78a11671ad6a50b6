/* xxHash3, 64 bits: checksums of checkpoint boxes, keys of random streams. */
#ifndef DTX_KERNELS_BASE_HASH_H
#define DTX_KERNELS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t dtx_hash(const void *data, size_t bytes, uint64_t seed);
uint64_t dtx_hash_text(const char *text, uint64_t seed);

#endif
