/* Opens, checks and samples a file of tokens. */
#include "train/data.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/rng.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "token files are little-endian and mapped as they are");

typedef enum token_kind { TOKEN_U8, TOKEN_I8, TOKEN_I16, TOKEN_U16, TOKEN_I32, TOKEN_I64, TOKEN_KINDS } token_kind;

static const struct {
    const char *name;
    size_t bytes;
} token_kinds[TOKEN_KINDS] = {
    [TOKEN_U8] = {"uint8", 1},   [TOKEN_I8] = {"int8", 1},   [TOKEN_I16] = {"int16", 2},
    [TOKEN_U16] = {"uint16", 2}, [TOKEN_I32] = {"int32", 4}, [TOKEN_I64] = {"int64", 8},
};

typedef struct mapping {
    unsigned char *start;
    size_t bytes;
} mapping;

struct ek_data {
    mapping file;
    const unsigned char *tokens; /* (count), of `kind`, inside the file */
    token_kind kind;
    uint64_t count;
    uint32_t sequence; /* T */
    uint64_t windows;
};

static void unmap(mapping *file)
{
    if (file->start)
        munmap(file->start, file->bytes);
    file->start = NULL;
}

static ek_status map_file(mapping *file, const char *path)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO is refused below, not waited for */
    if (descriptor < 0)
        return ek_fail(EK_IO, "%s: cannot be opened (%s); data.path must name a file of tokens", path, strerror(errno));
    struct stat information;
    ek_status status = EK_OK;
    if (fstat(descriptor, &information) != 0)
        status = ek_fail(EK_IO, "%s: cannot be read (%s)", path, strerror(errno));
    else if (S_ISDIR(information.st_mode))
        status = ek_fail(EK_INVALID, "%s: is a directory; data.path must name a file of tokens", path);
    else if (!S_ISREG(information.st_mode))
        status = ek_fail(EK_INVALID, "%s: is no regular file; data.path must name a file of tokens", path);
    else if (information.st_size == 0)
        status = ek_fail(EK_INVALID, "%s: is empty; data.path must name a file of tokens", path);
    if (status == EK_OK) {
        size_t bytes = (size_t)information.st_size;
        void *start = mmap(NULL, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
        if (start == MAP_FAILED)
            status = ek_fail(EK_IO, "%s: cannot be mapped (%s)", path, strerror(errno));
        else
            *file = (mapping){start, bytes};
    }
    close(descriptor);
    return status;
}

/* A little-endian number anywhere in a file. */
static uint64_t number_at(const unsigned char *place, size_t bytes)
{
    uint64_t value = 0;
    memcpy(&value, place, bytes);
    return value;
}

static int64_t token_at(const ek_data *data, uint64_t index)
{
    const unsigned char *place = data->tokens + index * token_kinds[data->kind].bytes;
    uint64_t value = number_at(place, token_kinds[data->kind].bytes);
    switch (data->kind) {
    case TOKEN_I8:
        return (int8_t)value;
    case TOKEN_I16:
        return (int16_t)value;
    case TOKEN_I32:
        return (int32_t)value;
    default:
        return (int64_t)value;
    }
}

/* -------------------------------------------------------------------------------------------------- formats */

/* llm.c: int32 header[256] = {magic, version, token count, 0 …}, then uint16 tokens. */
static ek_status find_llmc_tokens(ek_data *data, const char *path)
{
    enum { HEADER_BYTES = 1024, MAGIC = 20240520, VERSION = 1 };
    if (data->file.bytes < HEADER_BYTES)
        return ek_fail(EK_INVALID, "%s: %zu bytes are fewer than llm.c's header of %d; is data.format right?", path,
                       data->file.bytes, HEADER_BYTES);
    uint64_t magic = number_at(data->file.start, 4), version = number_at(data->file.start + 4, 4);
    if (magic != MAGIC)
        return ek_fail(EK_INVALID, "%s: begins with %" PRIu64 "; llm.c's magic number %d is needed", path, magic,
                       MAGIC);
    if (version != VERSION)
        return ek_fail(EK_INVALID, "%s: has version %" PRIu64 "; llm.c's version %d (uint16 tokens) is needed", path,
                       version, VERSION);
    data->kind = TOKEN_U16;
    data->count = number_at(data->file.start + 8, 4);
    data->tokens = data->file.start + HEADER_BYTES;
    if (data->file.bytes != HEADER_BYTES + 2 * data->count)
        return ek_fail(EK_INVALID,
                       "%s: %zu bytes, where a header and the %" PRIu64 " tokens that it tells of need %" PRIu64, path,
                       data->file.bytes, data->count, HEADER_BYTES + 2 * data->count);
    return EK_OK;
}

/* Megatron: the index holds char magic[9], uint64 version, uint8 type of token, uint64 sequences, uint64 document
 * count; then int32 length[sequences], int64 start[sequences] in bytes, int64 document[count]. The tokens of all
 * sequences lie in the .bin. */
