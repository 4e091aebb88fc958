/* Units into the files of a checkpoint and out of them. */
#include "checkpoint/files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

#define TILE_ROWS 16 /* of a transposed matrix that are put together before they are written */

static const char *const prefixes[EK_CHECKPOINT_PLANES] = {"", "exp_avg.", "exp_avg_sq."};

/* Where a tensor of a plane lies. */
typedef struct place {
    int file;
    ek_dtype dtype;
    uint64_t offset, columns;
} place;

struct ek_checkpoint_files {
    ek_model_config config;
    char folder[PATH_MAX];
    ek_hf_tensor *tensors;
    size_t count;
    place *places;         /* [planes][count] */
    int written[2];        /* model, optimizer; -1 */
    ek_safetensors **read; /* [read_count] */
    size_t read_count;
};

static ek_status fail_file(const ek_checkpoint_files *files, const char *name, const char *what)
{
    return ek_fail(EK_IO, "%s/%s: %s: %s", files->folder, name, what, strerror(errno));
}

static const char *file_name(uint32_t plane)
{
    return plane == 0 ? EK_MODEL_FILE : EK_OPTIMIZER_FILE;
}

static ek_status make(ek_checkpoint_files **out, const char *folder, const ek_model_config *config)
{
    ek_checkpoint_files *files = calloc(1, sizeof *files);
    if (!files)
        return ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    files->config = *config;
    files->written[0] = files->written[1] = -1;
    snprintf(files->folder, sizeof files->folder, "%s", folder);
    ek_status status = ek_hf_tensors(config, &files->tensors, &files->count);
    if (status == EK_OK) {
        files->places = calloc(EK_CHECKPOINT_PLANES * files->count, sizeof *files->places);
        if (!files->places)
            status = ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    }
    if (status != EK_OK) {
        ek_checkpoint_files_close(files);
        return status;
    }
    *out = files;
    return EK_OK;
}

void ek_checkpoint_files_close(ek_checkpoint_files *files)
{
    if (!files)
        return;
    for (int i = 0; i < 2; i++)
        if (files->written[i] >= 0)
            close(files->written[i]);
    for (size_t i = 0; i < files->read_count; i++)
        ek_safetensors_close(files->read[i]);
    free(files->read);
    free(files->places);
    free(files->tensors);
    free(files);
}

/* ------------------------------------------------------------------------------------------------- writing */

typedef struct name_text {
    char text[EK_HF_NAME_BYTES + 16];
} name_text;

