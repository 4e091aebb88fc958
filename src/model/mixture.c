/* A layer's mixture of experts: router, the way of the tokens, the experts held. */
#include "model/mixture.h"

#include <string.h>

#include "base/error.h"
#include "model/arena.h"
#include "model/tensors.h"
#include "nn/gemm.h"

void ek_mixture_free(ek_mixture *mixture)
{
    ek_dispatch_free(&mixture->dispatch);
    ek_buffer *const buffers[] = {&mixture->first, &mixture->choice, &mixture->in, &mixture->hidden,
                                  &mixture->activated};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        ek_buffer_free(buffers[i]);
}

void ek_mixture_scratch_free(ek_mixture_scratch *scratch)
{
    ek_buffer *const buffers[] = {&scratch->staging,   &scratch->received,   &scratch->results,
                                  &scratch->d_weights, &scratch->expert_out, &scratch->d_activated};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        ek_buffer_free(buffers[i]);
}

static ek_status reserve_floats(ek_buffer *buffer, size_t count)
{
    return ek_buffer_reserve(buffer, count * sizeof(float));
}

/* The group in which tokens travel; NULL where they stay. */
static ek_group *dispatch_group(const ek_model *model)
{
    return model->config.expert_parallel ? model->tp : NULL;
}

/* -------------------------------------------------------------------------------------------------- forward */

static ek_status choose(ek_model *model, uint32_t l, float *const *weights, size_t B, double *balance)
{
    ek_mixture *mixture = model->layers[l].mixture;
    size_t N = B * model->T, C = model->C, E = model->config.experts, k = model->config.top_k;
    model->flops +=
        ek_linear_forward(mixture->probabilities, model->layers[l].ffn_in, weights[EK_LAYER_ROUTER], N, C, E);
    ek_router_softmax(mixture->probabilities, N, E);
    ek_router_choose(mixture->choices, mixture->probabilities, N, E, k);
    if (model->route)
        EK_TRY(model->route(model->user, l / model->config.moe_every, (uint32_t)B, mixture->choices));
    ek_router_weights(mixture->weights, mixture->probabilities, mixture->choices, N, E, k);
    *balance += ek_router_balance(mixture->fractions, mixture->probabilities, mixture->choices, B, model->T, E, k);
    return EK_OK;
}

/* The experts held, for M rows with their choices and weights; adds to out (M,C). */
static ek_status run_experts(ek_model *model, ek_mixture *mixture, float *const *weights, float *out, const float *rows,
                             const uint32_t *choices, const float *choice_weights, size_t M)
{
    size_t C = model->C, F = model->config.expert_ffn, U = model->U, k = model->config.top_k;
    EK_TRY(ek_buffer_reserve(&mixture->first, (U + 1) * sizeof(size_t)));
    EK_TRY(ek_buffer_reserve(&mixture->choice, M * k * sizeof(uint32_t)));
    mixture->routes = (ek_routes){.U = U, .k = k, .first = mixture->first.memory, .choice = mixture->choice.memory};
    ek_routes_find(&mixture->routes, choices, model->held, M);
    size_t R = mixture->routes.first[U];
    EK_TRY(reserve_floats(&mixture->in, R * C));
    EK_TRY(reserve_floats(&mixture->hidden, R * 2 * F));
    EK_TRY(reserve_floats(&mixture->activated, R * F));
    EK_TRY(reserve_floats(&model->mixtures.expert_out, R * C));
    model->flops +=
        ek_experts_forward(out, mixture->in.memory, mixture->hidden.memory, mixture->activated.memory,
                           model->mixtures.expert_out.memory, rows, choice_weights, weights[EK_LAYER_EXPERTS_GATE_UP],
                           weights[EK_LAYER_EXPERTS_DOWN], &mixture->routes, C, F);
    return EK_OK;
}

ek_status ek_mixture_forward(ek_model *model, uint32_t l, float *const *weights, size_t B, double *balance)
{
    const ek_layer_activations *layer = &model->layers[l];
    ek_mixture *mixture = layer->mixture;
    ek_mixture_scratch *scratch = &model->mixtures;
    ek_group *group = dispatch_group(model);
    size_t N = B * model->T, C = model->C;
    EK_TRY(choose(model, l, weights, B, balance));
    if (!group)
        return run_experts(model, mixture, weights, model->branch, layer->ffn_in, mixture->choices, mixture->weights,
                           N);
    ek_dispatch *dispatch = &mixture->dispatch;
    EK_TRY(ek_dispatch_plan(dispatch, group, &scratch->staging, mixture->choices, mixture->weights, model->owner, N,
                            model->config.top_k));
    size_t M = dispatch->received;
    EK_TRY(reserve_floats(&scratch->received, M * C));
    EK_TRY(reserve_floats(&scratch->results, M * C));
    EK_TRY(ek_dispatch_send(dispatch, group, &scratch->staging, scratch->received.memory, layer->ffn_in, C));
    memset(scratch->results.memory, 0, M * C * sizeof(float));
    EK_TRY(run_experts(model, mixture, weights, scratch->results.memory, scratch->received.memory,
                       ek_dispatch_choices(dispatch), ek_dispatch_weights(dispatch), M));
    return ek_dispatch_return(dispatch, group, &scratch->staging, model->branch, scratch->results.memory, C);
}