static ek_status read_megatron_index(ek_data *data, const mapping *index, const char *path)
{
    enum { HEADER_BYTES = 34 };
    static const token_kind kinds[] = {
        [1] = TOKEN_U8,  [2] = TOKEN_I8,    [3] = TOKEN_I16,   [4] = TOKEN_I32,
        [5] = TOKEN_I64, [6] = TOKEN_KINDS, [7] = TOKEN_KINDS, /* double, float */
        [8] = TOKEN_U16,
    };
    if (index->bytes < HEADER_BYTES || memcmp(index->start, "MMIDIDX\0\0", 9) != 0)
        return ek_fail(EK_INVALID, "%s: does not begin as a Megatron index (MMIDIDX); is data.format right?", path);
    uint64_t version = number_at(index->start + 9, 8);
    if (version != 1)
        return ek_fail(EK_INVALID, "%s: has version %" PRIu64 "; version 1 is needed", path, version);
    unsigned code = index->start[17];
    if (code == 0 || code >= sizeof kinds / sizeof *kinds || kinds[code] == TOKEN_KINDS)
        return ek_fail(EK_INVALID, "%s: has tokens of type code %u; a code of whole numbers (1 to 5, 8) is needed",
                       path, code);
    data->kind = kinds[code];
    uint64_t sequences = number_at(index->start + 18, 8), documents = number_at(index->start + 26, 8);
    uint64_t room = index->bytes - HEADER_BYTES;
    if (sequences > room / 12 || documents != (room - 12 * sequences) / 8 || (room - 12 * sequences) % 8 != 0)
        return ek_fail(EK_INVALID,
                       "%s: %zu bytes do not fit the %" PRIu64 " sequences and %" PRIu64 " documents that it tells of",
                       path, index->bytes, sequences, documents);
    const unsigned char *lengths = index->start + HEADER_BYTES, *starts = lengths + 4 * sequences;
    size_t token_bytes = token_kinds[data->kind].bytes;
    for (uint64_t i = 0; i < sequences; i++) {
        int32_t length = (int32_t)number_at(lengths + 4 * i, 4);
        uint64_t start = number_at(starts + 8 * i, 8);
        if (length < 0 || start != data->count * token_bytes)
            return ek_fail(EK_INVALID,
                           "%s: sequence %" PRIu64 " has %d tokens from byte %" PRIu64
                           "; sequences must lie end to end, this one from byte %" PRIu64,
                           path, i, length, start, data->count * token_bytes);
        data->count += (uint64_t)length;
    }
    return EK_OK;
}

static ek_status find_megatron_tokens(ek_data *data, const char *prefix)
{
    char path[PATH_MAX];
    mapping index = {0};
    if (strlen(prefix) > PATH_MAX - sizeof ".idx")
        return ek_fail(EK_INVALID, "data.path: %zu bytes are too long for a path", strlen(prefix));
    snprintf(path, sizeof path, "%s.idx", prefix);
    EK_TRY(map_file(&index, path));
    ek_status status = read_megatron_index(data, &index, path);
    unmap(&index);
    EK_TRY(status);
    snprintf(path, sizeof path, "%s.bin", prefix);
    EK_TRY(map_file(&data->file, path));
    data->tokens = data->file.start;
    if (data->file.bytes != data->count * token_kinds[data->kind].bytes)
        return ek_fail(EK_INVALID, "%s: %zu bytes, where the %" PRIu64 " %s tokens of its index need %" PRIu64, path,
                       data->file.bytes, data->count, token_kinds[data->kind].name,
                       data->count * token_kinds[data->kind].bytes);
    return EK_OK;
}

static ek_status find_tokens(ek_data *data, const char *path, ek_data_format format)
{
    if (format == EK_DATA_MEGATRON)
        return find_megatron_tokens(data, path);
    EK_TRY(map_file(&data->file, path));
    if (format == EK_DATA_LLMC)
        return find_llmc_tokens(data, path);
    data->kind = TOKEN_U8;
    data->count = data->file.bytes;
    data->tokens = data->file.start;
    return EK_OK;
}

static ek_status check_tokens(ek_data *data, const char *path, uint32_t vocab)
{
    if (data->count <= data->sequence)
        return ek_fail(EK_INVALID,
                       "%s: has %" PRIu64 " tokens; at least %" PRIu64 " are needed (model.sequence and one more)",
                       path, data->count, (uint64_t)data->sequence + 1);
    for (uint64_t i = 0; i < data->count; i++) {
        int64_t token = token_at(data, i);
        if (token < 0 || token >= (int64_t)vocab)
            return ek_fail(EK_INVALID, "%s: token %" PRIu64 " is %" PRId64 "; 0 to %u is allowed (model.vocab %u)",
                           path, i, token, vocab - 1, vocab);
    }
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------ interface */

ek_status ek_data_open(ek_data **data, const char *path, ek_data_format format, uint32_t sequence, uint32_t vocab)
{
    ek_data *opened = calloc(1, sizeof *opened);
    if (!opened)
        return ek_fail(EK_NO_MEMORY, "no memory for the data");
    opened->sequence = sequence;
    ek_status status = find_tokens(opened, path, format);
    if (status == EK_OK)
        status = check_tokens(opened, path, vocab);
    if (status != EK_OK) {
        ek_data_close(opened);
        return status;
    }
    opened->windows = (opened->count - 1) / sequence;
    *data = opened;
    return EK_OK;
}

void ek_data_close(ek_data *data)
{
    if (!data)
        return;
    unmap(&data->file);
    free(data);
}

uint64_t ek_data_windows(const ek_data *data)
{
    return data->windows;
}

void ek_data_sample(const ek_data *data, uint64_t seed, uint64_t index, uint32_t *tokens)
{
    const uint64_t purpose = 0x646174612D6B6579; /* apart from whatever else is drawn from the seed */
    uint64_t key = ek_random_u64(seed, purpose, index / data->windows);
    uint64_t window = ek_random_permute(key, index % data->windows, data->windows);
    for (uint32_t t = 0; t <= data->sequence; t++)
        tokens[t] = (uint32_t)token_at(data, window * data->sequence + t);
}
