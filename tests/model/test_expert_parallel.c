/* Expert parallelism on ranks of a real engine, each with samples of its own, gives the losses and the gradients of one
 * rank that computes all samples: the experts' gradients as they are, those of all other tensors summed over the ranks.
 * Ranks may have no sample, and may receive no token or every token. Argument "threads": ranks are threads instead of
 * processes. */
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "share.h"

enum { SAMPLES = 7, SEQUENCE = 19, VOCAB = 24, EXPERTS = 7, MOST_RANKS = 4, MOST_UNITS = 32 };

static bool threads;

/* What every rank starts from. */
typedef struct dispatch_job {
    whole_model whole; /* with the gradients and the losses of one rank alone */
    ek_model_loss loss;
    uint32_t tokens[SAMPLES * (SEQUENCE + 1)];
    uint32_t ranks;
    const uint32_t *samples; /* [ranks] */
    const uint32_t *owners;  /* [EXPERTS] */
} dispatch_job;

static ek_status add_over_ranks(double *value, ek_group *group)
{
    double all[MOST_RANKS], sum = 0.0;
    size_t bytes[MOST_RANKS];
    for (uint32_t i = 0; i < ek_group_size(group); i++)
        bytes[i] = sizeof *value;
    EK_TRY(ek_all_gather(group, value, all, bytes, NULL));
    for (uint32_t i = 0; i < ek_group_size(group); i++)
        sum += all[i];
    *value = sum;
    return EK_OK;
}

static ek_status check_share(model_share *share, ek_engine *engine, ek_group *group, const dispatch_job *job)
{
    uint32_t first = 0, rank = ek_engine_rank(engine);
    for (uint32_t before = 0; before < rank; before++)
        first += job->samples[before];
    ek_model_loss loss;
    EK_TRY(
        share_run(share, engine, group, job->tokens + (size_t)first * (SEQUENCE + 1), job->samples[rank], 0.5f, &loss));
    EK_TRY(add_over_ranks(&loss.cross_entropy, group));
    EK_TRY(add_over_ranks(&loss.balance, group));
    if (!(fabs(loss.cross_entropy - job->loss.cross_entropy) <= 1e-6 * job->loss.cross_entropy &&
          fabs(loss.balance - job->loss.balance) <= 1e-6 * job->loss.balance))
        return ek_fail(EK_CORRUPT, "the losses are %.9g and %.9g, of one rank alone %.9g and %.9g", loss.cross_entropy,
                       loss.balance, job->loss.cross_entropy, job->loss.balance);
    for (size_t t = 0; t < share->whole->count; t++)
        if (share->whole->tensors[t].group != EK_GROUP_EXPERTS)
            EK_TRY(ek_all_reduce(group, share->gradients[t], whole_elements(share->whole, t), EK_SUM, NULL));
    size_t worst = 0;
    double error = share_gradient_error(share, &worst);
    if (!(error <= 1e-5))
        return ek_fail(EK_CORRUPT, "gradient of %s: the error is %g", share->whole->tensors[worst].name, error);
    return EK_OK;
}

/* All units of each kind, but only those experts that the rank owns; in descending order. */
static ek_status rank_main(ek_engine *engine, void *user)
{
    const dispatch_job *job = user;
    uint32_t ranks[MOST_RANKS], lists[EK_MODEL_GROUPS][MOST_UNITS];
    for (uint32_t rank = 0; rank < job->ranks; rank++)
        ranks[rank] = rank;
    model_share share = {.expert_owners = job->owners, .route = job->whole.route};
    for (uint32_t kind = 0; kind < EK_MODEL_GROUPS; kind++) {
        share.lists[kind] = lists[kind];
        for (uint32_t unit = job->whole.groups[kind].units; unit-- > 0;)
            if (kind != EK_GROUP_EXPERTS || job->owners[unit] == ek_engine_rank(engine))
                lists[kind][share.units[kind]++] = unit;
    }
    share_create(&share, &job->whole);
    ek_group *group;
    ek_status status = ek_group_create(&group, engine, EK_LANE_COMPUTE, 0, ranks, job->ranks);
    if (status == EK_OK) {
        status = check_share(&share, engine, group, job);
        ek_group_destroy(group);
    }
    share_destroy(&share);
    return status;
}