/* ------------------------------------------------------------------------------------------------- backward */

/* Adds to d_rows (M,C), from d_out (M,C); d_weights (M,k). */
static ek_status run_experts_backward(ek_model *model, ek_mixture *mixture, float *const *weights,
                                      float *const *gradients, float *d_rows, float *d_weights, const float *d_out,
                                      const float *choice_weights, size_t M)
{
    size_t C = model->C, F = model->config.expert_ffn, R = mixture->routes.first[mixture->routes.U];
    ek_mixture_scratch *scratch = &model->mixtures;
    EK_TRY(reserve_floats(&scratch->expert_out, R * C));
    EK_TRY(reserve_floats(&scratch->d_activated, R * F));
    model->flops += ek_experts_backward(
        d_rows, d_weights, gradients[EK_LAYER_EXPERTS_GATE_UP], gradients[EK_LAYER_EXPERTS_DOWN],
        mixture->hidden.memory, mixture->activated.memory, scratch->d_activated.memory, scratch->expert_out.memory,
        d_out, mixture->in.memory, choice_weights, weights[EK_LAYER_EXPERTS_GATE_UP], weights[EK_LAYER_EXPERTS_DOWN],
        &mixture->routes, M, C, F);
    return EK_OK;
}

ek_status ek_mixture_backward(ek_model *model, uint32_t l, float *const *weights, float *const *gradients, size_t B)
{
    ek_mixture *mixture = model->layers[l].mixture;
    ek_mixture_scratch *scratch = &model->mixtures;
    ek_group *group = dispatch_group(model);
    size_t N = B * model->T, C = model->C, k = model->config.top_k;
    float *d_weights = model->branch + N * C;
    if (!group)
        return run_experts_backward(model, mixture, weights, gradients, model->branch, d_weights, model->d_residual,
                                    mixture->weights, N);
    ek_dispatch *dispatch = &mixture->dispatch;
    size_t M = dispatch->received;
    EK_TRY(reserve_floats(&scratch->received, M * C));
    EK_TRY(reserve_floats(&scratch->results, M * C));
    EK_TRY(reserve_floats(&scratch->d_weights, M * k));
    EK_TRY(ek_dispatch_send(dispatch, group, &scratch->staging, scratch->received.memory, model->d_residual, C));
    memset(scratch->results.memory, 0, M * C * sizeof(float));
    EK_TRY(run_experts_backward(model, mixture, weights, gradients, scratch->results.memory, scratch->d_weights.memory,
                                scratch->received.memory, ek_dispatch_weights(dispatch), M));
    EK_TRY(ek_dispatch_return(dispatch, group, &scratch->staging, model->branch, scratch->results.memory, C));
    memset(d_weights, 0, N * k * sizeof *d_weights);
    return ek_dispatch_return(dispatch, group, &scratch->staging, d_weights, scratch->d_weights.memory, k);
}

void ek_mixture_router_backward(ek_model *model, uint32_t l, float *const *weights, float *const *gradients, size_t B,
                                float balance_scale)
{
    const ek_layer_activations *layer = &model->layers[l];
    const ek_mixture *mixture = layer->mixture;
    size_t T = model->T, N = B * T, C = model->C, E = model->config.experts, k = model->config.top_k;
    float *d_logits = model->mixtures.d_logits;
    ek_router_backward(d_logits, model->branch + N * C, mixture->probabilities, mixture->weights, mixture->choices,
                       mixture->fractions, balance_scale, B, T, E, k);
    model->flops += ek_gemm(model->branch, C, 1.0f, (ek_matrix){d_logits, E, false},
                            (ek_matrix){weights[EK_LAYER_ROUTER], C, false}, 1.0f, N, C, E);
    model->flops += ek_gemm(gradients[EK_LAYER_ROUTER], C, 1.0f, (ek_matrix){d_logits, E, true},
                            (ek_matrix){layer->ffn_in, C, false}, 1.0f, E, C, N);
}
