/* A model's memory, within src/model: where each activation of a micro-batch lies in the arena. */
#ifndef EK_MODEL_ARENA_H
#define EK_MODEL_ARENA_H

#include "model/mixture.h"
#include "model/tensors.h"

/* What forward keeps of a layer for backward. N = B T tokens; G KV heads, R query heads of each, F FFN columns held. */
typedef struct ek_layer_activations {
    float *in;                        /* (N,C) the residual stream before the layer */
    float *attention_inverse_rms;     /* (N) */
    float *attention_in;              /* (N,C) normalised */
    float *qkv;                       /* (N,G,R+2,D) after RoPE */
    float *probabilities;             /* (B,G,R,ek_attention_probabilities(T)) */
    float *heads;                     /* (N,G,R,D) */
    float *middle;                    /* (N,C) the residual stream between attention and FFN */
    float *ffn_inverse_rms;           /* (N) */
    float *ffn_in;                    /* (N,C) normalised */
    float *gate_up;                   /* (N,F/f,2,f); backward turns it into its gradient; NULL without an FFN */
    float *activated;                 /* (N,F) */
    ek_mixture *mixture;              /* NULL without experts */
    size_t tensors[EK_LAYER_TENSORS]; /* the numbers of the layer's tensors, for those that it has */
} ek_layer_activations;

struct ek_model {
    ek_model_config config;
    ek_engine *engine;
    ek_group *tp;
    ek_model_progress progress;
    ek_model_route route;
    void *user;

    /* the share: C hidden, T sequence, D head dimension, G KV heads, R query heads of each, F FFN columns, V rows */
    size_t C, T, D, G, R, F, V;
    size_t U; /* experts held */
    size_t micro_batch;
    uint64_t flops; /* done in all passes so far */

    float *arena;               /* of this rank alone */
    float *reduced;             /* what the ranks of the replica reduce: engine memory, if there is an engine */
    float *rope;                /* (T,2,D/2) */
    uint32_t *row_of;           /* (vocab) local row of a token, or EK_NO_ROW */
    uint32_t *inputs, *targets; /* (N) the tokens of the pass, without the overlap of rows */
    uint32_t *held;             /* (experts) number among those held, or EK_NO_ROW; NULL in a dense model */
    uint32_t *owner;            /* (experts) index in tp; expert parallelism */

    ek_layer_activations *layers;
    float *last;             /* (N,C) the residual stream after the last layer */
    float *last_inverse_rms; /* (N) */
    float *normed;           /* (N,C) */
    float *logits;           /* (N,V); exponentials after forward, the gradient in backward */
    float *max;              /* (N) */
    float *sums;             /* (2,N) */

    /* (N,C) what is reduced over the ranks: a branch's output, or the gradient by its input; behind that, in a layer
     * with experts, the gradients by the choices' weights (N,top_k) */
    float *branch;
    float *d_residual; /* (N,C) */
    /* scratch of backward; d_activated shares its place with the three others */
    float *d_heads; /* (N,G,R,D) */
    float *d_qkv;   /* (N,G,R+2,D) */
    float *attention_scratch;
    float *d_activated;         /* (N,F) */
    ek_mixture *mixture_memory; /* of the layers with experts */
    ek_mixture_scratch mixtures;
};

#endif
