/* Gradient synchronisation between replicas of any degrees: sums of small whole numbers, which floats hold exactly,
 * come out as counted by hand; each unit, and each tensor that all ranks hold, counts once in the norm. */
#include "comm/jobs.h"

enum { REPLICAS = 3, DEGREE = 4, RANKS = REPLICAS * DEGREE, GROUPS = 2, TENSORS_MOST = 9, TRIALS = 12 };

typedef struct sync_job {
    ek_membership *membership;
    ek_tensor tensors[TENSORS_MOST];
    uint32_t tensor_count, buckets;
    double square; /* of the sums over the job */
} sync_job;

/* What a rank or a replica, `source`, has of an element. */
static float part(uint32_t source, size_t tensor, uint32_t unit, size_t i)
{
    return (float)(ek_random_u64(source, tensor, unit * 100 + i) % 17) - 8.0f;
}

/* Tensors that are cut, and replicated ones whose gradient each replica has, differ by replica; of partial ones every
 * rank has a part. */
static float sum(const sync_job *job, size_t tensor, uint32_t unit, size_t i)
{
    float total = 0.0f;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        uint32_t replica, role;
        if (ek_membership_place(job->membership, rank, &replica, &role) &&
            (job->tensors[tensor].partial ||
             ek_membership_rank(job->membership, replica, ek_membership_first_core(job->membership)) == rank))
            total += part(job->tensors[tensor].partial ? rank : RANKS + replica, tensor, unit, i);
    }
    return total;
}

static const uint32_t *units_of(const sync_job *job, uint32_t rank, size_t tensor, uint32_t *count)
{
    *count = 1;
    return job->tensors[tensor].group == EK_REPLICATED
               ? NULL
               : ek_membership_units(job->membership, rank, job->tensors[tensor].group, count);
}

/* Sets the rank's own gradients to its part, or compares them with the sum. */
static ek_status visit(const sync_job *job, ek_engine *engine, const ek_sync *sync, uint32_t replica, float *gradients,
                       bool compare)
{
    uint32_t rank = ek_engine_rank(engine), count;
    for (size_t t = 0; t < job->tensor_count; t++) {
        const ek_tensor *tensor = &job->tensors[t];
        const uint32_t *units = units_of(job, rank, t, &count);
        float *own = gradients + ek_sync_offset(sync, t);
        CHECK(ek_sync_own(sync, t) == count * tensor->unit_elements);
        for (uint32_t u = 0; u < count; u++)
            for (size_t i = 0; i < tensor->unit_elements; i++, own++) {
                uint32_t unit = units ? units[u] : 0;
                CHECK(!compare || *own == sum(job, t, unit, i));
                *own = part(tensor->partial ? rank : RANKS + replica, t, unit, i);
            }
    }
    return EK_OK;
}

static ek_status synchronise(const sync_job *job, ek_engine *engine, ek_sync *sync, uint32_t replica, float *gradients,
                             double *square)
{
    for (int step = 0; step < 2; step++) { /* the second finds what the first has left behind its own units */
        EK_TRY(visit(job, engine, sync, replica, gradients, false));
        for (uint32_t b = 0; b < job->buckets; b++)
            EK_TRY(ek_sync_start(sync, gradients, b));
        EK_TRY(ek_sync_finish(sync, gradients));
        *square = ek_sync_square(sync, gradients);
        EK_TRY(visit(job, engine, sync, replica, gradients, true));
    }
    return EK_OK;
}

static ek_status rank_main(ek_engine *engine, void *user)
{
    const sync_job *job = user;
    uint32_t replica = EK_NONE;
    bool placed = ek_membership_place(job->membership, ek_engine_rank(engine), &replica, NULL);
    ek_sync *sync;
    EK_TRY(ek_sync_create(&sync, engine, job->membership, job->tensors, job->tensor_count));
    void *gradients = NULL;
    double square = 0.0, total;
    ek_status status = ek_engine_alloc(engine, ek_sync_elements(sync) * sizeof(float) + 1, &gradients);
    if (status == EK_OK && placed)
        status = synchronise(job, engine, sync, replica, gradients, &square);
    if (status == EK_OK)
        status = ek_vote(engine, 1, &square, &total, 1);
    if (status == EK_OK && total != job->square)
        status = ek_fail(EK_CORRUPT, "the squared norm is %.17g, expected %.17g", total, job->square);
    ek_sync_destroy(sync);
    return status;
}

