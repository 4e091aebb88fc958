/* Step times: what makes a step longer, what it is made of, and what is refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "perf/jobs.h"
#include "perf/parts.h"
#include "testing.h"

#define STAGES_MOST 64

static ek_perf *make(const perf_job *job)
{
    ek_perf *perf;
    assert_ok(ek_perf_create(&perf, &job->model, &job->parallel, &job->hardware));
    return perf;
}

static double step_total(const ek_perf *perf, const ek_perf_replica *replica)
{
    ek_perf_time time;
    assert_ok(ek_perf_step(perf, replica, &time));
    assert_true(isfinite(time.total) && time.total > 0);
    double sum = time.compute + time.tensor + time.pipeline + time.bubble + time.data + time.optimizer;
    assert_true(fabs(sum - time.total) <= 1e-12 * sum);
    assert_true(time.compute >= 0 && time.tensor >= 0 && time.pipeline >= 0 && time.bubble >= -1e-12 * sum &&
                time.data >= -1e-12 * sum && time.optimizer > 0);
    return time.total;
}

static ek_perf_time whole_step(const perf_job *job)
{
    uint32_t degrees[STAGES_MOST];
    for (uint32_t stage = 0; stage < job->parallel.pp; stage++)
        degrees[stage] = job->parallel.tp;
    ek_perf *perf = make(job);
    ek_perf_time time;
    const ek_perf_replica replica = {.degrees = degrees,
                                     .samples = (double)job->parallel.global_batch / job->parallel.dp};
    assert_ok(ek_perf_step(perf, &replica, &time));
    ek_perf_destroy(perf);
    return time;
}

#define NO_SHORTER(later, earlier) assert_true((later) >= (earlier) * (1 - 1e-12))

/* A device fewer in any stage, more samples, less speed, more to reshard: no step gets shorter. Whole units are no
 * faster than free ones. */
static void nothing_lost_makes_a_step_shorter(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 3000; n++) {
        perf_job job = job_random(n);
        ek_perf *perf = make(&job);
        uint32_t degrees[STAGES_MOST], pp = job.parallel.pp, changed = job_draw(n, 900, 0, pp - 1);
        double speeds[STAGES_MOST];
        for (uint32_t stage = 0; stage < pp; stage++) {
            degrees[stage] = job_draw(n, 100 + stage, 1, job.parallel.tp);
            speeds[stage] = job_draw(n, 200 + stage, 5, 15) / 10.0;
        }
        ek_perf_replica replica = {.degrees = degrees,
                                   .speeds = speeds,
                                   .samples = job_draw(n, 901, 1, 400) / 10.0,
                                   .free_units = job_draw(n, 902, 0, 1)};
        double before = step_total(perf, &replica);

        replica.reshard_bytes = 1e6;
        NO_SHORTER(step_total(perf, &replica), before);
        replica.reshard_bytes = 0;
        replica.samples += job_draw(n, 903, 0, 30) / 10.0;
        NO_SHORTER(step_total(perf, &replica), before);
        before = step_total(perf, &replica);
        speeds[changed] *= 0.9;
        NO_SHORTER(step_total(perf, &replica), before);
        speeds[changed] /= 0.9;
        if (degrees[changed] > 1) {
            degrees[changed]--;
            NO_SHORTER(step_total(perf, &replica), before);
        }
        replica.free_units = true;
        double free_units = step_total(perf, &replica);
        replica.free_units = false;
        NO_SHORTER(step_total(perf, &replica), free_units);
        ek_perf_destroy(perf);
    }
}

static void slower_hardware_makes_no_step_shorter(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 300; n++) {
        perf_job job = job_random(n);
        job.parallel.pp = 1; /* so that degrees are all the same */
        job.parallel.interleave = 1;
        double before = whole_step(&job).total;
        double *faster[] = {&job.hardware.flops_per_second, &job.hardware.memory_bytes_per_second,
                            &job.hardware.scale_up_bytes_per_second, &job.hardware.scale_out_bytes_per_second};
        for (size_t i = 0; i < sizeof faster / sizeof *faster; i++) {
            *faster[i] *= 0.5;
            NO_SHORTER(whole_step(&job).total, before);
            *faster[i] *= 2;
        }
        job.hardware.kernel_seconds *= 2;
        NO_SHORTER(whole_step(&job).total, before);
    }
}

