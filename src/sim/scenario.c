/* The keys of a scenario, their ranges and defaults, and what must hold between them. */
#include "sim/scenario.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "power/governor.h"
#include "sim/study.h"

#define HOURS_MOST 1e6
#define SECONDS_MOST 1e7
#define DOMAINS_MOST (1u << 20)
#define SLOTS_MOST 65535u       /* of a domain: the sampler counts in 16 bits */
#define DEVICES_MOST (1u << 24) /* the sampler's words of 32 bits choose among them evenly */

static const char *const units_choices[] = {"free", "whole", NULL}; /* ek_sim_units */

#define PLACE(member) .offset = offsetof(ek_scenario, member), .bytes = sizeof(((ek_scenario *)0)->member)
#define WHOLE(member, from, to) .kind = EK_FIELD_WHOLE, PLACE(member), .least = (from), .most = (to)
#define REAL(member, from, to) .kind = EK_FIELD_REAL, PLACE(member), .least_real = (from), .most_real = (to)
#define WHOLES(member, members, from, to)                                                                              \
    .kind = EK_FIELD_WHOLES, .offset = offsetof(ek_scenario, member), .count_offset = offsetof(ek_scenario, members),  \
    .least = (from), .most = (to)

static const ek_field own_fields[] = {
    {"cluster.domains", WHOLE(domains, 1, DOMAINS_MOST), .derived = "as many as the job needs",
     .help = "scale-up domains; those that the job does not need are spare"},

    {"power.cap_watts", REAL(power.cap_watts, 0, 1e6), .otherwise = "0",
     .help = "highest limit that a device is given; 0: 1.3 times device.tdp_watts, or where the curve ends"},
    {"power.domain_watts", REAL(power.domain_watts, 0, 1e9), .otherwise = "0",
     .help = "what parallel.tp devices of a domain may have together; 0: parallel.tp times device.tdp_watts"},
    {"power.idle_watts", REAL(power.idle_watts, 0, 1e6), .derived = "a tenth of device.tdp_watts",
     .help = "what a device takes that is not used or stands still"},
    {"power.curve", .kind = EK_FIELD_PAIRS, .offset = offsetof(ek_scenario, power.curve_pairs),
     .count_offset = offsetof(ek_scenario, power.curve_pair_count), .least_real = 0, .most_real = 10,
     .derived = "the published points of arXiv 2504.06095",
     .help = "pairs of power and speed of a device, both relative to its default limit, increasing"},

    {"failures.per_gpu_hour", REAL(failures.per_gpu_hour, 0, 1), .otherwise = "1.973e-5",
     .help = "failures of a device in an hour; 419 interruptions of 16,384 GPUs in 54 days (Llama 3) are the default"},
    {"failures.hardware_fraction", REAL(failures.hardware_fraction, 0, 1), .otherwise = "0.78",
     .help = "the part of them that is hardware"},
    {"failures.hardware_hours_least", REAL(failures.hardware_hours_least, 0, HOURS_MOST), .otherwise = "72",
     .help = "repair of hardware takes at least so long,"},
    {"failures.hardware_hours_most", REAL(failures.hardware_hours_most, 0, HOURS_MOST), .otherwise = "120",
     .help = "and at most so long, evenly spread"},
    {"failures.software_hours", REAL(failures.software_hours, 0, HOURS_MOST), .otherwise = "3",
     .help = "how long a device is away after a failure of software"},
    {"failures.blast_radius", WHOLE(failures.blast_radius, 1, SLOTS_MOST), .otherwise = "1",
     .help = "devices that fail together: an aligned group of slots; divides network.domain_slots"},
    {"failures.domain_per_hour", REAL(failures.domain_per_hour, 0, 1), .otherwise = "0",
     .help = "failures of a whole domain in an hour (a switch, power, cooling)"},
    {"failures.domain_hours", REAL(failures.domain_hours, 0, HOURS_MOST), .otherwise = "24",
     .help = "and their repair"},
    {"failures.repeat_factor", REAL(failures.repeat_factor, 1, 1000), .otherwise = "1",
     .help = "a device that has failed once fails so many times as often once it is back"},
    {"failures.follow_probability", REAL(failures.follow_probability, 0, 1), .otherwise = "0",
     .help = "that a failure of hardware brings another one in the same domain,"},
    {"failures.follow_hours", REAL(failures.follow_hours, 0, HOURS_MOST), .otherwise = "1",
     .help = "so long afterwards in the mean"},
    {"failures.events", .kind = EK_FIELD_STRING, PLACE(failures.events_path), .derived = "none: failures are drawn",
     .help = "a CSV of events that happened, from the working directory; failures over time are then those"},

    {"policies.units", .kind = EK_FIELD_CHOICE, PLACE(policies.units), .choices = units_choices, .otherwise = "whole",
     .help = "whole: units as evenkeel deals them; free: a rank's share divides freely, as published models have it"},
    {"policies.detect_seconds", REAL(policies.detect_seconds, 0, SECONDS_MOST), .otherwise = "10",
     .help = "until the job knows of a failure"},
    {"policies.recover_seconds", REAL(policies.recover_seconds, 0, SECONDS_MOST), .otherwise = "10",
     .help = "recovery in place"},
    {"policies.return_seconds", REAL(policies.return_seconds, 0, SECONDS_MOST), .otherwise = "10",
     .help = "the job stands still so long when repaired devices return in place"},
    {"policies.restart_seconds", REAL(policies.restart_seconds, 0, SECONDS_MOST), .otherwise = "600",
     .help = "from the end of a job to its first step after a restart"},
    {"policies.checkpoint_hours", REAL(policies.checkpoint_hours, 1e-3, HOURS_MOST), .otherwise = "0.1",
     .help = "training between two checkpoints of a job that restarts from them"},
    {"policies.in_place_checkpoint_hours", REAL(policies.in_place_checkpoint_hours, 1e-3, HOURS_MOST), .otherwise = "1",
     .help = "and of a job that recovers in place, which keeps them for the worst"},
    {"policies.checkpoint_seconds", REAL(policies.checkpoint_seconds, 0, SECONDS_MOST), .otherwise = "10",
     .help = "how long the job stands still for one"},
    {"policies.repack_hours", REAL(policies.repack_hours, 0, HOURS_MOST), .otherwise = "0",
     .help = "a job is restarted so often to pack damaged domains, where that gains anything; 0: never"},

    {"study.kind", .kind = EK_FIELD_CHOICE, PLACE(study.kind), .choices = ek_study_names, .help = "what is studied"},
    {"study.seed", WHOLE(study.seed, 0, UINT64_MAX), .otherwise = "1", .help = "of all that is random"},
    {"study.samples", WHOLE(study.samples, 100, 1000000000), .otherwise = "100000",
     .help = "sampled scenarios of each point"},
    {"study.histories", WHOLE(study.histories, 1, 1000000), .otherwise = "200", .help = "failure histories over time"},
    {"study.horizon_days", REAL(study.horizon_days, 0.01, 3650), .otherwise = "15", .help = "length of a history"},
    {"study.fraction_most", REAL(study.fraction_most, 0, 0.5), .otherwise = "0.004",
     .help = "failed fraction of devices; the last point of a curve, or the only one"},
    {"study.points", WHOLE(study.points, 2, 1000), .otherwise = "17",
     .help = "points of a curve, evenly spread from no failure on"},
    {"study.quantile", REAL(study.quantile, 0.5, 0.9999), .otherwise = "0.95",
     .help = "part of the histories that must run without a pause"},
    {"study.sizes", WHOLES(study.sizes, study.size_count, 1, SLOTS_MOST), .derived = "the study's own",
     .help = "what the study goes through: TP degrees, blast radii, domain sizes"},
    {"study.clusters", WHOLES(study.clusters, study.cluster_count, 1, DEVICES_MOST), .derived = "the job's devices",
     .help = "devices of the clusters that the study goes through"},
    {"study.spares_most", WHOLE(study.spares_most, 0, DOMAINS_MOST), .otherwise = "128",
     .help = "spare domains, up to which they are counted"},

    {"validation.jobs", .kind = EK_FIELD_STRING, PLACE(validation.jobs), .derived = "none",
     .help = "a folder with a file for each published step time, from the working directory"},
    {"validation.ranges", .kind = EK_FIELD_STRING, PLACE(validation.ranges), .derived = "none",
     .help = "the file with the ranges of what no data sheet says of the device and the network, likewise"},
};
#define OWN_COUNT (sizeof own_fields / sizeof *own_fields)

