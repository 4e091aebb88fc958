/* Units out of the files of a checkpoint. */
#include "checkpoint/reader.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/safetensors.h"

/* Where a tensor of a plane lies. */
typedef struct place {
    const ek_safetensors *file;
    const ek_safetensor *tensor;
} place;

struct ek_checkpoint_reader {
    ek_model_config config;
    char folder[PATH_MAX];
    ek_hf_tensor *tensors;
    size_t count;
    place *places;          /* [planes][count] */
    ek_safetensors **files; /* [file_count] */
    size_t file_count;
};

/* ------------------------------------------------------------------------------------------- opening */

static ek_status open_file(ek_checkpoint_reader *reader, const char *name, ek_safetensors **file)
{
    char path[PATH_MAX + 256];
    snprintf(path, sizeof path, "%s/%s", reader->folder, name);
    ek_safetensors **grown = realloc(reader->files, (reader->file_count + 1) * sizeof(ek_safetensors *));
    if (!grown)
        return ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    reader->files = grown;
    EK_TRY(ek_safetensors_open(file, path));
    reader->files[reader->file_count++] = *file;
    return EK_OK;
}

static ek_status find_tensor(ek_checkpoint_reader *reader, uint32_t plane, size_t i, const ek_safetensors *file,
                             const char *file_name)
{
    char name[EK_PLANE_NAME_BYTES];
    const ek_hf_tensor *wanted = &reader->tensors[i];
    ek_plane_name(plane, wanted, name);
    const ek_safetensor *found = ek_safetensors_find(file, name);
    if (!found)
        return ek_fail(EK_CORRUPT, "%s/%s: there is no tensor %s", reader->folder, file_name, name);
    if (found->rows != wanted->rows || found->columns != wanted->columns)
        return ek_fail(EK_CORRUPT,
                       "%s/%s: %s is (%" PRIu64 ", %" PRIu64 "); this model's is (%" PRIu64 ", %" PRIu64 ")",
                       reader->folder, file_name, name, found->rows, found->columns, wanted->rows, wanted->columns);
    reader->places[plane * reader->count + i] = (place){file, found};
    return EK_OK;
}

static ek_status open_whole(ek_checkpoint_reader *reader, uint32_t first, uint32_t end)
{
    ek_safetensors *file;
    EK_TRY(open_file(reader, ek_plane_file(first), &file));
    for (uint32_t plane = first; plane < end; plane++)
        for (size_t i = 0; i < reader->count; i++)
            EK_TRY(find_tensor(reader, plane, i, file, ek_plane_file(first)));
    return EK_OK;
}

/* The file that the index names for a tensor, opened when it is first named. `opened`: its number among the files. */
static ek_status open_named(ek_checkpoint_reader *reader, const char *name, json_t *opened, ek_safetensors **file)
{
    const json_t *known = json_object_get(opened, name);
    if (known) {
        *file = reader->files[json_integer_value(known)];
        return EK_OK;
    }
    if (strchr(name, '/'))
        return ek_fail(EK_CORRUPT, "%s: the index names a file elsewhere, %s", reader->folder, name);
    EK_TRY(open_file(reader, name, file));
    return json_object_set_new(opened, name, json_integer((json_int_t)reader->file_count - 1)) == 0
               ? EK_OK
               : ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
}

/* The weights in several files: the index says which is where. */
static ek_status open_indexed(ek_checkpoint_reader *reader, const json_t *map)
{
    json_t *opened = json_object();
    ek_status status = opened ? EK_OK : ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    for (size_t i = 0; i < reader->count && status == EK_OK; i++) {
        ek_safetensors *file = NULL;
        const char *name = json_string_value(json_object_get(map, reader->tensors[i].name));
        status = name ? open_named(reader, name, opened, &file)
                      : ek_fail(EK_CORRUPT, "%s: the index has no tensor %s", reader->folder, reader->tensors[i].name);
        if (status == EK_OK)
            status = find_tensor(reader, 0, i, file, name);
    }
    json_decref(opened);
    return status;
}

static ek_status open_weights(ek_checkpoint_reader *reader)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/" EK_MODEL_FILE ".index.json", reader->folder);
    if (access(path, F_OK) != 0)
        return open_whole(reader, 0, 1);
    json_t *index = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    const json_t *map = json_object_get(index, "weight_map");
    ek_status status = json_is_object(map) ? open_indexed(reader, map)
                                           : ek_fail(EK_CORRUPT, "%s: not an index of safetensors files", path);
    json_decref(index);
    return status;
}

ek_status ek_checkpoint_reader_open(ek_checkpoint_reader **out, const char *folder, const ek_model_config *config,
                                    bool weights_only)
{
    ek_checkpoint_reader *reader = calloc(1, sizeof *reader);
    if (!reader)
        return ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    reader->config = *config;
    snprintf(reader->folder, sizeof reader->folder, "%s", folder);
    ek_status status = ek_hf_tensors(config, &reader->tensors, &reader->count);
    if (status == EK_OK) {
        reader->places = calloc(EK_CHECKPOINT_PLANES * reader->count, sizeof *reader->places);
        status = reader->places ? EK_OK : ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    }
    if (status == EK_OK)
        status = weights_only ? open_weights(reader) : open_whole(reader, 0, 1);
    if (status == EK_OK && !weights_only)
        status = open_whole(reader, 1, EK_CHECKPOINT_PLANES);
    if (status != EK_OK) {
        ek_checkpoint_reader_close(reader);
        return status;
    }
    *out = reader;
    return EK_OK;
}

void ek_checkpoint_reader_close(ek_checkpoint_reader *reader)
{
    if (!reader)
        return;
    for (size_t i = 0; i < reader->file_count; i++)
        ek_safetensors_close(reader->files[i]);
    free(reader->files);
    free(reader->places);
    free(reader->tensors);
    free(reader);
}

/* ------------------------------------------------------------------------------------------- reading */

static ek_status get_part(const ek_checkpoint_reader *reader, uint32_t plane, const ek_hf_place *part, float *values)
{
    const place *at = &reader->places[plane * reader->count + part->tensor];
    uint64_t columns = at->tensor->columns;
    values += part->first;
    if (!part->transposed) /* whole rows */
        return ek_safetensors_read(at->file, at->tensor, part->row * columns, part->rows * part->columns, values);
    float *row_values = malloc(part->columns * sizeof *row_values);
    if (!row_values)
        return ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    ek_status status = EK_OK;
    for (size_t row = 0; row < part->rows && status == EK_OK; row++) {
        status = ek_safetensors_read(at->file, at->tensor, (part->row + row) * columns + part->column, part->columns,
                                     row_values);
        for (size_t column = 0; column < part->columns && status == EK_OK; column++)
            values[column * part->rows + row] = row_values[column];
    }
    free(row_values);
    return status;
}

ek_status ek_checkpoint_reader_get(const ek_checkpoint_reader *reader, uint32_t plane, size_t tensor, uint32_t unit,
                                   float *values)
{
    ek_hf_place parts[EK_HF_PLACES_MOST];
    uint32_t count = ek_hf_places(&reader->config, tensor, unit, parts);
    for (uint32_t part = 0; part < count; part++)
        EK_TRY(get_part(reader, plane, &parts[part], values));
    return EK_OK;
}