/* (p-1) / (v m) of the work where all stages are the same: without a vocabulary to speak of they nearly are. */
static void the_bubble_is_that_of_the_schedule(void **state)
{
    (void)state;
    perf_job job = job_530b();
    job.model.vocab = 512;
    for (uint32_t interleave = 1; interleave <= 3; interleave += 2) {
        job.parallel.interleave = interleave;
        ek_perf_time time = whole_step(&job);
        double bubble = time.bubble / (time.compute + time.tensor + time.pipeline);
        assert_true(fabs(bubble / (34.0 / interleave / 280) - 1) < 0.02);
    }
}

static void heads_that_do_not_divide_cost_a_whole_unit(void **state)
{
    (void)state;
    perf_job job = job_530b();
    job.parallel.pp = 1;
    job.parallel.interleave = 1;
    ek_perf *perf = make(&job);
    ek_unit_group groups[EK_PERF_GROUPS_MOST];
    assert_int_equal(ek_perf_groups(perf, groups), 3);
    assert_string_equal(groups[0].name, "attention");
    assert_int_equal(groups[0].units, 128);
    assert_string_equal(groups[2].name, "vocab");
    assert_int_equal(groups[2].units, 51200 / 64);
    /* a head: (Q, K, V) and the projection of 160 columns, and the biases of Q, K, V; 2 bytes each */
    assert_int_equal(groups[0].unit_bytes, 2 * (4 * 160 * 20480 + 3 * 160));
    /* 128 heads over 7: 19 on the fullest, against 18.29 that divide freely */
    assert_true(perf_costs_at(perf, false, 7)->share.units[PERF_ATTENTION] == 19);
    assert_true(fabs(perf_costs_at(perf, true, 7)->share.units[PERF_ATTENTION] - 128 / 7.0) < 1e-12);
    ek_perf_destroy(perf);
}

static void products_take_whole_waves(void **state)
{
    (void)state;
    ek_perf_hardware hardware = job_530b().hardware;
    hardware.kernel_seconds = 0;
    hardware.memory_bytes_per_second = 1e18; /* so that memory bounds nothing */
    double one = perf_product(&hardware, 1, 256 * 108, 128, 4096, false);
    assert_true(fabs(one - 2.0 * 256 * 108 * 128 * 4096 / (312e12 * 0.8)) < 1e-12);
    assert_true(perf_product(&hardware, 1, 256 * 107 + 1, 128, 4096, false) == one);
    assert_true(fabs(perf_product(&hardware, 1, 256 * 109, 128, 4096, false) - 2 * one) < 1e-12);
    assert_true(fabs(perf_product(&hardware, 1, 256 * 109, 128, 4096, true) - one * 109 / 108) < 1e-12);
}

/* By the formulas that everybody uses: an all-reduce of n bytes takes 2 (p-1)/p n / bandwidth. */
static void gradients_go_round_the_ring(void **state)
{
    (void)state;
    perf_job job = job_530b();
    job.parallel.dp = 8;
    job.parallel.global_batch = 2240;
    job.model.tied_embeddings = false;
    job.hardware.scale_out_seconds = 0;
    job.hardware.overlap = 0;
    ek_perf *perf = make(&job);
    double parameters = perf_rank_parameters(perf, 0, &perf_costs_at(perf, false, 8)->share);
    ek_perf_destroy(perf);
    double bandwidth = 25e9 * 0.85;
    assert_true(fabs(whole_step(&job).data / (2 * 7 / 8.0 * 4 * parameters / bandwidth) - 1) < 1e-9);
    job.parallel.distributed_optimizer = true;
    assert_true(fabs(whole_step(&job).data / (7 / 8.0 * 6 * parameters / bandwidth) - 1) < 1e-9);
    double all = whole_step(&job).data;
    job.hardware.overlap = 1; /* the last of three chunks' is exposed but for the backward of one layer */
    double exposed = whole_step(&job).data;
    assert_true(exposed < all / 3 && exposed > 0.8 * all / 3);
    job.hardware.flops_per_second = 1e12; /* backward takes long enough */
    assert_true(whole_step(&job).data < 1e-12);
}

