/* Plans: a small one worked out by hand, then random clusters with what must hold of any plan. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "plans.h"

/* ---------------------------------------------------------------------------------------------- by hand */

/* Four domains of four, slot 1 of the second one failed; two replicas of two stages of TP4. */
static void test_by_hand(void **state)
{
    (void)state;
    test_plan planned;
    const test_cluster cluster = {4, 4, 2, "xxxxx.xxxxxxxxxx"};
    planned_create(&planned, &cluster, 2, 2, 4, NULL);
    const ek_plan *plan = planned.plan;
    assert_int_equal(plan->replicas, 2);
    assert_int_equal(plan->spare_slots, 0);
    assert_int_equal(plan->spare_domain_count, 0);

    /* the damaged domain is the first stage of the first replica, the others follow in order */
    static const uint32_t domains[2][2] = {{1, 0}, {2, 3}}, degrees[2][2] = {{3, 4}, {4, 4}};
    for (uint32_t replica = 0; replica < 2; replica++) {
        for (uint32_t stage = 0; stage < 2; stage++) {
            assert_int_equal(ek_plan_cell_at(plan, replica, stage)->domain, domains[replica][stage]);
            assert_int_equal(ek_plan_cell_at(plan, replica, stage)->degree, degrees[replica][stage]);
        }
    }
    assert_int_equal(plan->replica[0].least_degree, 3);
    assert_int_equal(plan->replica[1].least_degree, 4);
    static const uint32_t slots[3] = {4, 6, 7}, roles[3] = {0, 1, 2};
    assert_memory_equal(ek_plan_cell_at(plan, 0, 0)->slots, slots, sizeof slots);
    assert_memory_equal(ek_plan_cell_at(plan, 0, 0)->roles, roles, sizeof roles);

    /* Role 3 of replica 1 hands its units to the other three in equal parts: 1 of its 3 heads each, 4 of its 12 blocks
     * of 64 FFN columns, 16 of its 48 blocks of 64 vocabulary rows. Parameters of those units, in 6 layers and one
     * embedding: a head of 64 has 4 matrices of 768 x 64 and 3 x 64 biases, a block two of 768 x 64 and 64 biases. */
    double head = 4 * 768 * 64 + 3 * 64, block = 2 * 768 * 64 + 64, rows = 768 * 64;
    double flow = 4 * (6 * (1 * head + 4 * block) + 16 * rows); /* gradients have 4 bytes */
    assert_int_equal(plan->reshard_count, 1);
    const ek_plan_reshard *reshard = &plan->reshards[0];
    assert_int_equal(reshard->stage, 0);
    assert_int_equal(reshard->level, 0);
    assert_int_equal(reshard->replicas, 1);
    assert_int_equal(reshard->flow_count, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(reshard->flows[i].extra, 3);
        assert_int_equal(reshard->flows[i].core, i);
        assert_true(reshard->flows[i].bytes == flow);
    }
    assert_true(reshard->bytes == 6 * flow); /* there and back */
    assert_true(reshard->most_bytes == 3 * flow);
    assert_true(plan->reshard_bytes == 6 * flow && plan->reshard_bytes_most == 3 * flow);
    planned_destroy(&planned);
}

/* Nine groups of TP8 in a domain of 72. Three failures leave 8 whole and TP5; where 6 is the least, another gives it
 * one.
 */
static void test_large_domain(void **state)
{
    (void)state;
    char live[72];
    memset(live, 'x', sizeof live);
    live[0] = live[13] = live[71] = '.';
    const test_cluster cluster = {1, 72, 4, live};
    test_plan planned;
    planned_prepare(&planned, &cluster, 9, 1, 8, NULL);
    for (uint32_t min_tp = 5; min_tp <= 6; min_tp++) {
        planned.parallel.min_tp = min_tp;
        assert_ok(ek_plan_create(&planned.plan, &planned.options));
        assert_int_equal(planned.plan->replicas, 9);
        assert_int_equal(planned.plan->replica[0].least_degree, min_tp);
        assert_int_equal(planned.plan->replica[1].least_degree, min_tp == 5 ? 8 : 7);
        assert_int_equal(planned.plan->replica[2].least_degree, 8);
        assert_int_equal(planned.plan->spare_slots, 0);
        ek_plan_destroy(planned.plan);
        planned.plan = NULL;
    }
    planned_destroy(&planned);
}

