/* The sharded transformer: a Llama-style model (conventions of Hugging Face's Llama: half-split RoPE, RMSNorm, SwiGLU,
 * grouped-query attention, no biases; with experts, of its Mixtral) as one rank of a replica computes it, on any layout
 * and role, forward and backward, fp32.
 *
 * Letters: B sequences of a micro-batch, T tokens of a sequence, C hidden, H query heads, G KV heads, D head dimension
 * C/H, F FFN columns, V vocabulary; u units of the rank's share, a, f, v elements per unit.
 *
 * Kinds of units: attention, one KV head with its H/G query heads; ffn, ffn_block columns; vocab, vocab_block rows;
 * experts, one expert.
 *
 * A layer with index l divisible by moe_every has a mixture of experts in place of its FFN, if there are experts: E
 * experts of F' = expert_ffn columns each, one unit of the group `experts` each. Its router sends every token to top_k
 * of them (nn.h); no token is dropped. A shared expert is an FFN that every token goes through besides.
 *
 * All sharded tensors are unit-major, a unit is one contiguous run:
 *
 *   embedding        vocab      (vocab_block, C) rows
 *   layer.N.qkv      attention  ((H/G + 2) D, C): the query heads, then the key head, then the value head, as rows of
 *                               W (out, in)
 *   layer.N.out      attention  ((H/G) D, C): rows of the transposed output projection (in, out)
 *   layer.N.gate_up  ffn        (2 ffn_block, C): the gate rows, then the up rows
 *   layer.N.down     ffn        (ffn_block, C): rows of the transposed down projection (in, out)
 *   layer.N.router          (E, C), replicated
 *   layer.N.experts.gate_up experts    (2 F', C): the gate rows, then the up rows
 *   layer.N.experts.down    experts    (F', C): rows of the transposed down projection (in, out)
 *   head             vocab      (vocab_block, C) rows; absent with tied embeddings
 *   layer.N.attention_norm, layer.N.ffn_norm, norm   (C), replicated
 *
 * gate_up and down are absent in a layer with experts, unless it has a shared one.
 *
 * Two ways to use the ranks of a replica (`expert_parallel`). Tensor parallelism, as above: all see the same tokens,
 * each computes its units, of experts too. Expert parallelism: each has its own samples and whole copies of all tensors
 * but the experts' (attention, ffn and vocab tensors then are replicated and `partial`, in the order of their units);
 * tokens travel to the ranks that hold their experts and back (dispatch.h). */
#ifndef EK_MODEL_MODEL_H
#define EK_MODEL_MODEL_H

#include <evenkeel.h>

typedef struct ek_model_config {
    uint32_t layers, hidden, heads, kv_heads, ffn, vocab, sequence;
    uint32_t ffn_block, vocab_block; /* 0: chosen by ek_model_config_finish */
    bool tied_embeddings;
    float rope_theta, norm_eps;
    uint32_t experts;                      /* 0: a dense model; all below is then ignored */
    uint32_t top_k, moe_every, expert_ffn; /* expert_ffn 0: ffn */
    bool shared_expert;                    /* of ffn columns */
    float aux_loss;                        /* coefficient of the load-balancing loss */
    bool expert_parallel;
} ek_model_config;

/* Kinds of units. */
enum { EK_GROUP_ATTENTION, EK_GROUP_FFN, EK_GROUP_VOCAB, EK_GROUP_EXPERTS, EK_MODEL_GROUPS };

/* Fills in the block sizes (the largest power of two up to 64 that divides the size and leaves at least 4 * base_degree
 * units, else 1) and checks that the model can be built and cut `base_degree` ways; EK_INVALID names the key
 * ("model.kv_heads: …") and what is allowed. */
ek_status ek_model_config_finish(ek_model_config *config, uint32_t base_degree);

/* The unit groups that the model is cut by; unit_bytes is left 0. Returns how many: kinds that are not cut (experts of
 * a dense model, all others in expert parallelism) are not among them. */
uint32_t ek_model_groups(const ek_model_config *config, ek_unit_group groups[EK_MODEL_GROUPS]);
/* The index of a kind among them; EK_REPLICATED: every rank holds all of its units; EK_NONE: the model has none. */
uint32_t ek_model_group(const ek_model_config *config, uint32_t kind);
/* How many units of a kind the model has. */
uint32_t ek_model_units(const ek_model_config *config, uint32_t kind);
bool ek_model_is_moe(const ek_model_config *config, uint32_t layer);
/* Layers with experts. */
uint32_t ek_model_moe_layers(const ek_model_config *config);

