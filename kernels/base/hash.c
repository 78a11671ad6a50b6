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

/* struct dtx_hasher is xxHash's state under our name. */
struct dtx_hasher *dtx_hasher_begin(uint64_t seed)
{
    XXH3_state_t *state = XXH3_createState();
    if (state)
        XXH3_64bits_reset_withSeed(state, seed);
    return (struct dtx_hasher *)state;
}

void dtx_hasher_add(struct dtx_hasher *hasher, const void *data, size_t bytes)
{
    XXH3_64bits_update((XXH3_state_t *)hasher, data, bytes);
}

uint64_t dtx_hasher_end(struct dtx_hasher *hasher)
{
    uint64_t value = hasher ? XXH3_64bits_digest((XXH3_state_t *)hasher) : 0;
    XXH3_freeState((XXH3_state_t *)hasher);
    return value;
}
