/* Units into the files of a checkpoint. */
#include "checkpoint/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "checkpoint/safetensors.h"

#define TILE_ROWS 16 /* of a transposed matrix that are put together before they are written */
enum { FILES = 2 };  /* the weights'; the moments' */

struct ek_checkpoint_writer {
    ek_model_config config;
    char folder[PATH_MAX];
    ek_hf_tensor *tensors;
    size_t count;
    uint64_t *offsets; /* [planes][count] in the file of the plane */
    int files[FILES];  /* -1: not open */
};

static ek_status fail_file(const ek_checkpoint_writer *writer, uint32_t plane, const char *what)
{
    return ek_fail(EK_IO, "%s/%s: %s: %s", writer->folder, ek_plane_file(plane), what, strerror(errno));
}

void ek_plane_name(uint32_t plane, const ek_hf_tensor *tensor, char name[EK_PLANE_NAME_BYTES])
{
    static const char *const prefixes[EK_CHECKPOINT_PLANES] = {"", "exp_avg.", "exp_avg_sq."};
    snprintf(name, EK_PLANE_NAME_BYTES, "%s%s", prefixes[plane], tensor->name);
}

/* --------------------------------------------------------------------------------------------- opening */

static ek_status write_all(const ek_checkpoint_writer *writer, uint32_t plane, const void *data, size_t bytes,
                           uint64_t offset)
{
    const char *next = data;
    while (bytes > 0) {
        ssize_t done = pwrite(writer->files[plane > 0], next, bytes, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return fail_file(writer, plane, "cannot be written");
        next += done;
        bytes -= (size_t)done;
        offset += (uint64_t)done;
    }
    return EK_OK;
}

/* Takes the room and writes the header. Not posix_fallocate: where the file system cannot, it would write zeros over
 * what other ranks have written meanwhile. */
static ek_status begin_file(const ek_checkpoint_writer *writer, uint32_t plane, const void *header, size_t bytes,
                            uint64_t file_bytes)
{
    int file = writer->files[plane > 0];
    if (fallocate(file, 0, 0, (off_t)file_bytes) != 0 &&
        (errno != EOPNOTSUPP || ftruncate(file, (off_t)file_bytes) != 0))
        return fail_file(writer, plane, "there is no room for it");
    return write_all(writer, plane, header, bytes, 0);
}

/* Where the tensors of planes first … end-1 lie in their file; makes it, if the rank leads. */
static ek_status lay_out(ek_checkpoint_writer *writer, uint32_t first, uint32_t end, uint64_t step, bool leads)
{
    size_t count = (end - first) * writer->count;
    ek_safetensor *tensors = calloc(count, sizeof *tensors);
    char(*names)[EK_PLANE_NAME_BYTES] = calloc(count, sizeof *names), step_text[24];
    void *header = NULL;
    size_t bytes = 0;
    uint64_t file_bytes = 0;
    ek_status status = tensors && names ? EK_OK : ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    for (size_t i = 0; status == EK_OK && i < count; i++) {
        const ek_hf_tensor *tensor = &writer->tensors[i % writer->count];
        ek_plane_name(first + (uint32_t)(i / writer->count), tensor, names[i]);
        tensors[i] = (ek_safetensor){names[i], EK_F32, tensor->rows, tensor->columns, 0};
    }
    snprintf(step_text, sizeof step_text, "%" PRIu64, step);
    if (status == EK_OK)
        status = ek_safetensors_header(tensors, count, "step", step_text, &header, &bytes, &file_bytes);
    for (size_t i = 0; status == EK_OK && i < count; i++)
        writer->offsets[first * writer->count + i] = tensors[i].offset;
    if (status == EK_OK && leads)
        status = begin_file(writer, first, header, bytes, file_bytes);
    free(header);
    free(names);
    free(tensors);
    return status;
}

static ek_status open_files(ek_checkpoint_writer *writer, uint64_t step, bool leads)
{
    for (uint32_t file = 0; file < FILES; file++) {
        char path[PATH_MAX + 32];
        snprintf(path, sizeof path, "%s/%s", writer->folder, ek_plane_file(file));
        writer->files[file] = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (writer->files[file] < 0)
            return fail_file(writer, file, "cannot be made");
    }
    EK_TRY(lay_out(writer, 0, 1, step, leads));
    return lay_out(writer, 1, EK_CHECKPOINT_PLANES, step, leads);
}

ek_status ek_checkpoint_writer_open(ek_checkpoint_writer **out, const char *folder, const ek_model_config *config,
                                    uint64_t step, bool leads)
{
    ek_checkpoint_writer *writer = calloc(1, sizeof *writer);
    if (!writer)
        return ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    writer->config = *config;
    writer->files[0] = writer->files[1] = -1;
    snprintf(writer->folder, sizeof writer->folder, "%s", folder);
    ek_status status = ek_hf_tensors(config, &writer->tensors, &writer->count);
    if (status == EK_OK) {
        writer->offsets = calloc(EK_CHECKPOINT_PLANES * writer->count, sizeof *writer->offsets);
        status =
            writer->offsets ? open_files(writer, step, leads) : ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    }
    if (status != EK_OK) {
        ek_checkpoint_writer_close(writer);
        return status;
    }
    *out = writer;
    return EK_OK;
}

void ek_checkpoint_writer_close(ek_checkpoint_writer *writer)
{
    if (!writer)
        return;
    for (uint32_t file = 0; file < FILES; file++)
        if (writer->files[file] >= 0)
            close(writer->files[file]);
    free(writer->offsets);
    free(writer->tensors);
    free(writer);
}

ek_status ek_checkpoint_writer_sync(const ek_checkpoint_writer *writer)
{
    for (uint32_t file = 0; file < FILES; file++)
        if (fsync(writer->files[file]) != 0)
            return fail_file(writer, file, "cannot be written");
    return EK_OK;
}

/* --------------------------------------------------------------------------------------------- writing */

/* Where an element of a place lies in the file of the plane. */
static uint64_t offset_of(const ek_checkpoint_writer *writer, uint32_t plane, const ek_hf_place *part, size_t row)
{
    uint64_t element = (part->row + row) * writer->tensors[part->tensor].columns + part->column;
    return writer->offsets[plane * writer->count + part->tensor] + element * sizeof(float);
}

/* values (columns,rows) as rows of the file's matrix, a few at a time. */
static ek_status put_transposed(const ek_checkpoint_writer *writer, uint32_t plane, const ek_hf_place *part,
                                const float *values)
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
            status = write_all(writer, plane, tile + row * part->columns, part->columns * sizeof *tile,
                               offset_of(writer, plane, part, first + row));
    }
    free(tile);
    return status;
}

