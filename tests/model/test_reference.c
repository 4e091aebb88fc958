/* The whole model against PyTorch: loss and gradients from the fixtures of make_fixtures.py, whose weights have the
 * shapes of Hugging Face's Llama and Mixtral; how those are cut into units is checked with it. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors.h"
#include "share.h"

#define TOLERANCE 1e-5 /* of the loss, and of the largest gradient of a tensor */

static ek_model_config read_config(const safetensors *file, bool has_experts)
{
    ek_model_config config = {
        .layers = (uint32_t)safetensors_number(file, "layers"),
        .hidden = (uint32_t)safetensors_number(file, "hidden"),
        .heads = (uint32_t)safetensors_number(file, "heads"),
        .kv_heads = (uint32_t)safetensors_number(file, "kv_heads"),
        .ffn = (uint32_t)safetensors_number(file, "ffn"),
        .vocab = (uint32_t)safetensors_number(file, "vocab"),
        .sequence = (uint32_t)safetensors_number(file, "sequence"),
        .ffn_block = (uint32_t)safetensors_number(file, "ffn_block"),
        .vocab_block = (uint32_t)safetensors_number(file, "vocab_block"),
        .tied_embeddings = safetensors_number(file, "tied") != 0.0,
        .rope_theta = (float)safetensors_number(file, "theta"),
        .norm_eps = (float)safetensors_number(file, "eps"),
    };
    if (has_experts) {
        config.experts = (uint32_t)safetensors_number(file, "experts");
        config.top_k = (uint32_t)safetensors_number(file, "top_k");
        config.moe_every = (uint32_t)safetensors_number(file, "moe_every");
        config.expert_ffn = (uint32_t)safetensors_number(file, "expert_ffn");
        config.shared_expert = safetensors_number(file, "shared_expert") != 0.0;
        config.aux_loss = (float)safetensors_number(file, "aux_loss");
    }
    assert_ok(ek_model_config_finish(&config, 1));
    return config;
}

/* Appends `count` rows of a (rows, columns) matrix to *out. */
static void append_rows(float **out, const float *matrix, size_t first, size_t count, size_t columns)
{
    memcpy(*out, matrix + first * columns, count * columns * sizeof **out);
    *out += count * columns;
}

/* Appends columns of a (rows, columns) matrix to *out, each as a row. */
static void append_columns(float **out, const float *matrix, size_t first, size_t count, size_t rows, size_t columns)
{
    for (size_t column = first; column < first + count; column++)
        for (size_t row = 0; row < rows; row++)
            *(*out)++ = matrix[row * columns + column];
}

/* A weight of a layer. */
static const float *find(const safetensors *file, const char *prefix, uint32_t layer, const char *name)
{
    char full[80];
    snprintf(full, sizeof full, "layers.%u.%s.weight", layer, name);
    return safetensors_data(file, prefix, full);
}

static void convert_qkv(const safetensors *file, const char *prefix, const ek_model_config *config, uint32_t layer,
                        float *out)
{
    size_t C = config->hidden, D = C / config->heads, R = config->heads / config->kv_heads;
    for (size_t g = 0; g < config->kv_heads; g++) {
        append_rows(&out, find(file, prefix, layer, "self_attn.q_proj"), g * R * D, R * D, C);
        append_rows(&out, find(file, prefix, layer, "self_attn.k_proj"), g * D, D, C);
        append_rows(&out, find(file, prefix, layer, "self_attn.v_proj"), g * D, D, C);
    }
}

static void convert_gate_up(const safetensors *file, const char *prefix, const ek_model_config *config, uint32_t layer,
                            float *out)
{
    for (size_t column = 0; column < config->ffn; column += config->ffn_block) {
        append_rows(&out, find(file, prefix, layer, "mlp.gate_proj"), column, config->ffn_block, config->hidden);
        append_rows(&out, find(file, prefix, layer, "mlp.up_proj"), column, config->ffn_block, config->hidden);
    }
}

/* w1 is the gate projection, w3 the up projection, w2 the down projection. */
static void convert_experts(const safetensors *file, const char *prefix, const ek_model_config *config, uint32_t layer,
                            bool down, float *out)
{
    size_t C = config->hidden, F = config->expert_ffn;
    for (uint32_t expert = 0; expert < config->experts; expert++) {
        const float *in[3];
        for (int w = 0; w < 3; w++) {
            char name[64];
            snprintf(name, sizeof name, "block_sparse_moe.experts.%u.w%d", expert, w + 1);
            in[w] = find(file, prefix, layer, name);
        }
        if (down) {
            append_columns(&out, in[1], 0, F, C, F);
        } else {
            append_rows(&out, in[0], 0, F, C);
            append_rows(&out, in[2], 0, F, C);
        }
    }
}

