/* Places failures, counts domains by what has failed in them, and looks up what that makes of the job. */
#include "sim/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "cluster/packing.h"
#include "sim/parallel.h"

const char *const ek_arrangement_names[EK_ARRANGEMENTS] = {"packed", "left"};

/* -------------------------------------------------------------------------------------------------- the tables */

/* What a domain gives that has lost `failed` blocks. */
static void fill_domain(ek_sampler *sampler, uint32_t slots, uint32_t blast, uint32_t failed)
{
    const ek_steps *steps = sampler->steps;
    uint32_t retired = steps->levels + 1, *levels = sampler->cell_levels + (size_t)failed * sampler->cells;
    uint32_t *beyond = sampler->beyond + (size_t)failed * (steps->levels + 2);
    uint32_t count =
        ek_packing_cells(slots, slots - failed * blast, steps->base_degree, steps->base_degree - steps->levels, levels);
    for (uint32_t cell = 0; cell < sampler->cells; cell++) {
        levels[cell] = cell < count ? steps->base_degree - levels[cell] : retired;
        for (uint32_t level = 1; level <= levels[cell]; level++)
            beyond[level]++;
        if (levels[cell] > sampler->deepest[failed])
            sampler->deepest[failed] = levels[cell];
    }
}

ek_status ek_sampler_create(ek_sampler **created, const ek_steps *steps, uint32_t domains, uint32_t slots,
                            uint32_t blast)
{
    ek_sampler *sampler = calloc(1, sizeof *sampler);
    size_t cells = slots / steps->base_degree, blocks = slots / blast, all_cells = domains * cells;
    if (sampler) {
        *sampler =
            (ek_sampler){.steps = steps, .domains = domains, .blocks = (uint32_t)blocks, .cells = (uint32_t)cells};
        sampler->beyond = calloc((blocks + 1) * (steps->levels + 2), sizeof *sampler->beyond);
        sampler->cell_levels = calloc((blocks + 1) * cells, sizeof *sampler->cell_levels);
        sampler->deepest = calloc(blocks + 1, sizeof *sampler->deepest);
        sampler->replicas_hit = calloc(all_cells + 1, sizeof *sampler->replicas_hit);
        sampler->replica_of = calloc(all_cells, sizeof *sampler->replica_of);
    }
    if (!sampler || !sampler->beyond || !sampler->cell_levels || !sampler->deepest || !sampler->replicas_hit ||
        !sampler->replica_of) {
        ek_sampler_destroy(sampler);
        return ek_fail(EK_NO_MEMORY, "no memory for the tables of %u domains", domains);
    }
    for (uint32_t failed = 0; failed <= blocks; failed++)
        fill_domain(sampler, slots, blast, failed);
    size_t used = (size_t)steps->replicas * steps->stages;
    for (size_t cell = 0; cell < all_cells; cell++) {
        sampler->replica_of[cell] = cell < used ? (uint32_t)(cell / steps->stages) : steps->replicas;
        size_t bad = cell + 1, spare = all_cells - used;
        sampler->replicas_hit[bad] = bad > spare ? (uint32_t)((bad - spare + steps->stages - 1) / steps->stages) : 0;
    }
    *created = sampler;
    return EK_OK;
}

void ek_sampler_destroy(ek_sampler *sampler)
{
    if (!sampler)
        return;
    free(sampler->beyond);
    free(sampler->cell_levels);
    free(sampler->deepest);
    free(sampler->replicas_hit);
    free(sampler->replica_of);
    free(sampler);
}

/* ------------------------------------------------------------------------------------------------ one scenario */

/* Random words are made so many counters at a time. The number is part of what a seed means. */
enum { WORD_BLOCKS = 16, WORDS = 4 * WORD_BLOCKS };

