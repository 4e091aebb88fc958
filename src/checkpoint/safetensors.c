/* The header of a safetensors file, written and read; numbers read. */
#include "checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/input.h"

#define ALIGNMENT 64                    /* of the data in the file */
#define HEADER_MOST ((uint64_t)1 << 30) /* bytes: no model has so many tensors */

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {[EK_F32] = {"F32", 4}, [EK_F16] = {"F16", 2}, [EK_BF16] = {"BF16", 2}};
#define DTYPES (sizeof dtypes / sizeof *dtypes)

static uint64_t data_bytes(const ek_safetensor *tensor)
{
    return (tensor->rows ? tensor->rows : 1) * tensor->columns * dtypes[tensor->dtype].bytes;
}

/* ------------------------------------------------------------------------------------------------- writing */

static json_t *describe(const ek_safetensor *tensor, uint64_t first)
{
    uint64_t end = first + data_bytes(tensor);
    json_t *shape = tensor->rows ? json_pack("[I, I]", (json_int_t)tensor->rows, (json_int_t)tensor->columns)
                                 : json_pack("[I]", (json_int_t)tensor->columns);
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtypes[tensor->dtype].name, "shape", shape, "data_offsets",
                     (json_int_t)first, (json_int_t)end);
}

ek_status ek_safetensors_header(ek_safetensor *tensors, size_t count, const char *key, const char *text, void **header,
                                size_t *bytes, uint64_t *file_bytes)
{
    json_t *json = json_pack("{s:{s:s, s:s}}", "__metadata__", "format", "pt", key, text);
    uint64_t next = 0;
    for (size_t i = 0; json && i < count; i++) {
        json_object_set_new(json, tensors[i].name, describe(&tensors[i], next));
        next += data_bytes(&tensors[i]);
    }
    size_t length = json ? json_dumpb(json, NULL, 0, JSON_COMPACT) : 0;
    size_t padded = (8 + length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    unsigned char *made = length ? malloc(padded) : NULL;
    if (!made) {
        json_decref(json);
        return ek_fail(EK_NO_MEMORY, "no memory for the header of a checkpoint");
    }
    json_dumpb(json, (char *)made + 8, length, JSON_COMPACT);
    json_decref(json);
    for (int i = 0; i < 8; i++)
        made[i] = (unsigned char)((uint64_t)(padded - 8) >> 8 * i);
    memset(made + 8 + length, ' ', padded - 8 - length);
    next = padded;
    for (size_t i = 0; i < count; i++) {
        tensors[i].offset = next;
        next += data_bytes(&tensors[i]);
    }
    *header = made;
    *bytes = padded;
    *file_bytes = next;
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------- reading */

struct ek_safetensors {
    int file;
    char *path;
    json_t *header;         /* the names are in there */
    ek_safetensor *tensors; /* in order of their names */
    size_t count;
};

/* What is wrong with the description of a tensor; NULL: nothing, and *tensor is set. */
static const char *read_tensor(ek_safetensor *tensor, const char *name, const json_t *json, uint64_t data,
                               uint64_t file_bytes)
{
    const json_t *shape = json_object_get(json, "shape"), *offsets = json_object_get(json, "data_offsets");
    const char *dtype = json_string_value(json_object_get(json, "dtype"));
    size_t dimensions = json_array_size(shape), i = 0;
    while (dtype && i < DTYPES && strcmp(dtype, dtypes[i].name) != 0)
        i++;
    if (!dtype || i == DTYPES)
        return "its type is none of F32, F16 and BF16";
    if (dimensions < 1 || dimensions > 2)
        return "it is no vector and no matrix";
    json_int_t rows = dimensions == 2 ? json_integer_value(json_array_get(shape, 0)) : 1;
    json_int_t columns = json_integer_value(json_array_get(shape, dimensions - 1));
    json_int_t first = json_integer_value(json_array_get(offsets, 0));
    json_int_t end = json_integer_value(json_array_get(offsets, 1));
    if (rows < 1 || columns < 1 || rows > INT32_MAX || columns > INT32_MAX)
        return "its shape is not one";
    if (json_array_size(offsets) != 2 || first < 0 || end < first || (uint64_t)end > file_bytes - data)
        return "its data are not in the file, which is torn";
    *tensor = (ek_safetensor){.name = name,
                              .dtype = (ek_dtype)i,
                              .rows = dimensions == 2 ? (uint64_t)rows : 0,
                              .columns = (uint64_t)columns,
                              .offset = data + (uint64_t)first};
    return data_bytes(tensor) == (uint64_t)(end - first) ? NULL : "its data are not as long as its shape says";
}

static int by_place(const void *a, const void *b)
{
    uint64_t first = ((const ek_safetensor *)a)->offset, second = ((const ek_safetensor *)b)->offset;
    return (first > second) - (first < second);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const ek_safetensor *)a)->name, ((const ek_safetensor *)b)->name);
}

