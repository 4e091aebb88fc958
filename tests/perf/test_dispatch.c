/* Expert parallelism in the performance model: rows counted one by one, beside the trainer's own dispatch, and by hand;
 * what ranks hold, compute and reduce. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "model/dispatch.h"
#include "perf/jobs.h"
#include "perf/parts.h"
#include "testing.h"

enum { MOST_RANKS = 32, MOST_EXPERTS = 256 };

/* One stage of 8 layers that all have experts; hardware without latencies. */
static perf_job job_moe(uint32_t experts, uint32_t top_k, uint32_t ranks)
{
    perf_job job = job_530b();
    job.model = (ek_perf_model){.layers = 8,
                                .hidden = 4096,
                                .heads = 32,
                                .kv_heads = 4,
                                .ffn = 8192,
                                .vocab = 32768,
                                .sequence = 2048,
                                .gated = true,
                                .fused_attention = true,
                                .experts = experts,
                                .top_k = top_k,
                                .moe_every = 1,
                                .expert_ffn = 1536};
    job.parallel = (ek_perf_parallel){.mode = EK_PERF_EP,
                                      .dp = 4,
                                      .tp = ranks,
                                      .pp = 1,
                                      .interleave = 1,
                                      .min_tp = 1,
                                      .global_batch = 4 * 6 * ranks,
                                      .micro_batch = 1};
    job.hardware.domain_slots = ranks;
    job.hardware.scale_up_seconds = job.hardware.scale_out_seconds = job.hardware.kernel_seconds = 0;
    job.hardware.memory_bytes = 1e14;
    return job;
}

static ek_perf *make(const perf_job *job)
{
    ek_perf *perf;
    assert_ok(ek_perf_create(&perf, &job->model, &job->parallel, &job->hardware));
    return perf;
}

static void close_to(double found, double expected, double error)
{
    if (!(fabs(found - expected) <= error * fabs(expected)))
        fail_msg("%.15g instead of %.15g", found, expected);
}

/* ------------------------------------------------------------------------------------- where experts lie */

/* Who owns each expert in a replica of `degree` of `base` ranks, as an index among those that are left, when roles were
 * lost in an order chosen by `key`; and how many each has. */
static void deal(uint32_t experts, uint32_t base, uint32_t degree, uint64_t key, uint32_t *owners, uint32_t *counts)
{
    uint32_t order[MOST_RANKS], index[MOST_RANKS], left = 0;
    for (uint32_t role = 0; role < base; role++) {
        uint32_t at = (uint32_t)(ek_random_u64(key, 0, role) % (role + 1));
        order[role] = order[at];
        order[at] = role;
    }
    for (uint32_t role = 0; role < base; role++) {
        bool lost = false;
        for (uint32_t i = 0; i < base - degree; i++)
            lost = lost || order[i] == role;
        index[role] = lost ? EK_NONE : left++;
    }
    ek_chain *chain;
    assert_ok(ek_chain_create(&chain, experts, base, order, base - degree, 0));
    memset(counts, 0, degree * sizeof *counts);
    for (uint32_t expert = 0; expert < experts; expert++) {
        owners[expert] = index[ek_chain_owner(chain, base - degree, expert, NULL)];
        counts[owners[expert]]++;
    }
    ek_chain_destroy(chain);
}

/* Rows, counted for given choices. */
typedef struct row_counts {
    double tokens, ranks, to[MOST_RANKS]; /* rows to each rank, from anywhere */
} row_counts;

static void count_rows(row_counts *rows, const uint32_t *owners, const uint32_t *choices, uint32_t top_k)
{
    bool seen[MOST_RANKS] = {false};
    rows->tokens++;
    for (uint32_t i = 0; i < top_k; i++) {
        uint32_t owner = owners[choices[i]];
        rows->ranks += !seen[owner];
        rows->to[owner] += !seen[owner];
        seen[owner] = true;
    }
}

