/* Throughput lost when a failure takes its neighbours along, at a fixed number of failures. */
#include <math.h>

#include "base/error.h"
#include "sim/sampled.h"

static const char *const columns[] = {"blast_radius", "failures", "failed_fraction", "arrangement",
                                      "policy",       "lost",     "lost_ci95",       "lost_worst"};
#define COLUMNS (sizeof columns / sizeof *columns)

static const uint32_t default_sizes[] = {1, 2, 4, 8};

ek_status ek_study_blast(ek_study *study)
{
    const ek_scenario *scenario = study->scenario;
    const ek_study_settings *settings = &scenario->study;
    const uint32_t *sizes = settings->size_count ? settings->sizes : default_sizes;
    size_t count = settings->size_count ? settings->size_count : sizeof default_sizes / sizeof *default_sizes;
    uint32_t devices = ek_sample_devices(scenario), slots = scenario->hardware.domain_slots;
    uint32_t failures = (uint32_t)lround(settings->fraction_most * devices);
    json_t *table = ek_study_table(study, "blast", columns, COLUMNS), *section, *chart, *series[EK_POLICIES];
    EK_TRY(ek_study_section(study, "Devices that fail together",
                            "The same number of failures, each of an aligned group of devices in one domain; packed.",
                            &section));
    EK_TRY(ek_study_chart(section, "line", "devices of a failure", "throughput lost, %", &chart));
    for (int policy = 0; policy < EK_POLICIES; policy++)
        EK_TRY(ek_study_series(chart, ek_policy_names[policy], &series[policy]));
    for (size_t i = 0; i < count; i++) {
        ek_scenario changed = *scenario;
        ek_sampled_means means;
        changed.failures.blast_radius = sizes[i];
        if (slots % sizes[i] != 0)
            return ek_fail(EK_INVALID,
                           "study.sizes: found %u; numbers that divide network.domain_slots, %u, are needed", sizes[i],
                           slots);
        EK_TRY(ek_sample_point(study, &changed, failures, true, &means));
        double fraction = (double)failures * sizes[i] / devices;
        EK_TRY(ek_sample_rows(table, json_pack("[i, i, f]", (int)sizes[i], (int)failures, fraction), &means, true));
        for (int policy = 0; policy < EK_POLICIES; policy++)
            EK_TRY(ek_study_interval(series[policy], sizes[i], 100 * means.lost[EK_PACKED][policy].mean,
                                     100 * means.lost[EK_PACKED][policy].half_width));
        ek_study_progress(study, (i + 1.0) / count);
    }
    return ek_study_show(section, table);
}
