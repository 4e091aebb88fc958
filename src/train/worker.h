/* One rank of a training run: the step loop. Read worker.c from ek_worker_main down. */
#ifndef EK_TRAIN_WORKER_H
#define EK_TRAIN_WORKER_H

#include <stdatomic.h>

#include "checkpoint/checkpoint.h"
#include "train/data.h"
#include "train/routes.h"
#include "train/train.h"

/* What the launching process asks of the ranks, in memory that they share. */
typedef struct ek_wishes {
    _Atomic bool save; /* make a checkpoint after this step */
    _Atomic bool stop; /* and end */
} ek_wishes;

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
    double default_watts;      /* of a device */
    bool may_raise;            /* power limits can be set */
    ek_wishes *wishes;
    ek_checkpoint_dir *checkpoints; /* NULL: none are made */
    uint64_t resumed_step;          /* 0: from the start */
    char resumed_path[EK_CHECKPOINT_PATH_BYTES];
    struct ek_monitor *monitor; /* the launching process' */
} ek_run;

ek_status ek_worker_main(ek_engine *engine, void *run);

#endif
