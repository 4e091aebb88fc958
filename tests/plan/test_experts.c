/* Plans of mixtures of experts in mode ep: who holds which experts, what flows, what a device fetches, how a reduced
 * replica keeps in step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/build.h"
#include "plan/change.h"
#include "plans.h"

static const ek_perf_model mixture = {.layers = 4,
                                      .hidden = 1024,
                                      .heads = 8,
                                      .kv_heads = 2,
                                      .ffn = 2048,
                                      .vocab = 8192,
                                      .sequence = 512,
                                      .gated = true,
                                      .fused_attention = true,
                                      .experts = 24,
                                      .top_k = 2,
                                      .moe_every = 2, /* two of the four layers */
                                      .expert_ffn = 512};

/* A job of dp replicas of EPn, n the slots of a domain, with no plan yet. */
static void prepare(test_plan *planned, const test_cluster *cluster, uint32_t dp, uint32_t experts, uint32_t top_k)
{
    planned_prepare(
        planned, cluster, dp, 1, cluster->domain_slots,
        &(ek_perf_model){
            .layers = 1, .hidden = 4096, .heads = 64, .kv_heads = 64, .ffn = 4096, .vocab = 4096, .sequence = 128});
    ek_perf_destroy(planned->perf);
    planned->model = mixture;
    planned->model.experts = experts;
    planned->model.top_k = top_k;
    planned->parallel.mode = EK_PERF_EP;
    planned->parallel.global_batch = dp * cluster->domain_slots * 6;
    assert_ok(ek_perf_create(&planned->perf, &planned->model, &planned->parallel, &planned->hardware));
    planned->options.perf = planned->perf;
    planned->options.policy = EK_BATCH_KEEP;
}

static double parameters_of_an_expert(const test_plan *planned)
{
    return 3.0 * planned->model.hidden * planned->model.expert_ffn;
}

/* EP8 beside EP6: the whole replica has three experts on each rank, the reduced one four. The two extras hand one each
 * to three of the six, no core gets two, in two layers and gradients of 4 bytes. Nothing else is resharded. */
static void six_beside_eight(void **state)
{
    (void)state;
    test_plan planned;
    const test_cluster cluster = {2, 8, 4, "xxxxxxxxxx.xx.xx"};
    prepare(&planned, &cluster, 2, 24, 2);
    assert_ok(ek_plan_create(&planned.plan, &planned.options));
    const ek_plan *plan = planned.plan;
    assert_int_equal(plan->replica[0].least_degree, 6);
    assert_int_equal(plan->replica[1].least_degree, 8);
    const ek_membership *membership = plan->memberships[0];
    assert_int_equal(ek_membership_job(membership)->group_count, 1);
    assert_string_equal(ek_membership_job(membership)->groups[0].name, "experts");
    const ek_chain *chain = ek_membership_chain(membership, 0);
    for (uint32_t role = 0; role < 8; role++)
        assert_int_equal(ek_chain_count(chain, 0, role), 3);
    for (uint32_t role = 0; role < 6; role++)
        assert_int_equal(ek_chain_count(chain, 2, role), 4);

    double flow = 2 * 4 * parameters_of_an_expert(&planned);
    assert_int_equal(plan->reshard_count, 1);
    const ek_plan_reshard *reshard = &plan->reshards[0];
    assert_int_equal(reshard->flow_count, 6);
    uint32_t seen = 0;
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(reshard->flows[i].extra, i < 3 ? 6 : 7);
        assert_true(reshard->flows[i].bytes == flow);
        seen |= 1u << reshard->flows[i].core;
    }
    assert_int_equal(seen, 0x3f);
    assert_true(reshard->bytes == 12 * flow && reshard->most_bytes == 3 * flow);

    /* 48 samples: eight on each of six ranks, six on each of eight */
    ek_perf_time alone;
    const uint32_t degree = 6;
    assert_ok(ek_perf_step(planned.perf, &(ek_perf_replica){.degrees = &degree, .samples = 48}, &alone));
    assert_int_equal(plan->replica[0].share.count, 48);
    assert_true(plan->replica[0].watts > 1000 && plan->replica[0].time.compute < alone.compute);
    assert_true(alone.compute > 1.3 * plan->replica[1].time.compute);
    planned_destroy(&planned);
}

/* EP32 beside EP28 and EP31: all ranks of a replica have the same number of experts within one, at every degree, and
 * the plan's dispatch is that of the degree. */
