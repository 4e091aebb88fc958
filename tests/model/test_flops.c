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
    SEQUENCE_MOST = 130,
    EXPERTS = 5,
    EXPERT_FFN = 7,
    TOP_K = 2
};

/* Dense layers; or the first with experts, which may have an FFN besides. */
typedef enum kind_of_model { DENSE, EXPERTS_ALONE, EXPERTS_AND_SHARED } kind_of_model;

static ek_model_config make_config(uint32_t sequence, kind_of_model kind)
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
    if (kind != DENSE) {
        config.experts = EXPERTS;
        config.expert_ffn = EXPERT_FFN;
        config.top_k = TOP_K;
        config.moe_every = LAYERS;
        config.shared_expert = kind == EXPERTS_AND_SHARED;
    }
    assert_ok(ek_model_config_finish(&config, 1));
    return config;
}

/* Counts the choices of experts that are held, the first `held`. */
typedef struct choice_count {
    uint32_t sequence, held;
    uint64_t choices;
} choice_count;

static ek_status count_choices(void *user, uint32_t moe_layer, uint32_t B, uint32_t *choices)
{
    choice_count *count = user;
    assert_int_equal(moe_layer, 0);
    count->choices = 0;
    for (size_t i = 0; i < (size_t)B * count->sequence * TOP_K; i++)
        count->choices += choices[i] < count->held;
    return EK_OK;
}

/* Of a forward of one sequence, but for its experts; a backward does twice as much: the gradient by the input and by
 * the weight, or by both factors. */
static uint64_t forward_flops(uint64_t T, const uint32_t units[EK_MODEL_GROUPS], kind_of_model kind)
{
    uint64_t C = HIDDEN, D = HIDDEN / HEADS, R = HEADS / KV_HEADS;
    uint64_t G = units[EK_GROUP_ATTENTION], F = 4 * units[EK_GROUP_FFN], V = 2 * units[EK_GROUP_VOCAB], pairs = 0;
    for (uint64_t t = 0; t < T; t++) { /* the keys that a row meets: those up to the end of its block of rows */
        uint64_t end = (t / BLOCK_ROWS + 1) * BLOCK_ROWS;
        pairs += end < T ? end : T;
    }
    uint64_t linear = T * C * G * (R + 2) * D + T * G * R * D * C, ffn = T * C * 2 * F + T * F * C;
    uint64_t attention = G * R * 2 * pairs * D; /* scores, and what they weigh */
    uint64_t ffns = kind == EXPERTS_ALONE ? LAYERS - 1 : LAYERS, router = kind == DENSE ? 0 : T * C * EXPERTS;
    return 2 * (LAYERS * (linear + attention) + ffns * ffn + router + T * C * V);
}

static void check_counts(uint32_t sequence, const uint32_t units[EK_MODEL_GROUPS], kind_of_model kind)
{
    ek_model_config config = make_config(sequence, kind);
    whole_model whole;
    whole_create(&whole, &config);
    whole_initialize(&whole, 1);
    uint32_t tokens[BATCH * (SEQUENCE_MOST + 1)];
    for (uint32_t i = 0; i < sizeof tokens / sizeof *tokens; i++)
        tokens[i] = i % VOCAB;
    choice_count count = {.sequence = sequence, .held = units[EK_GROUP_EXPERTS]};
    ek_model_options options = {.config = &config, .micro_batch = BATCH, .route = count_choices, .user = &count};
    for (uint32_t group = 0; group < EK_MODEL_GROUPS; group++)
        options.units[group] = units[group];
    ek_model *model; /* the first units of each group: the weights of the whole begin with theirs */
    assert_ok(ek_model_create(&model, &options));
    assert_int_equal(ek_model_flops(model), 0);
    uint64_t expected = 0;
    for (uint32_t B = 1; B <= BATCH; B++) {
        ek_model_loss loss;
        assert_ok(ek_model_forward(model, whole.weights, tokens, B, &loss));
        uint64_t forward = B * forward_flops(sequence, units, kind) + 2 * count.choices * 3 * EXPERT_FFN * HIDDEN;
        expected += forward;
        assert_int_equal(ek_model_flops(model), expected);
        assert_ok(ek_model_backward(model, whole.weights, whole.gradients, tokens, B, 1.0f, true));
        expected += 2 * forward;
        assert_int_equal(ek_model_flops(model), expected);
    }
    ek_model_destroy(model);
    whole_destroy(&whole);
}

static void counts_follow_the_share(void **state)
{
    (void)state;
    static const uint32_t most[EK_MODEL_GROUPS] = {KV_HEADS, FFN / 4, VOCAB / 2, EXPERTS};
    static const uint32_t sequences[] = {1, 5, BLOCK_ROWS, BLOCK_ROWS + 1, SEQUENCE_MOST};
    for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++) {
        for (kind_of_model kind = DENSE; kind <= EXPERTS_AND_SHARED; kind++)
            check_counts(sequences[i], most, kind);
        for (uint64_t trial = 0; trial < 5; trial++) {
            uint32_t units[EK_MODEL_GROUPS];
            for (uint32_t group = 0; group < EK_MODEL_GROUPS; group++)
                units[group] = 1 + (uint32_t)(ek_random_u64(i, trial, group) % most[group]);
            check_counts(sequences[i], units, (kind_of_model)(trial % 3));
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
