/* The keys of cluster and job files, and reading them. */
#include "plan/input.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define COUNT_MOST 1048576u

#define PLACE(member) .offset = offsetof(ek_plan_input, member), .bytes = sizeof(((ek_plan_input *)0)->member)
#define WHOLE(member, from, to) .kind = EK_FIELD_WHOLE, PLACE(member), .least = (from), .most = (to)
#define REAL(member, from, to) .kind = EK_FIELD_REAL, PLACE(member), .least_real = (from), .most_real = (to)
#define STRINGS(member) .kind = EK_FIELD_STRINGS, PLACE(member), .count_offset = offsetof(ek_plan_input, member##_count)

static const ek_field own_fields[] = {
    {"cluster.domains", WHOLE(cluster.domains, 1, COUNT_MOST), .derived = "the inventory's",
     .help = "scale-up domains of a generated inventory, named 0, 1, …"},
    {"cluster.domain_slots", WHOLE(cluster.domain_slots, 1, 65536), .derived = "network.domain_slots",
     .help = "GPUs of a domain of a generated inventory"},
    {"cluster.node_gpus", WHOLE(cluster.node_gpus, 1, 65536), .derived = "the inventory's",
     .help = "GPUs of a node; needed with cluster.domains and cluster.nvidia_smi"},
    {"cluster.host", .kind = EK_FIELD_STRING, PLACE(cluster.host), .otherwise = "\"d{domain}-n{node}\"",
     .help = "names of the nodes of a generated inventory; {domain:4} is padded with zeros to four digits"},
    {"cluster.inventory", .kind = EK_FIELD_STRING, PLACE(cluster.inventory), .derived = "generated",
     .help = "a CSV file with a line for each GPU, from the working directory"},
    {"cluster.nvidia_smi", .kind = EK_FIELD_STRING, PLACE(cluster.nvidia_smi), .derived = "generated",
     .help = "a folder with NODE.xml, the output of nvidia-smi -q -x, for each node"},
    {"cluster.scontrol", .kind = EK_FIELD_STRING, PLACE(cluster.scontrol), .derived = "generated",
     .help = "the output of scontrol show node; needs cluster.topology"},
    {"cluster.topology", .kind = EK_FIELD_STRING, PLACE(cluster.topology), .derived = "none",
     .help = "Slurm's block topology: a block is a domain"},
    {"cluster.failed", STRINGS(cluster.failed), .otherwise = "[]",
     .help = "slots that have failed: DOMAIN.SLOT, or the name of a domain or a node"},
    {"cluster.drained", STRINGS(cluster.drained), .otherwise = "[]",
     .help = "slots that are healthy and not to be used, likewise"},
    {"cluster.repair_hours", REAL(cluster.repair_hours, 0, 1e6), .otherwise = "72",
     .help = "until the next repair is due: what a move can gain in"},
    {"cluster.restart_seconds", REAL(cluster.restart_seconds, 0, 1e6), .otherwise = "600",
     .help = "what a restart of the job costs beside moving state"},

    {"batch.policy", .kind = EK_FIELD_CHOICE, PLACE(power.policy), .choices = ek_batch_policy_names,
     .otherwise = "keep",
     .help =
         "what a replica that power cannot keep in step does: keep: it takes longer; shrink: it leaves out samples; "
         "rebalance: it hands samples to the others"},

    {"power.cap_watts", REAL(power.cap_watts, 0, 1e6), .otherwise = "0",
     .help = "highest limit that a device is given; 0: 1.3 times device.tdp_watts; device.tdp_watts: none is raised"},
    {"power.domain_watts", REAL(power.domain_watts, 0, 1e9), .otherwise = "0",
     .help = "what the devices of a stage may have together; 0: parallel.tp times device.tdp_watts"},
    {"power.curve", .kind = EK_FIELD_PAIRS, PLACE(power.curve),
     .count_offset = offsetof(ek_plan_input, power.curve_count), .least_real = 0, .most_real = 10,
     .derived = "the published points of arXiv 2504.06095",
     .help = "pairs of power and speed of a device, both relative to its default limit, increasing"},
};
#define OWN_COUNT (sizeof own_fields / sizeof *own_fields)
#define FIELDS_MOST 80

const ek_field *ek_plan_fields(size_t *count)
{
    *count = OWN_COUNT;
    return own_fields;
}

/* ------------------------------------------------------------------------------------- the tables of two files */

static bool in_section(const ek_field *field, const char *name, size_t length)
{
    return strncmp(field->key, name, length) == 0 && field->key[length] == '.';
}

/* Appends the own fields of a section. */
static size_t add_own(ek_field *out, const char *section)
{
    size_t count = 0;
    for (size_t i = 0; i < OWN_COUNT; i++)
        if (in_section(&own_fields[i], section, strlen(section)))
            out[count++] = own_fields[i];
    return count;
}

