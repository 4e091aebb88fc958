/* The phases of a run: stretches of steps with the same degrees, power and samples. For each the table that closes a
 * run has what was predicted beside what happened, and what it cost against a job without failures. */
#ifndef EK_TRAIN_PHASES_H
#define EK_TRAIN_PHASES_H

#include <stdio.h>

#include <evenkeel.h>

typedef struct ek_phase_job {
    const char *parallelism; /* "TP" or "EP" */
    uint32_t replicas, base_degree;
    uint32_t samples;     /* of the global batch */
    double default_watts; /* of a device; 0: nobody governs power */
} ek_phase_job;

/* What a replica had in a committed step, and what it took. */
typedef struct ek_phase_replica {
    uint32_t degree; /* 0: retired */
    uint32_t samples;
    double watts;             /* the most that one of its devices has */
    double total_watts;       /* of all its devices */
    double predicted_seconds; /* busy time, as foreseen; 0: it was not */
    double busy_seconds;      /* of its slowest rank */
} ek_phase_replica;

typedef struct ek_phases ek_phases;

ek_status ek_phases_create(ek_phases **phases, const ek_phase_job *job);
void ek_phases_destroy(ek_phases *phases);

/* Adds a committed step; replicas is [replicas of the job]. Returns true if the step begins a phase. */
bool ek_phases_add(ek_phases *phases, uint64_t step, const ek_phase_replica *replicas);

/* A line for each phase, at most 100 columns wide; more, if it has many unlike replicas. Means over the steps of a
 * phase:
 *
 *   predicted, reported  busy time of the slowest replica
 *   time, %         that against the step of a job without failures: the busy time for a sample of the whole replicas
 *                   (the slowest one's in the same step; where none is whole, of the run so far), times the largest
 *                   share of the even split
 *   samples         of the global batch that nobody took
 *   power, W        of all devices that have a role, against all devices of the job at their default limit */
void ek_phases_print(const ek_phases *phases, FILE *out);

#endif
