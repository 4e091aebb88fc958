/* manifest.json: written from what the ranks summed, and held against the files. */
#include "checkpoint/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/input.h"
#include "checkpoint/reader.h"

#define VERSION 1
#define MANIFEST_FILE "manifest.json"
#define CONFIG_FILE "config.json"

/* The checksums of all units of all tensors of a model. */
typedef struct sums {
    const ek_model_config *config;
    ek_tensor *tensors;
    size_t tensor_count;
    size_t *first; /* [tensors + 1]: where a tensor's units begin */
    uint64_t (*values)[EK_CHECKPOINT_PLANES];
    bool *known;
} sums;

static void sums_free(sums *all)
{
    ek_free(all->tensors);
    free(all->first);
    free(all->values);
    free(all->known);
}

static ek_status sums_make(sums *all, const ek_model_config *config)
{
    *all = (sums){.config = config};
    EK_TRY(ek_model_tensors(config, &all->tensors, &all->tensor_count));
    all->first = calloc(all->tensor_count + 1, sizeof *all->first);
    size_t elements;
    for (size_t t = 0; all->first && t < all->tensor_count; t++)
        all->first[t + 1] = all->first[t] + ek_model_tensor_units(config, t, &elements);
    size_t units = all->first ? all->first[all->tensor_count] : 0;
    all->values = calloc(units + 1, sizeof *all->values);
    all->known = calloc(units + 1, sizeof *all->known);
    if (all->first && all->values && all->known)
        return EK_OK;
    sums_free(all);
    return ek_fail(EK_NO_MEMORY, "no memory for the checksums of a checkpoint");
}

/* ---------------------------------------------------------------------------------------------- collecting */

static ek_status read_list(sums *all, const char *path)
{
    FILE *list = fopen(path, "re");
    if (!list)
        return ek_fail(EK_IO, "%s: cannot be read: %s", path, strerror(errno));
    ek_unit_sums of;
    ek_status status = EK_OK;
    while (status == EK_OK && fread(&of, sizeof of, 1, list) == 1) {
        if (of.tensor >= all->tensor_count || all->first[of.tensor] + of.unit >= all->first[of.tensor + 1] ||
            all->known[all->first[of.tensor] + of.unit])
            status = ek_fail(EK_CORRUPT, "%s: tensor %u, unit %u: unknown, or written twice", path, of.tensor, of.unit);
        else
            all->known[all->first[of.tensor] + of.unit] = true;
        if (status == EK_OK)
            memcpy(all->values[all->first[of.tensor] + of.unit], of.sums, sizeof of.sums);
    }
    if (status == EK_OK && ferror(list))
        status = ek_fail(EK_IO, "%s: cannot be read: %s", path, strerror(errno));
    fclose(list);
    return status;
}

