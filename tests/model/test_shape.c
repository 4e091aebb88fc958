/* What a configuration may be, what it is made of, and its initial weights. */
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

static const ek_model_config tiny = {.layers = 2,
                                     .hidden = 32,
                                     .heads = 8,
                                     .kv_heads = 4,
                                     .ffn = 96,
                                     .vocab = 80,
                                     .sequence = 16,
                                     .rope_theta = 10000.0f,
                                     .norm_eps = 1e-5f};

static void blocks_leave_four_units_a_role(void **state)
{
    (void)state;
    static const struct {
        uint32_t size, base_degree, block;
    } cases[] = {
        {1024, 1, 64},  {1024, 4, 64}, {1024, 5, 32}, {1024, 64, 4}, {1024, 128, 2}, {1024, 200, 1},
        {1024, 999, 1}, {256, 1, 64},  {255, 1, 1},   {1000, 2, 8},  {48, 3, 4},     {65536, 1, 64},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ek_model_config config = tiny;
        config.hidden = 4096;
        config.heads = config.kv_heads = 1024;
        config.ffn = cases[i].size;
        config.vocab = 65536;
        assert_ok(ek_model_config_finish(&config, cases[i].base_degree));
        assert_int_equal(config.ffn_block, cases[i].block);

        config.ffn = 65536;
        config.vocab = cases[i].size;
        config.ffn_block = config.vocab_block = 0;
        assert_ok(ek_model_config_finish(&config, cases[i].base_degree));
        assert_int_equal(config.vocab_block, cases[i].block);
    }
}

static void given_blocks_stay(void **state)
{
    (void)state;
    ek_model_config config = tiny;
    config.ffn_block = 24;
    config.vocab_block = 20;
    assert_ok(ek_model_config_finish(&config, 4));
    assert_int_equal(config.ffn_block, 24);
    assert_int_equal(config.vocab_block, 20);
}

static void refuse(ek_model_config config, uint32_t base_degree, const char *text)
{
    ek_model_config before = config;
    assert_int_equal(ek_model_config_finish(&config, base_degree), EK_INVALID);
    if (!strstr(ek_error(), text))
        fail_msg("\"%s\" does not say \"%s\"", ek_error(), text);
    assert_memory_equal(&config, &before, sizeof config);
}

#define REFUSE(key, value, base_degree, text)                                                                          \
    do {                                                                                                               \
        ek_model_config refused = tiny;                                                                                \
        refused.key = (value);                                                                                         \
        refuse(refused, base_degree, text);                                                                            \
    } while (0)

static void impossible_models_are_refused(void **state)
{
    (void)state;
    REFUSE(layers, 0, 1, "model.layers: found 0; a whole number from 1");
    REFUSE(hidden, 0, 1, "model.hidden: found 0");
    REFUSE(hidden, UINT32_MAX, 1, "model.hidden: found 4294967295; a whole number from 1 to 1048576");
    REFUSE(heads, 0, 1, "model.heads: found 0");
    REFUSE(heads, 7, 1, "model.heads: found 7; it must divide model.hidden, 32");
    REFUSE(heads, 32, 1, "model.heads: found 32; the head dimension, hidden / heads = 1, must be even");
    REFUSE(kv_heads, 0, 1, "model.kv_heads: found 0");
    REFUSE(kv_heads, 3, 1, "model.kv_heads: found 3; it must divide model.heads, 8");
    REFUSE(kv_heads, 16, 1, "model.kv_heads: found 16; a whole number from 1 to 8");
    REFUSE(ffn, 0, 1, "model.ffn: found 0");
    REFUSE(vocab, 0, 1, "model.vocab: found 0");
    REFUSE(sequence, 0, 1, "model.sequence: found 0");
    REFUSE(rope_theta, 0.0f, 1, "model.rope_theta: found 0");
    REFUSE(rope_theta, NAN, 1, "model.rope_theta");
    REFUSE(norm_eps, -1.0f, 1, "model.norm_eps: found -1");
    REFUSE(norm_eps, INFINITY, 1, "model.norm_eps");
    REFUSE(ffn_block, 7, 1, "model.ffn_block: found 7; it must divide model.ffn, 96");
    REFUSE(vocab_block, 81, 1, "model.vocab_block: found 81; it must divide model.vocab, 80");
    REFUSE(ffn_block, 48, 3, "model.ffn_block: 2 units of ffn cannot be cut 3 ways");
    REFUSE(vocab_block, 40, 3, "model.vocab_block: 2 units of vocab cannot be cut 3 ways");
    REFUSE(kv_heads, 4, 5, "model.kv_heads: 4 units of attention cannot be cut 5 ways");
}

