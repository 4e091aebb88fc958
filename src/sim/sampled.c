/* What the studies of sampled scenarios share. */
#include "sim/sampled.h"

#include <math.h>

#include "base/error.h"
#include "base/text.h"

uint32_t ek_sample_devices(const ek_scenario *scenario)
{
    return scenario->domains * scenario->hardware.domain_slots;
}

double ek_sample_fraction(const ek_scenario *scenario, uint32_t point)
{
    return scenario->study.fraction_most * point / (scenario->study.points - 1);
}

static void show_progress(void *study, double done)
{
    ek_study_progress(study, done);
}

ek_status ek_sample_point(ek_study *study, const ek_scenario *scenario, uint32_t failures, bool with_left,
                          ek_sampled_means *means)
{
    ek_steps *steps;
    ek_sampler *sampler = NULL;
    uint32_t blast = scenario->failures.blast_radius, blocks = ek_sample_devices(scenario) / blast;
    if (failures > blocks / 2)
        return ek_fail(EK_INVALID,
                       "study.fraction_most: %u failures of %u devices each are more than half of the cluster's %u "
                       "devices; fewer are needed",
                       failures, blast, ek_sample_devices(scenario));
    EK_TRY(ek_steps_create(&steps, scenario));
    ek_status status = ek_sampler_create(&sampler, steps, scenario->domains, scenario->hardware.domain_slots, blast);
    if (status == EK_OK)
        status = ek_sampler_run(sampler,
                                &(ek_sampling){.seed = scenario->study.seed,
                                               .count = scenario->study.samples,
                                               .failures = failures,
                                               .with_left = with_left,
                                               .threads = study->threads,
                                               .progress = show_progress,
                                               .progress_context = study},
                                means);
    ek_sampler_destroy(sampler);
    ek_steps_destroy(steps);
    return status;
}

ek_status ek_sample_resize(const ek_scenario *scenario, uint32_t size, uint32_t devices, ek_scenario *resized)
{
    uint32_t stages = scenario->parallel.pp, tp = scenario->parallel.tp;
    uint32_t spare = scenario->domains - ek_scenario_needed_domains(scenario), domains = devices / size;
    uint32_t replicas = domains > spare ? (domains - spare) / stages : 0;
    if (replicas == 0)
        return ek_fail(EK_INVALID, "study.sizes: %u devices are no replica of %u stage%s of %s%u; more are needed",
                       devices, stages, ek_plural(stages), ek_perf_mode_text(scenario->parallel.mode), size);
    *resized = *scenario;
    resized->parallel.tp = resized->hardware.domain_slots = size;
    resized->parallel.dp = replicas;
    resized->parallel.global_batch = scenario->parallel.global_batch / scenario->parallel.dp * replicas;
    resized->parallel.min_tp = (uint32_t)(((uint64_t)scenario->parallel.min_tp * size + tp - 1) / tp);
    resized->power.domain_watts = scenario->power.domain_watts / tp * size;
    resized->domains = replicas * stages + spare;
    return EK_OK;
}

ek_status ek_sample_rows(const ek_scenario *scenario, json_t *table, json_t *keys, const ek_sampled_means *means,
                         bool with_left)
{
    ek_status status = EK_OK;
    for (int arrangement = 0; arrangement <= (with_left ? EK_LEFT : EK_PACKED); arrangement++)
        for (int policy = 0; policy < EK_POLICIES && status == EK_OK; policy++) {
            const ek_mean *lost = &means->lost[arrangement][policy];
            json_t *row = json_copy(keys);
            json_t *values = json_pack("[s, s, f, f, f]", ek_arrangement_names[arrangement],
                                       ek_policy_name(scenario, (ek_policy)policy), lost->mean, lost->half_width,
                                       means->worst[arrangement][policy]);
            if (json_array_extend(row, values) != 0)
                status = ek_fail(EK_NO_MEMORY, "no memory for the rows of a study");
            json_decref(values);
            if (status == EK_OK)
                status = ek_study_add(ek_study_rows(table), row);
            else
                json_decref(row);
        }
    json_decref(keys);
    return status;
}

ek_status ek_sample_chart(json_t *series, double x, const ek_mean *part)
{
    return ek_study_band(series, x, 100 * part->mean, 100 * (part->mean - part->half_width),
                         100 * (part->mean + part->half_width));
}

ek_status ek_sample_fact(ek_study *study, const char *name, const ek_sampled_means *means)
{
    double lost[EK_POLICIES];
    for (int policy = 0; policy < EK_POLICIES; policy++)
        lost[policy] = 100 * means->lost[EK_PACKED][policy].mean;
    return ek_study_fact(study, name, "dp-drop %.2f %%, reroute %.2f %%, %s %.2f %%, %s %.2f %%", lost[EK_POLICY_DROP],
                         lost[EK_POLICY_REROUTE], ek_policy_name(study->scenario, EK_POLICY_NTP), lost[EK_POLICY_NTP],
                         ek_policy_name(study->scenario, EK_POLICY_NTP_PW), lost[EK_POLICY_NTP_PW]);
}
