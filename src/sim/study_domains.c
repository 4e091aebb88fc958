/* Throughput lost in clusters of several sizes that are made of domains of several sizes. */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "sim/sampled.h"

static const char *const columns[] = {"domain_size", "devices", "replicas",  "failed_fraction", "arrangement",
                                      "policy",      "lost",    "lost_ci95", "lost_worst"};
#define COLUMNS (sizeof columns / sizeof *columns)

static const uint32_t default_sizes[] = {8, 16, 32, 72};

/* `headline`: the point is a fact of the page, too. */
static ek_status add_point(ek_study *study, json_t *table, uint32_t size, uint32_t devices, bool headline,
                           json_t *const series[EK_POLICIES])
{
    ek_scenario resized;
    ek_sampled_means means;
    char name[48];
    EK_TRY(ek_sample_resize(study->scenario, size, devices, &resized));
    uint32_t all = ek_sample_devices(&resized);
    uint32_t failures = (uint32_t)lround(resized.study.fraction_most * all / resized.failures.blast_radius);
    double fraction = (double)failures * resized.failures.blast_radius / all;
    EK_TRY(ek_sample_point(study, &resized, failures, true, &means));
    EK_TRY(ek_sample_rows(study->scenario, table,
                          json_pack("[i, i, i, f]", (int)size, (int)all, (int)resized.parallel.dp, fraction), &means,
                          true));
    for (int policy = 0; policy < EK_POLICIES; policy++)
        EK_TRY(ek_sample_chart(series[policy], all, &means.lost[EK_PACKED][policy]));
    snprintf(name, sizeof name, "domains of %u", size);
    return headline ? ek_sample_fact(study, name, &means) : EK_OK;
}

ek_status ek_study_domains(ek_study *study)
{
    const ek_study_settings *settings = &study->scenario->study;
    const uint32_t *sizes = settings->size_count ? settings->sizes : default_sizes;
    size_t count = settings->size_count ? settings->size_count : sizeof default_sizes / sizeof *default_sizes;
    uint32_t own = ek_sample_devices(study->scenario);
    const uint32_t *clusters = settings->cluster_count ? settings->clusters : &own;
    size_t cluster_count = settings->cluster_count ? settings->cluster_count : 1;
    json_t *table = ek_study_table(study, "domains", columns, COLUMNS), *section, *chart;
    EK_TRY(ek_study_fact(study, "throughput lost", "at %.2f %% of %u devices failed, packed",
                         100 * settings->fraction_most, clusters[cluster_count - 1]));
    for (size_t i = 0; i < count; i++) {
        json_t *series[EK_POLICIES];
        char heading[64], text[80];
        snprintf(heading, sizeof heading, "Domains of %u devices", sizes[i]);
        snprintf(text, sizeof text, "%s takes the domain; stages and samples of a replica stay. Packed.",
                 ek_perf_mode_text(study->scenario->parallel.mode));
        EK_TRY(ek_study_section(study, heading, text, &section));
        EK_TRY(ek_study_chart(section, "line", "devices of the cluster", "throughput lost, %", &chart));
        for (int policy = 0; policy < EK_POLICIES; policy++)
            EK_TRY(ek_study_series(chart, ek_policy_name(study->scenario, (ek_policy)policy), &series[policy]));
        for (size_t j = 0; j < cluster_count; j++) {
            ek_study_part(study, (uint32_t)(i * cluster_count + j), (uint32_t)(count * cluster_count));
            EK_TRY(add_point(study, table, sizes[i], clusters[j], j + 1 == cluster_count, series));
        }
    }
    return EK_OK;
}