static ek_status write_all(const ek_checkpoint_files *files, uint32_t plane, const void *data, size_t bytes,
                           uint64_t offset)
{
    const char *next = data;
    while (bytes > 0) {
        ssize_t done = pwrite(files->written[plane > 0], next, bytes, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return fail_file(files, file_name(plane), "cannot be written");
        next += done;
        bytes -= (size_t)done;
        offset += (uint64_t)done;
    }
    return EK_OK;
}

/* The headers of the file that holds planes first … end-1, and their places. */
static ek_status lay_out(ek_checkpoint_files *files, uint32_t first, uint32_t end, uint64_t step, bool leads)
{
    size_t count = (end - first) * files->count;
    ek_safetensor *tensors = calloc(count, sizeof *tensors);
    name_text *names = calloc(count, sizeof *names);
    char step_text[24];
    void *header = NULL;
    size_t bytes = 0;
    uint64_t file_bytes = 0;
    ek_status status = EK_OK;
    snprintf(step_text, sizeof step_text, "%" PRIu64, step);
    if (!tensors || !names)
        status = ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    for (size_t i = 0; status == EK_OK && i < count; i++) {
        const ek_hf_tensor *tensor = &files->tensors[i % files->count];
        snprintf(names[i].text, sizeof names[i].text, "%s%s", prefixes[first + i / files->count], tensor->name);
        tensors[i] = (ek_safetensor){names[i].text, EK_F32, tensor->rows, tensor->columns, 0};
    }
    if (status == EK_OK)
        status = ek_safetensors_header(tensors, count, "step", step_text, &header, &bytes, &file_bytes);
    for (size_t i = 0; status == EK_OK && i < count; i++)
        files->places[first * files->count + i] =
            (place){files->written[first > 0], EK_F32, tensors[i].offset, tensors[i].columns};
    if (status == EK_OK && leads) {
        int error = posix_fallocate(files->written[first > 0], 0, (off_t)file_bytes);
        errno = error;
        status = error ? fail_file(files, file_name(first), "no room") : write_all(files, first, header, bytes, 0);
    }
    free(header);
    free(names);
    free(tensors);
    return status;
}

static ek_status create_files(ek_checkpoint_files *files, uint64_t step, bool leads)
{
    for (uint32_t plane = 0; plane < 2; plane++) {
        char path[PATH_MAX + 32];
        snprintf(path, sizeof path, "%s/%s", files->folder, file_name(plane));
        files->written[plane] = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (files->written[plane] < 0)
            return fail_file(files, file_name(plane), "cannot be made");
    }
    EK_TRY(lay_out(files, 0, 1, step, leads));
    return lay_out(files, 1, EK_CHECKPOINT_PLANES, step, leads);
}

ek_status ek_checkpoint_files_create(ek_checkpoint_files **out, const char *folder, const ek_model_config *config,
                                     uint64_t step, bool leads)
{
    ek_checkpoint_files *files;
    EK_TRY(make(&files, folder, config));
    ek_status status = create_files(files, step, leads);
    if (status != EK_OK) {
        ek_checkpoint_files_close(files);
        return status;
    }
    *out = files;
    return EK_OK;
}

ek_status ek_checkpoint_files_sync(const ek_checkpoint_files *files)
{
    for (uint32_t plane = 0; plane < 2; plane++)
        if (fsync(files->written[plane]) != 0)
            return fail_file(files, file_name(plane), "cannot be written");
    return EK_OK;
}

/* values (columns,rows) as rows of the file's matrix, a few at a time. */
static ek_status write_transposed(const ek_checkpoint_files *files, uint32_t plane, const place *at,
                                  const ek_hf_place *part, const float *values)
{
    float *tile = malloc(TILE_ROWS * part->columns * sizeof *tile);
    if (!tile)
        return ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    ek_status status = EK_OK;
    for (size_t first = 0; first < part->rows && status == EK_OK; first += TILE_ROWS) {
        size_t rows = part->rows - first < TILE_ROWS ? part->rows - first : TILE_ROWS;
        for (size_t column = 0; column < part->columns; column++)
            for (size_t row = 0; row < rows; row++)
                tile[row * part->columns + column] = values[column * part->rows + first + row];
        for (size_t row = 0; row < rows && status == EK_OK; row++)
            status = write_all(files, plane, tile + row * part->columns, part->columns * sizeof *tile,
                               at->offset + ((part->row + first + row) * at->columns + part->column) * sizeof *tile);
    }
    free(tile);
    return status;
}

static ek_status write_part(const ek_checkpoint_files *files, uint32_t plane, const ek_hf_place *part,
                            const float *values)
{
    const place *at = &files->places[plane * files->count + part->tensor];
    if (part->transposed)
        return write_transposed(files, plane, at, part, values + part->first);
    return write_all(files, plane, values + part->first, part->rows * part->columns * sizeof *values,
                     at->offset + part->row * at->columns * sizeof *values);
}

ek_status ek_checkpoint_files_write(const ek_checkpoint_files *files, uint32_t plane, size_t tensor, uint32_t unit,
                                    uint32_t count, const float *values)
{
    size_t elements;
    ek_model_tensor_units(&files->config, tensor, &elements);
    ek_hf_place parts[EK_HF_PLACES_MOST], next[EK_HF_PLACES_MOST];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t part_count = ek_hf_places(&files->config, tensor, unit + i, parts);
        const float *first = values + i * elements;
        /* columns that stand side by side in the file and in memory go together: longer writes */
        while (parts[0].transposed && i + 1 < count &&
               (ek_hf_places(&files->config, tensor, unit + i + 1, next), next[0].tensor == parts[0].tensor)) {
            parts[0].columns += next[0].columns;
            i++;
        }
        for (uint32_t part = 0; part < part_count; part++)
            EK_TRY(write_part(files, plane, &parts[part], first));
    }
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------- reading */

static ek_status open_file(ek_checkpoint_files *files, const char *name, ek_safetensors **file)
{
    char path[PATH_MAX + 256];
    snprintf(path, sizeof path, "%s/%s", files->folder, name);
    ek_safetensors **grown = realloc(files->read, (files->read_count + 1) * sizeof(ek_safetensors *));
    if (!grown)
        return ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    files->read = grown;
    EK_TRY(ek_safetensors_open(file, path));
    files->read[files->read_count++] = *file;
    return EK_OK;
}

static ek_status find_tensor(ek_checkpoint_files *files, uint32_t plane, size_t i, const ek_safetensors *file,
                             const char *file_label)
{
    char name[sizeof(name_text)];
    const ek_hf_tensor *wanted = &files->tensors[i];
    snprintf(name, sizeof name, "%s%s", prefixes[plane], wanted->name);
    const ek_safetensor *found = ek_safetensors_find(file, name);
    if (!found)
        return ek_fail(EK_CORRUPT, "%s/%s: there is no tensor %s", files->folder, file_label, name);
    if (found->rows != wanted->rows || found->columns != wanted->columns)
        return ek_fail(EK_CORRUPT,
                       "%s/%s: %s is (%" PRIu64 ", %" PRIu64 "); this model's is (%" PRIu64 ", %" PRIu64 ")",
                       files->folder, file_label, name, found->rows, found->columns, wanted->rows, wanted->columns);
    files->places[plane * files->count + i] =
        (place){ek_safetensors_descriptor(file), found->dtype, found->offset, found->columns};
    return EK_OK;
}

static ek_status open_whole(ek_checkpoint_files *files, uint32_t first, uint32_t end)
{
    ek_safetensors *file;
    EK_TRY(open_file(files, file_name(first), &file));
    for (uint32_t plane = first; plane < end; plane++)
        for (size_t i = 0; i < files->count; i++)
            EK_TRY(find_tensor(files, plane, i, file, file_name(first)));
    return EK_OK;
}

/* The weights in several files: the index says which is where. */
static ek_status open_indexed(ek_checkpoint_files *files, const json_t *map)
{
    const char *name;
    json_t *value, *opened = json_object(); /* file name: its number among files->read */
    ek_status status = opened ? EK_OK : ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    json_object_foreach((json_t *)map, name, value)
    {
        const char *file_label = json_string_value(value);
        ek_safetensors *file;
        if (status != EK_OK || !file_label || json_object_get(opened, file_label))
            continue;
        status = strchr(file_label, '/') ? ek_fail(EK_CORRUPT, "%s: the index names a file elsewhere", files->folder)
                                         : open_file(files, file_label, &file);
        json_object_set_new(opened, file_label, json_integer((json_int_t)files->read_count - 1));
    }
    for (size_t i = 0; i < files->count && status == EK_OK; i++) {
        const char *file_label = json_string_value(json_object_get(map, files->tensors[i].name));
        if (!file_label)
            status = ek_fail(EK_CORRUPT, "%s: the index has no tensor %s", files->folder, files->tensors[i].name);
        else
            status = find_tensor(files, 0, i, files->read[json_integer_value(json_object_get(opened, file_label))],
                                 file_label);
    }
    json_decref(opened);
    return status;
}

static ek_status open_weights(ek_checkpoint_files *files)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s.index.json", files->folder, EK_MODEL_FILE);
    if (access(path, F_OK) != 0)
        return open_whole(files, 0, 1);
    json_error_t error;
    json_t *index = json_load_file(path, 0, &error);
    const json_t *map = json_object_get(index, "weight_map");
    ek_status status = json_is_object(map) ? open_indexed(files, map)
                                           : ek_fail(EK_CORRUPT, "%s: not an index of safetensors files", path);
    json_decref(index);
    return status;
}

