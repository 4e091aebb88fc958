/* Steady throughput lost against the failed fraction of devices. */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "sim/sampled.h"

static const char *const columns[] = {"failed_fraction", "failed_devices", "arrangement", "policy", "lost",
                                      "lost_ci95",       "lost_worst"};
#define COLUMNS (sizeof columns / sizeof *columns)

#define STRICT "ntp-pw-strict" /* NTP-PW in racks that give parallel.tp times the TDP and no more */

typedef struct throughput_curves {
    json_t *table, *series[EK_ARRANGEMENTS][EK_POLICIES], *strict[EK_ARRANGEMENTS];
    bool with_strict;
    ek_scenario strict_scenario;
} throughput_curves;

/* Dashed: where power gains nothing it lies on NTP's curve. */
static ek_status start_strict(const ek_study *study, json_t *chart, json_t **series)
{
    EK_TRY(ek_study_series(chart, ek_name_in_mode(study->scenario, STRICT), series));
    if (json_object_set_new(*series, "dashed", json_true()) != 0)
        return ek_fail(EK_NO_MEMORY, "no memory for a chart");
    return EK_OK;
}

static ek_status make_charts(ek_study *study, throughput_curves *curves)
{
    static const char *const headings[EK_ARRANGEMENTS] = {"Packed at a restart", "Left where failures fell"};
    static const char *const texts[EK_ARRANGEMENTS] = {
        "Domains are sorted by failures, and damaged ones make up as few replicas as possible.",
        "Every domain stays in its replica, as recovery in place leaves it until the next restart."};
    for (int arrangement = 0; arrangement < EK_ARRANGEMENTS; arrangement++) {
        json_t *section, *chart;
        EK_TRY(ek_study_section(study, headings[arrangement], texts[arrangement], &section));
        EK_TRY(ek_study_chart(section, "line", "failed fraction of devices, %", "throughput lost, %", &chart));
        for (int policy = 0; policy < EK_POLICIES; policy++)
            EK_TRY(ek_study_series(chart, ek_policy_name(study->scenario, (ek_policy)policy),
                                   &curves->series[arrangement][policy]));
        if (curves->with_strict)
            EK_TRY(start_strict(study, chart, &curves->strict[arrangement]));
    }
    return EK_OK;
}

static ek_status add_strict(ek_study *study, const throughput_curves *curves, double fraction, uint32_t failures)
{
    ek_sampled_means means;
    EK_TRY(ek_sample_point(study, &curves->strict_scenario, failures, true, &means));
    for (int arrangement = 0; arrangement < EK_ARRANGEMENTS; arrangement++) {
        const ek_mean *lost = &means.lost[arrangement][EK_POLICY_NTP_PW];
        EK_TRY(ek_study_add(ek_study_rows(curves->table),
                            json_pack("[f, i, s, s, f, f, f]", fraction,
                                      (int)(failures * study->scenario->failures.blast_radius),
                                      ek_arrangement_names[arrangement], ek_name_in_mode(study->scenario, STRICT),
                                      lost->mean, lost->half_width, means.worst[arrangement][EK_POLICY_NTP_PW])));
        EK_TRY(ek_sample_chart(curves->strict[arrangement], 100 * fraction, lost));
    }
    return EK_OK;
}

/* What the last point loses. */
static ek_status add_facts(ek_study *study, const ek_sampled_means *means, double fraction)
{
    EK_TRY(ek_study_fact(study, "throughput lost", "at %.2f %% of devices failed", 100 * fraction));
    for (int arrangement = 0; arrangement < EK_ARRANGEMENTS; arrangement++)
        for (int policy = 0; policy < EK_POLICIES; policy++) {
            char name[40];
            snprintf(name, sizeof name, "%s, %s", ek_policy_name(study->scenario, (ek_policy)policy),
                     ek_arrangement_names[arrangement]);
            EK_TRY(ek_study_fact(study, name, "%.2f %%", 100 * means->lost[arrangement][policy].mean));
        }
    return EK_OK;
}

static ek_status add_point(ek_study *study, throughput_curves *curves, uint32_t point)
{
    const ek_scenario *scenario = study->scenario;
    uint32_t devices = ek_sample_devices(scenario), blast = scenario->failures.blast_radius;
    uint32_t failures = (uint32_t)lround(ek_sample_fraction(scenario, point) * devices / blast);
    double fraction = (double)failures * blast / devices;
    uint32_t runs = curves->with_strict ? 2 : 1;
    ek_sampled_means means;
    ek_study_part(study, runs * point, runs * scenario->study.points);
    EK_TRY(ek_sample_point(study, scenario, failures, true, &means));
    EK_TRY(ek_sample_rows(study->scenario, curves->table, json_pack("[f, i]", fraction, (int)(failures * blast)),
                          &means, true));
    for (int arrangement = 0; arrangement < EK_ARRANGEMENTS; arrangement++)
        for (int policy = 0; policy < EK_POLICIES; policy++) {
            const ek_mean *lost = &means.lost[arrangement][policy];
            EK_TRY(ek_sample_chart(curves->series[arrangement][policy], 100 * fraction, lost));
        }
    if (point + 1 == scenario->study.points)
        EK_TRY(add_facts(study, &means, fraction));
    if (!curves->with_strict)
        return EK_OK;
    ek_study_part(study, runs * point + 1, runs * scenario->study.points);
    return add_strict(study, curves, fraction, failures);
}

ek_status ek_study_throughput(ek_study *study)
{
    const ek_scenario *scenario = study->scenario;
    double strict_watts = scenario->parallel.tp * scenario->hardware.tdp_watts;
    throughput_curves curves = {.table = ek_study_table(study, "throughput", columns, COLUMNS),
                                .with_strict = scenario->power.domain_watts > strict_watts,
                                .strict_scenario = *scenario};
    curves.strict_scenario.power.domain_watts = strict_watts;
    EK_TRY(make_charts(study, &curves));
    for (uint32_t point = 0; point < scenario->study.points; point++)
        EK_TRY(add_point(study, &curves, point));
    return EK_OK;
}