static void convert_in_layer(const safetensors *file, const char *prefix, const ek_model_config *config, uint32_t layer,
                             const char *kind, float *out)
{
    size_t C = config->hidden;
    if (strcmp(kind, "attention_norm") == 0)
        append_rows(&out, find(file, prefix, layer, "input_layernorm"), 0, 1, C);
    else if (strcmp(kind, "ffn_norm") == 0)
        append_rows(&out, find(file, prefix, layer, "post_attention_layernorm"), 0, 1, C);
    else if (strcmp(kind, "qkv") == 0)
        convert_qkv(file, prefix, config, layer, out);
    else if (strcmp(kind, "out") == 0)
        append_columns(&out, find(file, prefix, layer, "self_attn.o_proj"), 0, C, C, C);
    else if (strcmp(kind, "gate_up") == 0)
        convert_gate_up(file, prefix, config, layer, out);
    else if (strcmp(kind, "down") == 0)
        append_columns(&out, find(file, prefix, layer, "mlp.down_proj"), 0, config->ffn, C, config->ffn);
    else if (strcmp(kind, "router") == 0)
        append_rows(&out, find(file, prefix, layer, "block_sparse_moe.gate"), 0, config->experts, C);
    else
        convert_experts(file, prefix, config, layer, strcmp(kind, "experts.down") == 0, out);
}

/* All tensors of the fixture with names that begin with `prefix`, as unit-major tensors. */
static void convert(const safetensors *file, const char *prefix, const whole_model *whole, float *const *out)
{
    for (size_t t = 0; t < whole->count; t++) {
        const char *name = whole->tensors[t].name;
        uint32_t layer;
        char kind[32];
        if (sscanf(name, "layer.%u.%31s", &layer, kind) == 2)
            convert_in_layer(file, prefix, &whole->config, layer, kind, out[t]);
        else
            memcpy(out[t],
                   safetensors_data(file, prefix,
                                    strcmp(name, "embedding") == 0 ? "embed_tokens.weight"
                                    : strcmp(name, "norm") == 0    ? "norm.weight"
                                                                   : "lm_head.weight"),
                   whole_elements(whole, t) * sizeof(float));
    }
}

static void assert_close(const char *what, double got, double expected)
{
    if (!(fabs(got - expected) <= TOLERANCE * expected))
        fail_msg("%s: got %.9g, expected %.9g", what, got, expected);
}

static void assert_gradients(const whole_model *got, const whole_model *expected, double scale)
{
    for (size_t t = 0; t < got->count; t++) {
        double largest = 0.0;
        for (size_t i = 0; i < whole_elements(got, t); i++)
            largest = fmax(largest, fabs((double)expected->gradients[t][i]) * scale);
        assert_true(largest > 0.0);
        for (size_t i = 0; i < whole_elements(got, t); i++) {
            double difference = (double)got->gradients[t][i] - (double)expected->gradients[t][i] * scale;
            if (!(fabs(difference) <= TOLERANCE * largest))
                fail_msg("gradient of %s[%zu]: got %.9g, off by %.3g; the largest is %.3g", got->tensors[t].name, i,
                         (double)got->gradients[t][i], difference, largest);
        }
    }
}

static void check_fixture(const char *path, bool has_experts)
{
    safetensors file;
    safetensors_open(&file, path);
    ek_model_config config = read_config(&file, has_experts);
    whole_model expected;
    whole_create(&expected, &config);
    convert(&file, "gradient.", &expected, expected.gradients);
    const uint32_t *tokens = safetensors_data(&file, "", "tokens");
    uint32_t B = (uint32_t)safetensors_number(&file, "batch");
    double expected_loss = *(const double *)safetensors_data(&file, "", "loss_sum");
    double balance = has_experts ? *(const double *)safetensors_data(&file, "", "balance") : 0.0;

    static const uint64_t keys[] = {0, 7}; /* in order, and in another order: the same model */
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        whole_model got;
        whole_create(&got, &config);
        convert(&file, "", &got, got.weights);
        ek_model_loss loss;
        whole_run(&got, keys[i], tokens, B, 1.0f, &loss);
        assert_close("loss", loss.cross_entropy, expected_loss);
        assert_close("load-balancing loss", loss.balance, balance);
        assert_gradients(&got, &expected, 1.0);

        whole_run(&got, keys[i], tokens, B, 0.5f, &loss); /* gradients are scaled, and added */
        assert_gradients(&got, &expected, 1.5);
        whole_destroy(&got);
    }
    whole_destroy(&expected);
    safetensors_close(&file);
}

static void untied(void **state)
{
    (void)state;
    check_fixture(FIXTURES "/untied.safetensors", false);
}

static void tied(void **state)
{
    (void)state;
    check_fixture(FIXTURES "/tied.safetensors", false);
}

static void experts(void **state)
{
    (void)state;
    check_fixture(FIXTURES "/experts.safetensors", true);
}

static void shared_expert(void **state)
{
    (void)state;
    check_fixture(FIXTURES "/shared_expert.safetensors", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(untied),
        cmocka_unit_test(tied),
        cmocka_unit_test(experts),
        cmocka_unit_test(shared_expert),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
