/* When the progress callback is called, and that its status ends a pass. */
#include "testing.h"

#include <stdlib.h>
#include <string.h>

#include "share.h"

enum { LAYERS = 3, BATCH = 2, SEQUENCE = 5, VOCAB = 16, MOST_CALLS = 32 };

typedef struct call_record {
    struct {
        bool backward;
        int bucket;
    } calls[MOST_CALLS];
    size_t count, fail_at; /* the call that is answered with EK_PEER_LOST; SIZE_MAX: none */
} call_record;

static ek_status on_progress(void *user, bool backward, int bucket)
{
    call_record *record = user;
    assert_true(record->count < MOST_CALLS);
    record->calls[record->count].backward = backward;
    record->calls[record->count].bucket = bucket;
    return record->count++ == record->fail_at ? EK_PEER_LOST : EK_OK;
}

static ek_model_config make_config(bool tied)
{
    ek_model_config config = {.layers = LAYERS,
                              .hidden = 8,
                              .heads = 2,
                              .kv_heads = 2,
                              .ffn = 8,
                              .vocab = VOCAB,
                              .sequence = SEQUENCE,
                              .tied_embeddings = tied,
                              .rope_theta = 10000.0f,
                              .norm_eps = 1e-5f};
    assert_ok(ek_model_config_finish(&config, 1));
    return config;
}

/* A model of its own with the callback. */
static ek_model *make_model(const whole_model *whole, ek_model_progress progress, void *user)
{
    uint32_t vocab_units[VOCAB];
    for (uint32_t unit = 0; unit < VOCAB; unit++)
        vocab_units[unit] = unit;
    ek_model_options options = {
        .config = &whole->config, .vocab_units = vocab_units, .micro_batch = BATCH, .progress = progress, .user = user};
    for (int group = 0; group < EK_MODEL_GROUPS; group++)
        options.units[group] = whole->groups[group].units;
    ek_model *model;
    assert_ok(ek_model_create(&model, &options));
    return model;
}

static void make_tokens(uint32_t tokens[BATCH * (SEQUENCE + 1)])
{
    for (uint32_t i = 0; i < BATCH * (SEQUENCE + 1); i++)
        tokens[i] = i * 7 % VOCAB;
}

static void check_order(bool tied)
{
    ek_model_config config = make_config(tied);
    whole_model whole;
    whole_create(&whole, &config);
    whole_initialize(&whole, 1);
    call_record record = {.fail_at = SIZE_MAX};
    ek_model *model = make_model(&whole, on_progress, &record);
    uint32_t tokens[BATCH * (SEQUENCE + 1)];
    make_tokens(tokens);
    ek_model_loss loss;
    for (int last = 0; last < 2; last++) {
        record.count = 0;
        assert_ok(ek_model_forward(model, whole.weights, tokens, BATCH, &loss));
        size_t forward_calls = record.count;
        assert_int_equal(forward_calls, LAYERS);
        assert_ok(ek_model_backward(model, whole.weights, whole.gradients, tokens, BATCH, 1.0f, last));
        assert_int_equal(record.count - forward_calls, LAYERS + 2); /* head, layers, the rest */
        for (size_t i = 0; i < record.count; i++) {
            assert_true(record.calls[i].backward == (i >= forward_calls));
            int bucket = (int)(i - forward_calls) - tied; /* with a tied head the first call completes no bucket */
            assert_int_equal(record.calls[i].bucket, i >= forward_calls && last ? bucket : -1);
        }
        assert_int_equal(record.calls[record.count - 1].bucket, last ? (int)ek_model_buckets(&config) - 1 : -1);
    }
    ek_model_destroy(model);
    whole_destroy(&whole);
}

static void buckets_come_in_order(void **state)
{
    (void)state;
    check_order(false);
    check_order(true);
}

/* A bucket's gradients do not change any more after it is reported: what backward leaves equals what the callback
 * saw. */
typedef struct bucket_snapshot {
    const whole_model *whole;
    float **seen; /* copies taken when the tensor's bucket was reported */
} bucket_snapshot;

