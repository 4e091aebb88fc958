/* The header of a safetensors file, written and read. */
#include "checkpoint/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

#define ALIGNMENT 64                    /* of the data in the file */
#define HEADER_MOST ((uint64_t)1 << 30) /* bytes: no model has so many tensors */

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {[EK_F32] = {"F32", 4}, [EK_F16] = {"F16", 2}, [EK_BF16] = {"BF16", 2}};
#define DTYPES (sizeof dtypes / sizeof *dtypes)

size_t ek_dtype_bytes(ek_dtype dtype)
{
    return dtypes[dtype].bytes;
}

static uint64_t data_bytes(const ek_safetensor *tensor)
{
    return (tensor->rows ? tensor->rows : 1) * tensor->columns * dtypes[tensor->dtype].bytes;
}

/* ------------------------------------------------------------------------------------------------- writing */

static json_t *describe(const ek_safetensor *tensor, uint64_t first)
{
    json_t *shape = tensor->rows ? json_pack("[I, I]", (json_int_t)tensor->rows, (json_int_t)tensor->columns)
                                 : json_pack("[I]", (json_int_t)tensor->columns);
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtypes[tensor->dtype].name, "shape", shape, "data_offsets",
                     (json_int_t)first, (json_int_t)(first + data_bytes(tensor)));
}

ek_status ek_safetensors_header(ek_safetensor *tensors, size_t count, const char *key, const char *text_of_key,
                                void **header, size_t *bytes, uint64_t *file_bytes)
{
    json_t *json = json_pack("{s:{s:s, s:s}}", "__metadata__", "format", "pt", key, text_of_key);
    uint64_t next = 0;
    for (size_t i = 0; json && i < count; i++) {
        json_object_set_new(json, tensors[i].name, describe(&tensors[i], next));
        next += data_bytes(&tensors[i]);
    }
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    size_t length = text ? strlen(text) : 0;
    size_t padded = (8 + length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    unsigned char *made = text ? malloc(padded) : NULL;
    if (!made) {
        free(text);
        return ek_fail(EK_NO_MEMORY, "no memory for the header of a checkpoint");
    }
    for (int i = 0; i < 8; i++)
        made[i] = (unsigned char)((uint64_t)(padded - 8) >> 8 * i);
    memcpy(made + 8, text, length);
    memset(made + 8 + length, ' ', padded - 8 - length);
    free(text);
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
    json_t *header; /* the names are in there */
    ek_safetensor *tensors;
    size_t count;
};

static bool read_tensor(ek_safetensor *tensor, const char *name, const json_t *json, uint64_t data, uint64_t file_bytes)
{
    const json_t *shape = json_object_get(json, "shape"), *offsets = json_object_get(json, "data_offsets");
    const char *dtype = json_string_value(json_object_get(json, "dtype"));
    size_t dimensions = json_array_size(shape), i = 0;
    if (!dtype || dimensions < 1 || dimensions > 2 || json_array_size(offsets) != 2)
        return false;
    while (i < DTYPES && strcmp(dtype, dtypes[i].name) != 0)
        i++;
    json_int_t first = json_integer_value(json_array_get(offsets, 0));
    json_int_t end = json_integer_value(json_array_get(offsets, 1));
    json_int_t rows = dimensions == 2 ? json_integer_value(json_array_get(shape, 0)) : 0;
    json_int_t columns = json_integer_value(json_array_get(shape, dimensions - 1));
    if (i == DTYPES || first < 0 || end < first || rows < 0 || columns < 1 || (dimensions == 2 && rows < 1) ||
        rows > UINT32_MAX || columns > UINT32_MAX || (uint64_t)end > file_bytes - data)
        return false;
    *tensor = (ek_safetensor){name, (ek_dtype)i, (uint64_t)rows, (uint64_t)columns, data + (uint64_t)first};
    return data_bytes(tensor) == (uint64_t)(end - first);
}

static ek_status read_tensors(ek_safetensors *file, const char *path, uint64_t data, uint64_t file_bytes)
{
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
    if (!file->tensors)
        return ek_fail(EK_NO_MEMORY, "no memory for the header of %s", path);
    const char *name;
    json_t *json;
    uint64_t last = data;
    json_object_foreach(file->header, name, json)
    {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        ek_safetensor *tensor = &file->tensors[file->count];
        if (!read_tensor(tensor, name, json, data, file_bytes))
            return ek_fail(EK_CORRUPT, "%s: tensor %s: its type, shape or place is not right; the file is torn", path,
                           name);
        file->count++;
        if (tensor->offset + data_bytes(tensor) > last)
            last = tensor->offset + data_bytes(tensor);
    }
    if (last != file_bytes)
        return ek_fail(EK_CORRUPT, "%s: has %llu bytes; its header says %llu", path, (unsigned long long)file_bytes,
                       (unsigned long long)last);
    return EK_OK;
}

static ek_status read_header(ek_safetensors *file, const char *path)
{
    struct stat about;
    unsigned char length[8];
    if (fstat(file->file, &about) != 0)
        return ek_fail(EK_IO, "%s: %s", path, strerror(errno));
    uint64_t bytes = 0, file_bytes = (uint64_t)about.st_size;
    if (pread(file->file, length, 8, 0) != 8)
        return ek_fail(EK_CORRUPT, "%s: not a safetensors file; it has %llu bytes", path,
                       (unsigned long long)file_bytes);
    for (int i = 0; i < 8; i++)
        bytes |= (uint64_t)length[i] << 8 * i;
    if (bytes > HEADER_MOST || bytes > file_bytes - 8)
        return ek_fail(EK_CORRUPT, "%s: not a safetensors file, or torn: a header of %llu bytes in %llu", path,
                       (unsigned long long)bytes, (unsigned long long)file_bytes);
    char *text = malloc(bytes + 1);
    if (!text)
        return ek_fail(EK_NO_MEMORY, "no memory for the header of %s", path);
    bool whole = pread(file->file, text, bytes, 8) == (ssize_t)bytes;
    file->header = whole ? json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL) : NULL;
    free(text);
    if (!json_is_object(file->header))
        return ek_fail(EK_CORRUPT, "%s: its header is not JSON; the file is torn", path);
    return read_tensors(file, path, 8 + bytes, file_bytes);
}

ek_status ek_safetensors_open(ek_safetensors **out, const char *path)
{
    ek_safetensors *file = calloc(1, sizeof *file);
    if (!file)
        return ek_fail(EK_NO_MEMORY, "no memory for the header of %s", path);
    file->file = open(path, O_RDONLY | O_CLOEXEC);
    ek_status status = file->file < 0 ? ek_fail(EK_IO, "%s: %s", path, strerror(errno)) : read_header(file, path);
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
    free(file);
}

const ek_safetensor *ek_safetensors_find(const ek_safetensors *file, const char *name)
{
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

int ek_safetensors_descriptor(const ek_safetensors *file)
{
    return file->file;
}
