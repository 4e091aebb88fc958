/* AdamW with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), and the learning-rate schedule. */
#ifndef EK_TRAIN_OPTIMIZER_H
#define EK_TRAIN_OPTIMIZER_H

#include "train/config.h"

/* What one step's update needs; the same numbers on every rank. */
typedef struct ek_adamw {
    float rate, decay; /* learning rate; 1 - rate * weight decay */
    float beta1, beta2, eps;
    float first_correction, second_correction; /* 1 / (1 - beta^step) */
    float gradient_scale;                      /* from clipping */
} ek_adamw;

/* Linear warm-up over warmup_steps, then a cosine down to min_lr at the last step. Steps count from 1. */
double ek_learning_rate(const ek_config *config, uint64_t step);

/* norm: the global gradient norm before clipping. */
ek_adamw ek_adamw_step(const ek_config *config, uint64_t step, double norm);

/* weights, gradients, first, second: (count). A weight's update depends on its own values alone, not on where it lies:
 * the compiler may use vectors, but no fused or reordered arithmetic (-ffp-contract=off). decayed: weight decay
 * applies. */
void ek_adamw_update(const ek_adamw *adamw, bool decayed, float *weights, const float *gradients, float *first,
                     float *second, size_t count);

#endif
