/* Routes in a file: a header of what must agree, then for each step, sample and layer the choices of its tokens,
 * numbered from 1, so that 0, a hole in the file, is what was not recorded. */
#include "train/routes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

struct ek_routes_file {
    int file;
    ek_routes_use use;
    const char *path;    /* the caller's */
    size_t T, k, layers; /* layers with experts */
    uint32_t experts;
    uint32_t samples; /* of a step */
};

/* In the byte order of the machine: the file is for comparing runs on one. */
typedef struct header {
    char magic[8];
    uint32_t experts, top_k, layers, sequence, samples, reserved;
} header;

static ek_status fail_io(const ek_routes_file *file, const char *what)
{
    return ek_fail(EK_IO, "--routes: %s: %s: %s", file->path, what, strerror(errno));
}

static header make_header(const ek_config *config)
{
    header made = {.magic = "ekroutes",
                   .experts = config->model.experts,
                   .top_k = config->model.top_k,
                   .layers = ek_model_moe_layers(&config->model),
                   .sequence = config->model.sequence,
                   .samples = config->batch.global};
    return made;
}

/* Where the choices of a sample and a layer are. */
static off_t place_of(const ek_routes_file *file, uint64_t step, uint64_t sample, size_t layer)
{
    uint64_t block = ((step - 1) * file->samples + sample) * file->layers + layer;
    return (off_t)(sizeof(header) + block * file->T * file->k * sizeof(uint32_t));
}

/* A file to follow is of such a run, and holds all of its steps. */
static ek_status check_content(const ek_routes_file *file, const header *wanted, uint64_t steps)
{
    header found;
    ssize_t bytes = pread(file->file, &found, sizeof found, 0);
    if (bytes < 0)
        return fail_io(file, "cannot be read");
    if (bytes < (ssize_t)sizeof found || memcmp(found.magic, wanted->magic, sizeof found.magic) != 0)
        return ek_fail(EK_INVALID, "--routes: %s: not a file that --routes record has written", file->path);
    if (memcmp(&found, wanted, sizeof found) != 0)
        return ek_fail(
            EK_INVALID,
            "--routes: %s: of a run with %u experts, top_k %u, %u layers with experts, sequence %u, batch %u; "
            "this one has %u, %u, %u, %u, %u",
            file->path, found.experts, found.top_k, found.layers, found.sequence, found.samples, wanted->experts,
            wanted->top_k, wanted->layers, wanted->sequence, wanted->samples);
    struct stat information;
    if (fstat(file->file, &information) != 0)
        return fail_io(file, "cannot be read");
    if (information.st_size < place_of(file, steps + 1, 0, 0))
        return ek_fail(EK_INVALID, "--routes: %s: ends before step %llu (train.steps); record a whole run", file->path,
                       (unsigned long long)steps);
    return EK_OK;
}

static ek_status open_file(ek_routes_file *file, bool begins, const ek_config *config)
{
    header wanted = make_header(config);
    bool records = file->use == EK_ROUTES_RECORD;
    int flags = !records ? O_RDONLY : begins ? O_RDWR | O_CREAT | O_TRUNC : O_RDWR;
    file->file = open(file->path, flags | O_CLOEXEC, 0666);
    if (file->file < 0)
        return fail_io(file, "cannot be opened");
    if (!records)
        return check_content(file, &wanted, config->train.steps);
    if (!begins)
        return EK_OK;
    return pwrite(file->file, &wanted, sizeof wanted, 0) == (ssize_t)sizeof wanted ? EK_OK
                                                                                   : fail_io(file, "cannot be written");
}