/* The format knows no holes and no overlaps: one tensor begins where another ends, the last ends with the file. */
static ek_status check_places(ek_safetensors *file, uint64_t data, uint64_t file_bytes)
{
    uint64_t next = data;
    qsort(file->tensors, file->count, sizeof *file->tensors, by_place);
    for (size_t i = 0; i < file->count; i++) {
        if (file->tensors[i].offset != next)
            return ek_fail(EK_CORRUPT, "%s: tensor %s begins at byte %llu; the one before it ends at %llu", file->path,
                           file->tensors[i].name, (unsigned long long)file->tensors[i].offset,
                           (unsigned long long)next);
        next += data_bytes(&file->tensors[i]);
    }
    if (next != file_bytes)
        return ek_fail(EK_CORRUPT, "%s: has %llu bytes; its header says %llu", file->path,
                       (unsigned long long)file_bytes, (unsigned long long)next);
    qsort(file->tensors, file->count, sizeof *file->tensors, by_name);
    return EK_OK;
}

static ek_status read_tensors(ek_safetensors *file, uint64_t data, uint64_t file_bytes)
{
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
    if (!file->tensors)
        return ek_fail(EK_NO_MEMORY, "no memory for the header of %s", file->path);
    const char *name;
    json_t *json;
    json_object_foreach(file->header, name, json)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        const char *wrong = read_tensor(&file->tensors[file->count], name, json, data, file_bytes);
        if (wrong)
            return ek_fail(EK_CORRUPT, "%s: tensor %s: %s", file->path, name, wrong);
        file->count++;
    }
    return check_places(file, data, file_bytes);
}

static ek_status read_header(ek_safetensors *file)
{
    struct stat about;
    unsigned char length[8];
    if (fstat(file->file, &about) != 0)
        return ek_fail(EK_IO, "%s: %s", file->path, strerror(errno));
    uint64_t bytes = 0, file_bytes = (uint64_t)about.st_size;
    if (pread(file->file, length, 8, 0) != 8)
        return ek_fail(EK_CORRUPT, "%s: not a safetensors file; it has %llu bytes", file->path,
                       (unsigned long long)file_bytes);
    for (int i = 0; i < 8; i++)
        bytes |= (uint64_t)length[i] << 8 * i;
    if (bytes > HEADER_MOST || bytes > file_bytes - 8)
        return ek_fail(EK_CORRUPT, "%s: not a safetensors file, or torn: a header of %llu bytes in %llu", file->path,
                       (unsigned long long)bytes, (unsigned long long)file_bytes);
    char *text = malloc(bytes + 1);
    if (!text)
        return ek_fail(EK_NO_MEMORY, "no memory for the header of %s", file->path);
    bool whole = pread(file->file, text, bytes, 8) == (ssize_t)bytes;
    file->header = whole ? json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL) : NULL;
    free(text);
    if (!json_is_object(file->header))
        return ek_fail(EK_CORRUPT, "%s: its header is not JSON; the file is torn", file->path);
    return read_tensors(file, 8 + bytes, file_bytes);
}

ek_status ek_safetensors_open(ek_safetensors **out, const char *path)
{
    ek_safetensors *file = calloc(1, sizeof *file);
    char *own_path = strdup(path);
    if (!file || !own_path) {
        free(file);
        free(own_path);
        return ek_fail(EK_NO_MEMORY, "no memory for the header of %s", path);
    }
    file->path = own_path;
    file->file = -1;
    ek_status status = ek_input_open(path, &file->file);
    if (status == EK_OK)
        status = read_header(file);
    if (status != EK_OK) {
        ek_safetensors_close(file);
        return status;
    }
    *out = file;
    return EK_OK;
}

void ek_safetensors_close(ek_safetensors *file)
{
    if (!file)
        return;
    if (file->file >= 0)
        close(file->file);
    json_decref(file->header);
    free(file->tensors);
    free(file->path);
    free(file);
}

const ek_safetensor *ek_safetensors_find(const ek_safetensors *file, const char *name)
{
    ek_safetensor wanted = {.name = name};
    return bsearch(&wanted, file->tensors, file->count, sizeof wanted, by_name);
}

/* -------------------------------------------------------------------------------------------------- numbers */

static ek_status read_all(const ek_safetensors *file, void *data, size_t bytes, uint64_t offset)
{
    char *next = data;
    while (bytes > 0) {
        ssize_t done = pread(file->file, next, bytes, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return ek_fail(EK_IO, "%s: cannot be read: %s", file->path, strerror(errno));
        if (done == 0)
            return ek_fail(EK_CORRUPT, "%s: is shorter than its header says", file->path);
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

ek_status ek_safetensors_read(const ek_safetensors *file, const ek_safetensor *tensor, uint64_t element, size_t count,
                              float *values)
{
    size_t bytes = dtypes[tensor->dtype].bytes;
    char *room = (char *)values + count * (sizeof *values - bytes);
    EK_TRY(read_all(file, room, count * bytes, tensor->offset + element * bytes));
    if (tensor->dtype != EK_F32)
        widen(values, count, tensor->dtype);
    return EK_OK;
}