/* Equal numbers of tokens on each rank, whose choices are those that were counted. */
static void check_rows(const ek_perf *perf, const row_counts *rows, const uint32_t *counts, uint32_t degree,
                       double error)
{
    ek_perf_dispatch found;
    ek_perf_dispatch_at(perf, degree, &found);
    double most = 0, leaving = 0, away = (degree - 1.0) / degree;
    uint32_t fullest = 0;
    for (uint32_t rank = 0; rank < degree; rank++) {
        most = fmax(most, rows->to[rank] / rows->tokens);
        leaving = fmax(leaving, (rows->ranks - rows->to[rank]) / rows->tokens);
        fullest = counts[rank] > fullest ? counts[rank] : fullest;
    }
    close_to(found.ranks, rows->ranks / rows->tokens, error);
    close_to(found.crossing, rows->ranks / rows->tokens * away, error);
    close_to(found.leaving, leaving, error);
    close_to(found.arriving, most * away, error);
    close_to(found.imbalance, (double)fullest * degree / perf->model.experts, 1e-12);
    close_to(found.bytes, found.crossing * (8.0 * perf->model.hidden + 12.0 * perf->model.top_k), 1e-12);
}

/* ------------------------------------------------------------------------------------------------ counted */

/* The next of all choices in ascending order; false after the last. */
static bool next_choice(uint32_t *choices, uint32_t top_k, uint32_t experts)
{
    uint32_t i = top_k;
    while (i > 0 && choices[i - 1] == experts - top_k + i - 1)
        i--;
    if (i == 0)
        return false;
    choices[i - 1]++;
    for (; i < top_k; i++)
        choices[i] = choices[i - 1] + 1;
    return true;
}

static void every_choice_counted(void **state)
{
    (void)state;
    for (uint32_t experts = 1; experts <= 13; experts += 3)
        for (uint32_t base = 1; base <= experts && base <= 8; base++)
            for (uint32_t top_k = 1; top_k <= 4 && top_k <= experts; top_k++) {
                perf_job job = job_moe(experts, top_k, base);
                ek_perf *perf = make(&job);
                for (uint32_t degree = 1; degree <= base; degree++) {
                    uint32_t owners[MOST_EXPERTS], counts[MOST_RANKS], choices[4] = {0, 1, 2, 3};
                    row_counts rows = {0};
                    deal(experts, base, degree, experts + 100 * base, owners, counts);
                    do
                        count_rows(&rows, owners, choices, top_k);
                    while (next_choice(choices, top_k, experts));
                    check_rows(perf, &rows, counts, degree, 1e-12);
                }
                ek_perf_destroy(perf);
            }
}

/* EP32 beside EP28: experts within one, and rows as random choices have them. */
static void large_replicas_sampled(void **state)
{
    (void)state;
    static const struct {
        uint32_t experts, degree, fewest, most;
    } cases[] = {{224, 32, 7, 7}, {224, 28, 8, 8}, {128, 32, 4, 4}, {128, 28, 4, 5}, {256, 27, 9, 10}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t experts = cases[i].experts, owners[MOST_EXPERTS], counts[MOST_RANKS], all[MOST_EXPERTS];
        perf_job job = job_moe(experts, 8, 32);
        ek_perf *perf = make(&job);
        row_counts rows = {0};
        deal(experts, 32, cases[i].degree, i, owners, counts);
        for (uint32_t rank = 0; rank < cases[i].degree; rank++)
            assert_true(counts[rank] >= cases[i].fewest && counts[rank] <= cases[i].most);
        for (uint32_t expert = 0; expert < experts; expert++)
            all[expert] = expert;
        for (uint64_t token = 0; token < 100000; token++) { /* the first 8 of a shuffle */
            for (uint32_t j = 0; j < 8; j++) {
                uint32_t other = j + (uint32_t)(ek_random_u64(i, token, j) % (experts - j)), kept = all[j];
                all[j] = all[other];
                all[other] = kept;
            }
            count_rows(&rows, owners, all, 8);
        }
        check_rows(perf, &rows, counts, cases[i].degree, 0.03); /* the fullest of 28 counts is 3 deviations up */
        ek_perf_dispatch found;
        ek_perf_dispatch_at(perf, cases[i].degree, &found);
        close_to(found.ranks, rows.ranks / rows.tokens, 1e-3);
        ek_perf_destroy(perf);
    }
}

/* Two ranks with two of four experts each, two choices: of six pairs one has both experts on the other rank, one both
 * on its own, four one on each. So a row crosses for 5 of 6 tokens, and 10 of 6 are worked on. */
