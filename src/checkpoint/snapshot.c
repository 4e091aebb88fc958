/* Which units a rank writes, their copy, and the writing. */
#include "checkpoint/snapshot.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"
#include "checkpoint/writer.h"
#include "model/tensors.h"

/* Units of a tensor in a row, in the share and in the file. */
typedef struct run {
    size_t tensor, elements; /* of a unit */
    uint32_t unit, count;
    float *values[EK_CHECKPOINT_PLANES];
} run;

struct ek_snapshot {
    ek_model_config config;
    uint32_t rank;
    bool leads; /* writes the first tensor's first unit: makes the headers too */
    run *runs;
    size_t run_count, run_capacity;
    size_t floats; /* of a plane */
    float *memory;
};

/* --------------------------------------------------------------------------------------- who writes what */

typedef struct writers {
    const ek_share *share;
    uint32_t active, turn;  /* replicas in use, and the rank's among them */
    uint32_t placed, index; /* ranks with a role, and the rank's among them */
} writers;

static writers find_writers(const ek_share *share)
{
    writers found = {.share = share};
    uint32_t replica = 0;
    ek_membership_place(share->membership, share->rank, &replica, NULL);
    for (uint32_t r = 0; r < ek_membership_job(share->membership)->replicas; r++) {
        found.turn += r < replica && ek_membership_degree(share->membership, r);
        found.active += ek_membership_degree(share->membership, r) > 0;
    }
    for (uint32_t other = 0; other < ek_membership_ranks(share->membership); other++) {
        bool placed = ek_membership_place(share->membership, other, NULL, NULL);
        found.index += other < share->rank && placed;
        found.placed += placed;
    }
    assert(found.active && found.placed); /* the rank has a role */
    return found;
}

/* Whose turn is first: another's with every layer of a kind, so that what does not divide evenly is spread too. */
static uint32_t first_turn(const ek_share *share, size_t tensor)
{
    uint32_t layer = 0;
    ek_layer_tensor kind = 0;
    bool in_layers = ek_model_find_in_layers(share->config, tensor, &layer, &kind);
    uint32_t step = share->config->experts ? share->config->moe_every : 1; /* layers of a kind follow each other so */
    return in_layers ? layer / step + (uint32_t)kind : (uint32_t)tensor;
}

static bool writes(const writers *of, size_t tensor, uint32_t unit, uint32_t units)
{
    uint32_t first = first_turn(of->share, tensor), group = of->share->tensors[tensor].group;
    if (group == EK_REPLICATED) /* every rank holds it: dealt to all, in rows */
        return ((uint64_t)unit * of->placed / units + first) % of->placed == of->index;
    /* of the units that a role holds at level 0 every replica writes a part in a row */
    uint64_t in_role = (uint64_t)unit * ek_membership_job(of->share->membership)->base_degree % units;
    return (in_role * of->active / units + first) % of->active == of->turn;
}

static ek_status add_run(ek_snapshot *snapshot, run added)
{
    run *last = snapshot->run_count ? &snapshot->runs[snapshot->run_count - 1] : NULL;
    snapshot->floats += added.elements;
    if (last && last->tensor == added.tensor && last->unit + last->count == added.unit &&
        last->values[0] + last->count * last->elements == added.values[0]) {
        last->count++;
        return EK_OK;
    }
    if (!snapshot->runs || snapshot->run_count == snapshot->run_capacity) {
        size_t capacity = snapshot->run_capacity ? 2 * snapshot->run_capacity : 64;
        run *runs = realloc(snapshot->runs, capacity * sizeof *runs);
        if (!runs)
            return ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
        snapshot->runs = runs;
        snapshot->run_capacity = capacity;
    }
    snapshot->runs[snapshot->run_count++] = added;
    return EK_OK;
}

