/* One rank of a training run: the step loop. Read worker.c from ek_worker_main down. */
#ifndef EK_TRAIN_WORKER_H
#define EK_TRAIN_WORKER_H

#include "train/data.h"
#include "train/routes.h"
#include "train/train.h"

/* What all ranks share and none changes: made once, before the ranks start. */
typedef struct ek_run {
    const ek_train_options *options;
    const ek_config *config;
    const ek_data *data;
    ek_routes_file *routes; /* NULL: choices are free */
    ek_tensor *tensors;
    size_t tensor_count;
    uint32_t bucket_count;
    ek_membership *membership;  /* at the start */
    double default_watts;       /* of a device */
    bool may_raise;             /* power limits can be set */
    struct ek_monitor *monitor; /* the launching process' */
} ek_run;

ek_status ek_worker_main(ek_engine *engine, void *run);

#endif
