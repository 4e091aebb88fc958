/* Just enough of the safetensors format to read the fixtures. */
#include "safetensors.h"

#include "testing.h"

#include <stdio.h>
#include <stdlib.h>

void safetensors_open(safetensors *file, const char *path)
{
    FILE *stream = fopen(path, "rb");
    if (!stream)
        fail_msg("%s cannot be opened", path);
    uint64_t header_bytes = 0; /* little-endian, as this machine */
    assert_int_equal(fread(&header_bytes, sizeof header_bytes, 1, stream), 1);
    char *text = malloc(header_bytes);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, header_bytes, stream), header_bytes);
    file->header = json_loadb(text, header_bytes, 0, NULL);
    assert_non_null(file->header);
    free(text);

    assert_int_equal(fseek(stream, 0, SEEK_END), 0);
    size_t data_bytes = (size_t)ftell(stream) - sizeof header_bytes - header_bytes;
    assert_int_equal(fseek(stream, (long)(sizeof header_bytes + header_bytes), SEEK_SET), 0);
    file->data = malloc(data_bytes);
    assert_non_null(file->data);
    assert_int_equal(fread(file->data, 1, data_bytes, stream), data_bytes);
    fclose(stream);
}

void safetensors_close(safetensors *file)
{
    json_decref(file->header);
    free(file->data);
}

const void *safetensors_data(const safetensors *file, const char *prefix, const char *name)
{
    char full[128];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    json_t *offsets = json_object_get(json_object_get(file->header, full), "data_offsets");
    if (!offsets)
        fail_msg("there is no tensor %s", full);
    return file->data + json_integer_value(json_array_get(offsets, 0));
}

double safetensors_number(const safetensors *file, const char *key)
{
    const char *text = json_string_value(json_object_get(json_object_get(file->header, "__metadata__"), key));
    if (!text)
        fail_msg("there is no %s in the metadata", key);
    return strtod(text, NULL);
}