ek_status ek_routes_file_open(ek_routes_file **out, const char *path, ek_routes_use use, bool begins,
                              const ek_config *config)
{
    if (!config->model.experts)
        return ek_fail(EK_INVALID, "--routes: the model has no experts (model.experts)");
    ek_routes_file *file = calloc(1, sizeof *file);
    if (!file)
        return ek_fail(EK_NO_MEMORY, "no memory for routes");
    *file = (ek_routes_file){.file = -1,
                             .use = use,
                             .path = path,
                             .T = config->model.sequence,
                             .k = config->model.top_k,
                             .layers = ek_model_moe_layers(&config->model),
                             .experts = config->model.experts,
                             .samples = config->batch.global};
    ek_status status = open_file(file, begins, config);
    if (status != EK_OK) {
        ek_routes_file_close(file);
        return status;
    }
    *out = file;
    return EK_OK;
}

void ek_routes_file_close(ek_routes_file *file)
{
    if (!file)
        return;
    if (file->file >= 0)
        close(file->file);
    free(file);
}

static bool has(const uint32_t *choices, size_t k, uint32_t expert)
{
    for (size_t j = 0; j < k; j++)
        if (choices[j] == expert)
            return true;
    return false;
}

/* Tokens whose choices are not the same experts, in whatever order. */
static uint64_t count_flips(const uint32_t *choices, const uint32_t *recorded, size_t tokens, size_t k)
{
    uint64_t flips = 0;
    for (size_t t = 0; t < tokens; t++) {
        bool same = true;
        for (size_t j = 0; j < k; j++)
            same = same && has(recorded + t * k, k, choices[t * k + j]);
        flips += !same;
    }
    return flips;
}

/* Whether there are k different experts for each token. */
static bool are_choices(const ek_routes_file *file, const uint32_t *choices)
{
    for (size_t i = 0; i < file->T * file->k; i++)
        if (choices[i] >= file->experts || has(choices + i - i % file->k, i % file->k, choices[i]))
            return false;
    return true;
}

/* `buffer` is room for a sample's choices. */
static ek_status record(const ek_routes_file *file, off_t place, const uint32_t *choices, uint32_t *buffer)
{
    size_t count = file->T * file->k, bytes = count * sizeof *buffer;
    for (size_t i = 0; i < count; i++)
        buffer[i] = choices[i] + 1;
    return pwrite(file->file, buffer, bytes, place) == (ssize_t)bytes ? EK_OK : fail_io(file, "cannot be written");
}

static ek_status follow(const ek_routes_file *file, off_t place, uint32_t *choices, uint32_t *buffer, uint64_t *flips)
{
    size_t count = file->T * file->k, bytes = count * sizeof *buffer;
    ssize_t got = pread(file->file, buffer, bytes, place);
    if (got < 0)
        return fail_io(file, "cannot be read");
    for (size_t i = 0; i < count; i++)
        buffer[i]--; /* a hole becomes no expert's number */
    if (got < (ssize_t)bytes || !are_choices(file, buffer))
        return ek_fail(EK_IO, "--routes: %s: does not hold what a sample of this step chose", file->path);
    *flips += count_flips(choices, buffer, file->T, file->k);
    if (file->use == EK_ROUTES_REPLAY)
        memcpy(choices, buffer, bytes);
    return EK_OK;
}

ek_status ek_routes_file_use(const ek_routes_file *file, uint64_t step, uint32_t first, uint32_t B, uint32_t moe_layer,
                             bool speaks, uint32_t *choices, uint64_t *flips)
{
    if (file->use == EK_ROUTES_RECORD && !speaks)
        return EK_OK;
    uint32_t *buffer = calloc(file->T, file->k * sizeof *buffer);
    if (!buffer)
        return ek_fail(EK_NO_MEMORY, "no memory for routes");
    ek_status status = EK_OK;
    for (uint32_t b = 0; b < B && status == EK_OK; b++, choices += file->T * file->k) {
        off_t place = place_of(file, step, (uint64_t)first + b, moe_layer);
        status = file->use == EK_ROUTES_RECORD ? record(file, place, choices, buffer)
                                               : follow(file, place, choices, buffer, flips);
    }
    free(buffer);
    return status;
}
