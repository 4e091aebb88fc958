/* Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11). The
 * value at (key, counter) depends on nothing else, so initial weights and the order of samples do not depend on the
 * layout. */
#ifndef EK_BASE_RNG_H
#define EK_BASE_RNG_H

#include <stdint.h>

/* Four independent 32-bit words for a key and a 128-bit counter (high, low). */
void ek_random_words(uint64_t key, uint64_t high, uint64_t low, uint32_t words[4]);

/* The words of `blocks` counters from `low` on, fast: words[w * blocks + b] is word w of counter low + b. */
void ek_random_blocks(uint64_t key, uint64_t high, uint64_t low, uint32_t blocks, uint32_t *words);

/* Uniform 64-bit integer. */
uint64_t ek_random_u64(uint64_t key, uint64_t high, uint64_t low);

/* Uniform in [0, 1), 53 bits. */
double ek_random_uniform(uint64_t key, uint64_t high, uint64_t low);

/* Standard normal (Box-Muller on the four words of the counter). */
double ek_random_normal(uint64_t key, uint64_t high, uint64_t low);

/* The place of `index` in a random permutation of 0 … count-1 chosen by key (a Feistel network with cycle walking):
 * O(1). */
uint64_t ek_random_permute(uint64_t key, uint64_t index, uint64_t count);

#endif
