/* Philox, and what is made of its words: integers, uniform and normal numbers, permutations. */
#include "base/rng.h"

#include <math.h>

#include "base/clones.h"

#define MULTIPLIER_0 0xD2511F53u
#define MULTIPLIER_1 0xCD9E8D57u
#define KEY_STEP_0 0x9E3779B9u
#define KEY_STEP_1 0xBB67AE85u
#define ROUNDS 10

void ek_random_words(uint64_t key, uint64_t high, uint64_t low, uint32_t words[4])
{
    uint32_t c0 = (uint32_t)low, c1 = (uint32_t)(low >> 32), c2 = (uint32_t)high, c3 = (uint32_t)(high >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t product0 = (uint64_t)MULTIPLIER_0 * c0;
        uint64_t product1 = (uint64_t)MULTIPLIER_1 * c2;
        uint32_t n0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)product1;
        c3 = (uint32_t)product0;
        c0 = n0;
        c2 = n2;
        k0 += KEY_STEP_0;
        k1 += KEY_STEP_1;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* The same for LANES counters side by side, each word in a 64-bit lane: that is how vector units multiply. */
#define LANES 16
typedef uint64_t lanes __attribute__((vector_size(8 * LANES)));

static inline __attribute__((always_inline)) void lane_words(uint64_t key, uint64_t high, uint64_t low, lanes c[4])
{
    const lanes low_half = (lanes){0} + UINT32_MAX;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    lanes counter;
    for (uint64_t lane = 0; lane < LANES; lane++)
        counter[lane] = low + lane;
    c[0] = counter & low_half;
    c[1] = counter >> 32;
    c[2] = (lanes){0} + (uint32_t)high;
    c[3] = (lanes){0} + (high >> 32);
    for (int round = 0; round < ROUNDS; round++) {
        lanes product0 = c[0] * MULTIPLIER_0, product1 = c[2] * MULTIPLIER_1;
        c[0] = (product1 >> 32) ^ c[1] ^ k0;
        c[2] = (product0 >> 32) ^ c[3] ^ k1;
        c[1] = product1 & low_half;
        c[3] = product0 & low_half;
        k0 += KEY_STEP_0;
        k1 += KEY_STEP_1;
    }
}

EK_CLONES void ek_random_blocks(uint64_t key, uint64_t high, uint64_t low, uint32_t blocks, uint32_t *words)
{
    for (uint32_t first = 0; first < blocks; first += LANES) {
        uint32_t count = blocks - first < LANES ? blocks - first : LANES;
        lanes c[4];
        lane_words(key, high, low + first, c);
        for (uint32_t w = 0; w < 4; w++)
            for (uint32_t lane = 0; lane < count; lane++)
                words[w * blocks + first + lane] = (uint32_t)c[w][lane];
    }
}

uint64_t ek_random_u64(uint64_t key, uint64_t high, uint64_t low)
{
    uint32_t words[4];
    ek_random_words(key, high, low, words);
    return (uint64_t)words[1] << 32 | words[0];
}

double ek_random_uniform(uint64_t key, uint64_t high, uint64_t low)
{
    return (double)(ek_random_u64(key, high, low) >> 11) * 0x1p-53;
}

double ek_random_normal(uint64_t key, uint64_t high, uint64_t low)
{
    uint32_t words[4];
    ek_random_words(key, high, low, words);
    double u = ((double)((uint64_t)words[1] << 32 | words[0]) + 0.5) * 0x1p-64;
    double v = ((double)words[3] * 0x1p32 + (double)words[2]) * 0x1p-64;
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

uint64_t ek_random_permute(uint64_t key, uint64_t index, uint64_t count)
{
    unsigned half_bits = 1;
    while (half_bits < 32 && (uint64_t)1 << (2 * half_bits) < count)
        half_bits++;
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    do { /* fewer than four walks on average: the domain is at most four times count */
        uint64_t left = index >> half_bits, right = index & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t next = left ^ (ek_random_u64(key, round, right) & mask);
            left = right;
            right = next;
        }
        index = left << half_bits | right;
    } while (index >= count);
    return index;
}