struct ek_sampler_work {
    uint16_t *failed;         /* [domains] blocks; 0 between scenarios */
    uint32_t *damaged;        /* [domains] domains with a failure, in the order in which they were hit */
    uint32_t *domains_at;     /* [blocks + 1] domains by failed blocks, but for 0; 0 between scenarios */
    uint32_t *replicas_at;    /* [levels + 2] */
    uint32_t *replica_levels; /* [replicas + 1]; 0 between scenarios */
    uint32_t words[WORDS];
};

ek_status ek_sampler_work_create(ek_sampler_work **created, const ek_sampler *sampler)
{
    ek_sampler_work *work = calloc(1, sizeof *work);
    if (work) {
        work->failed = calloc(sampler->domains, sizeof *work->failed);
        work->damaged = calloc(sampler->domains, sizeof *work->damaged);
        work->domains_at = calloc(sampler->blocks + 2, sizeof *work->domains_at);
        work->replicas_at = calloc(sampler->steps->levels + 2, sizeof *work->replicas_at);
        work->replica_levels = calloc(sampler->steps->replicas + 1, sizeof *work->replica_levels);
    }
    if (!work || !work->failed || !work->damaged || !work->domains_at || !work->replicas_at || !work->replica_levels) {
        ek_sampler_work_destroy(work);
        return ek_fail(EK_NO_MEMORY, "no memory for scenarios of %u domains", sampler->domains);
    }
    *created = work;
    return EK_OK;
}

void ek_sampler_work_destroy(ek_sampler_work *work)
{
    if (!work)
        return;
    free(work->failed);
    free(work->damaged);
    free(work->domains_at);
    free(work->replicas_at);
    free(work->replica_levels);
    free(work);
}

/* Lets `failures` distinct blocks fail; returns how many domains are damaged, *most gets the most failed blocks of one.
 *
 * A word times the domains, as a fixed-point number, is a domain and a fraction that says which of its blocks. Within a
 * domain blocks are alike, so the failed ones may be taken to be the first: it is a block that has failed before if its
 * number is below theirs, and another word is drawn. (Words have 32 bits: with d blocks in all a block's probability is
 * off by less than d / 2^32 of itself, and not at all for powers of two.) */
static uint32_t place_failures(const ek_sampler *sampler, ek_sampler_work *work, uint64_t seed, uint64_t scenario,
                               uint32_t failures, uint32_t *most)
{
    uint32_t damaged = 0, repeated = 0, deepest = 1;
    for (uint64_t counter = 0; damaged + repeated < failures; counter += WORD_BLOCKS) {
        ek_random_blocks(seed, scenario, counter, WORD_BLOCKS, work->words);
        for (uint32_t i = 0; i < WORDS && damaged + repeated < failures; i++) {
            uint64_t place = (uint64_t)work->words[i] * sampler->domains;
            uint32_t domain = (uint32_t)(place >> 32), before = work->failed[domain];
            if (__builtin_expect(before == 0, 1)) { /* failures are few against domains */
                work->failed[domain] = 1;
                work->damaged[damaged++] = domain;
                continue;
            }
            if ((uint64_t)(uint32_t)place * sampler->blocks >> 32 < before)
                continue;
            work->failed[domain] = (uint16_t)(before + 1);
            work->domains_at[before]--; /* domains that failed once are counted by `damaged`, so this may wrap */
            work->domains_at[before + 1]++;
            repeated++;
            deepest = before + 1 > deepest ? before + 1 : deepest;
        }
    }
    work->domains_at[1] += damaged;
    *most = deepest;
    return damaged;
}

/* Replicas by level when cells are packed, deepest first, and the worst are spare: as ek_packing_degrees has it, from
 * counts alone. Returns the deepest level there may be. */
static uint32_t pack(const ek_sampler *sampler, ek_sampler_work *work, uint32_t most_failed)
{
    uint32_t levels = sampler->steps->levels + 2, deepest = sampler->deepest[most_failed], hit_deeper = 0;
    for (uint32_t level = deepest; level > 0; level--) {
        uint32_t cells = 0;
        for (uint32_t failed = 1; failed <= most_failed; failed++)
            cells += work->domains_at[failed] * sampler->beyond[failed * levels + level];
        uint32_t hit = sampler->replicas_hit[cells];
        work->replicas_at[level] = hit - hit_deeper;
        hit_deeper = hit;
    }
    return deepest;
}

