/* One rank of a training run: the step loop. Read worker.c from ek_worker_main down. */
#ifndef EK_TRAIN_WORKER_H
#define EK_TRAIN_WORKER_H

#include "checkpoint/checkpoint.h"
#include "train/data.h"
#include "train/routes.h"
#include "train/train.h"

/* What the launching process asks of the ranks (ek_launcher_ask): so many checkpoints so far, each after the step that
 * is then under way, and to end after it. */
#define EK_WISH_STOP UINT64_C(1)
#define EK_WISH_SAVE UINT64_C(2)

/* What the launching process alone finds out, and tells the ranks of other processes. */
typedef struct ek_briefing {
    double default_watts; /* of a device */
    bool may_raise;       /* power limits can be set */
    uint64_t checkpoint_identity;
    uint64_t resumed_step; /* 0: from the start */
    char resumed_path[EK_CHECKPOINT_PATH_BYTES];
} ek_briefing;

/* What all ranks share and none changes: made once, before the ranks start. */
typedef struct ek_run {
    const ek_train_options *options;
    const ek_config *config;
    const ek_data *data;
    ek_routes_file *routes; /* NULL: choices are free */
    ek_tensor *tensors;
    size_t tensor_count;
    uint32_t bucket_count;
    ek_membership *membership; /* at the start */
    ek_place place;            /* of this process in the job */
    ek_briefing briefing;
    ek_checkpoint_dir *checkpoints; /* the launching process'; NULL: none are made */
    struct ek_monitor *monitor;     /* the launching process' */
    const char *refusal;            /* why it cannot lead the job; NULL: it can */
} ek_run;

/* Opens the file of routes, where one is asked for and it is not open yet: the launching process does before there are
 * ranks, and the others where they begin. */
ek_status ek_run_open_routes(ek_run *run);

ek_status ek_worker_main(ek_engine *engine, void *run);

#endif