static void twentyeight_beside_thirtytwo(void **state)
{
    (void)state;
    char live[97];
    memset(live, 'x', sizeof live);
    memcpy(live + 32, "....", 4);
    live[70] = '.';
    live[96] = 0;
    static const uint32_t experts[] = {224, 128};
    for (size_t i = 0; i < 2; i++) {
        test_plan planned;
        const test_cluster cluster = {3, 32, 4, live};
        prepare(&planned, &cluster, 3, experts[i], 8);
        assert_ok(ek_plan_create(&planned.plan, &planned.options));
        const ek_plan *plan = planned.plan;
        static const uint32_t degrees[] = {28, 31, 32};
        const ek_membership *membership = plan->memberships[0];
        for (uint32_t replica = 0; replica < 3; replica++) {
            const ek_plan_cell *cell = ek_plan_cell_at(plan, replica, 0);
            uint32_t all = 0;
            assert_int_equal(cell->degree, degrees[replica]);
            for (uint32_t at = 0; at < cell->degree; at++) {
                uint32_t count = ek_chain_count(ek_membership_chain(membership, 0), 32 - cell->degree, cell->roles[at]);
                assert_in_range(count, experts[i] / cell->degree, (experts[i] - 1) / cell->degree + 1);
                all += count;
            }
            assert_int_equal(all, experts[i]);
        }
        /* the less is left of a replica, the longer it takes at the default power: 10, 7 and 6 samples on a rank */
        planned.options.cap_watts = 1000;
        ek_plan *slow;
        assert_ok(ek_plan_create(&slow, &planned.options));
        for (uint32_t replica = 0; replica < 3; replica++)
            assert_int_equal(slow->replica[replica].share.count, 192);
        assert_true(slow->replica[0].time.total >= slow->replica[1].time.total);
        assert_true(slow->replica[1].time.total > 1.05 * slow->replica[2].time.total);
        assert_true(plan->replica[0].time.compute < slow->replica[0].time.compute);
        /* leaving samples out keeps the reduced ones in step */
        planned.options.policy = EK_BATCH_SHRINK;
        ek_plan *shrunk;
        assert_ok(ek_plan_create(&shrunk, &planned.options));
        assert_true(shrunk->replica[0].share.count < 192 && shrunk->replica[2].share.count == 192);
        assert_true(shrunk->step_seconds < slow->step_seconds);
        ek_plan_destroy(shrunk);
        ek_plan_destroy(slow);
        planned_destroy(&planned);
    }
}

/* A replica moves to a spare domain: every device there fetches its experts and all that is dense. A device that is
 * back in place fetches as much, the others of its replica nothing. */
static void dense_state_is_fetched(void **state)
{
    (void)state;
    test_plan planned;
    const test_cluster cluster = {2, 8, 4, "xxxxxxxxxxxxxxxx"};
    prepare(&planned, &cluster, 1, 24, 2);
    assert_ok(ek_plan_create(&planned.plan, &planned.options));
    ek_plan_placement *from;
    ek_inventory *broken;
    assert_ok(ek_inventory_copy(&broken, planned.inventory));
    assert_ok(ek_inventory_mark(broken, 0, 8, EK_SLOT_FAILED, "test"));
    assert_ok(ek_plan_placement_of(&from, planned.plan, broken));
    planned.options.inventory = broken;
    planned.options.from = from;
    ek_plan *moved;
    double bytes, most;
    ek_perf_memory memory;
    assert_ok(ek_plan_create(&moved, &planned.options));
    assert_ok(ek_plan_bytes_to_fetch(moved, from, &bytes, &most));
    ek_perf_rank_memory(planned.perf, 0, 8, &memory);
    assert_true(fabs(most - (memory.weights + memory.optimizer)) < 1e-9 * most);
    assert_true(fabs(bytes - 8 * most) < 1e-9 * bytes);
    double expert = 2 * parameters_of_an_expert(&planned) * 14; /* in two layers; weights, and Adam's 12 bytes */
    assert_true(fabs(most - memory.dense_weights - memory.dense_optimizer - 3 * expert) < 1e-9 * most);
    ek_plan_destroy(moved);
    ek_plan_placement_destroy(from);
    ek_inventory_destroy(broken);

    ek_plan *seven;
    assert_ok(ek_inventory_copy(&broken, planned.inventory));
    assert_ok(ek_inventory_mark(broken, 3, 1, EK_SLOT_FAILED, "test"));
    assert_ok(ek_inventory_mark(broken, 8, 8, EK_SLOT_FAILED, "test"));
    planned.options.inventory = broken;
    planned.options.from = NULL;
    assert_ok(ek_plan_create(&seven, &planned.options));
    assert_ok(ek_plan_placement_of(&from, seven, planned.inventory));
    planned.options.inventory = planned.inventory;
    planned.options.from = from;
    planned.options.in_place = true;
    assert_ok(ek_plan_create(&moved, &planned.options));
    assert_int_equal(moved->replica[0].least_degree, 8);
    assert_ok(ek_plan_bytes_to_fetch(moved, from, &bytes, &most));
    assert_true(bytes == most && fabs(most - (memory.weights + memory.optimizer)) < 1e-9 * most);
    ek_plan_destroy(moved);
    ek_plan_destroy(seven);
    ek_plan_placement_destroy(from);
    ek_inventory_destroy(broken);
    planned_destroy(&planned);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(six_beside_eight),
        cmocka_unit_test(twentyeight_beside_thirtytwo),
        cmocka_unit_test(dense_state_is_fetched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
