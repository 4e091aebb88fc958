/* The configuration of a training run: one YAML file and --set overrides. docs/configuration.md documents every key.
 *
 * A refused configuration is EK_INVALID with one line of text that names the place, the key, what was found and what is
 * allowed, as in:
 *
 *     examples/tiny.yaml:5: parallel.tp: found "four"; a whole number from 1 to 1024 is needed
 *     --set parallel.tp=four: parallel.tp: found "four"; …
 *     examples/tiny.yaml:7: unknown key "optimizer.learning_rate"; optimizer has lr, min_lr, warmup_steps, … */
#ifndef EK_TRAIN_CONFIG_H
#define EK_TRAIN_CONFIG_H

#include <evenkeel.h>

#include "base/yaml.h"
#include "cluster/batch.h"
#include "model/model.h"

#define EK_MAX_REPLICAS 256

typedef enum ek_parallel_mode { EK_MODE_TP, EK_MODE_EP } ek_parallel_mode;

typedef enum ek_data_format { EK_DATA_BYTES, EK_DATA_LLMC, EK_DATA_MEGATRON } ek_data_format;

typedef enum ek_power_choice { EK_POWER_NONE, EK_POWER_NVML, EK_POWER_POWERCAP, EK_POWER_EMULATED } ek_power_choice;

typedef struct ek_config {
    ek_model_config model; /* finished */
    struct {
        char *path; /* as given; relative to the working directory */
        ek_data_format format;
    } data;
    struct {
        ek_parallel_mode mode;
        uint32_t dp, tp, min_tp;
        uint32_t *degrees;   /* [degree_count] starting degree of each replica; NULL: all tp */
        size_t degree_count; /* 0 or dp */
    } parallel;
    struct {
        uint32_t global, micro;
        ek_batch_policy policy;
    } batch;
    struct {
        double lr, min_lr, weight_decay, beta1, beta2, eps, clip; /* clip 0: no clipping */
        uint32_t warmup_steps;
    } optimizer;
    struct {
        uint64_t steps, seed;
    } train;
    struct {
        ek_power_choice backend;
        char *path;                       /* of the backend; NULL: its own */
        double default_watts;             /* emulated: of a device */
        double emulated_flops_per_second; /* of a device at that; 0: busy times are measured */
        double cap_watts, domain_watts;   /* 0: 1.3 times the default; tp times the default */
        double *curve;                    /* [curve_count] pairs of power and speed; NULL: the published one */
        size_t curve_count;
        char *state_file; /* NULL: a default place */
    } power;
    struct {
        uint64_t compare_every;  /* steps between comparisons of state across ranks; 0: never */
        double straggler_factor; /* 0: stragglers are not looked for */
        uint32_t straggler_steps;
        bool straggler_fails;
    } health;
    struct {
        double respawn_seconds; /* 0: lost ranks stay lost */
        uint32_t spares;
    } recovery;
    struct {
        char *dir;      /* NULL: no checkpoints */
        uint64_t every; /* steps; 0: at the end and when asked for */
        uint32_t keep;  /* complete ones; 0: all */
        bool async;
        char *weights; /* a folder as Hugging Face's tools write it; NULL: random initial weights */
    } checkpoint;
    struct {
        char *name;
        double timeout_seconds;
        uint64_t heap_bytes;          /* of a rank; 0: half of the machine's memory */
        bool threads;                 /* ranks as threads of one process */
        double link_bytes_per_second; /* --emulate-link; 0: none */
        double link_latency_seconds;
    } engine;
} ek_config;

/* Reads `path` and then overrides[] ("a.b=value", the value in YAML), checks every value and every relation between
 * values, finishes the model. */
ek_status ek_config_read(ek_config **config, const char *path, const char *const *overrides, size_t override_count);
void ek_config_destroy(ek_config *config);

/* Every key with its range, default and meaning; offsets are into ek_config. */
const ek_field *ek_config_fields(size_t *count);

/* What the degree of a replica is of: "TP" or "EP". */
const char *ek_config_parallelism(const ek_config *config);

#endif
