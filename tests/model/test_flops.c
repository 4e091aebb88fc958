/* The operations that a model counts as its passes run are those that its share of the units asks for. */
#include "testing.h"

#include <stdlib.h>

#include "base/rng.h"
#include "share.h"

enum {
    BATCH = 3,
    HIDDEN = 24,
    HEADS = 12,
    KV_HEADS = 6,
    FFN = 60,
    VOCAB = 40,
    LAYERS = 2,
    BLOCK_ROWS = 64,
    SEQUENCE_MOST = 130
};

static ek_model_config make_config(uint32_t sequence)
{
    ek_model_config config = {.layers = LAYERS,
                              .hidden = HIDDEN,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .ffn = FFN,
                              .vocab = VOCAB,
                              .sequence = sequence,
                              .ffn_block = 4,
                              .vocab_block = 2,
                              .rope_theta = 10000.0f,
                              .norm_eps = 1e-5f};
    assert_ok(ek_model_config_finish(&config, 1));
    return config;
}

/* Of a forward; a backward does twice as much: the gradient by the input and by the weight, or by both factors. */
static uint64_t forward_flops(uint64_t T, const uint32_t units[EK_MODEL_GROUPS])
{
    uint64_t C = HIDDEN, D = HIDDEN / HEADS, R = HEADS / KV_HEADS;
    uint64_t G = units[EK_GROUP_ATTENTION], F = 4 * units[EK_GROUP_FFN], V = 2 * units[EK_GROUP_VOCAB], pairs = 0;
    for (uint64_t t = 0; t < T; t++) { /* the keys that a row meets: those up to the end of its block of rows */
        uint64_t end = (t / BLOCK_ROWS + 1) * BLOCK_ROWS;
        pairs += end < T ? end : T;
    }
    uint64_t linear = T * C * G * (R + 2) * D + T * G * R * D * C + T * C * 2 * F + T * F * C;
    uint64_t attention = G * R * 2 * pairs * D; /* scores, and what they weigh */
    return 2 * (LAYERS * (linear + attention) + T * C * V);
}

static void check_counts(uint32_t sequence, const uint32_t units[EK_MODEL_GROUPS])
{
    ek_model_config config = make_config(sequence);
    whole_model whole;
    whole_create(&whole, &config);
    whole_initialize(&whole, 1);
    uint32_t vocab_units[VOCAB], tokens[BATCH * (SEQUENCE_MOST + 1)] = {0};
    for (uint32_t unit = 0; unit < VOCAB; unit++)
        vocab_units[unit] = unit;
    ek_model_options options = {.config = &config, .vocab_units = vocab_units, .micro_batch = BATCH};
    for (uint32_t group = 0; group < EK_MODEL_GROUPS; group++)
        options.units[group] = units[group];
    ek_model *model; /* the first units of each group: the weights of the whole begin with theirs */
    assert_ok(ek_model_create(&model, &options));
    assert_int_equal(ek_model_flops(model), 0);
    uint64_t expected = 0;
    for (uint32_t B = 1; B <= BATCH; B++) {
        double loss;
        assert_ok(ek_model_forward(model, whole.weights, tokens, B, &loss));
        expected += B * forward_flops(sequence, units);
        assert_int_equal(ek_model_flops(model), expected);
        assert_ok(ek_model_backward(model, whole.weights, whole.gradients, tokens, B, 1.0f, true));
        expected += 2 * B * forward_flops(sequence, units);
        assert_int_equal(ek_model_flops(model), expected);
    }
    ek_model_destroy(model);
    whole_destroy(&whole);
}

static void counts_follow_the_share(void **state)
{
    (void)state;
    static const uint32_t most[EK_MODEL_GROUPS] = {KV_HEADS, FFN / 4, VOCAB / 2};
    static const uint32_t sequences[] = {1, 5, BLOCK_ROWS, BLOCK_ROWS + 1, SEQUENCE_MOST};
    for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++) {
        check_counts(sequences[i], most);
        for (uint64_t trial = 0; trial < 5; trial++) {
            uint32_t units[EK_MODEL_GROUPS];
            for (uint32_t group = 0; group < EK_MODEL_GROUPS; group++)
                units[group] = 1 + (uint32_t)(ek_random_u64(i, trial, group) % most[group]);
            check_counts(sequences[i], units);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_follow_the_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
