/* The schedule and the update. */
#include "train/optimizer.h"

#include <math.h>

double ek_learning_rate(const ek_config *config, uint64_t step)
{
    double peak = config->optimizer.lr, least = config->optimizer.min_lr;
    uint64_t warmup = config->optimizer.warmup_steps, last = config->train.steps;
    if (step <= warmup)
        return peak * (double)step / (double)warmup;
    double progress = (double)(step - warmup) / (double)(last - warmup);
    return least + 0.5 * (peak - least) * (1.0 + cos(3.141592653589793 * progress));
}

ek_adamw ek_adamw_step(const ek_config *config, uint64_t step, double norm)
{
    double rate = ek_learning_rate(config, step);
    double clip = config->optimizer.clip;
    return (ek_adamw){
        .rate = (float)rate,
        .decay = (float)(1.0 - rate * config->optimizer.weight_decay),
        .beta1 = (float)config->optimizer.beta1,
        .beta2 = (float)config->optimizer.beta2,
        .eps = (float)config->optimizer.eps,
        .first_correction = (float)(1.0 / (1.0 - pow(config->optimizer.beta1, (double)step))),
        .second_correction = (float)(1.0 / (1.0 - pow(config->optimizer.beta2, (double)step))),
        .gradient_scale = clip > 0.0 && norm > clip ? (float)(clip / norm) : 1.0f,
    };
}

void ek_adamw_update(const ek_adamw *adamw, bool decayed, float *restrict weights, const float *restrict gradients,
                     float *restrict first, float *restrict second, size_t count)
{
    const ek_adamw a = *adamw;
    const float decay = decayed ? a.decay : 1.0f, one_beta1 = 1.0f - a.beta1, one_beta2 = 1.0f - a.beta2;
    for (size_t i = 0; i < count; i++) {
        float gradient = gradients[i] * a.gradient_scale;
        float m = a.beta1 * first[i] + one_beta1 * gradient;
        float v = a.beta2 * second[i] + one_beta2 * (gradient * gradient);
        first[i] = m;
        second[i] = v;
        weights[i] = decay * weights[i] - a.rate * (m * a.first_correction) / (sqrtf(v * a.second_correction) + a.eps);
    }
}
