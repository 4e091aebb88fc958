/* Which units a rank writes, their copy, and the writing. */
#include "checkpoint/snapshot.h"

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
    const ek_membership *membership;
    uint32_t rank, replica;
    uint32_t active, turn;  /* replicas in use, and the rank's among them */
    uint32_t placed, index; /* ranks with a role, and the rank's among them */
} writers;

static writers find_writers(const ek_membership *membership, uint32_t rank)
{
    writers found = {.membership = membership, .rank = rank};
    ek_membership_place(membership, rank, &found.replica, NULL);
    for (uint32_t r = 0; r < ek_membership_job(membership)->replicas; r++) {
        found.turn += r < found.replica && ek_membership_degree(membership, r);
        found.active += ek_membership_degree(membership, r) > 0;
    }
    for (uint32_t other = 0; other < ek_membership_ranks(membership); other++) {
        bool placed = ek_membership_place(membership, other, NULL, NULL);
        found.index += other < rank && placed;
        found.placed += placed;
    }
    return found;
}

/* Of the units that a role holds at level 0 every replica writes a part in a row. */
static bool writes_unit(const writers *of, uint32_t group, uint32_t unit)
{
    const ek_job *job = ek_membership_job(of->membership);
    uint64_t units = job->groups[group].units, in_role = (uint64_t)unit * job->base_degree % units;
    return in_role * of->active / units == of->turn;
}

/* A replicated tensor's units are dealt to all ranks in rows. `first` deals the single ones in turn. */
static bool writes_replicated(const writers *of, size_t tensor, uint32_t unit, uint32_t units)
{
    if (units == 1)
        return tensor % of->placed == of->index;
    return (uint64_t)unit * of->placed / units == of->index;
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
    if (snapshot->run_count == snapshot->run_capacity) {
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

static ek_status add_tensor(ek_snapshot *snapshot, const writers *of, size_t t, const ek_tensor *tensor,
                            float **const planes[EK_CHECKPOINT_PLANES])
{
    size_t elements;
    uint32_t total = ek_model_tensor_units(&snapshot->config, t, &elements), held = total;
    bool replicated = tensor->group == EK_REPLICATED;
    const uint32_t *units = replicated ? NULL : ek_membership_units(of->membership, of->rank, tensor->group, &held);
    for (uint32_t i = 0; i < held; i++) {
        uint32_t unit = units ? units[i] : i;
        if (!(replicated ? writes_replicated(of, t, unit, total) : writes_unit(of, tensor->group, unit)))
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

ek_status ek_snapshot_create(ek_snapshot **out, const ek_membership *membership, uint32_t rank,
                             const ek_model_config *config, const ek_tensor *tensors, size_t tensor_count,
                             float **const planes[EK_CHECKPOINT_PLANES])
{
    ek_snapshot *snapshot = calloc(1, sizeof *snapshot);
    if (!snapshot)
        return ek_fail(EK_NO_MEMORY, "no memory for a checkpoint");
    snapshot->config = *config;
    snapshot->rank = rank;
    writers of = find_writers(membership, rank);
    ek_status status = EK_OK;
    for (size_t t = 0; t < tensor_count && status == EK_OK; t++)
        status = add_tensor(snapshot, &of, t, &tensors[t], planes);
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

static ek_status write_runs(const ek_snapshot *snapshot, const ek_checkpoint_files *files)
{
    for (uint32_t plane = 0; plane < EK_CHECKPOINT_PLANES; plane++)
        for (size_t i = 0; i < snapshot->run_count; i++) {
            const run *of = &snapshot->runs[i];
            EK_TRY(ek_checkpoint_files_write(files, plane, of->tensor, of->unit, of->count, of->values[plane]));
        }
    return ek_checkpoint_files_sync(files);
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
    ek_checkpoint_files *files;
    EK_TRY(ek_checkpoint_files_create(&files, folder, &snapshot->config, step, snapshot->leads));
    ek_status status = write_runs(snapshot, files);
    ek_checkpoint_files_close(files);
    return status == EK_OK ? write_list(snapshot, folder) : status;
}