/* Tensors of all kinds in random buckets; buckets go on until one is of the last tensor. */
static void make_tensors(sync_job *job, uint64_t seed)
{
    job->tensor_count = 1 + (uint32_t)(ek_random_u64(seed, 0, 0) % TENSORS_MOST);
    job->buckets = 1;
    for (uint32_t t = 0; t < job->tensor_count; t++) {
        uint64_t kind = ek_random_u64(seed, 1, t) % 4; /* two groups, replicated, partial */
        if (t > 0 && ek_random_u64(seed, 2, t) % 2)
            job->buckets++;
        job->tensors[t] = (ek_tensor){.name = "tensor",
                                      .group = kind < GROUPS ? (uint32_t)kind : EK_REPLICATED,
                                      .bucket = job->buckets - 1,
                                      .unit_elements = 1 + ek_random_u64(seed, 3, t) % 40,
                                      .partial = kind == 3};
    }
}

static void make_job(sync_job *job, uint64_t seed)
{
    const ek_unit_group groups[GROUPS] = {{.name = "experts", .units = 13}, {.name = "ffn", .units = 6}};
    ek_membership *whole;
    assert_ok(ek_membership_create(
        &whole, &(ek_job){.replicas = REPLICAS, .base_degree = DEGREE, .groups = groups, .group_count = GROUPS}));
    uint32_t lost[RANKS], lost_count = 0;
    for (uint32_t rank = 0; rank < RANKS; rank++) /* none of replica 0's first, so that one stays */
        if (rank && ek_random_u64(seed, 4, rank) % 10 < seed % 7)
            lost[lost_count++] = rank;
    assert_ok(ek_membership_lose(whole, lost, lost_count, &job->membership));
    ek_membership_destroy(whole);
    make_tensors(job, seed);
    job->square = 0.0;
    for (size_t t = 0; t < job->tensor_count; t++) {
        uint32_t units = job->tensors[t].group == EK_REPLICATED ? 1 : groups[job->tensors[t].group].units;
        for (uint32_t unit = 0; unit < units; unit++)
            for (size_t i = 0; i < job->tensors[t].unit_elements; i++)
                job->square += (double)sum(job, t, unit, i) * sum(job, t, unit, i);
    }
}

static void test_sums(void **state)
{
    (void)state;
    FOR_EACH_MODE(threads)
    {
        for (uint64_t seed = 0; seed < TRIALS; seed++) {
            sync_job job;
            make_job(&job, seed);
            bool absent[RANKS];
            for (uint32_t rank = 0; rank < RANKS; rank++)
                absent[rank] = !ek_membership_place(job.membership, rank, NULL, NULL);
            ek_launch_options options = job_options(RANKS, threads, rank_main, &job);
            options.absent = absent;
            assert_ok(ek_launch(&options));
            ek_membership_destroy(job.membership);
        }
    }
}

/* Two replicas of degrees 2 and 1: what a rank sends for a tensor of 6 floats. A replicated one is reduced once for
 * each replica, of 2; a partial one over the three ranks. */
static ek_status check_traffic(ek_engine *engine, void *user)
{
    const sync_job *job = user;
    for (int partial = 0; partial < 2; partial++) {
        const ek_tensor tensor = {.name = "t", .group = EK_REPLICATED, .unit_elements = 6, .partial = partial};
        ek_sync *sync;
        uint64_t reshard, reduce;
        EK_TRY(ek_sync_create(&sync, engine, job->membership, &tensor, 1));
        ek_sync_traffic(sync, &reshard, &reduce);
        ek_sync_destroy(sync);
        bool first = ek_engine_rank(engine) != 1; /* the role that is reduced across the replicas */
        CHECK(reshard == 0);
        CHECK(reduce == (partial ? 2 * 2 * 24 / 3 : first ? 2 * 24 / 2 : 0));
    }
    return EK_OK;
}

static void test_traffic(void **state)
{
    (void)state;
    const ek_unit_group group = {.name = "experts", .units = 2};
    sync_job job;
    ek_membership *whole;
    assert_ok(
        ek_membership_create(&whole, &(ek_job){.replicas = 2, .base_degree = 2, .groups = &group, .group_count = 1}));
    assert_ok(ek_membership_lose(whole, (const uint32_t[]){3}, 1, &job.membership));
    ek_launch_options options = job_options(4, UNDER_TSAN, check_traffic, &job);
    options.absent = (const bool[]){false, false, false, true};
    assert_ok(ek_launch(&options));
    ek_membership_destroy(job.membership);
    ek_membership_destroy(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_traffic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