/* arXiv 2104.04473, table 1, and arXiv 2205.05198, table 3. */
static void parameters_are_the_published_ones(void **state)
{
    (void)state;
    static const struct {
        uint32_t layers, hidden, heads;
        double billions;
    } models[] = {{80, 12288, 96, 145.6}, {96, 16384, 128, 310.1}, {105, 20480, 128, 529.6}, {128, 25600, 160, 1008.0}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        perf_job job = job_530b();
        job.model.layers = models[i].layers;
        job.model.hidden = models[i].hidden;
        job.model.heads = models[i].heads;
        job.model.ffn = 4 * models[i].hidden;
        job.parallel.pp = job.parallel.interleave = 1;
        for (uint32_t pp = 1; pp <= 2; pp++) {
            job.parallel.pp = models[i].layers % pp == 0 ? pp : 1;
            ek_perf *perf = make(&job);
            assert_true(fabs(ek_perf_parameters(perf) / 1e9 - models[i].billions) < 0.06);
            ek_perf_destroy(perf);
        }
    }
}

static void layers_of_a_stage_follow_its_chunks(void **state)
{
    (void)state;
    perf_job job = job_530b();
    job.model.layers = 24;
    job.model.experts = 16;
    job.model.moe_every = 4;
    job.parallel.sequence_parallel = true;
    job.parallel.pp = 4;
    job.parallel.interleave = 3;
    ek_perf *perf = make(&job);
    /* chunks of two layers: stage 0 has layers 0, 1, 8, 9, 16, 17, of which 0, 8 and 16 have experts */
    enum { ATTENTION, FFN, VOCAB, EXPERTS };
    static const uint32_t layers[4][4] = {{6, 3, 1, 3}, {6, 6, 0, 0}, {6, 3, 0, 3}, {6, 6, 1, 0}};
    for (uint32_t stage = 0; stage < 4; stage++)
        for (uint32_t group = ATTENTION; group <= EXPERTS; group++)
            assert_int_equal(ek_perf_group_layers(perf, group, stage), layers[stage][group]);
    ek_perf_destroy(perf);

    job.model.moe_every = 1; /* no dense FFN any more */
    perf = make(&job);
    ek_unit_group groups[EK_PERF_GROUPS_MOST];
    assert_int_equal(ek_perf_groups(perf, groups), 3);
    assert_string_equal(groups[2].name, "experts");
    assert_int_equal(ek_perf_group_layers(perf, 2, 1), 6);
    assert_int_equal(ek_perf_group_layers(perf, 1, 3), 1);
    ek_perf_destroy(perf);
}

static void refuse(const perf_job *job, const char *text)
{
    ek_perf *perf = NULL;
    assert_int_equal(ek_perf_create(&perf, &job->model, &job->parallel, &job->hardware), EK_INVALID);
    assert_null(perf);
    if (strcmp(ek_error(), text) != 0)
        fail_msg("\"%s\" instead of \"%s\"", ek_error(), text);
}

#define REFUSED(change, text)                                                                                          \
    do {                                                                                                               \
        perf_job job = job_530b();                                                                                     \
        job.change;                                                                                                    \
        refuse(&job, text);                                                                                            \
    } while (0)

