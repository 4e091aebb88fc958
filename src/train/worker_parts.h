/* One rank's state, and the three parts that work on it: worker.c its life, worker_place.c what hangs on the
 * membership, worker_step.c a step. */
#ifndef EK_TRAIN_WORKER_PARTS_H
#define EK_TRAIN_WORKER_PARTS_H

#include "cluster/batch.h"
#include "train/pace.h"
#include "train/records.h"
#include "train/saver.h"
#include "train/store.h"
#include "train/worker.h"

typedef struct ek_worker {
    const ek_run *run;
    const ek_config *config;
    ek_engine *engine;
    uint32_t rank;
    uint64_t committed; /* steps this rank has applied */
    bool began_step;    /* the next one has been begun */
    bool joining;       /* a newcomer, until its first recovery is over */

    ek_membership *membership;
    ek_store store;
    ek_saver *saver;         /* NULL: no checkpoints */
    uint64_t asked, granted; /* wishes as read in this step, and when a checkpoint was last made for one */
    bool stopping;           /* this step was the last, the launching process wishes so */
    ek_pace *pace;           /* NULL: the replicas are not kept in step */
    double *busy;            /* [ranks] of the last step, as reported; the rank's own until they are gathered */
    bool has_busy;           /* a step has been committed under this membership */

    /* What hangs on the membership: made by attach, gone with detach. Empty on a rank without a role, but for sync. */
    bool placed;
    uint32_t replica, role;
    bool speaks;          /* counts the loss of its samples in the vote; tensor parallelism: the first of a replica */
    ek_batch_share share; /* the replica's, of the global batch */
    ek_batch_share own;   /* what of it this rank computes: all, or a part in expert parallelism */
    uint32_t rounds;      /* micro-batches of each rank of the replica; some may be empty */
    uint32_t samples_of_all;
    ek_group *tp, *all;
    uint32_t *all_ranks;
    ek_sync *sync;
    ek_model *model;
    float *gradients;
    float **gradient_of; /* [tensors] */
    uint32_t *tokens;    /* (micro batch, T+1) */

    /* The step in progress */
    uint32_t first_sample; /* of the micro-batch, in the global batch */
    uint64_t flips;        /* tokens that chose other experts than a file says */
    uint32_t passes;       /* calls of ek_worker_progress in this pass */
    bool first_micro_batch, last_micro_batch;
} ek_worker;

/* The step that is under way, or comes next. */
static inline uint64_t ek_worker_step_now(const ek_worker *worker)
{
    return worker->committed + 1;
}

static inline void ek_worker_beat(ek_worker *worker, ek_phase phase)
{
    ek_beat(worker->engine, ek_note(ek_worker_step_now(worker), phase));
}

/* Builds what the rank needs to step under its membership. A rank without a role gets a sync that does nothing. */
ek_status ek_worker_attach(ek_worker *worker);
/* All but the model, which a recovery that leaves the rank's units alone lets stay. */
void ek_worker_detach(ek_worker *worker);
void ek_worker_drop_model(ek_worker *worker);
/* The rank's own samples: under tensor parallelism the replica's, under expert parallelism an even part of them. */
void ek_worker_take_samples(ek_worker *worker);

/* One attempt at the step. EK_PEER_LOST: it was not committed, or it was and a peer has been lost since. */
ek_status ek_worker_run_step(ek_worker *worker);
/* After a committed step: flips the bit that the user asked for, then, where health.compare_every has it, compares
 * state across ranks and heals it. */
ek_status ek_worker_compare(ek_worker *worker);
/* Kills or stops this rank if the user asked for it here: once, also where it comes back to the same step. */
ek_status ek_worker_fault_point(ek_worker *worker, ek_phase phase);
/* For the model: between its layers; what tokens chose (ek_model_options). */
ek_status ek_worker_progress(void *worker, bool backward, int bucket);
ek_status ek_worker_route(void *worker, uint32_t moe_layer, uint32_t B, uint32_t *choices);

#endif