static void two_by_two_by_hand(void **state)
{
    (void)state;
    perf_job job = job_moe(4, 2, 2);
    ek_perf *perf = make(&job);
    ek_perf_dispatch found;
    ek_perf_dispatch_at(perf, 2, &found);
    close_to(found.ranks, 10 / 6.0, 1e-12);
    close_to(found.crossing, 5 / 6.0, 1e-12);
    close_to(found.bytes, 5 / 6.0 * (4 * 2 * 4096 + 3 * 2 * 4), 1e-12);
    ek_perf_dispatch_at(perf, 1, &found);
    assert_true(found.crossing == 0 && found.bytes == 0 && found.ranks == 1);
    ek_perf_destroy(perf);
}

/* ---------------------------------------------------------------------------------- beside the trainer's */

enum { HIDDEN = 24, ROWS_MOST = 1000 };

typedef struct dispatched {
    uint32_t ranks, top_k, rows; /* on each rank: every choice that there is, once */
    uint32_t owners[MOST_EXPERTS], choices[ROWS_MOST * 4];
    double crossing; /* the performance model's */
} dispatched;

/* What a layer sends, forward and backward: rows there and back, twice, and at the end the weights' gradients. */
static ek_status send_layer(ek_dispatch *dispatch, ek_group *group, ek_buffer buffers[3], const dispatched *job,
                            float *rows)
{
    size_t k = job->top_k, most = (size_t)ROWS_MOST * job->ranks * HIDDEN * sizeof(float);
    EK_TRY(ek_buffer_reserve(&buffers[1], most));
    EK_TRY(ek_buffer_reserve(&buffers[2], most));
    memset(buffers[2].memory, 0, most);
    EK_TRY(ek_dispatch_plan(dispatch, group, &buffers[0], job->choices, rows, job->owners, job->rows, k));
    for (int pass = 0; pass < 2; pass++) {
        EK_TRY(ek_dispatch_send(dispatch, group, &buffers[0], buffers[1].memory, rows, HIDDEN));
        EK_TRY(ek_dispatch_return(dispatch, group, &buffers[0], rows, buffers[2].memory, HIDDEN));
    }
    return ek_dispatch_return(dispatch, group, &buffers[0], rows, buffers[2].memory, k);
}

static ek_status compare_bytes(ek_group *group, const dispatched *job, uint64_t sent)
{
    float bytes = (float)(sent - (job->ranks - 1) * sizeof(size_t)); /* but for the counts; below 2^24: exact */
    EK_TRY(ek_all_reduce(group, &bytes, 1, EK_SUM, NULL));
    double row = 4.0 * (4 * HIDDEN + 3 * job->top_k), expected = job->crossing * row * job->rows * job->ranks;
    if (!(fabs(bytes - expected) <= 1e-6 * expected))
        return ek_fail(EK_CORRUPT, "the trainer sent %g bytes, the model has %g", bytes, expected);
    return EK_OK;
}

static ek_status rank_main(ek_engine *engine, void *user)
{
    const dispatched *job = user;
    uint32_t ranks[MOST_RANKS];
    for (uint32_t rank = 0; rank < job->ranks; rank++)
        ranks[rank] = rank;
    ek_buffer buffers[3] = {{.engine = engine}, {.engine = NULL}, {.engine = engine}};
    ek_dispatch dispatch = {0};
    ek_group *group;
    float *rows = calloc((size_t)ROWS_MOST * HIDDEN, sizeof *rows);
    if (!rows)
        return ek_fail(EK_NO_MEMORY, "no memory for rows");
    ek_status status = ek_group_create(&group, engine, EK_LANE_COMPUTE, 0, ranks, job->ranks);
    if (status == EK_OK) {
        status = send_layer(&dispatch, group, buffers, job, rows);
        if (status == EK_OK)
            status = compare_bytes(group, job, dispatch.sent_bytes);
        ek_group_destroy(group);
    }
    for (int i = 0; i < 3; i++)
        ek_buffer_free(&buffers[i]);
    ek_dispatch_free(&dispatch);
    free(rows);
    return status;
}

