/* xxHash3, 64 bits: checksums of checkpoint boxes, keys of random streams. */
#ifndef DTX_KERNELS_BASE_HASH_H
#define DTX_KERNELS_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t dtx_hash(const void *data, size_t bytes, uint64_t seed);
uint64_t dtx_hash_text(const char *text, uint64_t seed);

/* The same value over parts given one after another. begin: NULL when there is no memory; end frees. */
struct dtx_hasher;
struct dtx_hasher *dtx_hasher_begin(uint64_t seed);
void dtx_hasher_add(struct dtx_hasher *hasher, const void *data, size_t bytes);
uint64_t dtx_hasher_end(struct dtx_hasher *hasher); /* 0 for NULL */

#endif
