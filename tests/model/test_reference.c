/* The whole model against PyTorch: loss and gradients from the fixtures of make_fixtures.py, whose weights have the
 * shapes of Hugging Face's Llama; how those are cut into units is checked with it. */
#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "safetensors.h"
#include "share.h"

#define TOLERANCE 1e-5 /* of the loss, and of the largest gradient of a tensor */

static ek_model_config read_config(const safetensors *file)
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

/* The six tensors of a layer; out[] are ek_model_tensors' attention_norm, qkv, out, ffn_norm, gate_up, down. */
static void convert_layer(const safetensors *file, const char *prefix, const ek_model_config *config, uint32_t layer,
                          float *const *out)
{
    static const char *const names[9] = {"input_layernorm",  "self_attn.q_proj", "self_attn.k_proj",
                                         "self_attn.v_proj", "self_attn.o_proj", "post_attention_layernorm",
                                         "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
    const float *in[9];
    for (size_t i = 0; i < 9; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%u.%s.weight", layer, names[i]);
        in[i] = safetensors_data(file, prefix, name);
    }
    size_t C = config->hidden, D = C / config->heads, R = config->heads / config->kv_heads;
    size_t F = config->ffn, f = config->ffn_block;
    float *attention_norm = out[0], *qkv = out[1], *output = out[2], *ffn_norm = out[3], *gate_up = out[4],
          *down = out[5];
    append_rows(&attention_norm, in[0], 0, 1, C);
    for (size_t g = 0; g < config->kv_heads; g++) {
        append_rows(&qkv, in[1], g * R * D, R * D, C);
        append_rows(&qkv, in[2], g * D, D, C);
        append_rows(&qkv, in[3], g * D, D, C);
        append_columns(&output, in[4], g * R * D, R * D, C, C);
    }
    append_rows(&ffn_norm, in[5], 0, 1, C);
    for (size_t column = 0; column < F; column += f) {
        append_rows(&gate_up, in[6], column, f, C);
        append_rows(&gate_up, in[7], column, f, C);
        append_columns(&down, in[8], column, f, C, F);
    }
}

/* All tensors of the fixture with names that begin with `prefix`, as unit-major tensors. */
static void convert(const safetensors *file, const char *prefix, const ek_model_config *config, float *const *out)
{
    size_t C = config->hidden, V = config->vocab, norm = 1 + 6 * (size_t)config->layers;
    memcpy(out[0], safetensors_data(file, prefix, "embed_tokens.weight"), V * C * sizeof(float));
    for (uint32_t layer = 0; layer < config->layers; layer++)
        convert_layer(file, prefix, config, layer, out + 1 + 6 * (size_t)layer);
    memcpy(out[norm], safetensors_data(file, prefix, "norm.weight"), C * sizeof(float));
    if (!config->tied_embeddings)
        memcpy(out[norm + 1], safetensors_data(file, prefix, "lm_head.weight"), V * C * sizeof(float));
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

static void check_fixture(const char *path)
{
    safetensors file;
    safetensors_open(&file, path);
    ek_model_config config = read_config(&file);
    whole_model expected;
    whole_create(&expected, &config);
    convert(&file, "gradient.", &config, expected.gradients);
    const uint32_t *tokens = safetensors_data(&file, "", "tokens");
    uint32_t B = (uint32_t)safetensors_number(&file, "batch");
    double expected_loss = *(const double *)safetensors_data(&file, "", "loss_sum");

    static const uint64_t keys[] = {0, 7}; /* in order, and in another order: the same model */
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        whole_model got;
        whole_create(&got, &config);
        convert(&file, "", &config, got.weights);
        double loss = 0.0;
        whole_run(&got, keys[i], tokens, B, 1.0f, &loss);
        if (!(fabs(loss - expected_loss) <= TOLERANCE * expected_loss))
            fail_msg("loss: got %.9g, expected %.9g", loss, expected_loss);
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
    check_fixture(FIXTURES "/untied.safetensors");
}

static void tied(void **state)
{
    (void)state;
    check_fixture(FIXTURES "/tied.safetensors");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(untied),
        cmocka_unit_test(tied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