static void tensors_and_buckets(void **state)
{
    (void)state;
    ek_model_config config = tiny;
    assert_ok(ek_model_config_finish(&config, 4));
    assert_int_equal(config.ffn_block, 4);
    assert_int_equal(config.vocab_block, 4);
    const size_t C = 32, D = 4, R = 2;
    const ek_tensor expected[] = {
        {"embedding", EK_GROUP_VOCAB, 3, 4 * C, false},
        {"layer.0.attention_norm", EK_REPLICATED, 3, C, false},
        {"layer.0.qkv", EK_GROUP_ATTENTION, 2, (R + 2) * D * C, false},
        {"layer.0.out", EK_GROUP_ATTENTION, 2, R * D * C, false},
        {"layer.0.ffn_norm", EK_REPLICATED, 3, C, false},
        {"layer.0.gate_up", EK_GROUP_FFN, 2, 8 * C, false},
        {"layer.0.down", EK_GROUP_FFN, 2, 4 * C, false},
        {"layer.1.attention_norm", EK_REPLICATED, 3, C, false},
        {"layer.1.qkv", EK_GROUP_ATTENTION, 1, (R + 2) * D * C, false},
        {"layer.1.out", EK_GROUP_ATTENTION, 1, R * D * C, false},
        {"layer.1.ffn_norm", EK_REPLICATED, 3, C, false},
        {"layer.1.gate_up", EK_GROUP_FFN, 1, 8 * C, false},
        {"layer.1.down", EK_GROUP_FFN, 1, 4 * C, false},
        {"norm", EK_REPLICATED, 3, C, false},
        {"head", EK_GROUP_VOCAB, 0, 4 * C, false},
    };
    const size_t expected_count = sizeof expected / sizeof *expected;
    for (uint32_t tied = 0; tied < 2; tied++) { /* without the head there is one tensor and one bucket less */
        config.tied_embeddings = tied;
        ek_tensor *tensors;
        size_t count;
        assert_ok(ek_model_tensors(&config, &tensors, &count));
        assert_int_equal(count, expected_count - tied);
        for (size_t t = 0; t < count; t++) {
            assert_string_equal(tensors[t].name, expected[t].name);
            assert_int_equal(tensors[t].group, expected[t].group);
            assert_int_equal(tensors[t].bucket, expected[t].bucket - tied);
            assert_int_equal(tensors[t].unit_elements, expected[t].unit_elements);
        }
        ek_free(tensors);
        assert_int_equal(ek_model_buckets(&config), 4 - tied);
        uint64_t layer = 2 * C + C * C + 2 * 4 * D * C + C * C + 3 * 96 * C;
        assert_int_equal(ek_model_parameters(&config), 2 * layer + C + (2 - tied) * 80 * C);
    }
}

static void refused_mixtures(void **state)
{
    (void)state;
    ek_model_config config = tiny;
    config.expert_parallel = true;
    refuse(config, 1, "model.experts: found 0; expert parallelism");
    config.experts = 6;
    config.moe_every = 1;
    refuse(config, 1, "model.top_k: found 0; 1 to 6, model.experts, is allowed");
    config.top_k = 7;
    refuse(config, 1, "model.top_k: found 7; 1 to 6, model.experts, is allowed");
    config.top_k = 6;
    config.moe_every = 3;
    refuse(config, 1, "model.moe_every: found 3; 1 to 2, model.layers, is allowed");
    config.moe_every = 2;
    config.aux_loss = INFINITY;
    refuse(config, 1, "model.aux_loss");
    config.aux_loss = 0.0f;
    refuse(config, 7, "model.experts: 6 units of experts cannot be cut 7 ways");
    assert_ok(ek_model_config_finish(&config, 6)); /* 4 KV heads on 6 ranks: they are not cut */
    config.expert_parallel = false;
    refuse(config, 6, "model.kv_heads: 4 units of attention cannot be cut 6 ways");
}

