/* The keys of a training run, their ranges and defaults, and what must hold between them. */
#include "train/config.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/yaml.h"

#define RANKS_MOST ((uint32_t)EK_RANKS_MOST)
#define STEPS_MOST 1000000000u  /* with SAMPLES_MOST: sample numbers stay far below 2^64 */
#define SAMPLES_MOST 1048576u   /* of a global batch */
#define DIMENSION_MOST 1048576u /* of the model: products of three fit into 64 bits */

static const char *const mode_choices[] = {"tp", "ep", NULL}; /* ek_parallel_mode */
static const char *const format_choices[] = {"bytes", "llmc", "megatron", NULL};
static const char *const engine_choices[] = {"shm", "mpi", NULL};
static const char *const power_choices[] = {"none", "nvml", "powercap", "emulated", NULL}; /* ek_power_choice */

#define PLACE(member) .offset = offsetof(ek_config, member), .bytes = sizeof(((ek_config *)0)->member)
#define WHOLE(member, from, to) .kind = EK_FIELD_WHOLE, PLACE(member), .least = (from), .most = (to)
#define REAL(member, from, to) .kind = EK_FIELD_REAL, PLACE(member), .least_real = (from), .most_real = (to)

static const ek_field fields[] = {
    {"model.layers", WHOLE(model.layers, 1, 4096), .help = "transformer layers"},
    {"model.hidden", WHOLE(model.hidden, 1, DIMENSION_MOST), .help = "width of the residual stream"},
    {"model.heads", WHOLE(model.heads, 1, DIMENSION_MOST), .help = "query heads"},
    {"model.kv_heads", WHOLE(model.kv_heads, 1, DIMENSION_MOST), .derived = "model.heads",
     .help = "key and value heads; each with its query heads is one unit of attention"},
    {"model.ffn", WHOLE(model.ffn, 1, DIMENSION_MOST), .help = "columns of the feed-forward layer"},
    {"model.ffn_block", WHOLE(model.ffn_block, 1, DIMENSION_MOST),
     .derived = "the largest power of two up to 64 that divides model.ffn and leaves 4 units or more for each of "
                "parallel.tp, else 1",
     .help = "feed-forward columns in one unit; divides model.ffn"},
    {"model.vocab", WHOLE(model.vocab, 1, 1u << 24), .help = "size of the vocabulary; 256 for bytes"},
    {"model.vocab_block", WHOLE(model.vocab_block, 1, 1u << 24),
     .derived = "the largest power of two up to 64 that divides model.vocab and leaves 4 units or more for each of "
                "parallel.tp, else 1",
     .help = "vocabulary rows in one unit; divides model.vocab"},
    {"model.sequence", WHOLE(model.sequence, 1, DIMENSION_MOST), .help = "tokens of a sample"},
    {"model.tied_embeddings", .kind = EK_FIELD_BOOLEAN, PLACE(model.tied_embeddings), .otherwise = "false",
     .help = "the output layer uses the embedding's weights"},
    {"model.rope_theta", REAL(model.rope_theta, 1, 1e9), .otherwise = "10000",
     .help = "base of the rotary position embedding"},
    {"model.norm_eps", REAL(model.norm_eps, 1e-12, 0.1), .otherwise = "1e-5",
     .help = "added to the mean square in RMSNorm"},
    {"model.experts", WHOLE(model.experts, 0, 65536), .otherwise = "0",
     .help = "experts of a layer that has some; 0: a dense model, without any"},
    {"model.top_k", WHOLE(model.top_k, 1, 65536), .otherwise = "2", .help = "experts that a token goes to"},
    {"model.moe_every", WHOLE(model.moe_every, 1, 4096), .otherwise = "1",
     .help = "layers 0, n, 2n, … have experts in place of the feed-forward layer"},
    {"model.expert_ffn", WHOLE(model.expert_ffn, 1, DIMENSION_MOST), .derived = "model.ffn",
     .help = "columns of an expert"},
    {"model.shared_expert", .kind = EK_FIELD_BOOLEAN, PLACE(model.shared_expert), .otherwise = "false",
     .help = "layers with experts keep the feed-forward layer besides, for every token"},
    {"model.aux_loss", REAL(model.aux_loss, 0, 1000), .otherwise = "0.01", .help = "weight of the load-balancing loss"},

    {"data.path", .kind = EK_FIELD_STRING, PLACE(data.path),
     .help = "the file of tokens, from the working directory; for megatron without .bin and .idx"},
    {"data.format", .kind = EK_FIELD_CHOICE, PLACE(data.format), .choices = format_choices, .otherwise = "bytes",
     .help = "bytes: any file, a byte is a token; llmc: llm.c's .bin; megatron: Megatron's .bin with .idx"},

    {"parallel.mode", .kind = EK_FIELD_CHOICE, PLACE(parallel.mode), .choices = mode_choices, .otherwise = "tp",
     .help =
         "what the ranks of a replica share: tp: every layer; ep: the experts alone, the samples are spread over them"},
    {"parallel.dp", WHOLE(parallel.dp, 1, EK_MAX_REPLICAS), .help = "data-parallel replicas"},
    {"parallel.tp", WHOLE(parallel.tp, 1, RANKS_MOST),
     .help = "degree of a healthy replica: tensor-parallel, or expert-parallel with mode ep"},
    {"parallel.min_tp", WHOLE(parallel.min_tp, 1, RANKS_MOST), .otherwise = "1",
     .help = "a replica left with fewer devices is retired"},
    {"parallel.degrees", .kind = EK_FIELD_WHOLES, .offset = offsetof(ek_config, parallel.degrees),
     .count_offset = offsetof(ek_config, parallel.degree_count), .least = 1, .most = RANKS_MOST,
     .derived = "parallel.tp for every replica",
     .help = "starting degree of each replica, as if its highest slots had failed"},

    {"batch.global", WHOLE(batch.global, 1, SAMPLES_MOST), .help = "samples of a step, over all replicas"},
    {"batch.micro", WHOLE(batch.micro, 1, SAMPLES_MOST),
     .derived = "4, or the samples of a replica where those are fewer",
     .help = "samples that a replica (mode ep: a rank) computes at once; it bounds the memory for activations"},
    {"batch.policy", .kind = EK_FIELD_CHOICE, PLACE(batch.policy), .choices = ek_batch_policy_names,
     .otherwise = "keep",
     .help = "what a replica that power cannot keep in step does: keep: it takes longer; shrink: it leaves out "
             "samples; rebalance: "
             "it hands samples to the others"},

    {"optimizer.lr", REAL(optimizer.lr, 0, 1000), .otherwise = "1e-3", .help = "learning rate after the warm-up"},
    {"optimizer.min_lr", REAL(optimizer.min_lr, 0, 1000), .derived = "a tenth of optimizer.lr",
     .help = "learning rate at the last step, the end of the cosine"},
    {"optimizer.warmup_steps", WHOLE(optimizer.warmup_steps, 0, STEPS_MOST), .otherwise = "0",
     .help = "steps in which the learning rate grows linearly from 0"},
    {"optimizer.weight_decay", REAL(optimizer.weight_decay, 0, 1000), .otherwise = "0.1",
     .help = "decoupled weight decay"},
    {"optimizer.beta1", REAL(optimizer.beta1, 0, 0.999999), .otherwise = "0.9",
     .help = "decay of the mean of gradients"},
    {"optimizer.beta2", REAL(optimizer.beta2, 0, 0.999999), .otherwise = "0.95",
     .help = "decay of the mean of their squares"},
    {"optimizer.eps", REAL(optimizer.eps, 1e-30, 1), .otherwise = "1e-8",
     .help = "added to the root of the second moment"},
    {"optimizer.clip", REAL(optimizer.clip, 0, 1e9), .otherwise = "1.0",
     .help = "largest norm of the gradient; 0: no clipping"},

    {"train.steps", WHOLE(train.steps, 1, STEPS_MOST), .help = "steps to commit"},
    {"train.seed", WHOLE(train.seed, 0, UINT64_MAX), .otherwise = "1",
     .help = "of the initial weights and of the order of samples"},

    {"power.backend", .kind = EK_FIELD_CHOICE, PLACE(power.backend), .choices = power_choices, .otherwise = "none",
     .help =
         "what limits the power of devices: none; nvml: NVIDIA's driver; powercap: Linux, for CPU packages; emulated: "
         "nothing does, but busy times are reported as the curve says"},
    {"power.path", .kind = EK_FIELD_STRING, PLACE(power.path), .derived = "the backend's own",
     .help = "nvml: the library; powercap: the folder; emulated: a file that holds the limits"},
    {"power.default_watts", REAL(power.default_watts, 1, 1e6), .otherwise = "700",
     .help = "default limit of an emulated device; the other backends know theirs"},
    {"power.emulated_flops_per_second", REAL(power.emulated_flops_per_second, 0, 1e18), .otherwise = "0",
     .help =
         "emulated: what a device computes at its default limit; its busy time is then the operations of its matrix "
         "products, counted as they run, divided by that; 0: it is the CPU time of its rank"},
    {"power.cap_watts", REAL(power.cap_watts, 0, 1e6), .otherwise = "0",
     .help = "highest limit that a device is given; 0: 1.3 times the default limit"},
    {"power.domain_watts", REAL(power.domain_watts, 0, 1e9), .otherwise = "0",
     .help = "what the devices of a replica may have together; 0: parallel.tp times the default limit"},
    {"power.curve", .kind = EK_FIELD_PAIRS, .offset = offsetof(ek_config, power.curve),
     .count_offset = offsetof(ek_config, power.curve_count), .least_real = 0, .most_real = 10,
     .derived = "the published points of arXiv 2504.06095",
     .help = "pairs of power and speed of a device, both relative to its default limit, increasing"},
    {"power.state_file", .kind = EK_FIELD_STRING, PLACE(power.state_file),
     .derived = "in XDG_RUNTIME_DIR, /run or /tmp",
     .help = "where the limits found at the start are kept, for the guardian and `evenkeel power restore`"},

    {"health.compare_every", WHOLE(health.compare_every, 0, STEPS_MOST), .otherwise = "0",
     .help = "steps between comparisons of weights and optimizer state across ranks; 0: never"},
    {"health.straggler_factor", REAL(health.straggler_factor, 0, 100), .otherwise = "0",
     .help = "a rank that takes so many times as long as its peers is a straggler; 0: none is looked for"},
    {"health.straggler_steps", WHOLE(health.straggler_steps, 1, STEPS_MOST), .otherwise = "5",
     .help = "for how many steps in a row"},
    {"health.straggler_fails", .kind = EK_FIELD_BOOLEAN, PLACE(health.straggler_fails), .otherwise = "false",
     .help = "a straggler is treated as failed"},

    {"recovery.respawn_seconds", REAL(recovery.respawn_seconds, 0, 1e6), .otherwise = "0",
     .help =
         "a lost rank is started again so long after its loss, and comes back at a step boundary; 0: it stays lost"},
    {"recovery.spares", WHOLE(recovery.spares, 0, RANKS_MOST), .otherwise = "0",
     .help = "idle ranks that take the role of a lost rank at once"},

    {"checkpoint.dir", .kind = EK_FIELD_STRING, PLACE(checkpoint.dir), .derived = "none: nothing is saved",
     .help = "folder of checkpoints, of one run at a time"},
    {"checkpoint.every", WHOLE(checkpoint.every, 0, STEPS_MOST), .otherwise = "0",
     .help =
         "steps between checkpoints; 0: at the end of the run, and on SIGTERM and SIGUSR1, which are attended to in "
         "any case"},
    {"checkpoint.keep", WHOLE(checkpoint.keep, 0, 1000000), .otherwise = "2",
     .help = "the last complete checkpoints that are kept; 0: all"},
    {"checkpoint.async", .kind = EK_FIELD_BOOLEAN, PLACE(checkpoint.async), .otherwise = "true",
     .help = "ranks write a copy of their state while they go on training"},
    {"checkpoint.weights", .kind = EK_FIELD_STRING, PLACE(checkpoint.weights), .derived = "none: random weights",
     .help = "folder of a Hugging Face checkpoint (Llama, Mixtral) to take the initial weights from"},

    {"engine.name", .kind = EK_FIELD_STRING, PLACE(engine.name), .choices = engine_choices, .otherwise = "shm",
     .help = "shm: the ranks are processes of this machine and share memory; mpi: mpirun starts them, on any number of "
             "machines (docs/cluster.md)"},
    {"engine.timeout_seconds", REAL(engine.timeout_seconds, 0, 86400), .otherwise = "10",
     .help = "a rank without progress for so long is killed and lost; 0: never"},
    {"engine.heap_bytes", WHOLE(engine.heap_bytes, 0, (uint64_t)1 << 50), .otherwise = "0",
     .help = "budget of a rank: a replica whose ranks would need more for weights, optimizer state and gradients, with "
             "room to move them, is retired, and the heap that ranks share (gradients, activations to be summed) is so "
             "large, as address space that is taken when it is used; weights and optimizer state themselves lie in the "
             "rank's own memory; 0: half of the machine's memory, and no replica is retired for it"},
    {"engine.threads", .kind = EK_FIELD_BOOLEAN, PLACE(engine.threads), .otherwise = "false",
     .help = "ranks are threads of one process, for ThreadSanitizer"},
};
#define FIELD_COUNT (sizeof fields / sizeof *fields)