/* Replicas by level when domains stay where they are. */
static uint32_t leave(const ek_sampler *sampler, ek_sampler_work *work, uint32_t damaged, uint32_t most_failed)
{
    uint32_t deepest = sampler->deepest[most_failed], cells = sampler->cells, *levels = work->replica_levels;
    memset(work->replicas_at, 0, (deepest + 1) * sizeof *work->replicas_at);
    for (uint32_t i = 0; i < damaged; i++) {
        const uint32_t *cell_levels = sampler->cell_levels + work->failed[work->damaged[i]] * cells;
        const uint32_t *replica_of = sampler->replica_of + (size_t)work->damaged[i] * cells;
        for (uint32_t cell = 0; cell < cells; cell++) {
            uint32_t *level = &levels[replica_of[cell]];
            *level = cell_levels[cell] > *level ? cell_levels[cell] : *level; /* no branch: it would go either way */
        }
    }
    levels[sampler->steps->replicas] = 0; /* what no replica needs */
    for (uint32_t i = 0; i < damaged; i++) {
        const uint32_t *replica_of = sampler->replica_of + (size_t)work->damaged[i] * cells;
        for (uint32_t cell = 0; cell < cells; cell++) {
            uint32_t *level = &levels[replica_of[cell]];
            work->replicas_at[*level]++; /* whole ones are counted as level 0, which nobody reads */
            *level = 0;
        }
    }
    return deepest;
}

static uint32_t count_whole_cells(const ek_sampler *sampler, const ek_sampler_work *work, uint32_t most_failed)
{
    uint32_t reduced = 0;
    for (uint32_t failed = 1; failed <= most_failed; failed++)
        reduced += work->domains_at[failed] * sampler->beyond[failed * (sampler->steps->levels + 2) + 1];
    return sampler->domains * sampler->cells - reduced;
}

void ek_sampler_one(const ek_sampler *sampler, ek_sampler_work *work, uint64_t seed, uint64_t scenario,
                    uint32_t failures, bool with_left, ek_sampled *sampled)
{
    uint32_t most_failed = 0, damaged = 0;
    if (failures > 0)
        damaged = place_failures(sampler, work, seed, scenario, failures, &most_failed);
    sampled->damaged_domains = damaged;
    sampled->whole_cells = count_whole_cells(sampler, work, most_failed);
    uint32_t present = pack(sampler, work, most_failed);
    ek_steps_throughput(sampler->steps, work->replicas_at, present, sampled->throughput[EK_PACKED], NULL);
    if (with_left) {
        present = leave(sampler, work, damaged, most_failed);
        ek_steps_throughput(sampler->steps, work->replicas_at, present, sampled->throughput[EK_LEFT], NULL);
    }
    for (uint32_t i = 0; i < damaged; i++)
        work->failed[work->damaged[i]] = 0;
    memset(work->domains_at, 0, (most_failed + 1) * sizeof *work->domains_at);
}

/* ----------------------------------------------------------------------------------------------- many scenarios */

ek_mean ek_mean_of_sums(double sum, double sum_of_squares, uint64_t count)
{
    double mean = sum / (double)count;
    if (count < 2 || isnan(mean))
        return (ek_mean){mean, NAN};
    double variance = (sum_of_squares - sum * mean) / (double)(count - 1);
    return (ek_mean){mean, 1.96 * sqrt(fmax(variance, 0) / (double)count)};
}

/* Scenarios are summed in runs of this length, and the runs' sums in order: so the result does not depend on threads.
 */
enum { RUN_LENGTH = 8192 };

enum { LOST = 0, DAMAGED = EK_ARRANGEMENTS * EK_POLICIES, WHOLE, VALUES };

typedef struct run_sums {
    double sum[VALUES], squares[VALUES], worst[DAMAGED];
} run_sums;