size_t ek_scenario_fields(ek_field fields[EK_SCENARIO_FIELDS_MOST])
{
    size_t count, all = 0;
    const ek_field *part = ek_perf_model_fields(&count);
    all += ek_perf_fields_at(fields, part, count, offsetof(ek_scenario, model));
    part = ek_perf_parallel_fields(&count);
    all += ek_perf_fields_at(fields + all, part, count, offsetof(ek_scenario, parallel));
    part = ek_perf_hardware_fields(&count);
    all += ek_perf_fields_at(fields + all, part, count, offsetof(ek_scenario, hardware));
    return all + ek_perf_fields_at(fields + all, own_fields, OWN_COUNT, 0);
}

uint32_t ek_scenario_needed_domains(const ek_scenario *scenario)
{
    uint64_t cells = (uint64_t)scenario->parallel.dp * scenario->parallel.pp;
    uint32_t cells_of_domain = scenario->hardware.domain_slots / scenario->parallel.tp;
    return (uint32_t)((cells + cells_of_domain - 1) / cells_of_domain);
}

static ek_status check_cluster(const ek_settings *settings, ek_scenario *scenario)
{
    const ek_perf_parallel *parallel = &scenario->parallel;
    uint32_t slots = scenario->hardware.domain_slots;
    if (slots > SLOTS_MOST)
        return ek_settings_refuse(settings, "network.domain_slots", "found %u; at most %u is allowed", slots,
                                  SLOTS_MOST);
    uint32_t needed = ek_scenario_needed_domains(scenario);
    if (!ek_settings_given(settings, "cluster.domains"))
        scenario->domains = needed;
    if (needed > scenario->domains)
        return ek_settings_refuse(settings, "cluster.domains",
                                  "found %u; %u replica%s of %u stage%s of %s%u need%s %u domain%s of %u device%s",
                                  scenario->domains, parallel->dp, ek_plural(parallel->dp), parallel->pp,
                                  ek_plural(parallel->pp), ek_perf_mode_text(parallel->mode), parallel->tp,
                                  parallel->dp == 1 ? "s" : "", needed, ek_plural(needed), slots, ek_plural(slots));
    if ((uint64_t)scenario->domains * slots > DEVICES_MOST)
        return ek_settings_refuse(settings, "cluster.domains", "found %u; domains of %u devices may be %u at most",
                                  scenario->domains, slots, DEVICES_MOST / slots);
    if (parallel->global_batch % parallel->dp != 0)
        return ek_settings_refuse(
            settings, "batch.global",
            "found %u; a multiple of parallel.dp, %u, is needed: each replica takes whole samples",
            parallel->global_batch, parallel->dp);
    return EK_OK;
}

