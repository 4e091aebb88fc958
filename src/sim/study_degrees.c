/* What a replica at each reduced degree can do: samples at the default power, samples and power when boosted, and the
 * power that all its samples would take. */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "sim/steps.h"
#include "sim/study.h"

static const char *const columns[] = {
    "units",           "degree",        "speed_needed", "power_needed", "samples",
    "boosted_samples", "boosted_power", "power_limit",  "step",         "reshard_bytes",
};
#define COLUMNS (sizeof columns / sizeof *columns)

#define FACT_LEVELS 4 /* levels that the head of the page tells of: few domains lose more */

static const char *units_name(const ek_scenario *scenario)
{
    return scenario->policies.units == EK_UNITS_FREE ? "free" : "whole";
}

/* The power for a speed, relative; null where the curve does not reach it. */
static json_t *power_for(const ek_curve *curve, double speed)
{
    double most = ek_curve_speed(curve, ek_curve_most_power(curve));
    return speed <= most ? json_real(ek_curve_power(curve, speed)) : json_null();
}

/* What a level can do in one line, for the head of the page. */
static ek_status add_fact(ek_study *study, const ek_scenario *scenario, const ek_steps *steps, uint32_t level)
{
    const ek_level_step *step = &steps->level[level];
    char name[40];
    snprintf(name, sizeof name, "%s%u, %s units", ek_perf_mode_text(scenario->parallel.mode),
             steps->base_degree - level, units_name(scenario));
    if (step->boosted_samples == step->samples)
        return ek_study_fact(study, name, "%u of %u samples", step->samples, steps->samples);
    return ek_study_fact(study, name, "%u of %u samples, %u at %.3f times the power", step->samples, steps->samples,
                         step->boosted_samples, step->watts / scenario->hardware.tdp_watts);
}

static ek_status add_level(ek_study *study, const ek_scenario *scenario, const ek_steps *steps, uint32_t level,
                           json_t *table, json_t *const series[2])
{
    const ek_level_step *step = &steps->level[level];
    double tdp_watts = scenario->hardware.tdp_watts;
    double limit_watts = level ? ek_steps_limit_watts(scenario, level) : tdp_watts;
    uint32_t degree = steps->base_degree - level;
    json_t *speed = step->speed_needed < INFINITY ? json_real(step->speed_needed) : json_null();
    EK_TRY(ek_study_add(ek_study_rows(table),
                        json_pack("[s, i, o, o, i, i, f, f, f, f]", units_name(scenario), (int)degree, speed,
                                  power_for(&scenario->power.curve, step->speed_needed), (int)step->samples,
                                  (int)step->boosted_samples, step->watts / tdp_watts, limit_watts / tdp_watts,
                                  1 / step->pace, step->reshard_bytes)));
    EK_TRY(ek_study_point(series[0], degree, step->samples));
    EK_TRY(ek_study_point(series[1], degree, step->boosted_samples));
    return level >= 1 && level <= FACT_LEVELS ? add_fact(study, scenario, steps, level) : EK_OK;
}

static ek_status add_levels(ek_study *study, ek_sim_units units, json_t *table, json_t *chart)
{
    ek_scenario scenario = *study->scenario;
    ek_steps *steps;
    json_t *series[2];
    scenario.policies.units = units;
    for (int i = 0; i < 2; i++) {
        char name[40];
        snprintf(name, sizeof name, "%s, %s units", ek_policy_name(&scenario, i ? EK_POLICY_NTP_PW : EK_POLICY_NTP),
                 units_name(&scenario));
        EK_TRY(ek_study_series(chart, name, &series[i]));
    }
    EK_TRY(ek_steps_create(&steps, &scenario));
    ek_status status = EK_OK;
    for (uint32_t level = 0; status == EK_OK && level <= steps->levels; level++)
        status = add_level(study, &scenario, steps, level, table, series);
    ek_steps_destroy(steps);
    return status;
}

ek_status ek_study_degrees(ek_study *study)
{
    json_t *table = ek_study_table(study, "degrees", columns, COLUMNS), *section, *chart;
    EK_TRY(ek_study_section(study, "What a reduced replica can do",
                            "Samples that a replica is done with in the time in which a whole one takes all of its; "
                            "at the default power and boosted (pw). Powers and the step are relative to no "
                            "failure; power_needed is for all samples, whatever the limits.",
                            &section));
    EK_TRY(ek_study_chart(section, "line", "degree of the replica", "samples", &chart));
    EK_TRY(add_levels(study, EK_UNITS_WHOLE, table, chart));
    EK_TRY(add_levels(study, EK_UNITS_FREE, table, chart));
    return ek_study_show(section, table);
}
