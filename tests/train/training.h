/* Runs ek_train for tests: a base configuration, overrides, faults and returns; gives back what the metrics say. */
#ifndef TESTS_TRAIN_TRAINING_H
#define TESTS_TRAIN_TRAINING_H

#include "train/train.h"

#define TRAINING_STEPS_MOST 256
#define TRAINING_LIST_MOST 16
#define TRAINING_REPLICAS_MOST 4

typedef struct training_spec {
    const char *base; /* "tiny" (the model, of examples/tiny.yaml), "small" (2 layers, hidden 64), "experts" (4
                         small layers with 12 experts each) */
    const char *set[TRAINING_LIST_MOST]; /* overrides, NULL-terminated */
    ek_fault_point faults[TRAINING_LIST_MOST];
    size_t fault_count;
    ek_rejoin rejoins[TRAINING_LIST_MOST]; /* each of these ends with an empty one */
    ek_flip flips[TRAINING_LIST_MOST];
    ek_slow slows[TRAINING_LIST_MOST];
    double link_latency_seconds; /* emulated */
    ek_routes_use routes;
    const char *routes_path;
} training_spec;

/* What the line of a step says of a replica. */
typedef struct training_replica {
    uint32_t degree, samples;
    double watts, busy_seconds;
    double predicted_seconds; /* of the event "adjusted" in this step; 0: there was none, or it had no prediction */
} training_replica;

typedef struct training_result {
    ek_status status;
    char error[512];
    size_t steps; /* lines of committed steps; they are checked to be 1, 2, 3, … */
    double losses[TRAINING_STEPS_MOST + 1];
    uint64_t tokens[TRAINING_STEPS_MOST + 1];
    double aux_losses[TRAINING_STEPS_MOST + 1]; /* 0 in a dense model */
    uint64_t route_flips[TRAINING_STEPS_MOST + 1];
    training_replica replicas[TRAINING_STEPS_MOST + 1][TRAINING_REPLICAS_MOST];
    size_t failures, recoveries, redone_steps, rejoined, healed, stragglers;
    double recovery_seconds;              /* of all together */
    char end[16];                         /* what the last record says: "done", "failed"; "" if there is none */
    uint64_t healed_step, straggler_step; /* of the last one */
    uint32_t straggler_replica, straggler_slot;
    char degrees[128]; /* of the last step: "4 3" */
    char samples[128];
} training_result;

/* A run that is refused (EK_INVALID) leaves no metrics. Every run compares the state of all ranks after every step,
 * unless it overrides health.compare_every.
 */
void run_training(const training_spec *training, training_result *result);

/* Its parts: writes the configuration `base`; reads metrics, but for the status. */
void write_training_config(const char *base, const char *path);
void read_training(const char *path, training_result *result);

/* Whether runs of more than one rank are started by mpirun (EK_TEST_MPIRUN is set), with ULFM: then a run that fails
 * has the status EK_SYSTEM, whatever the reason, and ranks cannot come back. */
bool training_by_mpirun(void);

/* Fails unless both ran to their end with the same number of steps, and all losses agree to `tolerance`, relative. */
void assert_same_curve(const training_result *expected, const training_result *actual, double tolerance);

#endif