static void check_dispatch(uint32_t experts, uint32_t top_k, uint32_t base, uint32_t degree)
{
    perf_job job = job_moe(experts, top_k, base);
    ek_perf *perf = make(&job);
    ek_perf_dispatch expected;
    ek_perf_dispatch_at(perf, degree, &expected);
    ek_perf_destroy(perf);
    dispatched work = {.ranks = degree, .top_k = top_k, .crossing = expected.crossing};
    uint32_t counts[MOST_RANKS], choices[4] = {0, 1, 2, 3};
    deal(experts, base, degree, 7, work.owners, counts);
    do {
        assert_true(work.rows < ROWS_MOST);
        memcpy(work.choices + (size_t)top_k * work.rows++, choices, top_k * sizeof *choices);
    } while (next_choice(choices, top_k, experts));
    assert_ok(ek_launch(&(ek_launch_options){.engine = "shm",
                                             .ranks = degree,
                                             .timeout_seconds = 30.0,
                                             .heap_bytes = (size_t)16 << 20,
                                             .main = rank_main,
                                             .user = &work}));
}

static void the_trainer_sends_as_much(void **state)
{
    (void)state;
    check_dispatch(13, 2, 4, 4);
    check_dispatch(13, 2, 4, 3);
    check_dispatch(12, 3, 4, 3);
    check_dispatch(6, 4, 3, 2);
    check_dispatch(5, 1, 4, 2);
}

/* ----------------------------------------------------------------------------------------------- a step */

static ek_perf_time step_of(const ek_perf *perf, uint32_t degree, double samples)
{
    ek_perf_time time;
    assert_ok(ek_perf_step(perf, &(ek_perf_replica){.degrees = &degree, .samples = samples}, &time));
    return time;
}

/* Eight ranks beside six, 24 experts: 3 and 4 on each. A rank with as many samples of its own takes as long for what is
 * dense; what experts take grows by 4 / 3 with all samples of the replica, whoever has them. */
static void a_rank_takes_whole_samples(void **state)
{
    (void)state;
    perf_job job = job_moe(24, 2, 8);
    ek_perf *perf = make(&job);
    const perf_costs *whole = perf_costs_at(perf, false, 8), *reduced = perf_costs_at(perf, false, 6);
    assert_true(whole->share.units[PERF_EXPERTS] == 3 && reduced->share.units[PERF_EXPERTS] == 4);
    assert_true(whole->share.units[PERF_ATTENTION] == 4 && reduced->share.units[PERF_ATTENTION] == 4);

    double layer = 0, routed = 0, other = 0;
    const perf_block *own[] = {&whole->attention, &whole->experts};
    for (int i = 0; i < 2; i++)
        layer += own[i]->forward.compute + own[i]->backward.compute;
    const perf_block *ends[] = {&whole->embedding, &whole->output};
    for (int i = 0; i < 2; i++)
        other += ends[i]->forward.compute + ends[i]->backward.compute;
    routed = whole->routed.forward.compute + whole->routed.backward.compute;
    close_to(step_of(perf, 8, 48).compute, 6 * (8 * layer + other) + 6 * 8 * routed, 1e-12);
    close_to(step_of(perf, 8, 41).compute, 6 * (8 * layer + other) + 41 / 8.0 * 8 * routed, 1e-12); /* 6 5 5 5 … */
    routed = reduced->routed.forward.compute + reduced->routed.backward.compute;
    close_to(step_of(perf, 6, 48).compute, 8 * (8 * layer + other) + 6 * 8 * routed, 1e-12);
    close_to(step_of(perf, 6, 49).compute, 9 * (8 * layer + other) + 49 / 8.0 * 8 * routed, 1e-12);

    /* products of a third more experts take that much longer, but for tiles that are not full */
    double longer = reduced->routed.forward.compute / whole->routed.forward.compute;
    assert_true(longer > 4 / 3.0 && longer < 1.05 * 4 / 3.0);
    ek_perf_destroy(perf);
}

/* What arrives at the fullest rank bounds an exchange where samples are even; where one rank has all of them, what
 * leaves it. 24 experts, one choice: each of 8 ranks gets an eighth of the rows, 7 of 8 of them from others. */