/* Experts in the first layer alone, an FFN in the other, and besides them if it is shared. */
static void tensors_of_a_mixture(void **state)
{
    (void)state;
    ek_model_config config = tiny;
    config.experts = 6;
    config.top_k = config.moe_every = 2;
    config.expert_ffn = 10;
    config.shared_expert = true;
    assert_ok(ek_model_config_finish(&config, 4));
    const size_t C = 32, D = 4, R = 2;
    const struct {
        ek_tensor tensor; /* under tensor parallelism */
        uint32_t units;
    } expected[] = {
        {{"embedding", EK_GROUP_VOCAB, 3, 4 * C, false}, 20},
        {{"layer.0.attention_norm", EK_REPLICATED, 3, C, false}, 1},
        {{"layer.0.qkv", EK_GROUP_ATTENTION, 2, (R + 2) * D * C, false}, 4},
        {{"layer.0.out", EK_GROUP_ATTENTION, 2, R * D * C, false}, 4},
        {{"layer.0.ffn_norm", EK_REPLICATED, 3, C, false}, 1},
        {{"layer.0.gate_up", EK_GROUP_FFN, 2, 8 * C, false}, 24},
        {{"layer.0.down", EK_GROUP_FFN, 2, 4 * C, false}, 24},
        {{"layer.0.router", EK_REPLICATED, 3, 6 * C, false}, 1},
        {{"layer.0.experts.gate_up", EK_GROUP_EXPERTS, 2, 20 * C, false}, 6},
        {{"layer.0.experts.down", EK_GROUP_EXPERTS, 2, 10 * C, false}, 6},
        {{"layer.1.attention_norm", EK_REPLICATED, 3, C, false}, 1},
        {{"layer.1.qkv", EK_GROUP_ATTENTION, 1, (R + 2) * D * C, false}, 4},
        {{"layer.1.out", EK_GROUP_ATTENTION, 1, R * D * C, false}, 4},
        {{"layer.1.ffn_norm", EK_REPLICATED, 3, C, false}, 1},
        {{"layer.1.gate_up", EK_GROUP_FFN, 1, 8 * C, false}, 24},
        {{"layer.1.down", EK_GROUP_FFN, 1, 4 * C, false}, 24},
        {{"norm", EK_REPLICATED, 3, C, false}, 1},
        {{"head", EK_GROUP_VOCAB, 0, 4 * C, false}, 20},
    };
    for (uint32_t ep = 0; ep < 2; ep++) {
        config.expert_parallel = ep;
        ek_unit_group groups[EK_MODEL_GROUPS];
        assert_int_equal(ek_model_groups(&config, groups), ep ? 1 : EK_MODEL_GROUPS);
        assert_string_equal(groups[ep ? 0 : EK_GROUP_EXPERTS].name, "experts");
        assert_int_equal(groups[ep ? 0 : EK_GROUP_EXPERTS].units, 6);
        ek_tensor *tensors;
        size_t count;
        uint64_t parameters = 0;
        assert_ok(ek_model_tensors(&config, &tensors, &count));
        assert_int_equal(count, sizeof expected / sizeof *expected);
        for (size_t t = 0; t < count; t++) {
            const ek_tensor *wanted = &expected[t].tensor;
            bool whole = ep && wanted->group != EK_GROUP_EXPERTS; /* on every rank, with a part of the gradient */
            assert_string_equal(tensors[t].name, wanted->name);
            assert_int_equal(tensors[t].group, whole ? EK_REPLICATED : ep ? 0 : wanted->group);
            assert_int_equal(tensors[t].bucket, wanted->bucket);
            assert_int_equal(tensors[t].unit_elements, wanted->unit_elements * (whole ? expected[t].units : 1));
            assert_true(tensors[t].partial == whole);
            parameters += wanted->unit_elements * expected[t].units;
        }
        ek_free(tensors);
        assert_int_equal(ek_model_parameters(&config), parameters);
    }
    config.shared_expert = false;
    size_t count = 0;
    ek_tensor *tensors;
    assert_ok(ek_model_tensors(&config, &tensors, &count));
    assert_int_equal(count, sizeof expected / sizeof *expected - 2);
    assert_string_equal(tensors[5].name, "layer.0.router");
    ek_free(tensors);
}