/* Every list in the folder into *all, or without it, away. */
static ek_status each_list(const char *folder, sums *all)
{
    DIR *listing = opendir(folder);
    if (!listing)
        return ek_fail(EK_IO, "%s: cannot be read: %s", folder, strerror(errno));
    ek_status status = EK_OK;
    for (struct dirent *entry; status == EK_OK && (entry = readdir(listing));) {
        char path[PATH_MAX + 300];
        if (strncmp(entry->d_name, EK_SUMS_PREFIX, strlen(EK_SUMS_PREFIX)) != 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (all)
            status = read_list(all, path);
        else if (unlink(path) != 0)
            status = ek_fail(EK_IO, "%s: cannot be removed: %s", path, strerror(errno));
    }
    closedir(listing);
    return status;
}

static ek_status check_all_known(const sums *all, const char *folder)
{
    for (size_t t = 0; t < all->tensor_count; t++)
        for (size_t i = all->first[t]; i < all->first[t + 1]; i++)
            if (!all->known[i])
                return ek_fail(EK_CORRUPT, "%s: unit %zu of %s was not written", folder, i - all->first[t],
                               all->tensors[t].name);
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------- writing */

static json_t *describe_units(const sums *all)
{
    json_t *units = json_object();
    for (size_t t = 0; t < all->tensor_count; t++) {
        json_t *list = json_array();
        for (size_t i = all->first[t]; i < all->first[t + 1]; i++) {
            char text[EK_CHECKPOINT_PLANES * 17];
            snprintf(text, sizeof text, "%016" PRIx64 " %016" PRIx64 " %016" PRIx64, all->values[i][0],
                     all->values[i][1], all->values[i][2]);
            json_array_append_new(list, json_string(text));
        }
        json_object_set_new(units, all->tensors[t].name, list);
    }
    return units;
}

static ek_status write_json(const char *folder, const char *name, json_t *json)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = json ? fopen(path, "we") : NULL;
    bool written = file && json_dumpf(json, file, JSON_INDENT(1)) == 0 && fputc('\n', file) != EOF &&
                   fflush(file) == 0 && fsync(fileno(file)) == 0;
    int error = errno;
    if (file && fclose(file) != 0 && written) {
        error = errno;
        written = false;
    }
    json_decref(json);
    return written ? EK_OK : ek_fail(EK_IO, "%s: cannot be written: %s", path, strerror(error));
}

static ek_status write_files(const char *folder, const ek_checkpoint_run *run, uint64_t step, const sums *all)
{
    EK_TRY(write_json(folder, CONFIG_FILE, ek_hf_config(run->model)));
    EK_TRY(
        write_json(folder, MANIFEST_FILE,
                   json_pack("{s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "version", VERSION, "step",
                             (json_int_t)step, "seed", (json_int_t)run->seed, "global_batch",
                             (json_int_t)run->global_batch, "sequence", (json_int_t)run->model->sequence, "ffn_block",
                             (json_int_t)run->model->ffn_block, "vocab_block", (json_int_t)run->model->vocab_block,
                             "model", ek_hf_config(run->model), "units", describe_units(all))));
    return each_list(folder, NULL);
}

ek_status ek_manifest_write(const char *folder, const ek_checkpoint_run *run, uint64_t step)
{
    sums all;
    EK_TRY(sums_make(&all, run->model));
    ek_status status = each_list(folder, &all);
    if (status == EK_OK)
        status = check_all_known(&all, folder);
    if (status == EK_OK)
        status = write_files(folder, run, step, &all);
    sums_free(&all);
    return status;
}

/* ------------------------------------------------------------------------------------------------ checking */

static ek_status check_number(const json_t *manifest, const char *key, uint64_t wanted, const char *whose)
{
    const json_t *found = json_object_get(manifest, key);
    if (!json_is_integer(found))
        return ek_fail(EK_CORRUPT, "manifest.json has no %s", key);
    if ((uint64_t)json_integer_value(found) != wanted)
        return ek_fail(EK_INVALID, "manifest.json: %s is %" JSON_INTEGER_FORMAT "; %s is %" PRIu64, key,
                       json_integer_value(found), whose, wanted);
    return EK_OK;
}

static ek_status check_run(const json_t *manifest, const ek_checkpoint_run *run, uint64_t step)
{
    EK_TRY(check_number(manifest, "version", VERSION, "the one that is known"));
    EK_TRY(check_number(manifest, "step", step, "its name's"));
    EK_TRY(check_number(manifest, "seed", run->seed, "this run's (train.seed)"));
    EK_TRY(check_number(manifest, "global_batch", run->global_batch, "this run's (batch.global)"));
    EK_TRY(check_number(manifest, "sequence", run->model->sequence, "this run's (model.sequence)"));
    ek_status status = ek_hf_check_config(json_object_get(manifest, "model"), run->model);
    return status == EK_OK ? EK_OK : ek_fail_prefix(status, "manifest.json: ");
}

/* The checksums of the manifest, in the units of the run that wrote it. */
static ek_status read_sums(const json_t *manifest, sums *all)
{
    const json_t *units = json_object_get(manifest, "units");
    for (size_t t = 0; t < all->tensor_count; t++) {
        const json_t *list = json_object_get(units, all->tensors[t].name);
        if (json_array_size(list) != all->first[t + 1] - all->first[t])
            return ek_fail(EK_CORRUPT, "manifest.json: %zu checksums of %s; it has %zu units", json_array_size(list),
                           all->tensors[t].name, all->first[t + 1] - all->first[t]);
        for (size_t i = all->first[t]; i < all->first[t + 1]; i++) {
            const char *text = json_string_value(json_array_get(list, i - all->first[t]));
            if (!text || sscanf(text, "%16" SCNx64 " %16" SCNx64 " %16" SCNx64, &all->values[i][0], &all->values[i][1],
                                &all->values[i][2]) != EK_CHECKPOINT_PLANES)
                return ek_fail(EK_CORRUPT, "manifest.json: the checksum of unit %zu of %s is none", i - all->first[t],
                               all->tensors[t].name);
        }
    }
    return EK_OK;
}

static ek_status check_unit(const sums *all, const ek_checkpoint_reader *reader, size_t tensor, uint32_t unit,
                            float *values, size_t elements)
{
    static const char *const planes[EK_CHECKPOINT_PLANES] = {"weights", "first moments", "second moments"};
    for (uint32_t plane = 0; plane < EK_CHECKPOINT_PLANES; plane++) {
        EK_TRY(ek_checkpoint_reader_get(reader, plane, tensor, unit, values));
        if (ek_hash(values, elements * sizeof *values, 0) != all->values[all->first[tensor] + unit][plane])
            return ek_fail(EK_CORRUPT, "the %s of unit %u of %s do not have their checksum", planes[plane], unit,
                           all->tensors[tensor].name);
    }
    return EK_OK;
}

static ek_status check_units(const sums *all, const ek_checkpoint_reader *reader)
{
    for (size_t t = 0; t < all->tensor_count; t++) {
        size_t elements;
        uint32_t units = ek_model_tensor_units(all->config, t, &elements);
        float *values = malloc(elements * sizeof *values);
        if (!values)
            return ek_fail(EK_NO_MEMORY, "no memory for a unit of %zu elements", elements);
        ek_status status = EK_OK;
        for (uint32_t unit = 0; unit < units && status == EK_OK; unit++)
            status = check_unit(all, reader, t, unit, values, elements);
        free(values);
        EK_TRY(status);
    }
    return EK_OK;
}

/* The run's model in the units of the run that wrote the checkpoint: blocks may differ, and must be possible. */
static ek_status writers_model(const json_t *manifest, const ek_model_config *own, ek_model_config *writers)
{
    *writers = *own;
    json_int_t ffn_block = json_integer_value(json_object_get(manifest, "ffn_block"));
    json_int_t vocab_block = json_integer_value(json_object_get(manifest, "vocab_block"));
    if (ffn_block < 1 || ffn_block > own->ffn || own->ffn % ffn_block != 0 || vocab_block < 1 ||
        vocab_block > own->vocab || own->vocab % vocab_block != 0)
        return ek_fail(EK_CORRUPT,
                       "manifest.json: blocks of %" JSON_INTEGER_FORMAT " columns and %" JSON_INTEGER_FORMAT
                       " rows do not divide the model",
                       ffn_block, vocab_block);
    writers->ffn_block = (uint32_t)ffn_block;
    writers->vocab_block = (uint32_t)vocab_block;
    return EK_OK;
}

static ek_status check_files(const char *folder, const json_t *manifest, const ek_model_config *own)
{
    ek_model_config writers;
    sums all;
    EK_TRY(writers_model(manifest, own, &writers));
    EK_TRY(sums_make(&all, &writers));
    ek_checkpoint_reader *reader = NULL;
    ek_status status = read_sums(manifest, &all);
    if (status == EK_OK)
        status = ek_checkpoint_reader_open(&reader, folder, &writers, false);
    if (status == EK_OK)
        status = check_units(&all, reader);
    ek_checkpoint_reader_close(reader);
    sums_free(&all);
    return status;
}

static ek_status load_json(const char *path, const char *name, json_t **json)
{
    int file;
    json_error_t error;
    EK_TRY(ek_input_open(path, &file));
    *json = json_loadfd(file, JSON_REJECT_DUPLICATES, &error);
    close(file);
    return *json ? EK_OK : ek_fail(EK_CORRUPT, "%s: %s", name, error.text);
}

static ek_status check_config_file(const char *folder, const ek_model_config *own)
{
    char path[PATH_MAX];
    json_t *json;
    snprintf(path, sizeof path, "%s/" CONFIG_FILE, folder);
    EK_TRY(load_json(path, CONFIG_FILE, &json));
    ek_status status = ek_hf_check_config(json, own);
    json_decref(json);
    return status == EK_OK ? EK_OK : ek_fail_prefix(status, CONFIG_FILE ": ");
}

ek_status ek_manifest_check(const char *folder, const ek_checkpoint_run *run, uint64_t step)
{
    char path[PATH_MAX];
    json_t *manifest;
    snprintf(path, sizeof path, "%s/" MANIFEST_FILE, folder);
    if (load_json(path, MANIFEST_FILE, &manifest) != EK_OK)
        return ek_fail_prefix(EK_CORRUPT, "%s: ", folder);
    ek_status status = check_run(manifest, run, step);
    if (status == EK_OK)
        status = check_config_file(folder, run->model);
    if (status == EK_OK)
        status = check_files(folder, manifest, run->model);
    json_decref(manifest);
    return status == EK_OK ? EK_OK : ek_fail_prefix(status, "%s: ", folder);
}