/* Half a domain of two TP groups has failed: one replica gets all that is left, two share it. */
static void test_half_a_domain(void **state)
{
    (void)state;
    test_plan planned;
    const test_cluster cluster = {1, 8, 8, "x.x.x.x."};
    planned_create(&planned, &cluster, 1, 1, 4, NULL);
    assert_int_equal(planned.plan->replica[0].least_degree, 4);
    planned_destroy(&planned);
    planned_create(&planned, &cluster, 2, 1, 4, NULL);
    assert_int_equal(planned.plan->replica[0].least_degree, 1);
    assert_int_equal(planned.plan->replica[1].least_degree, 3);
    planned_destroy(&planned);
}

/* The fifth domain of five takes the place of the damaged one. */
static void test_spare_domain(void **state)
{
    (void)state;
    test_plan planned;
    const test_cluster cluster = {5, 4, 2, ".xxxxxxxxxxxxxxxxxxx"};
    planned_create(&planned, &cluster, 2, 2, 4, NULL);
    assert_int_equal(planned.plan->replica[0].least_degree, 4);
    assert_int_equal(planned.plan->spare_domains_used, 1);
    assert_int_equal(planned.plan->spare_domain_count, 1);
    assert_int_equal(planned.plan->spare_domains[0], 0);
    assert_int_equal(planned.plan->spare_slots, 3);
    planned_destroy(&planned);
}

static void test_no_failure(void **state)
{
    (void)state;
    test_plan planned;
    const test_cluster cluster = {5, 4, 2, "xxxxxxxxxxxxxxxxxxxx"};
    planned_create(&planned, &cluster, 2, 2, 4, NULL);
    assert_true(planned.plan->step_seconds == planned.plan->whole_step_seconds);
    assert_true(planned.plan->samples_per_second == planned.plan->whole_samples_per_second);
    assert_true(planned.plan->reshard_bytes == 0);
    assert_int_equal(planned.plan->reshard_count, 0);
    assert_int_equal(planned.plan->spare_domains_used, 0);
    assert_int_equal(planned.plan->spare_domain_count, 1); /* the last: the first ones are used */
    assert_int_equal(planned.plan->spare_domains[0], 4);
    planned_destroy(&planned);
}

/* ---------------------------------------------------------------------------------------------- refusals */

static void assert_refused(ek_plan_options *options, ek_status expected, const char *text)
{
    ek_plan *plan = NULL;
    assert_int_equal(ek_plan_create(&plan, options), expected);
    assert_string_equal(ek_error(), text);
    assert_null(plan);
}

static void test_refusals(void **state)
{
    (void)state;
    test_plan planned;
    const test_cluster cluster = {4, 4, 2, "x..xx..xx..xx..x"};
    planned_prepare(&planned, &cluster, 2, 2, 4, NULL);
    planned.parallel.dp = 3;
    assert_refused(&planned.options, EK_INVALID,
                   "parallel.dp: 3 replicas of 2 stages of TP4 need 6 TP groups, 24 GPUs; the cluster has room for 4 "
                   "groups: 8 GPUs too few; at most 2 replicas fit");
    planned.parallel.dp = 2;
    planned.parallel.tp = 5;
    assert_refused(&planned.options, EK_INVALID,
                   "parallel.tp: found 5; the largest domain has 4 slots: at most that is allowed");
    planned.parallel.tp = 4;
    planned.parallel.min_tp = 3;
    assert_refused(&planned.options, EK_NO_REPLICA,
                   "no replica can run: it needs 2 TP groups of 3 to 4 live GPUs, and the cluster has 0");
    planned.hardware.memory_bytes = 1e6;
    ek_plan *plan;
    assert_int_equal(ek_plan_create(&plan, &planned.options), EK_INVALID);
    assert_non_null(strstr(ek_error(), "device.memory_bytes: found 1e+06; the fullest rank needs "));
    planned_destroy(&planned);
}