static void an_exchange_is_as_long_as_its_busiest_link(void **state)
{
    (void)state;
    perf_job job = job_moe(24, 1, 8);
    ek_perf *perf = make(&job);
    double bandwidth = 300e9 * 0.75, row = 8 * 4096 + 12, token = 8 * 2048 * row / bandwidth; /* in 8 layers */
    close_to(step_of(perf, 8, 48).tensor, 48 * 7 / 64.0 * token, 1e-12);
    close_to(step_of(perf, 8, 1).tensor, 7 / 8.0 * token, 1e-12);
    job.parallel.recompute = EK_RECOMPUTE_FULL; /* forward's rows go twice */
    ek_perf *again = make(&job);
    close_to(step_of(again, 8, 48).tensor / step_of(perf, 8, 48).tensor, (12 * 4096 + 20) / row, 1e-12);
    ek_perf_destroy(again);
    ek_perf_destroy(perf);
}

/* Experts over four replicas, each on its own domain; all else over all 32 ranks, which share what goes between the
 * domains. 2 (p-1)/p bytes / bandwidth, as everybody has it. */
static void gradients_go_two_ways(void **state)
{
    (void)state;
    perf_job job = job_moe(24, 2, 8);
    ek_perf *perf = make(&job);
    double h = 4096, expert = 3 * h * 1536, experts = 3 * 8 * expert, attention = 4 * (2 * 8 + 2) * 128 * h;
    double dense = 8 * (attention + 2 * h + 24 * h) + h + 2 * 32768 * h;
    close_to(perf_dense_parameters(perf, 0), dense, 1e-12);
    close_to(ek_perf_parameters(perf), dense + 24 * 8 * expert, 1e-12);
    double out = 25e9 * 0.85, up = 300e9 * 0.75;
    close_to(step_of(perf, 8, 48).data,
             2 * 3 / 4.0 * 4 * experts / out + 2 * 7 / 8.0 * 4 * dense / up + 2 * 3 / 4.0 * 4 * dense / 8 / out, 1e-9);

    /* a reduced replica has 4 experts on its ranks and as much of the rest */
    close_to(step_of(perf, 6, 48).data - step_of(perf, 8, 48).data, 2 * 3 / 4.0 * 4 * experts / 3 / out, 1e-9);

    ek_perf_memory memory;
    ek_perf_rank_memory(perf, 0, 6, &memory);
    close_to(memory.weights, 2 * (dense + 4 / 3.0 * experts), 1e-12);
    close_to(memory.gradients, 2 * memory.weights, 1e-12);
    close_to(memory.optimizer, 12 * (dense + 4 / 3.0 * experts), 1e-12);
    close_to(memory.dense_weights, 2 * dense, 1e-12);
    ek_perf_destroy(perf);
    job.parallel.distributed_optimizer = true;
    perf = make(&job);
    ek_perf_rank_memory(perf, 0, 6, &memory);
    close_to(memory.optimizer, 12 * (dense / 32 + experts / 3), 1e-12);
    ek_perf_destroy(perf);
}

/* ------------------------------------------------------------------------------------------------ refused */

static void bad_jobs_are_refused(void **state)
{
    (void)state;
    ek_perf *perf;
    perf_job job = job_moe(0, 1, 8);
    assert_int_equal(ek_perf_create(&perf, &job.model, &job.parallel, &job.hardware), EK_INVALID);
    assert_string_equal(ek_error(), "parallel.mode: found ep; a model with experts (model.experts) is needed");
    job = job_moe(7, 2, 8);
    assert_int_equal(ek_perf_create(&perf, &job.model, &job.parallel, &job.hardware), EK_INVALID);
    assert_string_equal(ek_error(), "model.experts: 7 units of experts cannot be cut 8 ways (parallel.tp); at "
                                    "least one per role is needed");
    job = job_moe(8, 2, 8);
    job.parallel.micro_batch = 7;
    assert_int_equal(ek_perf_create(&perf, &job.model, &job.parallel, &job.hardware), EK_INVALID);
    assert_string_equal(ek_error(), "batch.micro: found 7; at most 6 is allowed, the samples of a rank");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_choice_counted),       cmocka_unit_test(large_replicas_sampled),
        cmocka_unit_test(two_by_two_by_hand),         cmocka_unit_test(the_trainer_sends_as_much),
        cmocka_unit_test(a_rank_takes_whole_samples), cmocka_unit_test(an_exchange_is_as_long_as_its_busiest_link),
        cmocka_unit_test(gradients_go_two_ways),      cmocka_unit_test(bad_jobs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
