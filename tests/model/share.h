/* A whole model in a test's memory, and a rank's share cut from it. */
#ifndef TESTS_MODEL_SHARE_H
#define TESTS_MODEL_SHARE_H

#include "model/model.h"

/* Weights and gradients of all units in order. */
typedef struct whole_model {
    ek_model_config config; /* not expert-parallel: a tensor's group is its kind of units */
    ek_unit_group groups[EK_MODEL_GROUPS];
    ek_tensor *tensors;
    size_t count;
    float **weights, **gradients; /* gradients are zero at first */
    ek_model_route route;         /* of whole_run; may be NULL, with its argument */
    void *user;
} whole_model;

void whole_create(whole_model *whole, const ek_model_config *config);
void whole_initialize(whole_model *whole, uint64_t seed); /* weights by ek_model_init */
void whole_scale(whole_model *whole, float factor);       /* all weights but norms: every part of the model matters */
void whole_destroy(whole_model *whole);
size_t whole_elements(const whole_model *whole, size_t tensor);

/* Copies of the units in lists[kind][0 … units[kind]-1] of each kind. */
typedef struct model_share {
    const whole_model *whole;
    uint32_t units[EK_MODEL_GROUPS];
    const uint32_t *lists[EK_MODEL_GROUPS];
    const uint32_t *expert_owners; /* not NULL: expert parallelism */
    ek_model_route route;          /* may be NULL, with its argument */
    void *user;
    float **weights, **gradients;
} model_share;

/* All but weights and gradients is set by the caller. */
void share_create(model_share *share, const whole_model *whole);
void share_destroy(model_share *share);

/* One forward and one backward of a model made for the share: the loss, and the gradients added to the share's. */
ek_status share_run(model_share *share, ek_engine *engine, ek_group *tp, const uint32_t *tokens, uint32_t B,
                    float scale, ek_model_loss *loss);

/* The largest difference between the share's gradients and the whole's, relative to the largest gradient of the
 * tensor; the worst tensor's, whose number is *worst. */
double share_gradient_error(const model_share *share, size_t *worst);

/* A share of everything, its units in the order of a permutation chosen by `key` (0: in order), run on its own: the
 * loss, and the gradients added to whole->gradients. */
void whole_run(whole_model *whole, uint64_t key, const uint32_t *tokens, uint32_t B, float scale, ek_model_loss *loss);

#endif
