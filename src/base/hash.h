/* 64-bit hashes of memory (XXH3 of libxxhash), to compare state across ranks. */
#ifndef EK_BASE_HASH_H
#define EK_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t ek_hash(const void *data, size_t bytes, uint64_t seed);

#endif