static ek_status take_snapshot(void *user, bool backward, int bucket)
{
    (void)backward;
    bucket_snapshot *snapshot = user;
    for (size_t t = 0; t < snapshot->whole->count; t++)
        if ((int)snapshot->whole->tensors[t].bucket == bucket) {
            size_t bytes = whole_elements(snapshot->whole, t) * sizeof(float);
            assert_null(snapshot->seen[t]);
            snapshot->seen[t] = malloc(bytes);
            assert_non_null(snapshot->seen[t]);
            memcpy(snapshot->seen[t], snapshot->whole->gradients[t], bytes);
        }
    return EK_OK;
}

static void reported_buckets_are_complete(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        ek_model_config config = make_config(tied);
        whole_model whole;
        whole_create(&whole, &config);
        whole_initialize(&whole, 1);
        bucket_snapshot snapshot = {.whole = &whole, .seen = calloc(whole.count, sizeof *snapshot.seen)};
        assert_non_null(snapshot.seen);
        ek_model *model = make_model(&whole, take_snapshot, &snapshot);
        uint32_t tokens[BATCH * (SEQUENCE + 1)];
        make_tokens(tokens);
        ek_model_loss loss;
        assert_ok(ek_model_forward(model, whole.weights, tokens, BATCH, &loss));
        assert_ok(ek_model_backward(model, whole.weights, whole.gradients, tokens, BATCH, 1.0f, true));
        for (size_t t = 0; t < whole.count; t++) {
            assert_non_null(snapshot.seen[t]);
            assert_memory_equal(snapshot.seen[t], whole.gradients[t], whole_elements(&whole, t) * sizeof(float));
            free(snapshot.seen[t]);
        }
        free(snapshot.seen);
        ek_model_destroy(model);
        whole_destroy(&whole);
    }
}

static void a_status_ends_the_pass(void **state)
{
    (void)state;
    ek_model_config config = make_config(false);
    whole_model whole;
    whole_create(&whole, &config);
    whole_initialize(&whole, 1);
    call_record record = {.fail_at = SIZE_MAX};
    ek_model *model = make_model(&whole, on_progress, &record);
    uint32_t tokens[BATCH * (SEQUENCE + 1)];
    make_tokens(tokens);
    ek_model_loss loss, first_loss;
    for (size_t fail_at = 0; fail_at < 2 * LAYERS + 2; fail_at++) {
        record.count = 0;
        record.fail_at = fail_at;
        ek_status status = ek_model_forward(model, whole.weights, tokens, BATCH, &loss);
        if (fail_at >= LAYERS) {
            assert_ok(status);
            status = ek_model_backward(model, whole.weights, whole.gradients, tokens, BATCH, 1.0f, true);
        }
        assert_int_equal(status, EK_PEER_LOST);
        assert_int_equal(record.count, fail_at + 1);
    }
    record.count = 0; /* the model can be used again after that */
    record.fail_at = SIZE_MAX;
    assert_ok(ek_model_forward(model, whole.weights, tokens, BATCH, &loss));
    whole_run(&whole, 0, tokens, BATCH, 1.0f, &first_loss);
    assert_true(loss.cross_entropy == first_loss.cross_entropy);
    ek_model_destroy(model);
    whole_destroy(&whole);
}

static void fewer_sequences_than_the_most(void **state)
{
    (void)state;
    ek_model_config config = make_config(false);
    whole_model whole;
    whole_create(&whole, &config);
    whole_initialize(&whole, 1);
    call_record record = {.fail_at = SIZE_MAX};
    ek_model *model = make_model(&whole, on_progress, &record);
    uint32_t tokens[BATCH * (SEQUENCE + 1)];
    make_tokens(tokens);
    ek_model_loss both, first, second;
    assert_ok(ek_model_forward(model, whole.weights, tokens, 2, &both));
    assert_ok(ek_model_forward(model, whole.weights, tokens, 1, &first));
    assert_ok(ek_model_forward(model, whole.weights, tokens + SEQUENCE + 1, 1, &second));
    assert_true(first.cross_entropy != second.cross_entropy);
    assert_float_equal(first.cross_entropy + second.cross_entropy, both.cross_entropy, 1e-5);
    ek_model_destroy(model);
    whole_destroy(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_come_in_order),
        cmocka_unit_test(reported_buckets_are_complete),
        cmocka_unit_test(a_status_ends_the_pass),
        cmocka_unit_test(fewer_sequences_than_the_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