/* The same weights in both modes: whole tensors are their units in order. */
static void initial_weights_do_not_depend_on_the_mode(void **state)
{
    (void)state;
    ek_model_config cut = tiny;
    cut.experts = 3;
    cut.top_k = 1;
    cut.moe_every = 2;
    assert_ok(ek_model_config_finish(&cut, 1));
    ek_model_config whole = cut;
    whole.expert_parallel = true;
    ek_tensor *tensors;
    size_t count;
    assert_ok(ek_model_tensors(&cut, &tensors, &count));
    for (size_t t = 0; t < count; t++) {
        uint32_t units = tensors[t].group == EK_REPLICATED ? 1 : ek_model_units(&cut, tensors[t].group);
        size_t elements = tensors[t].unit_elements;
        float *one = malloc(elements * sizeof *one), *all = malloc(units * elements * sizeof *all);
        assert_true(one && all);
        bool is_expert = tensors[t].group == EK_GROUP_EXPERTS;
        for (uint32_t unit = 0; unit < units; unit++) {
            if (is_expert || unit == 0)
                ek_model_init(&whole, 9, t, unit, is_expert ? all + unit * elements : all);
            ek_model_init(&cut, 9, t, unit, one);
            assert_memory_equal(one, all + unit * elements, elements * sizeof *one);
        }
        free(one);
        free(all);
    }
    ek_free(tensors);
}

static void moments(const float *values, size_t count, double *mean, double *deviation)
{
    double sum = 0.0, square = 0.0;
    for (size_t i = 0; i < count; i++) {
        sum += (double)values[i];
        square += (double)values[i] * (double)values[i];
    }
    *mean = sum / (double)count;
    *deviation = sqrt(square / (double)count - *mean * *mean);
}

static void initial_weights(void **state)
{
    (void)state;
    ek_model_config config = tiny;
    config.hidden = 512;
    config.kv_heads = 8;
    assert_ok(ek_model_config_finish(&config, 1));
    ek_tensor *tensors;
    size_t count;
    assert_ok(ek_model_tensors(&config, &tensors, &count));
    for (size_t t = 0; t < count; t++) {
        size_t elements = tensors[t].unit_elements;
        float *first = malloc(elements * sizeof *first), *second = malloc(elements * sizeof *second);
        assert_non_null(first);
        assert_non_null(second);
        ek_model_init(&config, 5, t, 0, first);
        if (tensors[t].group == EK_REPLICATED) {
            for (size_t i = 0; i < elements; i++)
                assert_true(first[i] == 1.0f);
        } else {
            bool into_residual = strstr(tensors[t].name, "out") || strstr(tensors[t].name, "down");
            double mean, deviation, expected = 0.02 / (into_residual ? sqrt(4.0) : 1.0);
            moments(first, elements, &mean, &deviation);
            assert_true(fabs(mean) < 5.0 * expected / sqrt((double)elements));
            assert_true(fabs(deviation / expected - 1.0) < 5.0 / sqrt((double)elements));
            ek_model_init(&config, 5, t, 1, second); /* other units, seeds and tensors have other weights */
            assert_true(first[0] != second[0] && first[elements - 1] != second[elements - 1]);
            ek_model_init(&config, 6, t, 0, second);
            assert_true(first[0] != second[0]);
        }
        free(first);
        free(second);
    }
    float qkv[2];
    float *values = malloc(tensors[2].unit_elements * sizeof *values);
    assert_non_null(values);
    for (uint32_t layer = 0; layer < 2; layer++) {
        ek_model_init(&config, 5, 2 + 6 * (size_t)layer, 0, values);
        qkv[layer] = values[0];
    }
    assert_true(qkv[0] != qkv[1]);
    free(values);
    ek_free(tensors);
}

/* The weights of a vocabulary row do not depend on how rows are grouped into units: elements are
 * numbered through the whole tensor. */
static void initial_weights_of_rows_do_not_depend_on_the_block(void **state)
{
    (void)state;
    ek_model_config coarse = tiny, fine = tiny;
    coarse.vocab_block = 8;
    fine.vocab_block = 4;
    assert_ok(ek_model_config_finish(&coarse, 1));
    assert_ok(ek_model_config_finish(&fine, 1));
    float whole[8 * 32], half[4 * 32];
    ek_model_init(&coarse, 3, 0, 2, whole);
    ek_model_init(&fine, 3, 0, 5, half);
    assert_memory_equal(whole + 4 * 32, half, sizeof half);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_leave_four_units_a_role),
        cmocka_unit_test(given_blocks_stay),
        cmocka_unit_test(impossible_models_are_refused),
        cmocka_unit_test(tensors_and_buckets),
        cmocka_unit_test(refused_mixtures),
        cmocka_unit_test(tensors_of_a_mixture),
        cmocka_unit_test(initial_weights_do_not_depend_on_the_mode),
        cmocka_unit_test(initial_weights),
        cmocka_unit_test(initial_weights_of_rows_do_not_depend_on_the_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
