/* Reads a safetensors file (see make_fixtures.py). Failures fail the test. */
#ifndef TESTS_MODEL_SAFETENSORS_H
#define TESTS_MODEL_SAFETENSORS_H

#include <jansson.h>

typedef struct safetensors {
    json_t *header;
    char *data;
} safetensors;

void safetensors_open(safetensors *file, const char *path);
void safetensors_close(safetensors *file);

/* The data of tensor `prefix` + `name`, in place. */
const void *safetensors_data(const safetensors *file, const char *prefix, const char *name);
/* A number in the metadata. */
double safetensors_number(const safetensors *file, const char *key);

#endif