/* The ways in which samples and experts lie on the ranks. */
static const struct {
    uint32_t ranks, samples[MOST_RANKS], owners[EXPERTS];
} placements[] = {
    {1, {7}, {0, 0, 0, 0, 0, 0, 0}},          {2, {3, 4}, {0, 1, 0, 1, 0, 1, 0}},
    {2, {7, 0}, {1, 1, 1, 1, 1, 1, 0}}, /* who has the samples has but one expert */
    {3, {2, 0, 5}, {2, 0, 1, 1, 2, 0, 0}},    {4, {1, 2, 3, 1}, {3, 2, 1, 0, 3, 2, 1}},
    {4, {0, 0, 6, 1}, {0, 1, 2, 3, 3, 3, 3}},
};

static const ek_model_config least = {.layers = 3,
                                      .hidden = 24,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .ffn = 16,
                                      .vocab = VOCAB,
                                      .sequence = SEQUENCE,
                                      .ffn_block = 4,
                                      .vocab_block = 3,
                                      .rope_theta = 10000.0f,
                                      .norm_eps = 1e-5f,
                                      .experts = EXPERTS,
                                      .top_k = 2,
                                      .moe_every = 1,
                                      .expert_ffn = 12,
                                      .aux_loss = 0.1f};

static void check_model(ek_model_config config, ek_model_route route)
{
    assert_ok(ek_model_config_finish(&config, 1));
    dispatch_job job;
    whole_create(&job.whole, &config);
    job.whole.route = route;
    whole_initialize(&job.whole, 1);
    whole_scale(&job.whole, 10.0f);
    for (size_t i = 0; i < sizeof job.tokens / sizeof *job.tokens; i++)
        job.tokens[i] = (uint32_t)(ek_random_u64(1, 0, i) % VOCAB);
    whole_run(&job.whole, 0, job.tokens, SAMPLES, 0.5f, &job.loss);
    for (size_t i = 0; i < sizeof placements / sizeof *placements; i++) {
        job.ranks = placements[i].ranks;
        job.samples = placements[i].samples;
        job.owners = placements[i].owners;
        ek_launch_options options = {.engine = "shm",
                                     .ranks = job.ranks,
                                     .threads = threads,
                                     .timeout_seconds = 30.0,
                                     .heap_bytes = (size_t)64 << 20,
                                     .main = rank_main,
                                     .user = &job};
        assert_ok(ek_launch(&options));
    }
    whole_destroy(&job.whole);
}

static void test_free_choices(void **state)
{
    (void)state;
    check_model(least, NULL);
}

static void test_shapes(void **state)
{
    (void)state;
    ek_model_config config = least;
    config.top_k = 1;
    config.moe_every = 2;
    check_model(config, NULL);
    config.top_k = 3;
    config.shared_expert = config.tied_embeddings = true;
    config.aux_loss = 2.0f;
    check_model(config, NULL);
    config.top_k = EXPERTS;
    config.aux_loss = 0.0f;
    check_model(config, NULL);
}

/* Every token to experts 0 and 6: in the placements some ranks hold neither, and one both. */
static ek_status to_two(void *user, uint32_t moe_layer, uint32_t B, uint32_t *choices)
{
    (void)user, (void)moe_layer;
    for (uint32_t n = 0; n < B * SEQUENCE; n++) {
        choices[2 * n] = 0;
        choices[2 * n + 1] = EXPERTS - 1;
    }
    return EK_OK;
}

static void test_ranks_without_tokens(void **state)
{
    (void)state;
    check_model(least, to_two);
}

int main(int argc, char **argv)
{
    threads = argc > 1 && strcmp(argv[1], "threads") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_free_choices),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_ranks_without_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