const ek_field *ek_config_fields(size_t *count)
{
    *count = FIELD_COUNT;
    return fields;
}

const char *ek_config_parallelism(const ek_config *config)
{
    return config->parallel.mode == EK_MODE_EP ? "EP" : "TP";
}

/* What stands in for keys that are absent and whose default depends on others. */
static void derive(const ek_settings *settings, ek_config *config)
{
    if (!ek_settings_given(settings, "model.kv_heads"))
        config->model.kv_heads = config->model.heads;
    if (!ek_settings_given(settings, "optimizer.min_lr"))
        config->optimizer.min_lr = config->optimizer.lr / 10;
    config->model.expert_parallel = config->parallel.mode == EK_MODE_EP;
    if (!ek_settings_given(settings, "batch.micro")) {
        uint32_t largest_share = (config->batch.global + config->parallel.dp - 1) / config->parallel.dp;
        config->batch.micro = largest_share < 4 ? largest_share : 4;
    }
}

static ek_status check_parallel(const ek_settings *settings, const ek_config *config)
{
    uint32_t dp = config->parallel.dp, tp = config->parallel.tp, min_tp = config->parallel.min_tp;
    if (dp * tp > RANKS_MOST)
        return ek_settings_refuse(settings, "parallel.tp", "%u replicas of %u are %u ranks; at most %u are allowed", dp,
                                  tp, dp * tp, RANKS_MOST);
    if (config->recovery.spares > RANKS_MOST - dp * tp)
        return ek_settings_refuse(settings, "recovery.spares",
                                  "found %u; beside %u ranks with a role at most %u are allowed",
                                  config->recovery.spares, dp * tp, RANKS_MOST - dp * tp);
    if (min_tp > tp)
        return ek_settings_refuse(settings, "parallel.min_tp", "found %u; at most parallel.tp, %u, is allowed", min_tp,
                                  tp);
    if (!ek_settings_given(settings, "parallel.degrees"))
        return EK_OK;
    if (config->parallel.degree_count != dp)
        return ek_settings_refuse(settings, "parallel.degrees",
                                  "found %zu in the list; one for each of the %u replicas (parallel.dp) is needed",
                                  config->parallel.degree_count, dp);
    for (uint32_t i = 0; i < dp; i++)
        if (config->parallel.degrees[i] < min_tp || config->parallel.degrees[i] > tp)
            return ek_settings_refuse(settings, "parallel.degrees",
                                      "found %u for replica %u; %u (parallel.min_tp) to %u (parallel.tp) is allowed",
                                      config->parallel.degrees[i], i, min_tp, tp);
    return EK_OK;
}

