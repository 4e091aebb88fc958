/* The mapping that the ranks of a job share. */
#include "comm/shm.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Groups per rank that there is room for. */
#define BLOCKS_PER_RANK 64
#define MIN_BLOCKS 1024
#define MAX_NAP_NS 50000000u
#define MIN_TICK_NS 1000000u
#define SPINS 2000

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Where what lies, in bytes from the beginning. */
struct plan {
    size_t page_bytes, heap_bytes;
    uint64_t block_count;
    size_t live, blocks, channels, heaps, end;
};

static ek_status make_plan(struct plan *plan, const ek_launch_options *options)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), ranks = options->ranks;
    size_t heap_bytes = options->heap_bytes ? options->heap_bytes : heap_default_bytes(ranks);
    *plan = (struct plan){.page_bytes = page, .block_count = MIN_BLOCKS};
    while (plan->block_count < BLOCKS_PER_RANK * ranks)
        plan->block_count *= 2;
    plan->live = sizeof(struct shm_job) + ranks * sizeof(struct shm_rank);
    plan->blocks = round_up(plan->live + 2 * ranks * sizeof(bool), page);
    plan->channels = plan->blocks + plan->block_count * sizeof(struct shm_block);
    plan->heaps = round_up(plan->channels + EK_LANES * ranks * ranks * sizeof(struct shm_channel), page);
    if (heap_bytes > (SIZE_MAX / 2 - plan->heaps) / ranks - page)
        return ek_fail(EK_INVALID, "ek_launch: heaps of %zu bytes for %zu ranks: lower the engine's heap_bytes",
                       heap_bytes, ranks);
    plan->heap_bytes = round_up(heap_bytes, page);
    plan->end = plan->heaps + ranks * plan->heap_bytes;
    return EK_OK;
}

/* Spinning only pays while every lane of every rank can have a core. */
static uint32_t choose_spins(uint32_t ranks)
{
    return (long)ranks * EK_LANES <= sysconf(_SC_NPROCESSORS_ONLN) ? SPINS : 0;
}

/* However short the timeout is, looking for beats leaves time for everything else. */
static uint64_t choose_tick_ns(double timeout_seconds)
{
    uint64_t tick_ns = (uint64_t)(timeout_seconds * 1e9 / SHM_TICKS_PER_TIMEOUT);
    return timeout_seconds > 0 && tick_ns < MIN_TICK_NS ? MIN_TICK_NS : tick_ns;
}

ek_status shm_job_create(struct shm_job **created, const ek_launch_options *options)
{
    struct plan plan;
    EK_TRY(make_plan(&plan, options));
    unsigned char *base =
        mmap(NULL, plan.end, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return ek_fail(errno == ENOMEM ? EK_NO_MEMORY : EK_SYSTEM,
                       "cannot map %zu bytes of shared address space (%u heaps of %zu bytes): %s; lower the engine's "
                       "heap_bytes, or "
                       "raise the address space limit (ulimit -v) or vm.overcommit_memory",
                       plan.end, options->ranks, plan.heap_bytes, strerror(errno));
    struct shm_job *job = (struct shm_job *)base;
    job->ranks = options->ranks;
    job->threads = options->threads;
    job->spins = choose_spins(options->ranks);
    job->mapping_bytes = plan.end;
    job->tick_ns = choose_tick_ns(options->timeout_seconds);
    job->nap_ns = job->tick_ns > 0 && job->tick_ns < MAX_NAP_NS ? job->tick_ns : MAX_NAP_NS;
    job->link_emulated = options->link_bytes_per_second > 0 || options->link_latency_seconds > 0;
    job->link_latency_ns = options->link_latency_seconds * 1e9;
    job->link_ns_per_byte = options->link_bytes_per_second > 0 ? 1e9 / options->link_bytes_per_second : 0;
    job->live = (bool *)(base + plan.live);
    job->newcomers = job->live + job->ranks;
    job->agreement = (ek_agreement){.live = job->live, .newcomers = job->newcomers};
    job->blocks = (struct shm_block *)(base + plan.blocks);
    job->block_count = plan.block_count;
    job->channels = (struct shm_channel *)(base + plan.channels);
    job->wiped_bytes = plan.heaps - plan.blocks;
    job->heaps = base + plan.heaps;
    job->heaps_end = base + plan.end;
    job->heap_bytes = plan.heap_bytes;
    atomic_store(&job->epoch, 1);
    *created = job;
    return EK_OK;
}

void shm_job_destroy(struct shm_job *job)
{
    munmap(job, job->mapping_bytes);
}
