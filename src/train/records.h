/* What ranks report to the launching process, which writes metrics, progress and the closing table from it. Every rank
 * reports every step it commits before it can vote for the next one, so a committed step is known as long as one rank
 * lives to tell. */
#ifndef EK_TRAIN_RECORDS_H
#define EK_TRAIN_RECORDS_H

#include <evenkeel.h>

#include "base/error.h"
#include "train/config.h"

typedef enum ek_record_kind {
    EK_RECORD_STEP,
    EK_RECORD_RECOVERED,
    EK_RECORD_FAULT,
    EK_RECORD_HEALED,
    EK_RECORD_SAVED
} ek_record_kind;

typedef struct ek_step_record {
    ek_record_kind kind;
    uint64_t step, tokens;
    double loss, grad_norm, learning_rate; /* the same on all ranks */
    double started, committed;             /* monotonic seconds */
    double busy_seconds;    /* CPU time of the compute thread, forward to optimizer: waiting is not in it */
    double exposed_seconds; /* waiting for the gradient synchronisation after backward */
    uint64_t reshard_bytes, reduce_bytes; /* sent by this rank in the synchronisation */
    uint64_t dispatch_bytes;              /* sent by this rank for experts */
    uint32_t samples;                     /* of the rank's replica; 0 on a rank without a role */
    double watts;                         /* the rank's power limit; 0 where nobody governs it */
    double predicted_seconds;             /* busy time of its replica, as the governor foresaw it; 0: it did not */
    double aux_loss;                      /* mean over samples and layers with experts; 0 in a dense model */
    uint64_t flips;                       /* tokens whose experts differ from the file's */
    bool straggles;
} ek_step_record;

typedef struct ek_recovery_record {
    ek_record_kind kind;
    uint64_t committed_step;
    double noticed, ended;           /* monotonic seconds */
    uint64_t bytes;                  /* received from other ranks */
    uint8_t live[EK_RANKS_MOST / 8]; /* a bit for each rank that the membership after this recovery knows */
    bool is_new;                     /* the rank joined in it */
    uint32_t redone_steps;           /* 1 if this rank had begun the step that is redone */
} ek_recovery_record;

/* The last words of a rank that kills or stops itself because the user asked for it. */
typedef struct ek_fault_record {
    ek_record_kind kind;
    uint32_t fault;  /* index in the options */
    double injected; /* monotonic seconds */
} ek_fault_record;

/* A copy that differed from most others and was put right; from the rank that held it. */
typedef struct ek_healed_record {
    ek_record_kind kind;
    uint64_t step;
    uint32_t tensor, unit, good; /* good: the rank it was fetched from */
} ek_healed_record;

/* A rank has written its part of a checkpoint, or could not. */
typedef struct ek_saved_record {
    ek_record_kind kind;
    uint64_t step;
    uint8_t writers[EK_RANKS_MOST / 8]; /* a bit for each rank that writes a part */
    uint64_t bytes;                     /* of this rank */
    double began, went_on;              /* monotonic seconds: training stood still in between */
    char trouble[EK_ERROR_BYTES];       /* "": it has */
} ek_saved_record;

typedef union ek_record {
    ek_record_kind kind;
    ek_step_record step;
    ek_recovery_record recovery;
    ek_fault_record fault;
    ek_healed_record healed;
    ek_saved_record saved;
} ek_record;

/* Where a rank is, as it tells it with every ek_beat: the step it works on and the phase of it. */
static inline uint64_t ek_note(uint64_t step, uint32_t phase)
{
    return step << 8 | phase;
}

static inline uint64_t ek_note_step(uint64_t note)
{
    return note >> 8;
}

static inline uint32_t ek_note_phase(uint64_t note)
{
    return note & 0xff;
}

/* Whether the membership knows the rank: it has a role or is a spare. */
static inline bool ek_rank_is_known(const ek_membership *membership, uint32_t rank)
{
    return ek_membership_place(membership, rank, NULL, NULL) || ek_membership_is_spare(membership, rank);
}

#endif