/* Where memory is for three ranks' shares and not for two, a domain with two left is not used. */
static void test_memory(void **state)
{
    (void)state;
    test_plan planned;
    const test_cluster cluster = {4, 4, 2, "xxxxxxx..xx.xxxx"};
    planned_prepare(&planned, &cluster, 4, 1, 4, NULL);
    ek_perf_memory three, two;
    ek_perf_rank_memory(planned.perf, 0, 3, &three);
    ek_perf_rank_memory(planned.perf, 0, 2, &two);
    assert_true(three.total < two.total);
    for (int fits = 0; fits < 2; fits++) {
        planned.hardware.memory_bytes = fits ? two.total : (two.total + three.total) / 2;
        assert_ok(ek_plan_create(&planned.plan, &planned.options));
        assert_int_equal(planned.plan->replicas, fits ? 4 : 3);
        assert_int_equal(planned.plan->least_degree, fits ? 2 : 3);
        ek_plan_destroy(planned.plan);
        planned.plan = NULL;
    }
    planned_destroy(&planned);
}

/* -------------------------------------------------------------------------------------- random clusters */

#define SLOTS_MOST 64

typedef struct random_cluster {
    char live[SLOTS_MOST];
    test_cluster cluster;
    uint32_t dp, pp, tp;
} random_cluster;

static random_cluster make_random(uint64_t trial)
{
    random_cluster made = {.tp = 1 + (uint32_t)(ek_random_u64(1, trial, 0) % 6),
                           .pp = 1 + (uint32_t)(ek_random_u64(1, trial, 1) % 3)};
    uint32_t slots = made.tp + (uint32_t)(ek_random_u64(1, trial, 2) % 4); /* spare slots, or two groups of small TP */
    uint32_t domains = made.pp + (uint32_t)(ek_random_u64(1, trial, 3) % 5);
    uint32_t groups = slots / made.tp * domains, failed_of_16 = (uint32_t)(ek_random_u64(1, trial, 4) % 6);
    made.dp = 1 + (uint32_t)(ek_random_u64(1, trial, 5) % (groups / made.pp));
    assert_true(slots * domains <= SLOTS_MOST);
    for (uint32_t slot = 0; slot < slots * domains; slot++)
        made.live[slot] = ek_random_u64(2, trial, slot) % 16 < failed_of_16 ? '.' : 'x';
    made.cluster = (test_cluster){domains, slots, 1 + (uint32_t)(ek_random_u64(1, trial, 6) % slots), NULL};
    return made;
}

static void assert_slots(const ek_plan *plan)
{
    bool used[SLOTS_MOST] = {false};
    uint32_t count = 0, live = 0;
    for (uint32_t cell_index = 0; cell_index < plan->replicas * plan->stages; cell_index++) {
        const ek_plan_cell *cell = &plan->cells[cell_index];
        assert_in_range(cell->degree, plan->least_degree, plan->base_degree);
        for (uint32_t i = 0; i < cell->degree; i++, count++) {
            const ek_slot *slot = &plan->inventory->slots[cell->slots[i]];
            assert_int_equal(slot->state, EK_SLOT_LIVE);
            assert_int_equal(slot->domain, cell->domain);
            assert_false(used[cell->slots[i]]);
            used[cell->slots[i]] = true;
            assert_true(i == 0 || cell->roles[i] > cell->roles[i - 1]);
        }
    }
    for (uint32_t domain = 0; domain < plan->inventory->domain_count; domain++)
        live += plan->inventory->domains[domain].live;
    assert_int_equal(plan->spare_slots, live - count);
}