static ek_status put_part(const ek_checkpoint_writer *writer, uint32_t plane, const ek_hf_place *part,
                          const float *values)
{
    if (part->transposed)
        return put_transposed(writer, plane, part, values + part->first);
    return write_all(writer, plane, values + part->first, part->rows * part->columns * sizeof *values,
                     offset_of(writer, plane, part, 0));
}

ek_status ek_checkpoint_writer_put(const ek_checkpoint_writer *writer, uint32_t plane, size_t tensor, uint32_t unit,
                                   uint32_t count, const float *values)
{
    size_t elements;
    ek_model_tensor_units(&writer->config, tensor, &elements);
    ek_hf_place parts[EK_HF_PLACES_MOST], next[EK_HF_PLACES_MOST];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t part_count = ek_hf_places(&writer->config, tensor, unit + i, parts);
        const float *first = values + i * elements;
        /* columns that stand side by side in the file and in memory go together: longer writes */
        while (parts[0].transposed && i + 1 < count &&
               (ek_hf_places(&writer->config, tensor, unit + i + 1, next), next[0].tensor == parts[0].tensor)) {
            parts[0].columns += next[0].columns;
            i++;
        }
        for (uint32_t part = 0; part < part_count; part++)
            EK_TRY(put_part(writer, plane, &parts[part], first));
    }
    return EK_OK;
}