ek_status ek_checkpoint_files_open(ek_checkpoint_files **out, const char *folder, const ek_model_config *config,
                                   bool without_optimizer)
{
    ek_checkpoint_files *files;
    EK_TRY(make(&files, folder, config));
    ek_status status = without_optimizer ? open_weights(files) : open_whole(files, 0, 1);
    if (status == EK_OK && !without_optimizer)
        status = open_whole(files, 1, EK_CHECKPOINT_PLANES);
    if (status != EK_OK) {
        ek_checkpoint_files_close(files);
        return status;
    }
    *out = files;
    return EK_OK;
}

static ek_status read_all(const ek_checkpoint_files *files, const place *at, void *data, size_t bytes, uint64_t offset)
{
    char *next = data;
    while (bytes > 0) {
        ssize_t done = pread(at->file, next, bytes, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return ek_fail(EK_IO, "%s: cannot be read: %s", files->folder, strerror(errno));
        if (done == 0)
            return ek_fail(EK_CORRUPT, "%s: a file is shorter than its header says", files->folder);
        next += done;
        bytes -= (size_t)done;
        offset += (uint64_t)done;
    }
    return EK_OK;
}

static float from_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 0x1f, mantissa = half & 0x3ffu;
    float value;
    if (exponent == 0) {
        value = (float)mantissa * 0x1p-24f; /* zero, or below the normal numbers */
        return sign ? -value : value;
    }
    uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* In place: `count` 16-bit numbers at the end of the room for as many floats become those. */
static void widen(float *values, size_t count, ek_dtype dtype)
{
    const char *narrow = (const char *)values + count * sizeof(uint16_t);
    for (size_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, narrow + i * sizeof half, sizeof half);
        uint32_t bits = (uint32_t)half << 16;
        float value = 0.0f;
        if (dtype == EK_BF16)
            memcpy(&value, &bits, sizeof value);
        else
            value = from_half(half);
        memcpy(&values[i], &value, sizeof value);
    }
}

