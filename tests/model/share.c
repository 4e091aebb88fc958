/* A rank's share of a whole model's tensors, for tests. */
#include "share.h"

#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    assert_non_null(memory);
    return memory;
}

static float **allocate_tensors(const whole_model *whole, const uint32_t *units)
{
    float **tensors = allocate(whole->count, sizeof *tensors);
    for (size_t t = 0; t < whole->count; t++) {
        uint32_t group = whole->tensors[t].group;
        tensors[t] =
            allocate((group == EK_REPLICATED ? 1 : units[group]) * whole->tensors[t].unit_elements, sizeof(float));
    }
    return tensors;
}

static void free_tensors(float **tensors, size_t count)
{
    for (size_t t = 0; t < count; t++)
        free(tensors[t]);
    free(tensors);
}

static uint32_t unit_count(const whole_model *whole, size_t tensor)
{
    uint32_t group = whole->tensors[tensor].group;
    return group == EK_REPLICATED ? 1 : whole->groups[group].units;
}

void whole_create(whole_model *whole, const ek_model_config *config)
{
    *whole = (whole_model){.config = *config};
    ek_model_groups(config, whole->groups);
    assert_ok(ek_model_tensors(config, &whole->tensors, &whole->count));
    uint32_t units[EK_MODEL_GROUPS];
    for (int group = 0; group < EK_MODEL_GROUPS; group++)
        units[group] = whole->groups[group].units;
    whole->weights = allocate_tensors(whole, units);
    whole->gradients = allocate_tensors(whole, units);
}

void whole_initialize(whole_model *whole, uint64_t seed)
{
    for (size_t t = 0; t < whole->count; t++)
        for (uint32_t unit = 0; unit < unit_count(whole, t); unit++)
            ek_model_init(&whole->config, seed, t, unit, whole->weights[t] + unit * whole->tensors[t].unit_elements);
}

void whole_scale(whole_model *whole, float factor)
{
    for (size_t t = 0; t < whole->count; t++)
        for (size_t i = 0; i < whole_elements(whole, t) && ek_model_decays(&whole->config, t); i++)
            whole->weights[t][i] *= factor;
}

void whole_destroy(whole_model *whole)
{
    free_tensors(whole->weights, whole->count);
    free_tensors(whole->gradients, whole->count);
    ek_free(whole->tensors);
}

size_t whole_elements(const whole_model *whole, size_t tensor)
{
    return unit_count(whole, tensor) * whole->tensors[tensor].unit_elements;
}

/* Units of tensor t that the share holds; *unit_of maps their positions to units (NULL: a replicated tensor). */
static uint32_t held(const model_share *share, size_t t, const uint32_t **unit_of)
{
    uint32_t group = share->whole->tensors[t].group;
    *unit_of = group == EK_REPLICATED ? NULL : share->lists[group];
    return group == EK_REPLICATED ? 1 : share->units[group];
}

void share_create(model_share *share, const whole_model *whole)
{
    share->whole = whole;
    share->weights = allocate_tensors(whole, share->units);
    share->gradients = allocate_tensors(whole, share->units);
    for (size_t t = 0; t < whole->count; t++) {
        size_t elements = whole->tensors[t].unit_elements;
        const uint32_t *unit_of;
        uint32_t count = held(share, t, &unit_of);
        for (uint32_t i = 0; i < count; i++)
            memcpy(share->weights[t] + i * elements, whole->weights[t] + (unit_of ? unit_of[i] : 0) * elements,
                   elements * sizeof(float));
    }
}

void share_destroy(model_share *share)
{
    free_tensors(share->weights, share->whole->count);
    free_tensors(share->gradients, share->whole->count);
}

ek_status share_run(model_share *share, ek_engine *engine, ek_group *tp, const uint32_t *tokens, uint32_t B,
                    float scale, ek_model_loss *loss)
{
    ek_model_config config = share->whole->config;
    config.expert_parallel = share->expert_owners != NULL;
    ek_model_options options = {.config = &config,
                                .engine = engine,
                                .tp = tp,
                                .vocab_units = share->lists[EK_GROUP_VOCAB],
                                .expert_units = share->lists[EK_GROUP_EXPERTS],
                                .expert_owners = share->expert_owners,
                                .micro_batch = B ? B : 1,
                                .route = share->route,
                                .user = share->user};
    memcpy(options.units, share->units, sizeof options.units);
    ek_model *model;
    ek_status status = ek_model_create(&model, &options);
    if (status != EK_OK)
        return status;
    status = ek_model_forward(model, share->weights, tokens, B, loss);
    if (status == EK_OK)
        status = ek_model_backward(model, share->weights, share->gradients, tokens, B, scale, true);
    ek_model_destroy(model);
    return status;
}

double share_gradient_error(const model_share *share, size_t *worst)
{
    double worst_error = -1.0;
    for (size_t t = 0; t < share->whole->count; t++) {
        const float *expected = share->whole->gradients[t];
        size_t elements = share->whole->tensors[t].unit_elements;
        double largest = 0.0, difference = 0.0;
        for (size_t i = 0; i < whole_elements(share->whole, t); i++)
            largest = fmax(largest, fabs((double)expected[i]));
        const uint32_t *unit_of;
        uint32_t count = held(share, t, &unit_of);
        for (size_t i = 0; i < count * elements; i++) {
            size_t unit = unit_of ? unit_of[i / elements] : 0;
            difference = fmax(difference,
                              fabs((double)share->gradients[t][i] - (double)expected[unit * elements + i % elements]));
        }
        double error = largest > 0.0 ? difference / largest : INFINITY; /* no gradient at all is an error too */
        if (!(error <= worst_error)) {
            worst_error = error;
            *worst = t;
        }
    }
    return worst_error;
}

void whole_run(whole_model *whole, uint64_t key, const uint32_t *tokens, uint32_t B, float scale, ek_model_loss *loss)
{
    model_share share = {.route = whole->route, .user = whole->user};
    uint32_t *lists[EK_MODEL_GROUPS];
    for (uint32_t group = 0; group < EK_MODEL_GROUPS; group++) {
        uint32_t units = whole->groups[group].units;
        lists[group] = allocate(units, sizeof *lists[group]);
        for (uint32_t i = 0; i < units; i++)
            lists[group][i] = key == 0 ? i : (uint32_t)ek_random_permute(key + group, i, units);
        share.units[group] = units;
        share.lists[group] = lists[group];
    }
    share_create(&share, whole);
    assert_ok(share_run(&share, NULL, NULL, tokens, B, scale, loss));
    for (size_t t = 0; t < whole->count; t++) {
        size_t elements = whole->tensors[t].unit_elements;
        const uint32_t *unit_of;
        uint32_t count = held(&share, t, &unit_of);
        for (size_t i = 0; i < count * elements; i++)
            whole->gradients[t][(unit_of ? unit_of[i / elements] : 0) * elements + i % elements] +=
                share.gradients[t][i];
    }
    share_destroy(&share);
    for (int group = 0; group < EK_MODEL_GROUPS; group++)
        free(lists[group]);
}
