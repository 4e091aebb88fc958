/* Routes in a file: a header of what must agree, then for each step, sample and layer the choices of its tokens. */
#include "train/routes.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

struct ek_routes_file {
    int file;
    ek_routes_use use;
    const char *path;    /* the caller's */
    size_t T, k, layers; /* layers with experts */
    uint32_t samples;    /* of a step */
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

static ek_status check_header(const ek_routes_file *file, const header *wanted)
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
    return EK_OK;
}

static ek_status open_file(ek_routes_file *file, const ek_config *config)
{
    header wanted = make_header(config);
    bool records = file->use == EK_ROUTES_RECORD;
    file->file = open(file->path, records ? O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0666);
    if (file->file < 0)
        return fail_io(file, "cannot be opened");
    if (!records)
        return check_header(file, &wanted);
    return pwrite(file->file, &wanted, sizeof wanted, 0) == (ssize_t)sizeof wanted ? EK_OK
                                                                                   : fail_io(file, "cannot be written");
}

ek_status ek_routes_file_open(ek_routes_file **out, const char *path, ek_routes_use use, const ek_config *config)
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
                             .samples = config->batch.global};
    ek_status status = open_file(file, config);
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

static ek_status follow(ek_routes_file *file, off_t place, uint32_t *choices, uint64_t *flips)
{
    size_t bytes = file->T * file->k * sizeof *choices;
    uint32_t *recorded = malloc(bytes);
    if (!recorded)
        return ek_fail(EK_NO_MEMORY, "no memory for routes");
    ssize_t got = pread(file->file, recorded, bytes, place);
    ek_status status = EK_OK;
    if (got < 0) {
        status = fail_io(file, "cannot be read");
    } else if (got < (ssize_t)bytes) {
        status = ek_fail(EK_IO, "--routes: %s: ends before this step", file->path);
    } else {
        *flips += count_flips(choices, recorded, file->T, file->k);
        if (file->use == EK_ROUTES_REPLAY)
            memcpy(choices, recorded, bytes);
    }
    free(recorded);
    return status;
}

ek_status ek_routes_file_use(ek_routes_file *file, uint64_t step, uint32_t first, uint32_t B, uint32_t moe_layer,
                             bool speaks, uint32_t *choices, uint64_t *flips)
{
    size_t count = file->T * file->k, bytes = count * sizeof *choices;
    for (uint32_t b = 0; b < B; b++) {
        uint64_t sample = (step - 1) * file->samples + first + b;
        off_t place = (off_t)(sizeof(header) + (sample * file->layers + moe_layer) * bytes);
        if (file->use != EK_ROUTES_RECORD)
            EK_TRY(follow(file, place, choices + b * count, flips));
        else if (speaks && pwrite(file->file, choices + b * count, bytes, place) != (ssize_t)bytes)
            return fail_io(file, "cannot be written");
    }
    return EK_OK;
}