/* The sections of the cluster file, or of the job file; fields has FIELDS_MOST. */
static size_t list_fields(ek_field *fields, int file)
{
    size_t count = 0, others;
    if (file == EK_PLAN_CLUSTER_FILE) {
        const ek_field *hardware = ek_perf_hardware_fields(&others);
        count += add_own(fields, "cluster");
        return count + ek_perf_fields_at(fields + count, hardware, others, offsetof(ek_plan_input, hardware));
    }
    const ek_field *model = ek_perf_model_fields(&others);
    count += ek_perf_fields_at(fields, model, others, offsetof(ek_plan_input, model));
    const ek_field *parallel = ek_perf_parallel_fields(&others); /* ends with the section batch */
    count += ek_perf_fields_at(fields + count, parallel, others, offsetof(ek_plan_input, parallel));
    count += add_own(fields + count, "batch");
    return count + add_own(fields + count, "power");
}

static ek_status prepare(ek_plan_input *input, int file, const char *path)
{
    ek_field *fields = calloc(FIELDS_MOST, sizeof *fields);
    ek_origin *origins = calloc(FIELDS_MOST, sizeof *origins);
    input->files[file] = (ek_settings){.fields = fields, .target = input, .path = path, .origins = origins};
    if (!fields || !origins)
        return ek_fail(EK_NO_MEMORY, "no memory for the keys of %s", path);
    input->files[file].count = list_fields(fields, file);
    return EK_OK;
}

static bool has_section(const ek_settings *settings, const char *override)
{
    size_t length = strcspn(override, ".=");
    for (size_t i = 0; i < settings->count; i++)
        if (in_section(&settings->fields[i], override, length))
            return true;
    return false;
}

static ek_status check_overrides(const ek_plan_input *input, const char *const *overrides, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!has_section(&input->files[EK_PLAN_CLUSTER_FILE], overrides[i]) &&
            !has_section(&input->files[EK_PLAN_JOB_FILE], overrides[i]))
            return ek_fail(
                EK_INVALID,
                "--set %.60s: unknown section \"%.*s\"; the sections are cluster, device and network, and model, "
                "parallel, batch and power",
                overrides[i], (int)strcspn(overrides[i], ".=") < 60 ? (int)strcspn(overrides[i], ".=") : 60,
                overrides[i]);
    return EK_OK;
}

/* A file with the overrides that are its own. */
static ek_status read_settings(const ek_settings *settings, const char *const *overrides, size_t count)
{
    const char **own = malloc((count + 1) * sizeof *own);
    if (!own)
        return ek_fail(EK_NO_MEMORY, "no memory for %zu overrides", count);
    size_t own_count = 0;
    for (size_t i = 0; i < count; i++)
        if (has_section(settings, overrides[i]))
            own[own_count++] = overrides[i];
    ek_status status = ek_settings_read(settings, own, own_count);
    free(own);
    return status;
}

/* ------------------------------------------------------------------------------------------------ interface */

ek_status ek_plan_input_locate(const ek_plan_input *input, ek_status status)
{
    for (int file = 0; file < 2; file++)
        if (ek_settings_blamed(&input->files[file]))
            return ek_settings_locate(&input->files[file], status);
    return status;
}

static ek_status set_options(ek_plan_input *input)
{
    ek_curve curve;
    EK_TRY(ek_curve_from_pairs(&curve, input->power.curve, input->power.curve_count));
    input->options = (ek_plan_options){.inventory = input->inventory,
                                       .perf = input->perf,
                                       .parallel = &input->parallel,
                                       .hardware = &input->hardware,
                                       .policy = input->power.policy,
                                       .curve = curve,
                                       .cap_watts = input->power.cap_watts,
                                       .domain_watts = input->power.domain_watts};
    return EK_OK;
}

static ek_status read_both(ek_plan_input *input, const char *const *paths, const char *const *overrides, size_t count)
{
    for (int file = 0; file < 2; file++)
        EK_TRY(prepare(input, file, paths[file]));
    EK_TRY(check_overrides(input, overrides, count));
    for (int file = 0; file < 2; file++)
        EK_TRY(read_settings(&input->files[file], overrides, count));
    ek_status status = ek_perf_create(&input->perf, &input->model, &input->parallel, &input->hardware);
    if (status == EK_OK)
        status = ek_plan_cluster_inventory(&input->cluster, input->hardware.domain_slots, &input->inventory);
    if (status == EK_OK)
        status = set_options(input);
    return status == EK_OK ? EK_OK : ek_plan_input_locate(input, status);
}

ek_status ek_plan_input_read(ek_plan_input **input, const char *cluster_path, const char *job_path,
                             const char *const *overrides, size_t override_count)
{
    ek_plan_input *read = calloc(1, sizeof *read);
    if (!read)
        return ek_fail(EK_NO_MEMORY, "no memory for a plan");
    const char *const paths[2] = {cluster_path, job_path};
    ek_status status = read_both(read, paths, overrides, override_count);
    if (status != EK_OK) {
        ek_plan_input_destroy(read);
        return status;
    }
    *input = read;
    return EK_OK;
}

void ek_plan_input_destroy(ek_plan_input *input)
{
    if (!input)
        return;
    for (int file = 0; file < 2; file++) {
        ek_settings_free(input->files[file].fields, input->files[file].count, input);
        free((ek_field *)input->files[file].fields);
        free(input->files[file].origins);
    }
    ek_perf_destroy(input->perf);
    ek_inventory_destroy(input->inventory);
    free(input);
}
