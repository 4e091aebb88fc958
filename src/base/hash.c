/* Hashes by xxHash. */
#include "base/hash.h"

#define XXH_INLINE_ALL /* nothing to link */
#include <xxhash.h>

uint64_t ek_hash(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}