/* Every unit of every stage is held once in each replica, by the roles that the cells name. */
static void assert_units(const ek_plan *plan)
{
    for (uint32_t stage = 0; stage < plan->stages; stage++) {
        const ek_membership *membership = plan->memberships[stage];
        for (uint32_t group = 0; group < ek_membership_job(membership)->group_count; group++) {
            uint32_t units = ek_membership_job(membership)->groups[group].units;
            uint8_t *held = malloc(units);
            assert_non_null(held);
            for (uint32_t replica = 0; replica < plan->replicas; replica++) {
                const ek_plan_cell *cell = ek_plan_cell_at(plan, replica, stage);
                memset(held, 0, units);
                for (uint32_t i = 0; i < cell->degree; i++) {
                    uint32_t count, rank = ek_membership_rank(membership, replica, cell->roles[i]);
                    const uint32_t *list = ek_membership_units(membership, rank, group, &count);
                    for (uint32_t unit = 0; unit < count; unit++)
                        assert_int_equal(held[list[unit]]++, 0);
                }
                for (uint32_t unit = 0; unit < units; unit++)
                    assert_int_equal(held[unit], 1);
            }
            free(held);
        }
    }
}

/* Roles as the trainer gives them to a job that starts with these degrees, the highest slots of each cell missing. */
static void assert_roles(const ek_plan *plan)
{
    for (uint32_t stage = 0; stage < plan->stages; stage++) {
        ek_membership *whole, *started;
        uint32_t lost[SLOTS_MOST * 2], lost_count = 0;
        assert_ok(ek_membership_create(&whole, ek_membership_job(plan->memberships[stage])));
        for (uint32_t replica = 0; replica < plan->replicas; replica++)
            for (uint32_t slot = ek_plan_cell_at(plan, replica, stage)->degree; slot < plan->base_degree; slot++)
                lost[lost_count++] = replica * plan->base_degree + slot;
        assert_ok(ek_membership_lose(whole, lost, lost_count, &started));
        for (uint32_t replica = 0; replica < plan->replicas; replica++) {
            const ek_plan_cell *cell = ek_plan_cell_at(plan, replica, stage);
            for (uint32_t i = 0; i < cell->degree; i++) {
                uint32_t position = ek_membership_rank(started, replica, cell->roles[i]) % plan->base_degree, lower = 0;
                for (uint32_t j = 0; j < cell->degree; j++)
                    lower += cell->slots[j] < cell->slots[i];
                assert_int_equal(position, lower); /* the slots of a cell are its positions, in order */
            }
        }
        ek_membership_destroy(whole);
        ek_membership_destroy(started);
    }
}

/* What is resharded, unit by unit: every unit whose owner at the replica's level is not its owner at the sync level
 * goes there and back. */
static void assert_reshard(const ek_plan *plan)
{
    double all = 0, most = 0;
    for (uint32_t cell = 0; cell < plan->replicas * plan->stages; cell++) {
        uint32_t stage = cell % plan->stages, level = plan->base_degree - plan->cells[cell].degree;
        const ek_membership *membership = plan->memberships[stage];
        const ek_job *job = ek_membership_job(membership);
        double sent[16] = {0};
        for (uint32_t group = 0; group < job->group_count; group++) {
            const ek_chain *chain = ek_membership_chain(membership, group);
            double bytes = 2.0 * (double)job->groups[group].unit_bytes * ek_perf_group_layers(plan->perf, group, stage);
            for (uint32_t unit = 0; unit < job->groups[group].units; unit++) {
                uint32_t extra = ek_chain_owner(chain, level, unit, NULL);
                uint32_t core = ek_chain_owner(chain, ek_membership_sync_level(membership), unit, NULL);
                if (extra == core)
                    continue;
                all += 2 * bytes;
                sent[extra] += bytes;
                sent[core] += bytes;
            }
        }
        for (uint32_t role = 0; role < plan->base_degree; role++)
            most = fmax(most, sent[role]);
    }
    assert_true(fabs(plan->reshard_bytes - all) <= 1e-9 * all);
    assert_true(fabs(plan->reshard_bytes_most - most) <= 1e-9 * most);
}

static void assert_pace(const ek_plan *plan, double cap_watts, double domain_watts)
{
    uint32_t samples = 0;
    double slowest = 0;
    for (uint32_t replica = 0; replica < plan->replicas; replica++) {
        assert_int_equal(plan->replica[replica].share.first, samples);
        samples += plan->replica[replica].share.count;
        slowest = fmax(slowest, plan->replica[replica].time.total);
        for (uint32_t stage = 0; stage < plan->stages; stage++) {
            const ek_plan_cell *cell = ek_plan_cell_at(plan, replica, stage);
            assert_true(cell->watts >= 1000 && cell->watts <= cap_watts);
            assert_true(cell->watts * cell->degree <= domain_watts);
        }
    }
    assert_int_equal(samples, plan->parallel.global_batch); /* nothing is left out but under policy shrink */
    assert_true(plan->step_seconds == slowest);
    assert_true(plan->samples_per_second == samples / slowest);
}

