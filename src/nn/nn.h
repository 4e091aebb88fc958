/* The operators of the model on one device: forward beside backward, plain functions on pointers, fp32, row-major.
 *
 * Letters: B sequences, T tokens of a sequence, N = B T tokens, C hidden, G KV heads, R query heads of each KV head, D
 * head dimension, F FFN columns in blocks of f, V vocabulary rows held, I inputs and O outputs of a linear map.
 *
 * d_x is the gradient of the loss by x and has x's shape. Backward adds to d_weight and overwrites every other
 * gradient, except where it says that it adds. Results do not depend on where the data lies in memory: equal inputs
 * give equal bits.
 *
 * Linear maps and attention return the floating-point operations of the matrix products that they have done, two for
 * each multiplication and addition: nearly all the work there is. */
#ifndef EK_NN_NN_H
#define EK_NN_NN_H

#include <stddef.h>
#include <stdint.h>

/* Matrix products run in the thread that calls them: a rank has one compute thread. For the whole process. */
void ek_nn_use_one_thread(void);

/* out (N,O) = in (N,I) weight (O,I)^T */
uint64_t ek_linear_forward(float *out, const float *in, const float *weight, size_t N, size_t I, size_t O);
uint64_t ek_linear_backward(float *d_in, float *d_weight, const float *d_out, const float *in, const float *weight,
                            size_t N, size_t I, size_t O);

/* out (N,O) = in (N,I) weight (I,O): a weight stored by its inputs, so that a share of them is one run of memory */
uint64_t ek_linear_by_input_forward(float *out, const float *in, const float *weight, size_t N, size_t I, size_t O);
uint64_t ek_linear_by_input_backward(float *d_in, float *d_weight, const float *d_out, const float *in,
                                     const float *weight, size_t N, size_t I, size_t O);

/* out (N,C) = in / rms(in) * weight (C), inverse_rms (N) = 1 / sqrt(mean(in^2) + epsilon). With `branch` (N,C; may be
 * NULL), in = residual + branch is stored to `in` first; without, `in` is read and residual ignored. */
void ek_rmsnorm_forward(float *out, float *inverse_rms, float *in, const float *residual, const float *branch,
                        const float *weight, float epsilon, size_t N, size_t C);
/* Adds to d_in. */
void ek_rmsnorm_backward(float *d_in, float *d_weight, const float *d_out, const float *in, const float *inverse_rms,
                         const float *weight, size_t N, size_t C);

/* Rotary position embedding of the query and key heads of qkv (B,T,G,R+2,D), in place: elements i and i + D/2 of a head
 * are turned by the angle t theta^(-2i/D). table (T,2,D/2): cosines, sines. Backward turns d_qkv back. */
void ek_rope_table(float *table, float theta, size_t T, size_t D);
void ek_rope_forward(float *qkv, const float *table, size_t B, size_t T, size_t G, size_t R, size_t D);
void ek_rope_backward(float *d_qkv, const float *table, size_t B, size_t T, size_t G, size_t R, size_t D);

/* Causal attention. qkv (B,T,G,R+2,D): per KV head R query heads, the key head, the value head. out (B,T,G,R,D).
 * probabilities (B,G,R,ek_attention_probabilities(T)) are kept for backward: the lower triangle only, in blocks of
 * rows. Backward needs ek_attention_scratch(T) floats of scratch. */
size_t ek_attention_probabilities(size_t T);
size_t ek_attention_scratch(size_t T);
uint64_t ek_attention_forward(float *out, float *probabilities, const float *qkv, size_t B, size_t T, size_t G,
                              size_t R, size_t D);
uint64_t ek_attention_backward(float *d_qkv, const float *d_out, const float *out, const float *probabilities,
                               const float *qkv, float *scratch, size_t B, size_t T, size_t G, size_t R, size_t D);

/* out (N,F/f,f) = silu(gate) * up, gate_up (N,F/f,2,f): blocks of gate columns and of up columns in turn. Backward
 * replaces gate_up by its gradient. */
void ek_swiglu_forward(float *out, const float *gate_up, size_t N, size_t F, size_t f);
void ek_swiglu_backward(float *gate_up, const float *d_out, size_t N, size_t F, size_t f);

/* Tables of vocabulary rows of which only some are held: row_of[token] is the token's row, or EK_NO_ROW. */
#define EK_NO_ROW UINT32_MAX

