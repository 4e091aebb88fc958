/* The random numbers: Philox's published known answers, and that the permutation is one. */
#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "testing.h"

/* The known answers of Random123's kat_vectors for philox4x32 with 10 rounds. */
static void test_philox_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint64_t key, high, low;
        uint32_t words[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t words[4];
        ek_random_words(known[i].key, known[i].high, known[i].low, words);
        assert_memory_equal(words, known[i].words, sizeof words);
    }
}

/* Blocks are the same words, any number of them from anywhere on. */
static void test_blocks(void **state)
{
    (void)state;
    const uint64_t key = 0x299f31d0a4093822, high = 0x0370734413198a2e;
    for (uint32_t blocks = 0; blocks < 70; blocks++) {
        uint64_t low = blocks % 2 ? UINT32_MAX - 30u : blocks * 1000003u; /* across the end of 32 bits, too */
        uint32_t *words = malloc((4 * (size_t)blocks + 1) * sizeof *words), expected[4];
        ek_random_blocks(key, high, low, blocks, words);
        for (uint32_t b = 0; b < blocks; b++) {
            ek_random_words(key, high, low + b, expected);
            for (uint32_t w = 0; w < 4; w++)
                assert_int_equal(words[w * blocks + b], expected[w]);
        }
        free(words);
    }
}

static void test_permutation(void **state)
{
    (void)state;
    for (uint64_t count = 1; count < 600; count += count < 40 ? 1 : 37) {
        unsigned char *seen = calloc(count, 1);
        uint64_t moved = 0;
        for (uint64_t i = 0; i < count; i++) {
            uint64_t place = ek_random_permute(count, i, count);
            assert_in_range(place, 0, count - 1);
            assert_int_equal(seen[place]++, 0);
            moved += place != i;
        }
        assert_true(count < 20 || moved > count / 2);
        free(seen);
    }
}

static void test_normal(void **state)
{
    (void)state;
    double sum = 0.0, squares = 0.0;
    enum { COUNT = 100000 };
    for (uint64_t i = 0; i < COUNT; i++) {
        double value = ek_random_normal(3, 1, i);
        sum += value;
        squares += value * value;
    }
    assert_true(fabs(sum / COUNT) < 0.02);
    assert_true(fabs(squares / COUNT - 1.0) < 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_known_answers),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_permutation),
        cmocka_unit_test(test_normal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
