/* The mixture of experts in a layer, forward and backward, whichever way the ranks of the replica are used: under
 * tensor parallelism every rank has all rows and adds its experts' part; under expert parallelism rows are dispatched.
 */
#ifndef EK_MODEL_MIXTURE_H
#define EK_MODEL_MIXTURE_H

#include "model/dispatch.h"
#include "model/model.h"
#include "nn/nn.h"

/* What forward keeps for backward of a layer with experts. N tokens, E experts, k choices each; R routes through the
 * experts held. */
typedef struct ek_mixture {
    float *probabilities; /* (N,E) */
    float *weights;       /* (N,k) */
    float *fractions;     /* (B,E) */
    uint32_t *choices;    /* (N,k) */
    ek_dispatch dispatch; /* expert parallelism */
    ek_routes routes;
    ek_buffer first, choice;         /* of routes */
    ek_buffer in, hidden, activated; /* (R,C), (R,2F), (R,F) */
} ek_mixture;

/* Scratch that the layers share. M rows that came to this rank. */
typedef struct ek_mixture_scratch {
    ek_buffer staging;     /* rows as they are sent; the others read it */
    ek_buffer results;     /* (M,C); likewise */
    ek_buffer received;    /* (M,C) */
    ek_buffer d_weights;   /* (M,k) */
    ek_buffer expert_out;  /* (R,C) */
    ek_buffer d_activated; /* (R,F) */
    float *d_logits;       /* (N,E) */
} ek_mixture_scratch;

/* Adds to model->branch (N,C) what this rank's experts, or all, make of the layer's ffn_in. *balance grows by the
 * load-balancing loss summed over the samples. weights[] are the layer's tensors by kind. */
ek_status ek_mixture_forward(ek_model *model, uint32_t layer, float *const *weights, size_t B, double *balance);

/* From model->d_residual, adds to model->branch the gradient by ffn_in but for the router's part, and leaves the
 * gradients by the weights behind it, (N,k): both are then reduced, where there is tensor parallelism. */
ek_status ek_mixture_backward(ek_model *model, uint32_t layer, float *const *weights, float *const *gradients,
                              size_t B);

/* Adds the router's part. */
void ek_mixture_router_backward(ek_model *model, uint32_t layer, float *const *weights, float *const *gradients,
                                size_t B, float balance_scale);

void ek_mixture_free(ek_mixture *mixture);
void ek_mixture_scratch_free(ek_mixture_scratch *scratch);

#endif
