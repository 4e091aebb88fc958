/* The phases of a run: stretches of steps with the same degrees, power and samples, and for each what was predicted
 * beside what happened. */
#ifndef EK_TRAIN_PHASES_H
#define EK_TRAIN_PHASES_H

#include <stdio.h>

#include "train/config.h"

typedef struct ek_phase_replica {
    uint32_t degree, samples;
    double watts; /* of its devices; the most that one has */
} ek_phase_replica;

/* All zero but for `parallelism` is an empty list. */
typedef struct ek_phases {
    const char *parallelism; /* "TP" or "EP" */
    struct ek_phase_row *rows;
    size_t count;
    uint64_t left_out; /* phases for which there was no room */
} ek_phases;

/* A committed step: what each replica had, the slowest replica's busy time as foreseen (0: not) and as it was. Returns
 * true if the step begins a phase. */
bool ek_phases_add(ek_phases *phases, uint64_t step, const ek_phase_replica *replicas, uint32_t replica_count,
                   double predicted_seconds, double busy_seconds);
void ek_phases_print(const ek_phases *phases, FILE *out);
void ek_phases_clear(ek_phases *phases);

#endif
