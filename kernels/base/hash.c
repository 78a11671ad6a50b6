#include "kernels/base/hash.h"

#include <string.h>
#include <xxhash.h>

uint64_t dtx_hash(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

uint64_t dtx_hash_text(const char *text, uint64_t seed)
{
    return dtx_hash(text, strlen(text), seed);
}