static ek_status check_numbers(const ek_settings *settings, const ek_config *config)
{
    if (config->batch.global < config->parallel.dp)
        return ek_settings_refuse(settings, "batch.global",
                                  "found %u; at least %u is needed, a sample for each replica (parallel.dp)",
                                  config->batch.global, config->parallel.dp);
    if (config->health.straggler_factor > 0 && config->health.straggler_factor <= 1)
        return ek_settings_refuse(settings, "health.straggler_factor", "found %g; 0, or a number above 1, is needed",
                                  config->health.straggler_factor);
    if (config->power.emulated_flops_per_second > 0 && config->power.backend != EK_POWER_EMULATED)
        return ek_settings_refuse(settings, "power.emulated_flops_per_second",
                                  "found %g; 0, or power.backend: emulated, is needed",
                                  config->power.emulated_flops_per_second);
    if (config->optimizer.min_lr > config->optimizer.lr)
        return ek_settings_refuse(settings, "optimizer.min_lr", "found %g; at most optimizer.lr, %g, is allowed",
                                  config->optimizer.min_lr, config->optimizer.lr);
    return EK_OK;
}

ek_status ek_config_read(ek_config **config, const char *path, const char *const *overrides, size_t override_count)
{
    ek_origin origins[FIELD_COUNT] = {0};
    ek_config *read = calloc(1, sizeof *read);
    if (!read)
        return ek_fail(EK_NO_MEMORY, "no memory for the configuration");
    const ek_settings settings = {fields, FIELD_COUNT, read, path, origins};
    ek_status status = ek_settings_read(&settings, overrides, override_count);
    if (status == EK_OK) {
        derive(&settings, read);
        status = check_parallel(&settings, read);
    }
    if (status == EK_OK)
        status = check_numbers(&settings, read);
    if (status == EK_OK) {
        status = ek_model_config_finish(&read->model, read->parallel.tp);
        if (status != EK_OK)
            status = ek_settings_locate(&settings, status);
    }
    if (status != EK_OK) {
        ek_config_destroy(read);
        return status;
    }
    *config = read;
    return EK_OK;
}

void ek_config_destroy(ek_config *config)
{
    if (!config)
        return;
    ek_settings_free(fields, FIELD_COUNT, config);
    free(config);
}