typedef struct sampler_run {
    const ek_sampler *sampler;
    const ek_sampling *sampling;
    uint32_t parts;
    run_sums *runs; /* [parts] */
} sampler_run;

static ek_status sum_run(void *context, uint32_t part)
{
    const sampler_run *run = context;
    const ek_sampling *sampling = run->sampling;
    uint64_t first = (uint64_t)part * RUN_LENGTH, left = sampling->count - first;
    uint64_t end = first + (left < RUN_LENGTH ? left : RUN_LENGTH);
    uint32_t loss_count = sampling->with_left ? DAMAGED : EK_POLICIES;
    double all_cells = (double)run->sampler->domains * run->sampler->cells;
    ek_sampler_work *work;
    EK_TRY(ek_sampler_work_create(&work, run->sampler));
    run_sums sums = {0};
    for (uint64_t scenario = first; scenario < end; scenario++) {
        ek_sampled sampled;
        ek_sampler_one(run->sampler, work, sampling->seed, scenario, sampling->failures, sampling->with_left, &sampled);
        for (uint32_t i = 0; i < loss_count; i++) {
            double lost = 1 - sampled.throughput[i / EK_POLICIES][i % EK_POLICIES];
            sums.sum[i] += lost;
            sums.squares[i] += lost * lost;
            sums.worst[i] = lost > sums.worst[i] ? lost : sums.worst[i];
        }
        double damaged = sampled.damaged_domains, whole = sampled.whole_cells / all_cells;
        sums.sum[DAMAGED] += damaged;
        sums.squares[DAMAGED] += damaged * damaged;
        sums.sum[WHOLE] += whole;
        sums.squares[WHOLE] += whole * whole;
    }
    run->runs[part] = sums;
    ek_sampler_work_destroy(work);
    return EK_OK;
}

static void add_run(run_sums *total, const run_sums *run)
{
    for (int i = 0; i < VALUES; i++) {
        total->sum[i] += run->sum[i];
        total->squares[i] += run->squares[i];
    }
    for (int i = 0; i < DAMAGED; i++)
        total->worst[i] = fmax(total->worst[i], run->worst[i]);
}

static void show_progress(void *context, uint32_t done)
{
    const sampler_run *run = context;
    if (run->sampling->progress)
        run->sampling->progress(run->sampling->progress_context, (double)done / run->parts);
}

ek_status ek_sampler_run(const ek_sampler *sampler, const ek_sampling *sampling, ek_sampled_means *means)
{
    uint64_t count = sampling->count;
    uint32_t parts = (uint32_t)((count + RUN_LENGTH - 1) / RUN_LENGTH);
    sampler_run run = {sampler, sampling, parts, calloc(parts, sizeof *run.runs)};
    if (!run.runs)
        return ek_fail(EK_NO_MEMORY, "no memory for the sums of %llu scenarios", (unsigned long long)count);
    ek_status status = ek_parallel_run(&(ek_parallel){.threads = sampling->threads,
                                                      .run = sum_run,
                                                      .context = &run,
                                                      .progress = show_progress,
                                                      .progress_context = &run},
                                       parts);
    run_sums total = {0};
    for (uint32_t part = 0; part < parts; part++)
        add_run(&total, &run.runs[part]);
    free(run.runs);
    if (status != EK_OK)
        return status;
    for (int arrangement = 0; arrangement < EK_ARRANGEMENTS; arrangement++)
        for (int policy = 0; policy < EK_POLICIES; policy++) {
            int i = arrangement * EK_POLICIES + policy;
            means->lost[arrangement][policy] = ek_mean_of_sums(total.sum[i], total.squares[i], count);
            means->worst[arrangement][policy] = total.worst[i];
        }
    means->damaged_domains = ek_mean_of_sums(total.sum[DAMAGED], total.squares[DAMAGED], count);
    means->whole_cells = ek_mean_of_sums(total.sum[WHOLE], total.squares[WHOLE], count);
    return EK_OK;
}
