/* What travels between the ranks of a replica for its experts, against the least that could. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "bench.h"
#include "cluster/batch.h"
#include "jobs.h"
#include "train/routes.h"

enum { REPLICAS = 2, DEGREE = 4 };

static const char dispatch_yaml[] = EK_BENCH_EXPERTS "batch: {global: 16, micro: 4}\n"
                                                     "train: {steps: 4}\n"
                                                     "parallel: {mode: ep, dp: 2, tp: 4, degrees: [4, 3]}\n";

/* What the least is counted from: the choices that the job recorded, and where samples and experts are. */
typedef struct least_bytes {
    const ek_config *config;
    ek_membership *membership;
    ek_routes_file *routes;
    uint32_t *choices; /* (T,k) */
} least_bytes;

static ek_status prepare(least_bytes *least, const char *routes_path)
{
    const ek_model_config *model = &least->config->model;
    least->choices = calloc(model->sequence, model->top_k * sizeof *least->choices);
    if (!least->choices)
        return ek_fail(EK_NO_MEMORY, "out of memory for routes");
    ek_unit_group group = {.name = "experts", .units = model->experts};
    ek_membership *whole;
    EK_TRY(ek_membership_create(
        &whole, &(ek_job){.replicas = REPLICAS, .base_degree = DEGREE, .groups = &group, .group_count = 1}));
    ek_status status = ek_membership_lose(whole, (const uint32_t[]){2 * DEGREE - 1}, 1, &least->membership);
    ek_membership_destroy(whole);
    return status == EK_OK ? ek_routes_file_open(&least->routes, routes_path, EK_ROUTES_REPLAY, true, least->config)
                           : status;
}

static void release(least_bytes *least)
{
    ek_routes_file_close(least->routes);
    ek_membership_destroy(least->membership);
    free(least->choices);
}

/* The other ranks to which the tokens of one sample and layer go. `role` has the sample. */
static uint64_t count_trips(const least_bytes *least, uint32_t level, uint32_t role)
{
    const ek_model_config *model = &least->config->model;
    const ek_chain *chain = ek_membership_chain(least->membership, 0);
    uint64_t trips = 0;
    for (uint32_t t = 0; t < model->sequence; t++) {
        uint64_t visited = UINT64_C(1) << role;
        for (uint32_t j = 0; j < model->top_k; j++) {
            uint64_t owner = UINT64_C(1) << ek_chain_owner(chain, level, least->choices[t * model->top_k + j], NULL);
            trips += !(visited & owner);
            visited |= owner;
        }
    }
    return trips;
}

/* The least bytes of a step of a replica, whose roles take its samples in order. */
static ek_status count_replica(const least_bytes *least, uint64_t step, uint32_t replica, uint64_t *bytes)
{
    const ek_model_config *model = &least->config->model;
    ek_batch_share share = ek_batch_even(least->config->batch.global, REPLICAS, replica);
    uint32_t ranks[DEGREE], degree = ek_membership_replica(least->membership, replica, ranks);
    uint64_t trips = 0, flips = 0;
    for (uint32_t member = 0; member < degree; member++) {
        uint32_t role;
        ek_membership_place(least->membership, ranks[member], NULL, &role);
        ek_batch_share own = ek_batch_even(share.count, degree, member);
        for (uint32_t sample = share.first + own.first; sample < share.first + own.first + own.count; sample++)
            for (uint32_t layer = 0; layer < ek_model_moe_layers(model); layer++) {
                EK_TRY(ek_routes_file_use(least->routes, step, sample, 1, layer, true, least->choices, &flips));
                trips += count_trips(least, ek_membership_level(least->membership, replica), role);
            }
    }
    *bytes = 4 * trips * model->hidden * sizeof(float); /* there and back, twice */
    return EK_OK;
}

static ek_status compare(const least_bytes *least, const ek_bench_job *job)
{
    printf("dispatch: bytes between ranks for tokens, against each token once to each other rank that holds one of its "
           "experts, and back, forward and backward\n");
    for (uint32_t replica = 0; replica < REPLICAS; replica++) {
        uint64_t sent = 0, least_sent = 0;
        for (size_t step = 1; step <= job->steps; step++) {
            uint64_t bytes;
            EK_TRY(count_replica(least, step, replica, &bytes));
            least_sent += bytes;
            sent += job->step[step].dispatch_bytes[replica];
        }
        printf("  EP%u: %.2f MB a step, ratio %.4f\n", ek_membership_degree(least->membership, replica),
               1e-6 * (double)sent / (double)job->steps, (double)sent / (double)least_sent);
    }
    return EK_OK;
}

static ek_status record(const ek_bench_file *routes, ek_bench_job *job)
{
    return ek_bench_run(
        &(ek_bench_setup){.yaml = dispatch_yaml, .routes = EK_ROUTES_RECORD, .routes_path = routes->path}, job);
}

ek_status ek_bench_dispatch(void)
{
    static ek_bench_job job;
    ek_bench_file routes;
    EK_TRY(ek_bench_file_create(&routes, "", 0));
    ek_config *config = NULL;
    least_bytes least = {0};
    ek_status status = record(&routes, &job);
    if (status == EK_OK)
        status = ek_bench_config(&config, dispatch_yaml, "unread");
    least.config = config;
    if (status == EK_OK)
        status = prepare(&least, routes.path);
    if (status == EK_OK)
        status = compare(&least, &job);
    release(&least);
    ek_config_destroy(config);
    ek_bench_file_close(&routes);
    return status;
}
