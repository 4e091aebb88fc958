/* Units and the tensors of a Hugging Face checkpoint cover each other exactly, in every kind of model. */
#include <stdlib.h>
#include <string.h>

#include "states.h"

static void cover(const ek_model_config *config)
{
    ek_hf_tensor *hf;
    ek_tensor *tensors;
    size_t hf_count, count;
    assert_ok(ek_hf_tensors(config, &hf, &hf_count));
    assert_ok(ek_model_tensors(config, &tensors, &count));
    unsigned char **seen = calloc(hf_count, sizeof *seen);
    uint64_t total = 0;
    for (size_t h = 0; h < hf_count; h++) {
        seen[h] = calloc((hf[h].rows ? hf[h].rows : 1) * hf[h].columns, 1);
        total += (hf[h].rows ? hf[h].rows : 1) * hf[h].columns;
        for (size_t other = 0; other < h; other++)
            assert_string_not_equal(hf[h].name, hf[other].name);
    }
    assert_int_equal(total, ek_model_parameters(config));
    for (size_t t = 0; t < count; t++) {
        size_t elements;
        uint32_t units = ek_model_tensor_units(config, t, &elements);
        unsigned char *used = malloc(elements);
        for (uint32_t unit = 0; unit < units; unit++) {
            ek_hf_place places[EK_HF_PLACES_MOST];
            uint32_t place_count = ek_hf_places(config, t, unit, places);
            memset(used, 0, elements);
            assert_in_range(place_count, 1, EK_HF_PLACES_MOST);
            for (uint32_t p = 0; p < place_count; p++) {
                const ek_hf_place *place = &places[p];
                assert_true(place->tensor < hf_count);
                const ek_hf_tensor *of = &hf[place->tensor];
                assert_true(place->row + place->rows <= (of->rows ? of->rows : 1));
                assert_true(place->column + place->columns <= of->columns);
                assert_true(place->transposed || place->columns == of->columns);
                for (uint64_t row = 0; row < place->rows; row++)
                    for (uint64_t column = 0; column < place->columns; column++)
                        assert_int_equal(
                            seen[place->tensor][(place->row + row) * of->columns + place->column + column]++, 0);
                for (size_t i = 0; i < place->rows * place->columns; i++)
                    assert_int_equal(used[place->first + i]++, 0);
            }
            for (size_t i = 0; i < elements; i++)
                assert_int_equal(used[i], 1);
        }
        free(used);
    }
    for (size_t h = 0; h < hf_count; h++) {
        for (uint64_t i = 0; i < (hf[h].rows ? hf[h].rows : 1) * hf[h].columns; i++)
            assert_int_equal(seen[h][i], 1);
        free(seen[h]);
    }
    free(seen);
    free(hf);
    ek_free(tensors);
}

static void test_every_element_once(void **state)
{
    (void)state;
    for (size_t model = 0; model < STATES_MODELS; model++)
        for (uint32_t blocks = 1; blocks <= 4; blocks *= 2) {
            ek_model_config config = states_model(model, blocks);
            cover(&config);
        }
}

static void test_names(void **state)
{
    (void)state;
    ek_hf_tensor *hf;
    size_t count;
    ek_model_config dense = states_model(0, 1), mixture = states_model(2, 1);
    assert_ok(ek_hf_tensors(&dense, &hf, &count));
    assert_int_equal(count, 3 + 9 * 3);
    assert_string_equal(hf[0].name, "model.embed_tokens.weight");
    assert_string_equal(hf[3].name, "model.layers.0.self_attn.k_proj.weight");
    assert_int_equal(hf[3].rows, 8);
    assert_int_equal(hf[3].columns, 16);
    assert_string_equal(hf[27].name, "model.layers.2.mlp.down_proj.weight");
    assert_string_equal(hf[count - 1].name, "lm_head.weight");
    free(hf);
    assert_ok(ek_hf_tensors(&mixture, &hf, &count));
    assert_string_equal(hf[7].name, "model.layers.0.block_sparse_moe.gate.weight");
    assert_string_equal(hf[8].name, "model.layers.0.block_sparse_moe.experts.0.w1.weight");
    free(hf);
}

static void assert_differs(const ek_model_config *config, const char *key, json_t *value)
{
    json_t *json = ek_hf_config(config);
    assert_ok(ek_hf_check_config(json, config));
    if (value)
        json_object_set_new(json, key, value);
    else
        json_object_del(json, key);
    assert_int_equal(ek_hf_check_config(json, config), EK_INVALID);
    if (!strstr(ek_error(), key))
        fail_msg("\"%s\" does not name %s", ek_error(), key);
    json_decref(json);
}

static void test_other_models_are_refused(void **state)
{
    (void)state;
    ek_model_config dense = states_model(0, 1), mixture = states_model(4, 1);
    static const char *const keys[] = {"num_hidden_layers",   "hidden_size",  "num_attention_heads",
                                       "num_key_value_heads", "head_dim",     "intermediate_size",
                                       "vocab_size",          "rms_norm_eps", "rope_theta"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        assert_differs(&dense, keys[i], json_integer(5));
        assert_differs(&dense, keys[i], json_string("5"));
    }
    static const char *const expert_keys[] = {"num_local_experts", "num_experts_per_tok", "moe_every",
                                              "shared_expert_intermediate_size"};
    for (size_t i = 0; i < sizeof expert_keys / sizeof *expert_keys; i++)
        assert_differs(&mixture, expert_keys[i], json_integer(5));
    assert_differs(&dense, "hidden_size", NULL);
    assert_differs(&mixture, "num_local_experts", NULL);
    assert_differs(&dense, "model_type", json_string("qwen2"));
    assert_differs(&dense, "model_type", NULL);
    assert_differs(&dense, "tie_word_embeddings", json_true());
    assert_differs(&dense, "attention_bias", json_true());
    assert_differs(&dense, "rope_scaling", json_pack("{s:s}", "rope_type", "llama3"));
    assert_differs(&dense, "sliding_window", json_integer(4096));
    assert_differs(&dense, "hidden_act", json_string("gelu"));
}

static void test_what_others_leave_out(void **state)
{
    (void)state;
    ek_model_config config = states_model(1, 1); /* as many key-value heads as heads, tied */
    json_t *json = ek_hf_config(&config);
    json_object_del(json, "num_key_value_heads");
    json_object_del(json, "rope_theta");
    json_object_del(json, "head_dim");
    json_object_del(json, "attention_bias");
    json_object_set_new(json, "rope_scaling", json_null());
    assert_ok(ek_hf_check_config(json, &config));
    json_object_set_new(json, "rope_parameters", json_pack("{s:f, s:s}", "rope_theta", 5e5, "rope_type", "default"));
    assert_int_equal(ek_hf_check_config(json, &config), EK_INVALID);
    config.rope_theta = 500000.0f;
    assert_ok(ek_hf_check_config(json, &config));
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_element_once),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_other_models_are_refused),
        cmocka_unit_test(test_what_others_leave_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
