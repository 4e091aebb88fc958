/* Files in the safetensors format: 8 bytes with the length of a JSON header (little-endian), the header, which gives
 * each tensor's type, shape and place, and the data, without holes. (github.com/huggingface/safetensors has the
 * format.) This part knows the header, and reads numbers; who writes them does so by place. */
#ifndef EK_CHECKPOINT_SAFETENSORS_H
#define EK_CHECKPOINT_SAFETENSORS_H

#include <evenkeel.h>

typedef enum ek_dtype { EK_F32, EK_F16, EK_BF16 } ek_dtype;

/* A matrix (rows, columns), or a vector of `columns` if rows is 0. */
typedef struct ek_safetensor {
    const char *name;
    ek_dtype dtype;
    uint64_t rows, columns;
    uint64_t offset; /* in the file */
} ek_safetensor;

/* The header for tensors in this order, whose offsets it sets; padded so that the data are aligned. metadata: one text.
 * *header (*bytes, with the length in front) is released with free(); *file_bytes is the size of the whole file. */
ek_status ek_safetensors_header(ek_safetensor *tensors, size_t count, const char *key, const char *text, void **header,
                                size_t *bytes, uint64_t *file_bytes);

/* A file that was opened for reading. */
typedef struct ek_safetensors ek_safetensors;

/* Reads and checks the header: every tensor is a vector or matrix of F32, F16 or BF16 and has the bytes that its shape
 * asks for, and together they fill the file. EK_IO: it cannot be read; EK_CORRUPT: it is not such a file, or torn. Text
 * begins with the path. */
ek_status ek_safetensors_open(ek_safetensors **file, const char *path);
void ek_safetensors_close(ek_safetensors *file);
/* NULL: there is no such tensor. */
const ek_safetensor *ek_safetensors_find(const ek_safetensors *file, const char *name);
/* `count` elements of a tensor from the element-th on, as floats. */
ek_status ek_safetensors_read(const ek_safetensors *file, const ek_safetensor *tensor, uint64_t element, size_t count,
                              float *values);

#endif
