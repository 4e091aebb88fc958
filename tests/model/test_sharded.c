/* The model cut over 2, 3 and 4 ranks of a real engine, with uneven numbers of units in any order, gives the loss and
 * the gradients of one rank alone; and the ranks agree bit for bit on what is replicated. Dense models, and mixtures of
 * experts whose experts are units like any others. Argument "threads": ranks are threads instead of processes. */
#include "testing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "share.h"

enum { BATCH = 2, SEQUENCE = 70, VOCAB = 27, MOST_RANKS = 4, MOST_UNITS = 16 };

static bool threads;

/* What every rank starts from. */
typedef struct sharded_job {
    whole_model whole; /* with the gradients and the loss of one rank alone */
    ek_model_loss loss;
    uint32_t tokens[BATCH * (SEQUENCE + 1)];
    uint32_t ranks;
} sharded_job;

/* All units in a shuffled order; every rank gets one, and one rank, another in each group, all that remain. */
static uint32_t deal(const sharded_job *job, uint32_t rank, uint32_t group, uint32_t list[MOST_UNITS])
{
    uint32_t units = job->whole.groups[group].units, rich = group % job->ranks;
    if (!units)
        return 0;
    uint32_t extra = units - job->ranks;
    uint32_t first = rank + (rank > rich ? extra : 0), count = 1 + (rank == rich ? extra : 0);
    for (uint32_t i = 0; i < count; i++)
        list[i] = (uint32_t)ek_random_permute(group + 1, first + i, units);
    return count;
}

/* The loss and a hash of the replicated gradients must be the same on all ranks. */
static ek_status check_agreement(const model_share *share, ek_group *group, const ek_model_loss *loss)
{
    struct {
        ek_model_loss loss;
        uint64_t hash;
    } own = {.loss = *loss}, all[MOST_RANKS];
    for (size_t t = 0; t < share->whole->count; t++)
        if (share->whole->tensors[t].group == EK_REPLICATED)
            own.hash = ek_hash(share->gradients[t], share->whole->tensors[t].unit_elements * sizeof(float), own.hash);
    size_t bytes[MOST_RANKS];
    for (uint32_t i = 0; i < ek_group_size(group); i++)
        bytes[i] = sizeof own;
    EK_TRY(ek_all_gather(group, &own, all, bytes, NULL));
    for (uint32_t i = 0; i < ek_group_size(group); i++)
        if (all[i].loss.cross_entropy != loss->cross_entropy || all[i].loss.balance != loss->balance ||
            all[i].hash != own.hash)
            return ek_fail(EK_CORRUPT, "rank %u has loss %.17g, this one %.17g; or what is replicated differs", i,
                           all[i].loss.cross_entropy, loss->cross_entropy);
    return EK_OK;
}

static ek_status check_share(model_share *share, ek_engine *engine, ek_group *group, const sharded_job *job)
{
    ek_model_loss loss;
    EK_TRY(share_run(share, engine, group, job->tokens, BATCH, 0.5f, &loss));
    EK_TRY(check_agreement(share, group, &loss));
    if (!(fabs(loss.cross_entropy - job->loss.cross_entropy) <= 1e-6 * job->loss.cross_entropy &&
          fabs(loss.balance - job->loss.balance) <= 1e-6 * job->loss.balance))
        return ek_fail(EK_CORRUPT, "the losses are %.9g and %.9g, of one rank alone %.9g and %.9g", loss.cross_entropy,
                       loss.balance, job->loss.cross_entropy, job->loss.balance);
    size_t worst = 0;
    double error = share_gradient_error(share, &worst);
    if (!(error <= 1e-5))
        return ek_fail(EK_CORRUPT, "gradient of %s: the error is %g", share->whole->tensors[worst].name, error);
    return EK_OK;
}

static ek_status rank_main(ek_engine *engine, void *user)
{
    const sharded_job *job = user;
    uint32_t ranks[MOST_RANKS], lists[EK_MODEL_GROUPS][MOST_UNITS];
    for (uint32_t rank = 0; rank < job->ranks; rank++)
        ranks[rank] = rank;
    model_share share = {0};
    for (uint32_t group = 0; group < EK_MODEL_GROUPS; group++) {
        share.units[group] = deal(job, ek_engine_rank(engine), group, lists[group]);
        share.lists[group] = lists[group];
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

static const ek_model_config dense = {.layers = 2,
                                      .hidden = 40,
                                      .heads = 10,
                                      .kv_heads = 5,
                                      .ffn = 28,
                                      .vocab = VOCAB,
                                      .sequence = SEQUENCE,
                                      .ffn_block = 4,
                                      .vocab_block = 3,
                                      .rope_theta = 10000.0f,
                                      .norm_eps = 1e-5f};

static void check_model(ek_model_config config)
{
    assert_ok(ek_model_config_finish(&config, MOST_RANKS));
    sharded_job job;
    whole_create(&job.whole, &config);
    whole_initialize(&job.whole, 1);
    whole_scale(&job.whole, 10.0f);
    for (size_t i = 0; i < sizeof job.tokens / sizeof *job.tokens; i++)
        job.tokens[i] = (uint32_t)(ek_random_u64(1, 0, i) % VOCAB);
    whole_run(&job.whole, 0, job.tokens, BATCH, 0.5f, &job.loss);
    assert_true((job.loss.balance > 0.0) == (config.experts > 0));
    for (job.ranks = 2; job.ranks <= MOST_RANKS; job.ranks++) {
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

static void test_dense(void **state)
{
    (void)state;
    ek_model_config config = dense;
    check_model(config);
    config.tied_embeddings = true;
    check_model(config);
}

/* In every layer or not, with a shared expert or not, one choice or three of seven or all. */
static void test_experts(void **state)
{
    (void)state;
    static const struct {
        uint32_t top_k, moe_every;
        bool shared, tied;
        float aux_loss;
    } mixtures[] = {
        {2, 1, false, false, 0.0f}, {1, 2, true, false, 0.02f}, {3, 1, true, true, 5.0f}, {7, 2, false, true, 0.5f}};
    for (size_t i = 0; i < sizeof mixtures / sizeof *mixtures; i++) {
        ek_model_config config = dense;
        config.experts = 7;
        config.expert_ffn = 12;
        config.top_k = mixtures[i].top_k;
        config.moe_every = mixtures[i].moe_every;
        config.shared_expert = mixtures[i].shared;
        config.tied_embeddings = mixtures[i].tied;
        config.aux_loss = mixtures[i].aux_loss;
        check_model(config);
    }
}

int main(int argc, char **argv)
{
    threads = argc > 1 && strcmp(argv[1], "threads") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
