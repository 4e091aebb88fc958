/* A training run: what `evenkeel train` does once its command line and configuration are read.
 *
 * ek_train opens the data and the metrics file, launches one rank per device, and steps until the configured number of
 * steps is committed, through every loss of a rank that leaves a holder of each unit. What it reports goes to the
 * metrics file (JSON lines) and, unless quiet, to standard output. */
#ifndef EK_TRAIN_TRAIN_H
#define EK_TRAIN_TRAIN_H

#include "train/config.h"

/* The phases of a step in which a fault can be placed, in the order in which a step goes through them; recovery is the
 * phase of the first recovery at or after the step. docs/command-line.md says where exactly each fault strikes. */
typedef enum ek_phase {
    EK_PHASE_FORWARD,
    EK_PHASE_BACKWARD,
    EK_PHASE_SYNC,
    EK_PHASE_COMMIT,    /* after the rank's vote */
    EK_PHASE_OPTIMIZER, /* after the first tensor is updated */
    EK_PHASE_RECOVERY,
    EK_PHASES
} ek_phase;

/* "forward", "backward", …: as on the command line and in metrics. */
const char *ek_phase_name(ek_phase phase);

/* A fault to inject, once: the rank at replica.slot is killed as by SIGKILL, or stopped as by SIGSTOP. */
typedef struct ek_fault_point {
    uint64_t step;
    uint32_t replica, slot;
    ek_phase phase;
    bool hang; /* stop it instead of killing it */
} ek_fault_point;

/* A rank to bring back, once, when the step before `step` is committed; or a bit of its weights to flip after the
 * update of `step`; or how many times as long as measured it reports to have been busy from `step` on. */
typedef struct ek_rejoin {
    uint64_t step;
    uint32_t replica, slot;
} ek_rejoin;
typedef ek_rejoin ek_flip;
typedef struct ek_slow {
    uint64_t step;
    uint32_t replica, slot;
    double factor;
} ek_slow;

/* What is done with the experts that tokens choose: nothing; they are written to a file; taken from the file instead;
 * compared with the file. Choices are discrete, so that runs whose sums differ in the last bit can only be compared
 * closely when they choose alike. */
typedef enum ek_routes_use { EK_ROUTES_FREE, EK_ROUTES_RECORD, EK_ROUTES_REPLAY, EK_ROUTES_COMPARE } ek_routes_use;

typedef struct ek_train_options {
    const ek_config *config;
    const char *config_path;      /* NULL: not from a file */
    const ek_fault_point *faults; /* each names a step, replica and slot that the run has */
    size_t fault_count;
    const ek_rejoin *rejoins;
    size_t rejoin_count;
    const ek_flip *flips;
    size_t flip_count;
    const ek_slow *slows;
    size_t slow_count;
    bool resume; /* go on from the last complete checkpoint in checkpoint.dir, if there is one */
    ek_routes_use routes;
    const char *routes_path;
    const char *metrics_path; /* JSON lines, overwritten; NULL: none */
    bool quiet;               /* no progress and no table on standard output */
} ek_train_options;

/* EK_OK: all steps are committed. EK_INVALID: refused before any rank was started, whatever the reason (a data or
 * metrics file that cannot be used is an input too). Anything else: the run failed on the way. EK_FENCED: so it did,
 * and the process that leads the job (engine "mpi") says why, as it does where EK_INVALID has no text. */
/* The engine as whose processes this one and others were started, by mpirun say, and its place among them; NULL: it was
 * started alone. */
const char *ek_train_starter(ek_place *place);

ek_status ek_train(const ek_train_options *options);

#endif