/* The model's tensors, in a fixed order, with buckets numbered in the order in which backward completes them: the head,
 * the layers from the last to the first, then embedding and all replicated tensors. *tensors (and the names) is one
 * block released with ek_free. */
ek_status ek_model_tensors(const ek_model_config *config, ek_tensor **tensors, size_t *count);
uint32_t ek_model_buckets(const ek_model_config *config);
/* A tensor's units, whether it is cut by them or every rank holds them all, one after the other: how many, and the
 * elements of each. Norms and routers are one. */
uint32_t ek_model_tensor_units(const ek_model_config *config, size_t tensor, size_t *unit_elements);
/* Whether weight decay applies: to matrices, not to norms. */
bool ek_model_decays(const ek_model_config *config, size_t tensor);
uint64_t ek_model_parameters(const ek_model_config *config);

/* Initial weights of one unit of a tensor (unit 0 of a replicated one), from (seed, tensor, element) alone. Normal with
 * standard deviation 0.02, the projections back into the residual stream (out, down) divided by sqrt(2 layers); norms
 * are 1. */
void ek_model_init(const ek_model_config *config, uint64_t seed, size_t tensor, uint32_t unit, float *values);

/* One rank's share of the model: activations of one micro-batch in one arena, tables, no weights. */
typedef struct ek_model ek_model;

/* Called between layers, forward and backward; a status other than EK_OK ends the pass with it. In backward bucket >= 0
 * says that the gradients of that bucket are complete (in order 0, 1, …); otherwise it is -1. */
typedef ek_status (*ek_model_progress)(void *user, bool backward, int bucket);

/* Called in forward with the choices (B,T,top_k) of experts of a layer, the moe_layer-th that has some, before they are
 * followed; it may read or change them. */
typedef ek_status (*ek_model_route)(void *user, uint32_t moe_layer, uint32_t B, uint32_t *choices);

typedef struct ek_model_options {
    const ek_model_config *config;   /* copied; finished */
    ek_engine *engine;               /* for memory; NULL: ordinary memory (then tp must be NULL) */
    ek_group *tp;                    /* the replica's group on the compute lane; NULL for a rank alone */
    uint32_t units[EK_MODEL_GROUPS]; /* units of each kind that this rank holds */
    const uint32_t *vocab_units;   /* [units[EK_GROUP_VOCAB]] which: the order of the rank's rows; copied. NULL: all */
    const uint32_t *expert_units;  /* [units[EK_GROUP_EXPERTS]] likewise. NULL: all */
    const uint32_t *expert_owners; /* expert parallelism: [experts] the member of `tp` that holds it; copied */
    uint32_t micro_batch;          /* the largest B */
    ek_model_progress progress;    /* may be NULL */
    ek_model_route route;          /* may be NULL */
    void *user;
} ek_model_options;

ek_status ek_model_create(ek_model **model, const ek_model_options *options);
void ek_model_destroy(ek_model *model);

/* Gives the model another group (NULL: none) and other owners of experts, as after a recovery that left its own units
 * as they were. */
void ek_model_regroup(ek_model *model, ek_group *tp, const uint32_t *expert_owners);

typedef struct ek_model_loss {
    double cross_entropy; /* summed over the B*T tokens */
    double balance;       /* the load-balancing loss, summed over the B samples and the layers with experts */
} ek_model_loss;

/* weights[t], gradients[t]: this rank's share of tensor t of ek_model_tensors.
 * tokens (B,T+1): inputs are the first T of a row, targets the last T. Tensor parallelism: all ranks of the replica
 * call with the same tokens and get the same loss. Expert parallelism: each with its own, maybe none (B = 0), all
 * equally often. EK_PEER_LOST and the callbacks' statuses pass through. */
ek_status ek_model_forward(ek_model *model, float *const *weights, const uint32_t *tokens, uint32_t B,
                           ek_model_loss *loss);

/* After forward, with the same tokens: adds the gradients of scale * (cross_entropy + aux_loss * T * balance) to
 * gradients[]: with scale = 1 / the tokens of a step, of the mean over its tokens plus aux_loss times the mean over its
 * samples. `last`: this is the step's last micro-batch, so report the buckets that are complete. */
ek_status ek_model_backward(ek_model *model, float *const *weights, float *const *gradients, const uint32_t *tokens,
                            uint32_t B, float scale, bool last);

/* The floating-point operations that this rank has done in the model's passes so far: those of its matrix products,
 * attention's among them, counted as they run. What a pass did before a status ended it counts too. */
uint64_t ek_model_flops(const ek_model *model);

/* The bytes that this rank has sent to others for their experts, and back for theirs, so far: expert parallelism. */
uint64_t ek_model_dispatched_bytes(const ek_model *model);

#endif