/* out (N,C) = weight[row_of[token]] (V,C), 0 where the row is not held. */
void ek_embedding_forward(float *out, const float *weight, const uint32_t *tokens, const uint32_t *row_of, size_t N,
                          size_t C);
void ek_embedding_backward(float *d_weight, const float *d_out, const uint32_t *tokens, const uint32_t *row_of,
                           size_t N, size_t C);

/* Cross-entropy of logits (N,V) that may be a part of the columns. The caller reduces what the parts give:
 *     max (N)      of each row's logits;                  then the maximum over the parts
 *     sums (2,N)   of exp(logit - max), which replaces the logits, and the target's logit - max (0 where its column is
 *                  not held);                             then the sum over the parts
 * Backward turns exp(logit - max) into the gradient of scale * loss. */
void ek_cross_entropy_max(float *max, const float *logits, size_t N, size_t V);
void ek_cross_entropy_sums(float *sums, float *logits, const float *max, const uint32_t *targets,
                           const uint32_t *row_of, size_t N, size_t V);
double ek_cross_entropy_loss(const float *sums, size_t N); /* summed over the N tokens */
void ek_cross_entropy_backward(float *logits, const float *sums, const uint32_t *targets, const uint32_t *row_of,
                               float scale, size_t N, size_t V);

/* Mixture of experts: E experts of F columns each, of which every token takes k. A router's logits (N,E) become
 * probabilities in place; choices (N,k) are the k most probable experts of a token, the most probable first (ties: the
 * lower expert); their weights (N,k) are the probabilities divided by their sum, as in Mixtral. */
void ek_router_softmax(float *probabilities, size_t N, size_t E);
void ek_router_choose(uint32_t *choices, const float *probabilities, size_t N, size_t E, size_t k);
void ek_router_weights(float *weights, const float *probabilities, const uint32_t *choices, size_t N, size_t E,
                       size_t k);
/* The load-balancing loss (Fedus et al., "Switch Transformers", 2021), of each sequence by itself: E times the sum over
 * the experts of the fraction of the sequence's choices that fell on the expert and of its mean probability; 1 when
 * balanced. Returns the sum over B sequences; fractions (B,E) are kept for backward. */
double ek_router_balance(float *fractions, const float *probabilities, const uint32_t *choices, size_t B, size_t T,
                         size_t E, size_t k);
/* d_logits (N,E), from d_weights (N,k) and the gradient of balance_scale times the load-balancing loss. */
void ek_router_backward(float *d_logits, const float *d_weights, const float *probabilities, const float *weights,
                        const uint32_t *choices, const float *fractions, float balance_scale, size_t B, size_t T,
                        size_t E, size_t k);

/* Which rows go through which of the U experts held: route i from first[u] to first[u + 1]-1 takes row choice[i] / k
 * through expert u, with the weight of that choice. */
typedef struct ek_routes {
    size_t U, k;
    size_t *first;    /* (U+1) */
    uint32_t *choice; /* (first[U]) index into (N,k), ascending for each expert */
} ek_routes;

/* The routes of N rows' choices (N,k): held[expert] is the expert's number among the U held, or EK_NO_ROW. `choice` has
 * room for N k. */
void ek_routes_find(ek_routes *routes, const uint32_t *choices, const uint32_t *held, size_t N);

/* Adds to out (N,C) the sum over a row's experts that are held of weight * SwiGLU FFN(row). gate_up
 * (U,2F,C): gate rows, then up rows; down (U,F,C). in (R,C), hidden (R,2F), activated (R,F) are kept for backward, R =
 * first[U] routes. scratch (R,C). */
uint64_t ek_experts_forward(float *out, float *in, float *hidden, float *activated, float *scratch, const float *rows,
                            const float *weights, const float *gate_up, const float *down, const ek_routes *routes,
                            size_t C, size_t F);
/* Adds to d_rows (N,C), d_gate_up and d_down; d_weights (N,k) is 0 for what is not held. Overwrites hidden and
 * activated; d_activated (R,F) and scratch (R,C) are scratch. */
uint64_t ek_experts_backward(float *d_rows, float *d_weights, float *d_gate_up, float *d_down, float *hidden,
                             float *activated, float *d_activated, float *scratch, const float *d_out, const float *in,
                             const float *weights, const float *gate_up, const float *down, const ek_routes *routes,
                             size_t N, size_t C, size_t F);

#endif