static ek_status check_power(const ek_settings *settings, ek_scenario *scenario)
{
    ek_sim_power *power = &scenario->power;
    double tdp = scenario->hardware.tdp_watts;
    ek_status status = ek_curve_from_pairs(&power->curve, power->curve_pairs, power->curve_pair_count);
    ek_governor_options options = {.base_degree = scenario->parallel.tp,
                                   .curve = power->curve,
                                   .default_watts = tdp,
                                   .cap_watts = power->cap_watts,
                                   .domain_watts = power->domain_watts};
    if (status == EK_OK)
        status = ek_governor_complete_options(&options);
    if (status != EK_OK)
        return ek_settings_locate(settings, status);
    power->cap_watts = options.cap_watts;
    power->domain_watts = options.domain_watts;
    if (!ek_settings_given(settings, "power.idle_watts"))
        power->idle_watts = tdp / 10;
    return EK_OK;
}

static ek_status check_failures(const ek_settings *settings, ek_scenario *scenario)
{
    const ek_failure_model *failures = &scenario->failures;
    uint32_t slots = scenario->hardware.domain_slots;
    if (failures->hardware_hours_least > failures->hardware_hours_most)
        return ek_settings_refuse(settings, "failures.hardware_hours_least",
                                  "found %g; at most failures.hardware_hours_most, %g, is allowed",
                                  failures->hardware_hours_least, failures->hardware_hours_most);
    if (slots % failures->blast_radius != 0)
        return ek_settings_refuse(settings, "failures.blast_radius",
                                  "found %u; a number that divides network.domain_slots, %u, is needed",
                                  failures->blast_radius, slots);
    return failures->events_path ? ek_scenario_read_events(scenario) : EK_OK;
}

static ek_status check(const ek_settings *settings, ek_scenario *scenario)
{
    ek_perf *perf = NULL;
    ek_status status = ek_perf_create(&perf, &scenario->model, &scenario->parallel, &scenario->hardware);
    ek_perf_destroy(perf);
    if (status != EK_OK)
        return ek_settings_locate(settings, status);
    EK_TRY(check_cluster(settings, scenario));
    EK_TRY(check_power(settings, scenario));
    return check_failures(settings, scenario);
}

ek_status ek_scenario_read(ek_scenario **scenario, const char *path, const char *const *overrides,
                           size_t override_count)
{
    ek_field fields[EK_SCENARIO_FIELDS_MOST];
    size_t count = ek_scenario_fields(fields);
    ek_scenario *read = calloc(1, sizeof *read);
    if (!read)
        return ek_fail(EK_NO_MEMORY, "no memory for the scenario");
    read->path = path;
    const ek_settings settings = {fields, count, read, path, read->origins};
    ek_status status = ek_settings_read(&settings, overrides, override_count);
    if (status == EK_OK)
        status = check(&settings, read);
    if (status != EK_OK) {
        ek_scenario_destroy(read);
        return status;
    }
    *scenario = read;
    return EK_OK;
}

ek_status ek_scenario_locate(const ek_scenario *scenario, ek_status status)
{
    ek_field fields[EK_SCENARIO_FIELDS_MOST];
    ek_origin origins[EK_SCENARIO_FIELDS_MOST];
    size_t count = ek_scenario_fields(fields);
    memcpy(origins, scenario->origins, sizeof origins);
    const ek_settings settings = {.fields = fields, .count = count, .path = scenario->path, .origins = origins};
    return ek_settings_blamed(&settings) ? ek_settings_locate(&settings, status) : status;
}

void ek_scenario_destroy(ek_scenario *scenario)
{
    if (!scenario)
        return;
    ek_field fields[EK_SCENARIO_FIELDS_MOST];
    size_t count = ek_scenario_fields(fields);
    ek_settings_free(fields, count, scenario);
    free(scenario->failures.events);
    free(scenario);
}