static ek_status add_tensor(ek_snapshot *snapshot, const writers *of, size_t t,
                            float **const planes[EK_CHECKPOINT_PLANES])
{
    size_t elements;
    uint32_t total = ek_model_tensor_units(&snapshot->config, t, &elements), held;
    const uint32_t *units = ek_share_units(of->share, t, &held);
    for (uint32_t i = 0; i < held; i++) {
        uint32_t unit = units ? units[i] : i;
        if (!writes(of, t, unit, total))
            continue;
        run added = {.tensor = t, .elements = elements, .unit = unit, .count = 1};
        for (int plane = 0; plane < EK_CHECKPOINT_PLANES; plane++)
            added.values[plane] = planes[plane][t] + i * elements;
        snapshot->leads = snapshot->leads || (t == 0 && unit == 0);
        EK_TRY(add_run(snapshot, added));
    }
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------- the copy */

static ek_status copy_units(ek_snapshot *snapshot)
{
    snapshot->memory = ek_large_alloc(EK_CHECKPOINT_PLANES * snapshot->floats * sizeof(float) + 1);
    if (!snapshot->memory)
        return ek_fail(EK_NO_MEMORY, "no memory for a copy of %zu weights and their moments (checkpoint)",
                       snapshot->floats);
    float *next = snapshot->memory;
    for (int plane = 0; plane < EK_CHECKPOINT_PLANES; plane++)
        for (size_t i = 0; i < snapshot->run_count; i++) {
            run *of = &snapshot->runs[i];
            size_t floats = of->count * of->elements;
            memcpy(next, of->values[plane], floats * sizeof *next);
            of->values[plane] = next;
            next += floats;
        }
    return EK_OK;
}

ek_status ek_snapshot_create(ek_snapshot **out, const ek_share *share, float **const planes[EK_CHECKPOINT_PLANES])
{
    ek_snapshot *snapshot = calloc(1, sizeof *snapshot);
    if (!snapshot)
        return ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    snapshot->config = *share->config;
    snapshot->rank = share->rank;
    writers of = find_writers(share);
    ek_status status = EK_OK;
    for (size_t t = 0; t < share->tensor_count && status == EK_OK; t++)
        status = add_tensor(snapshot, &of, t, planes);
    if (status == EK_OK)
        status = copy_units(snapshot);
    if (status != EK_OK) {
        ek_snapshot_destroy(snapshot);
        return status;
    }
    *out = snapshot;
    return EK_OK;
}

void ek_snapshot_destroy(ek_snapshot *snapshot)
{
    if (!snapshot)
        return;
    free(snapshot->memory);
    free(snapshot->runs);
    free(snapshot);
}

uint64_t ek_snapshot_bytes(const ek_snapshot *snapshot)
{
    return EK_CHECKPOINT_PLANES * snapshot->floats * sizeof(float);
}

/* ------------------------------------------------------------------------------------------------- writing */

static ek_status write_runs(const ek_snapshot *snapshot, const ek_checkpoint_writer *writer)
{
    for (uint32_t plane = 0; plane < EK_CHECKPOINT_PLANES; plane++)
        for (size_t i = 0; i < snapshot->run_count; i++) {
            const run *of = &snapshot->runs[i];
            EK_TRY(ek_checkpoint_writer_put(writer, plane, of->tensor, of->unit, of->count, of->values[plane]));
        }
    return ek_checkpoint_writer_sync(writer);
}

static ek_status write_sums(const ek_snapshot *snapshot, FILE *list)
{
    for (size_t i = 0; i < snapshot->run_count; i++) {
        const run *of = &snapshot->runs[i];
        for (uint32_t unit = 0; unit < of->count; unit++) {
            ek_unit_sums sums = {.tensor = (uint32_t)of->tensor, .unit = of->unit + unit};
            for (int plane = 0; plane < EK_CHECKPOINT_PLANES; plane++)
                sums.sums[plane] = ek_hash(of->values[plane] + unit * of->elements, of->elements * sizeof(float), 0);
            if (fwrite(&sums, sizeof sums, 1, list) != 1)
                return EK_IO;
        }
    }
    return fflush(list) == 0 && fsync(fileno(list)) == 0 ? EK_OK : EK_IO;
}

static ek_status write_list(const ek_snapshot *snapshot, const char *folder)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/" EK_SUMS_PREFIX "%u", folder, snapshot->rank);
    FILE *list = fopen(path, "we");
    ek_status status = list ? write_sums(snapshot, list) : EK_IO;
    int error = errno;
    if (list && fclose(list) != 0 && status == EK_OK) {
        error = errno;
        status = EK_IO;
    }
    return status == EK_OK ? EK_OK : ek_fail(EK_IO, "%s: cannot be written: %s", path, strerror(error));
}

ek_status ek_snapshot_write(const ek_snapshot *snapshot, const char *folder, uint64_t step)
{
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return ek_fail(EK_IO, "%s: cannot be made: %s", folder, strerror(errno));
    ek_checkpoint_writer *writer;
    EK_TRY(ek_checkpoint_writer_open(&writer, folder, &snapshot->config, step, snapshot->leads));
    ek_status status = write_runs(snapshot, writer);
    ek_checkpoint_writer_close(writer);
    return status == EK_OK ? write_list(snapshot, folder) : status;
}
