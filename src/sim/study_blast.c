/* Throughput lost when a failure takes its neighbours along, at a fixed number of failures. */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "sim/sampled.h"

static const char *const columns[] = {"blast_radius", "failures", "failed_fraction", "arrangement",
                                      "policy",       "lost",     "lost_ci95",       "lost_worst"};
#define COLUMNS (sizeof columns / sizeof *columns)

static const uint32_t default_sizes[] = {1, 2, 4, 8};

static uint32_t failures_of(const ek_scenario *scenario)
{
    return (uint32_t)lround(scenario->study.fraction_most * ek_sample_devices(scenario));
}

static ek_status add_size(ek_study *study, uint32_t size, json_t *table, json_t *const series[EK_POLICIES])
{
    const ek_scenario *scenario = study->scenario;
    uint32_t devices = ek_sample_devices(scenario), slots = scenario->hardware.domain_slots;
    uint32_t failures = failures_of(scenario);
    ek_scenario changed = *scenario;
    ek_sampled_means means;
    char name[40];
    changed.failures.blast_radius = size;
    if (slots % size != 0)
        return ek_fail(EK_INVALID, "study.sizes: found %u; numbers that divide network.domain_slots, %u, are needed",
                       size, slots);
    EK_TRY(ek_sample_point(study, &changed, failures, true, &means));
    double fraction = (double)failures * size / devices;
    EK_TRY(ek_sample_rows(study->scenario, table, json_pack("[i, i, f]", (int)size, (int)failures, fraction), &means,
                          true));
    for (int policy = 0; policy < EK_POLICIES; policy++)
        EK_TRY(ek_sample_chart(series[policy], size, &means.lost[EK_PACKED][policy]));
    snprintf(name, sizeof name, "%u device%s a failure", size, size > 1 ? "s" : "");
    return ek_sample_fact(study, name, &means);
}

ek_status ek_study_blast(ek_study *study)
{
    const ek_study_settings *settings = &study->scenario->study;
    const uint32_t *sizes = settings->size_count ? settings->sizes : default_sizes;
    size_t count = settings->size_count ? settings->size_count : sizeof default_sizes / sizeof *default_sizes;
    json_t *table = ek_study_table(study, "blast", columns, COLUMNS), *section, *chart, *series[EK_POLICIES];
    while (!settings->size_count && study->scenario->hardware.domain_slots % sizes[count - 1] != 0)
        count--; /* a small domain has no use for the larger ones */
    EK_TRY(ek_study_section(study, "Devices that fail together",
                            "The same number of failures, each of an aligned group of devices in one domain; packed.",
                            &section));
    EK_TRY(ek_study_chart(section, "line", "devices of a failure", "throughput lost, %", &chart));
    for (int policy = 0; policy < EK_POLICIES; policy++)
        EK_TRY(ek_study_series(chart, ek_policy_name(study->scenario, (ek_policy)policy), &series[policy]));
    EK_TRY(ek_study_fact(study, "throughput lost", "with %u failures, packed", failures_of(study->scenario)));
    for (size_t i = 0; i < count; i++) {
        ek_study_part(study, (uint32_t)i, (uint32_t)count);
        EK_TRY(add_size(study, sizes[i], table, series));
    }
    return ek_study_show(section, table);
}