static void impossible_jobs_are_refused(void **state)
{
    (void)state;
    REFUSED(model.layers = 0, "model.layers: found 0; a whole number from 1 to 4096 is needed");
    REFUSED(model.layers = 104, "model.layers: found 104; a multiple of 105 is needed, a layer for each of "
                                "parallel.interleave, 3, chunks of parallel.pp, 35, stages");
    REFUSED(model.heads = 127, "model.heads: found 127; a divisor of model.hidden, 20480, is needed");
    REFUSED(model.kv_heads = 3, "model.kv_heads: found 3; a divisor of model.heads, 128, is needed");
    REFUSED(model.kv_heads = 4, "model.kv_heads: 4 units of attention cannot be cut 8 ways (parallel.tp); at least one "
                                "per role is needed");
    REFUSED(model.ffn_block = 60, "model.ffn_block: found 60; a divisor of model.ffn, 81920, is needed");
    REFUSED(model.vocab_block = 25600, "model.vocab_block: 2 units of vocab cannot be cut 8 ways (parallel.tp); at "
                                       "least one per role is needed");
    REFUSED(model.experts = 4, "model.experts: 4 units of experts cannot be cut 8 ways (parallel.tp); at least one per "
                               "role is needed");
    REFUSED(model.experts = 8, "parallel.sequence_parallel: found false; experts (model.experts) over the ranks of a "
                               "TP group need true");
    REFUSED(parallel.tp = 16, "parallel.tp: found 16; at most network.domain_slots, 8, is allowed: a TP group lives "
                              "inside one scale-up domain");
    REFUSED(parallel.min_tp = 9, "parallel.min_tp: found 9; at most parallel.tp, 8, is allowed");
    REFUSED(parallel.pp = 1, "parallel.interleave: found 3; with one pipeline stage (parallel.pp) only 1 is allowed");
    REFUSED(parallel.dp = 281, "batch.global: found 280; at least 281 is needed, a sample for each replica "
                               "(parallel.dp)");
    REFUSED(parallel.micro_batch = 281, "batch.micro: found 281; at most 280 is allowed, the samples of a replica");
    REFUSED(hardware.overlap = 1.5, "network.overlap: found 1.5; a number from 0 to 1 is needed");
    REFUSED(hardware.flops_per_second = NAN, "device.flops_per_second: found nan; a number from 1e+09 to 1e+18 is "
                                             "needed");
}

static void impossible_replicas_are_refused(void **state)
{
    (void)state;
    perf_job job = job_530b();
    job.parallel.pp = job.parallel.interleave = 1;
    ek_perf *perf = make(&job);
    ek_perf_time time = {0};
    uint32_t degree = 8;
    double speed = 1;
    ek_perf_replica replica = {.degrees = &degree, .speeds = &speed, .samples = 1};
    assert_ok(ek_perf_step(perf, &replica, &time));
    speed = 0;
    assert_int_equal(ek_perf_step(perf, &replica, &time), EK_INVALID);
    assert_string_equal(ek_error(), "stage 0 has speed 0; a number above 0 is needed");
    speed = 1;
    degree = 9;
    assert_int_equal(ek_perf_step(perf, &replica, &time), EK_INVALID);
    assert_string_equal(ek_error(), "stage 0 has degree 9; 1 to 8 (parallel.tp) is allowed");
    degree = 0;
    assert_int_equal(ek_perf_step(perf, &replica, &time), EK_INVALID);
    degree = 8;
    replica.samples = -1;
    assert_int_equal(ek_perf_step(perf, &replica, &time), EK_INVALID);
    ek_perf_destroy(perf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_lost_makes_a_step_shorter),
        cmocka_unit_test(slower_hardware_makes_no_step_shorter),
        cmocka_unit_test(the_bubble_is_that_of_the_schedule),
        cmocka_unit_test(heads_that_do_not_divide_cost_a_whole_unit),
        cmocka_unit_test(products_take_whole_waves),
        cmocka_unit_test(gradients_go_round_the_ring),
        cmocka_unit_test(parameters_are_the_published_ones),
        cmocka_unit_test(layers_of_a_stage_follow_its_chunks),
        cmocka_unit_test(impossible_jobs_are_refused),
        cmocka_unit_test(impossible_replicas_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
