/* Memory of a rank, beside the formulas and figures of arXiv 2205.05198. */
#include <math.h>

#include "perf/jobs.h"
#include "perf/parts.h"
#include "testing.h"

/* s, b, h, a, t, L, p and v of the paper for the 530B job. */
enum { S = 2048, B = 1, H = 20480, A = 128, T = 8, L = 105, P = 35, V = 3 };

static ek_perf_memory memory_at(const perf_job *job, uint32_t stage, uint32_t degree)
{
    ek_perf *perf;
    ek_perf_memory memory;
    assert_ok(ek_perf_create(&perf, &job->model, &job->parallel, &job->hardware));
    ek_perf_rank_memory(perf, stage, degree, &memory);
    ek_perf_destroy(perf);
    assert_true(fabs(memory.weights + memory.gradients + memory.optimizer + memory.activations - memory.total) <=
                1e-12 * memory.total);
    return memory;
}

/* The first stage holds the activations of L (1 + (p-1)/(p v)) layers, and the mask of dropout on the embedding for as
 * many micro-batches (section 4.2.3 and equation 5; there p of them). */
static double layers_held(void)
{
    return L * (1 + (P - 1.0) / (P * V));
}

static double embedding_mask(double split)
{
    return layers_held() * P / L * (double)S * B * H / split;
}

static void close_to(double found, double expected)
{
    if (fabs(found / expected - 1) > 1e-9)
        fail_msg("%.12g instead of %.12g", found, expected);
}

static void activations_follow_the_formulas(void **state)
{
    (void)state;
    const double sbh = (double)S * B * H, core = 5.0 * A * S / H, layers = layers_held();
    perf_job job = job_530b();
    close_to(memory_at(&job, 0, T).activations, layers * sbh * (10 + 24.0 / T + core / T) + embedding_mask(1));
    job.parallel.sequence_parallel = true;
    close_to(memory_at(&job, 0, T).activations, layers * sbh / T * (34 + core) + embedding_mask(T));
    job.parallel.recompute = EK_RECOMPUTE_SELECTIVE; /* and one layer's core, while it is computed again */
    close_to(memory_at(&job, 0, T).activations, layers * sbh / T * 34 + sbh / T * core + embedding_mask(T));
    job.parallel.sequence_parallel = false;
    job.parallel.recompute = EK_RECOMPUTE_FULL; /* and one layer, while it is computed again */
    close_to(memory_at(&job, 0, T).activations,
             layers * sbh * 2 + sbh * (10 + 24.0 / T + core / T) + embedding_mask(1));
}

/* Section 5: 5 a s / h is 80 for GPT-3 and 64 for MT-NLG, so that selective recomputation saves 70 % and 65 %. */
static void selective_recomputation_saves_what_is_published(void **state)
{
    (void)state;
    static const struct {
        uint32_t layers, hidden, heads, pp;
        double saved;
    } models[] = {{96, 12288, 96, 8, 0.70}, {105, 20480, 128, 35, 0.65}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        perf_job job = job_530b();
        job.model.layers = models[i].layers;
        job.model.hidden = models[i].hidden;
        job.model.heads = models[i].heads;
        job.model.ffn = 4 * models[i].hidden;
        job.parallel.pp = models[i].pp;
        job.parallel.sequence_parallel = true;
        double all = memory_at(&job, 0, T).activations;
        job.parallel.recompute = EK_RECOMPUTE_SELECTIVE;
        double saved = 1 - memory_at(&job, 0, T).activations / all;
        assert_true(fabs(saved - models[i].saved) < 0.01);
    }
}

/* Plain 1F1B: stage s holds p - s micro-batches; and never more than there are. */
static void later_stages_hold_fewer_micro_batches(void **state)
{
    (void)state;
    perf_job job = job_530b();
    job.parallel.interleave = 1;
    double one = memory_at(&job, 33, T).activations / 2;
    for (uint32_t stage = 1; stage < 34; stage++)
        close_to(memory_at(&job, stage, T).activations, (35 - stage) * one);
    job.parallel.global_batch = 4;
    close_to(memory_at(&job, 5, T).activations, 4 * one);
}

/* 18 bytes a parameter without a distributed optimizer, 6 + 12 / dp with one. */
static void parameters_take_eighteen_bytes(void **state)
{
    (void)state;
    perf_job job = job_530b();
    job.parallel.dp = 8;
    ek_perf_memory memory = memory_at(&job, 1, T);
    close_to(memory.gradients, 2 * memory.weights);
    close_to(memory.optimizer, 6 * memory.weights);
    close_to(memory.weights, 2 * 3 * (12.0 * H * H / T + 6.0 * H + 7.0 * H / T));
    job.parallel.distributed_optimizer = true;
    close_to(memory_at(&job, 1, T).optimizer, memory.optimizer / 8);
    close_to(memory_at(&job, 1, T).weights, memory.weights);
}

/* The fullest rank holds no less than the mean of all, and no more than a rank that were the fullest in each group. */
static void the_fullest_rank_is_between_its_bounds(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 500; n++) {
        perf_job job = job_random(n);
        ek_perf *perf;
        assert_ok(ek_perf_create(&perf, &job.model, &job.parallel, &job.hardware));
        for (uint32_t stage = 0; stage < job.parallel.pp; stage++) {
            ek_perf_memory whole, memory;
            ek_perf_rank_memory(perf, stage, 1, &whole);
            for (uint32_t degree = 1; degree <= job.parallel.tp; degree++) {
                ek_perf_rank_memory(perf, stage, degree, &memory);
                double most = 2 * perf_rank_parameters(perf, stage, &perf_costs_at(perf, false, degree)->share);
                assert_true(memory.weights <= most * (1 + 1e-12));
                assert_true(memory.total * degree >= whole.total * (1 - 1e-12));
                if (job.parallel.mode == EK_PERF_EP) /* a rank with more experts than its part has more tokens, too */
                    memory.total += whole.activations - memory.activations;
                assert_true(memory.total <= whole.total * (1 + 1e-12));
            }
        }
        ek_perf_destroy(perf);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_follow_the_formulas),
        cmocka_unit_test(selective_recomputation_saves_what_is_published),
        cmocka_unit_test(later_stages_hold_fewer_micro_batches),
        cmocka_unit_test(parameters_take_eighteen_bytes),
        cmocka_unit_test(the_fullest_rank_is_between_its_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
