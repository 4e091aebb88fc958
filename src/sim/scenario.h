/* A scenario: the job, the cluster, how devices fail, what is done about it, and what is to be studied. It is read from
 * a YAML file of settings; docs/simulator.md lists the keys. */
#ifndef EK_SIM_SCENARIO_H
#define EK_SIM_SCENARIO_H

#include <evenkeel.h>

#include "base/yaml.h"
#include "perf/perf.h"
#include "power/curve.h"

/* A failure as it happened. */
typedef struct ek_failure_event {
    double hours, repair_hours;
    uint32_t domain, slot, slots; /* slots that fail: one, or the domain's */
    bool hardware;
} ek_failure_event;

typedef struct ek_failure_model {
    double per_gpu_hour;                              /* failures of a device in an hour, hardware and software */
    double hardware_fraction;                         /* the part of them that is hardware */
    double hardware_hours_least, hardware_hours_most; /* repair, uniform between the two */
    double software_hours;
    uint32_t blast_radius;     /* devices that fail together: an aligned group of slots */
    double domain_per_hour;    /* failures of a whole domain, per domain */
    double domain_hours;       /* and their repair */
    double repeat_factor;      /* a device that has failed once fails so many times as often afterwards */
    double follow_probability; /* that another device of the domain fails after a hardware failure, */
    double follow_hours;       /* so long afterwards in the mean */
    char *events_path;         /* a CSV of real events instead of all that; NULL: none */
    ek_failure_event *events;  /* what it holds, in order of time */
    size_t event_count;
} ek_failure_model;

/* Units as src/layout deals them, or shares that divide freely. */
typedef enum ek_sim_units { EK_UNITS_FREE, EK_UNITS_WHOLE } ek_sim_units;

typedef struct ek_sim_policies {
    ek_sim_units units;
    double detect_seconds;     /* until a failure is known */
    double recover_seconds;    /* recovery in place */
    double return_seconds;     /* of a repaired device */
    double restart_seconds;    /* from a checkpoint */
    double checkpoint_hours;   /* between two checkpoints, */
    double checkpoint_seconds; /* each of which stops the job for so long */
    double repack_hours;       /* between planned restarts, where packing gains anything; 0: none */
} ek_sim_policies;

typedef struct ek_sim_power {
    double cap_watts;    /* of a device; filled in where the file has 0 */
    double domain_watts; /* of parallel.tp devices, likewise */
    double idle_watts;   /* of a device that is not used or stands still */
    double *curve_pairs;
    size_t curve_pair_count;
    ek_curve curve; /* made of the pairs */
} ek_sim_power;

/* What there is to study: study.c has the table. */
typedef enum ek_study_kind {
    EK_STUDY_THROUGHPUT,
    EK_STUDY_AVAILABILITY,
    EK_STUDY_GOODPUT,
    EK_STUDY_SPARES,
    EK_STUDY_BLAST,
    EK_STUDY_DOMAINS,
    EK_STUDY_DEGREES,
    EK_STUDY_VALIDATION,
    EK_STUDY_KINDS,
} ek_study_kind;

typedef struct ek_study_settings {
    ek_study_kind kind;
    uint64_t seed;
    uint64_t samples;     /* sampled scenarios of a point */
    uint32_t histories;   /* failure histories over time */
    double horizon_days;  /* of a history */
    double fraction_most; /* of failed devices; points are spread evenly from 0 to it */
    uint32_t points;
    double quantile; /* of histories that run without a pause */
    uint32_t *sizes; /* the list that a study goes through: degrees, blast radii, domain sizes */
    size_t size_count;
    uint32_t *clusters; /* devices of the clusters that a study goes through */
    size_t cluster_count;
    uint32_t spares_most; /* domains */
} ek_study_settings;

/* Files of the study "validation": a folder of published step times, and the ranges of uncertain inputs. NULL: none. */
typedef struct ek_validation_settings {
    char *jobs, *ranges;
} ek_validation_settings;

typedef struct ek_scenario {
    const char *path; /* the file */
    ek_perf_model model;
    ek_perf_parallel parallel;
    ek_perf_hardware hardware;
    uint32_t domains; /* of the cluster; those beyond what the job needs are spare */
    ek_sim_power power;
    ek_failure_model failures;
    ek_sim_policies policies;
    ek_study_settings study;
    ek_validation_settings validation;
} ek_scenario;

/* Reads and checks it all but what ek_perf_create checks. overrides: "section.key=value". EK_INVALID names file, line
 * and key. */
ek_status ek_scenario_read(ek_scenario **scenario, const char *path, const char *const *overrides,
                           size_t override_count);
void ek_scenario_destroy(ek_scenario *scenario);

/* Every key. */
#define EK_SCENARIO_FIELDS_MOST 128
size_t ek_scenario_fields(ek_field fields[EK_SCENARIO_FIELDS_MOST]);

/* Domains that the job needs with no failure. */
uint32_t ek_scenario_needed_domains(const ek_scenario *scenario);

/* Reads failures.events_path: a line "time_hours,domain,slot,kind,repair_hours", then one for each event; kind is
 * hardware, software or domain (then slot is empty). EK_INVALID names file and line. */
ek_status ek_scenario_read_events(ek_scenario *scenario);

#endif
