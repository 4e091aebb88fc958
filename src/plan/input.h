/* What a plan is made from: a cluster file (sections cluster, device, network) and a job file (model, parallel, batch,
 * power), both YAML; docs/planner.md has every key. */
#ifndef EK_PLAN_INPUT_H
#define EK_PLAN_INPUT_H

#include <evenkeel.h>

#include "base/yaml.h"
#include "plan/plan.h"

/* Section "cluster". */
typedef struct ek_plan_cluster {
    uint32_t domains, domain_slots, node_gpus; /* generated; 0: not given */
    char *host;
    char *inventory, *nvidia_smi, *scontrol, *topology; /* files; NULL: not given */
    char **failed, **drained;
    size_t failed_count, drained_count;
    double repair_hours, restart_seconds;
} ek_plan_cluster;

/* Sections "batch" (beside what src/perf has) and "power" of the job file. */
typedef struct ek_plan_power {
    ek_batch_policy policy;
    double cap_watts, domain_watts;
    double *curve;
    size_t curve_count;
} ek_plan_power;

typedef struct ek_plan_input {
    ek_plan_cluster cluster;
    ek_perf_hardware hardware;
    ek_perf_model model;
    ek_perf_parallel parallel;
    ek_plan_power power;
    ek_inventory *inventory;
    ek_perf *perf;
    ek_plan_options options; /* of what is above */
    ek_settings files[2];    /* the cluster file, the job file; for ek_plan_input_locate */
} ek_plan_input;

enum { EK_PLAN_CLUSTER_FILE, EK_PLAN_JOB_FILE };

/* overrides[]: "section.name=value", for the file that has the section. The paths and overrides are referred to. */
ek_status ek_plan_input_read(ek_plan_input **input, const char *cluster_path, const char *job_path,
                             const char *const *overrides, size_t override_count);
void ek_plan_input_destroy(ek_plan_input *input);

/* Puts the place of the key that the current error text begins with in front of it, where a file has that key. */
ek_status ek_plan_input_locate(const ek_plan_input *input, ek_status status);

/* The keys that are this part's own: "cluster", "batch.policy", "power". Offsets are into ek_plan_input. */
const ek_field *ek_plan_fields(size_t *count);

/* The inventory that the section names or gives in numbers, with failed and drained slots marked. Refusals begin with
 * the key at fault, or with the place in the inventory's file. */
ek_status ek_plan_cluster_inventory(const ek_plan_cluster *cluster, uint32_t domain_slots, ek_inventory **inventory);

#endif
