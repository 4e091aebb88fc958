/* The part of TP groups without a failure against the failed fraction of devices, for several TP degrees. */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "sim/sampled.h"

static const char *const columns[] = {"tp", "failed_fraction", "available", "available_ci95", "expected"};
#define COLUMNS (sizeof columns / sizeof *columns)

static const uint32_t default_sizes[] = {8, 16, 32, 64, 72};

static ek_status add_curve(ek_study *study, json_t *table, json_t *chart, uint32_t curve, uint32_t curves,
                           uint32_t size)
{
    const ek_scenario *scenario = study->scenario;
    ek_scenario resized;
    json_t *series;
    char name[32];
    snprintf(name, sizeof name, "%s%u", ek_perf_mode_text(scenario->parallel.mode), size);
    EK_TRY(ek_study_series(chart, name, &series));
    EK_TRY(ek_sample_resize(scenario, size, ek_sample_devices(scenario), &resized));
    resized.failures.blast_radius = 1;
    for (uint32_t point = 0; point < scenario->study.points; point++) {
        ek_sampled_means means;
        uint32_t devices = ek_sample_devices(&resized);
        uint32_t failures = (uint32_t)lround(ek_sample_fraction(scenario, point) * devices);
        double fraction = (double)failures / devices;
        ek_study_part(study, curve * scenario->study.points + point, curves * scenario->study.points);
        EK_TRY(ek_sample_point(study, &resized, failures, false, &means));
        EK_TRY(
            ek_study_add(ek_study_rows(table), json_pack("[i, f, f, f, f]", (int)size, fraction, means.whole_cells.mean,
                                                         means.whole_cells.half_width, pow(1 - fraction, size))));
        EK_TRY(ek_sample_chart(series, 100 * fraction, &means.whole_cells));
        if (point + 1 == scenario->study.points)
            EK_TRY(ek_study_fact(study, name, "%.1f %% of groups", 100 * means.whole_cells.mean));
    }
    return EK_OK;
}

ek_status ek_study_availability(ek_study *study)
{
    const ek_study_settings *settings = &study->scenario->study;
    const uint32_t *sizes = settings->size_count ? settings->sizes : default_sizes;
    size_t count = settings->size_count ? settings->size_count : sizeof default_sizes / sizeof *default_sizes;
    json_t *table = ek_study_table(study, "availability", columns, COLUMNS), *section, *chart;
    EK_TRY(ek_study_section(study, "Groups without a failure",
                            "A group of N devices has none failed with probability (1 - f)^N: without nonuniform "
                            "parallelism one failed device takes its whole group away.",
                            &section));
    EK_TRY(ek_study_chart(section, "line", "failed fraction of devices, %", "groups available, %", &chart));
    EK_TRY(ek_study_fact(study, "without a failure", "at %.2f %% of devices failed", 100 * settings->fraction_most));
    for (size_t i = 0; i < count; i++)
        EK_TRY(add_curve(study, table, chart, (uint32_t)i, (uint32_t)count, sizes[i]));
    return ek_study_show(section, table);
}