/* `count` numbers of a row as floats. */
static ek_status read_floats(const ek_checkpoint_files *files, const place *at, float *values, size_t count,
                             uint64_t element)
{
    size_t bytes = ek_dtype_bytes(at->dtype);
    char *room = (char *)values + count * (sizeof *values - bytes);
    EK_TRY(read_all(files, at, room, count * bytes, at->offset + element * bytes));
    if (at->dtype != EK_F32)
        widen(values, count, at->dtype);
    return EK_OK;
}

static ek_status read_part(const ek_checkpoint_files *files, uint32_t plane, const ek_hf_place *part, float *values)
{
    const place *at = &files->places[plane * files->count + part->tensor];
    values += part->first;
    if (!part->transposed)
        return read_floats(files, at, values, part->rows * part->columns, part->row * at->columns);
    float *row_values = malloc(part->columns * sizeof *row_values);
    if (!row_values)
        return ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    ek_status status = EK_OK;
    for (size_t row = 0; row < part->rows && status == EK_OK; row++) {
        status = read_floats(files, at, row_values, part->columns, (part->row + row) * at->columns + part->column);
        for (size_t column = 0; column < part->columns && status == EK_OK; column++)
            values[column * part->rows + row] = row_values[column];
    }
    free(row_values);
    return status;
}

ek_status ek_checkpoint_files_read(const ek_checkpoint_files *files, uint32_t plane, size_t tensor, uint32_t unit,
                                   float *values)
{
    ek_hf_place parts[EK_HF_PLACES_MOST];
    uint32_t count = ek_hf_places(&files->config, tensor, unit, parts);
    for (uint32_t part = 0; part < count; part++)
        EK_TRY(read_part(files, plane, &parts[part], values));
    return EK_OK;
}