/* No way to make replicas of the domains' groups, one for each domain, leaves fewer replicas at or below any degree. */
typedef struct all_packings {
    const ek_plan *plan;
    const uint32_t *degrees; /* of the groups that there are */
    uint32_t groups;
    uint32_t least[8];
} all_packings;

static void try_groups(all_packings *all, uint32_t position, uint32_t used)
{
    const ek_plan *plan = all->plan;
    uint32_t replica = position / plan->stages;
    if (position == plan->replicas * plan->stages) {
        for (uint32_t v = 1; v <= plan->base_degree; v++) {
            uint32_t planned = 0, tried = 0;
            for (uint32_t i = 0; i < plan->replicas; i++) {
                planned += plan->replica[i].least_degree <= v;
                tried += all->least[i] <= v;
            }
            assert_true(planned <= tried);
        }
        return;
    }
    uint32_t before = position % plan->stages == 0 ? plan->base_degree : all->least[replica];
    for (uint32_t group = 0; group < all->groups; group++) {
        if (used >> group & 1)
            continue;
        all->least[replica] = all->degrees[group] < before ? all->degrees[group] : before;
        try_groups(all, position + 1, used | 1u << group);
    }
}

static void assert_best_degrees(const ek_plan *plan)
{
    uint32_t degrees[8], groups = 0;
    const ek_inventory *inventory = plan->inventory;
    for (uint32_t domain = 0; domain < inventory->domain_count; domain++)
        if (inventory->domains[domain].live >= plan->least_degree)
            degrees[groups++] = inventory->domains[domain].live < plan->base_degree ? inventory->domains[domain].live
                                                                                    : plan->base_degree;
    uint32_t possible = groups / plan->stages;
    assert_int_equal(plan->replicas, possible < plan->parallel.dp ? possible : plan->parallel.dp);
    all_packings all = {.plan = plan, .degrees = degrees, .groups = groups};
    try_groups(&all, 0, 0);
}

static void test_random_clusters(void **state)
{
    (void)state;
    uint32_t planned_count = 0, reduced = 0, brute = 0;
    for (uint64_t trial = 0; trial < 400; trial++) {
        random_cluster made = make_random(trial);
        made.cluster.live = made.live;
        test_plan planned;
        planned_prepare(&planned, &made.cluster, made.dp, made.pp, made.tp, NULL);
        planned.options.policy = trial % 2 ? EK_BATCH_REBALANCE : EK_BATCH_KEEP;
        planned.options.domain_watts = (trial % 3 ? 1.0 : 1.2) * 1000 * made.tp;
        ek_status status = ek_plan_create(&planned.plan, &planned.options);
        assert_true(status == EK_OK || status == EK_NO_REPLICA);
        if (status == EK_OK) {
            planned_count++;
            reduced += planned.plan->replica[0].least_degree < made.tp;
            assert_slots(planned.plan);
            assert_units(planned.plan);
            assert_roles(planned.plan);
            assert_reshard(planned.plan);
            assert_pace(planned.plan, 1300, planned.options.domain_watts);
            if (made.cluster.domain_slots < 2 * made.tp && made.cluster.domains <= 6) {
                assert_best_degrees(planned.plan);
                brute++;
            }
        }
        planned_destroy(&planned);
    }
    assert_in_range(planned_count, 300, 399);
    assert_in_range(reduced, 60, planned_count);
    assert_in_range(brute, 60, planned_count);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),       cmocka_unit_test(test_large_domain),
        cmocka_unit_test(test_half_a_domain), cmocka_unit_test(test_spare_domain),
        cmocka_unit_test(test_no_failure),    cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_memory),        cmocka_unit_test(test_random_clusters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
