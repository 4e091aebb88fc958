/* Replanning whole plans: what is written as JSON is what is read, nothing moves where nothing changed, in place the
 * roles and bytes are the trainer's, and degrees are as good as those of a new plan. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "folder.h"
#include "plan/change.h"
#include "plan/json.h"
#include "plan/planning.h"
#include "plans.h"

#define SLOTS_MOST 64

static const ek_plan_change_options change_options = {.repair_hours = 1, .bytes_per_second = 1e9};

/* Through a file. */
static ek_plan_placement *reread(const ek_plan *plan, const ek_inventory *inventory, const char *folder)
{
    json_t *json;
    char path[PATH_BYTES];
    assert_ok(ek_plan_json(plan, &json));
    char *text = json_dumps(json, JSON_COMPACT);
    assert_non_null(text);
    folder_write(folder, "plan.json", text, strlen(text), path);
    free(text);
    json_decref(json);
    ek_plan_placement *placement;
    assert_ok(ek_plan_placement_read(&placement, path, inventory, &plan->parallel));
    return placement;
}

static void assert_same_placement(const ek_plan_placement *a, const ek_plan_placement *b)
{
    assert_int_equal(a->replicas, b->replicas);
    for (uint32_t cell = 0; cell < a->replicas * a->stages; cell++) {
        const ek_placed_cell *left = &a->cells[cell], *right = &b->cells[cell];
        assert_int_equal(left->degree, right->degree);
        assert_int_equal(left->count, right->count);
        assert_memory_equal(left->slots, right->slots, left->count * sizeof *left->slots);
        assert_memory_equal(left->roles, right->roles, left->count * sizeof *left->roles);
    }
    for (uint32_t stage = 0; stage < a->stages; stage++) {
        assert_int_equal(a->sync_levels[stage], b->sync_levels[stage]);
        assert_memory_equal(a->drop_orders + stage * a->base_degree, b->drop_orders + stage * a->base_degree,
                            a->sync_levels[stage] * sizeof *a->drop_orders);
    }
}

typedef struct random_job {
    char live[SLOTS_MOST + 1];
    test_cluster cluster;
    uint32_t dp, most_dp, pp, tp, slots;
} random_job;

static random_job make_random(uint64_t trial)
{
    random_job made = {.tp = 2 + (uint32_t)(ek_random_u64(1, trial, 0) % 4),
                       .pp = 1 + (uint32_t)(ek_random_u64(1, trial, 1) % 3)};
    uint32_t groups = 1 + (uint32_t)(ek_random_u64(1, trial, 2) % 2); /* of a domain */
    uint32_t slots = groups * made.tp + (uint32_t)(ek_random_u64(1, trial, 3) % 2);
    uint32_t domains = made.pp + (uint32_t)(ek_random_u64(1, trial, 4) % 3);
    made.most_dp = groups * domains / made.pp;
    made.dp = 1 + (uint32_t)(ek_random_u64(1, trial, 5) % made.most_dp);
    made.slots = slots * domains;
    assert_true(made.slots <= SLOTS_MOST);
    memset(made.live, 'x', made.slots);
    made.cluster = (test_cluster){domains, slots, 1 + (uint32_t)(ek_random_u64(1, trial, 6) % slots), NULL};
    return made;
}

/* Some slots fail or come back. */
static void change_some(random_job *job, uint64_t trial, uint64_t round)
{
    uint32_t changes = (uint32_t)(ek_random_u64(2, trial, round) % 4);
    for (uint32_t i = 0; i < changes; i++) {
        uint64_t number = ek_random_u64(3, trial, 8 * round + i);
        job->live[number % job->slots] = number / SLOTS_MOST % 3 == 0 ? 'x' : '.';
    }
}

static void assert_same_degrees(const ek_plan *a, const ek_plan *b)
{
    assert_int_equal(a->replicas, b->replicas);
    for (uint32_t replica = 0; replica < a->replicas; replica++)
        assert_int_equal(a->replica[replica].least_degree, b->replica[replica].least_degree);
}

/* Every slot that stays in its stage keeps its role, if its replica still has that. */
static void assert_roles_kept(const ek_plan *plan, const ek_plan_placement *from)
{
    for (uint32_t index = 0; index < plan->replicas * plan->stages; index++) {
        const ek_plan_cell *cell = &plan->cells[index];
        uint32_t stage = index % plan->stages, level = plan->base_degree - cell->degree;
        const uint32_t *drop_order = ek_membership_drop_order(plan->memberships[stage]);
        if (cell->was == EK_NONE || cell->was % plan->stages != stage)
            continue;
        const ek_placed_cell *was = &from->cells[cell->was];
        for (uint32_t i = 0; i < was->count; i++) {
            bool exists = true;
            for (uint32_t k = 0; k < level; k++)
                exists = exists && drop_order[k] != was->roles[i];
            for (uint32_t j = 0; j < cell->degree; j++)
                if (cell->slots[j] == was->slots[i] && exists)
                    assert_int_equal(cell->roles[j], was->roles[i]);
        }
    }
}

/* Packed against left in place: no fewer replicas. Where a domain has one TP group, no more at or below any degree;
 * where it has several, packing makes as many as possible whole at the cost of the last. */
static void assert_no_worse(const ek_plan *packed, const ek_plan *in_place)
{
    assert_true(in_place->replicas <= packed->replicas);
    if (packed->inventory->domains[0].slots >= 2 * packed->base_degree)
        return;
    for (uint32_t i = 0; i < in_place->replicas; i++)
        assert_true(in_place->replica[i].least_degree <=
                    packed->replica[i + packed->replicas - in_place->replicas].least_degree);
}

/* After what changed: the plan from the placement against a new one and the one in place. */
static void assert_replan(const test_plan *planned, const ek_plan_placement *from, ek_plan **next, uint32_t *moved)
{
    ek_plan_options options = planned->options;
    ek_plan *fresh = NULL, *in_place = NULL;
    ek_status status = ek_plan_create(&fresh, &options);
    options.from = from;
    *next = NULL;
    assert_int_equal(ek_plan_create(next, &options), status);
    if (status != EK_OK) {
        assert_int_equal(status, EK_NO_REPLICA);
        return;
    }
    assert_same_degrees(*next, fresh);
    assert_roles_kept(*next, from);
    options.in_place = true;
    status = ek_plan_create(&in_place, &options);
    assert_true(status == EK_OK || status == EK_NO_REPLICA);
    if (status == EK_OK) {
        assert_roles_kept(in_place, from);
        assert_no_worse(*next, in_place);
    }
    ek_plan_change *change;
    assert_ok(ek_plan_change_create(&change, *next, in_place, from, &change_options));
    *moved += change->move_count > 0;
    assert_true(change->move_count == 0 || change->domains_moved > 0);
    ek_plan_change_destroy(change);
    ek_plan_destroy(fresh);
    ek_plan_destroy(in_place);
}

/* Nothing changed: the same slots have the same roles, and nothing is fetched. */
static void assert_nothing_moves(const test_plan *planned, const ek_plan *plan, const char *folder)
{
    ek_plan_options options = planned->options;
    ek_plan_placement *written = reread(plan, planned->inventory, folder), *direct, *after;
    assert_ok(ek_plan_placement_of(&direct, plan, planned->inventory));
    assert_same_placement(written, direct);
    options.from = written;
    ek_plan *again;
    ek_plan_change *change;
    assert_ok(ek_plan_create(&again, &options));
    assert_ok(ek_plan_placement_of(&after, again, planned->inventory));
    assert_same_degrees(plan, again);
    assert_ok(ek_plan_change_create(&change, again, again, written, &change_options));
    assert_int_equal(change->move_count, 0);
    assert_true(change->bytes == 0 && change->bytes_most == 0);
    assert_false(change->pays);
    ek_plan_change_destroy(change);
    ek_plan_placement_destroy(written);
    ek_plan_placement_destroy(direct);
    ek_plan_placement_destroy(after);
    ek_plan_destroy(again);
}

static void test_random_histories(void **state)
{
    (void)state;
    char folder[FOLDER_BYTES];
    folder_create(folder);
    uint32_t moved = 0, replans = 0;
    for (uint64_t trial = 0; trial < 200; trial++) {
        random_job job = make_random(trial);
        job.cluster.live = job.live;
        ek_plan_placement *from = NULL;
        ek_plan *before = NULL;
        test_plan planned_before = {0};
        for (uint64_t round = 0; round < 4; round++) {
            test_plan planned;
            ek_plan *plan = NULL;
            planned_prepare(&planned, &job.cluster, job.dp, job.pp, job.tp, NULL);
            if (before) {
                assert_ok(ek_plan_placement_of(&from, before, planned.inventory));
                assert_replan(&planned, from, &plan, &moved);
                ek_plan_placement_destroy(from);
                replans++;
            } else {
                assert_ok(ek_plan_create(&plan, &planned.options));
            }
            ek_plan_destroy(before);
            planned_destroy(&planned_before);
            planned_before = planned;
            before = plan;
            if (!plan)
                break;
            assert_nothing_moves(&planned, plan, folder);
            change_some(&job, trial, round);
            if (ek_random_u64(4, trial, round) % 4 == 0) /* a job may be larger or smaller than the one before */
                job.dp = 1 + (uint32_t)(ek_random_u64(4, trial, 8 + round) % job.most_dp);
        }
        ek_plan_destroy(before);
        planned_destroy(&planned_before);
    }
    print_message("%u replans, %u with moves\n", replans, moved);
    assert_in_range(replans, 400, 600);
    assert_in_range(moved, 50, replans);
    folder_remove(folder);
}

/* Rank = slot: a domain is a replica, in order. */
static void assert_recovered(const test_plan *hit, const ek_membership *whole, const ek_membership *recovered)
{
    for (uint32_t replica = 0; replica < hit->plan->replicas; replica++) {
        const ek_plan_cell *cell = ek_plan_cell_at(hit->plan, replica, 0);
        for (uint32_t i = 0; i < cell->degree; i++) {
            uint32_t in_replica, role;
            assert_true(ek_membership_place(recovered, cell->slots[i], &in_replica, &role));
            assert_int_equal(in_replica, hit->plan->replica[replica].was);
            assert_int_equal(role, cell->roles[i]);
        }
    }
    ek_move *moves;
    size_t count;
    double bytes, most, wanted = 0;
    if (ek_membership_moves(whole, recovered, &moves, &count) == EK_UNIT_LOST)
        return; /* no survivor holds it */
    for (size_t i = 0; i < count; i++)
        if (moves[i].group != EK_REPLICATED && moves[i].source != moves[i].destination)
            wanted += 7.0 * moves[i].count * (double)ek_membership_job(whole)->groups[moves[i].group].unit_bytes *
                      ek_perf_group_layers(hit->perf, moves[i].group, 0); /* 2 + 12 bytes for each 2 of parameters */
    assert_ok(ek_plan_bytes_to_fetch(hit->plan, hit->options.from, &bytes, &most));
    assert_true(fabs(bytes - wanted) <= 1e-9 * wanted);
    ek_free(moves);
}

/* A pipeline of one stage, left in place: roles, units and bytes are those of the trainer's own recovery. */
static void test_in_place_is_recovery(void **state)
{
    (void)state;
    uint32_t compared = 0;
    for (uint64_t trial = 0; trial < 200; trial++) {
        random_job job = make_random(trial);
        if (job.cluster.domain_slots != job.tp)
            continue;
        job.cluster.live = job.live;
        test_plan whole, hit;
        planned_create(&whole, &job.cluster, job.cluster.domains, 1, job.tp, NULL);
        uint32_t lost[SLOTS_MOST], lost_count = 0;
        for (uint32_t slot = 0; slot < job.slots; slot++) {
            if (ek_random_u64(5, trial, slot) % 6 == 0) {
                job.live[slot] = '.';
                lost[lost_count++] = slot;
            }
        }
        ek_plan_placement *from;
        planned_prepare(&hit, &job.cluster, job.cluster.domains, 1, job.tp, NULL);
        assert_ok(ek_plan_placement_of(&from, whole.plan, hit.inventory));
        hit.options.from = from;
        hit.options.in_place = true;
        ek_membership *recovered = NULL;
        ek_status status = ek_membership_lose(whole.plan->memberships[0], lost, lost_count, &recovered);
        assert_int_equal(ek_plan_create(&hit.plan, &hit.options), status);
        if (status == EK_OK) {
            compared++;
            assert_recovered(&hit, whole.plan->memberships[0], recovered);
        }
        ek_membership_destroy(recovered);
        ek_plan_placement_destroy(from);
        planned_destroy(&whole);
        planned_destroy(&hit);
    }
    assert_in_range(compared, 20, 200);
}

/* A whole replica beside a damaged one: a group that fails in the whole one is exchanged for a whole group of the
 * other, in the same stage, so that all that is fetched is what the lost device held. */
static void test_exchange_by_hand(void **state)
{
    (void)state;
    test_plan before, after;
    test_cluster cluster = {6, 4, 4, "xxx.xxxxxxxxxxxxxxxxxxxx"};
    planned_create(&before, &cluster, 2, 3, 4, NULL); /* domains 0 1 2 and 3 4 5 */
    cluster.live = "xxx.xxxxxxxxxxxxx.xxxxxx";        /* in domain 4: stage 1 of replica 1 */
    planned_prepare(&after, &cluster, 2, 3, 4, NULL);
    ek_plan_placement *from;
    ek_plan_change *change;
    assert_ok(ek_plan_placement_of(&from, before.plan, after.inventory));
    after.options.from = from;
    assert_ok(ek_plan_create(&after.plan, &after.options));
    assert_ok(ek_plan_change_create(&change, after.plan, NULL, from, &change_options));
    assert_int_equal(change->move_count, 2);
    assert_int_equal(change->moves[0].domain, 4);
    assert_int_equal(change->moves[0].replica, 0);
    assert_int_equal(change->moves[0].old_replica, 1);
    assert_int_equal(change->moves[1].domain, 1);
    assert_int_equal(change->moves[0].stage, 1);
    assert_int_equal(change->moves[1].stage, 1);
    assert_int_equal(after.plan->replica[0].least_degree, 3);
    assert_int_equal(after.plan->replica[1].least_degree, 4);
    /* the lost device's quarter of 4 layers, in all 14 bytes a parameter */
    double head = 4 * 768 * 64 + 3 * 64, block = 2 * 768 * 64 + 64;
    assert_true(change->bytes == 14 * 4 * (3 * head + 12 * block));
    assert_true(change->bytes_most == change->bytes / 3);
    ek_plan_change_destroy(change);
    ek_plan_placement_destroy(from);
    planned_destroy(&before);
    planned_destroy(&after);
}

/* A GPU that is back joins its cell, without a move; it fetches its quarter, the others just let go of it. */
static void test_repair_by_hand(void **state)
{
    (void)state;
    test_plan before, after;
    test_cluster cluster = {2, 4, 4, "xxxxx.xx"};
    planned_create(&before, &cluster, 2, 1, 4, NULL);
    cluster.live = "xxxxxxxx";
    planned_prepare(&after, &cluster, 2, 1, 4, NULL);
    ek_plan_placement *from;
    assert_ok(ek_plan_placement_of(&from, before.plan, after.inventory));
    after.options.from = from;
    for (int in_place = 0; in_place < 2; in_place++) {
        ek_plan_change *change;
        after.options.in_place = in_place;
        assert_ok(ek_plan_create(&after.plan, &after.options));
        assert_int_equal(after.plan->replica[0].least_degree, 4);
        assert_ok(ek_plan_change_create(&change, after.plan, after.plan, from, &change_options));
        assert_int_equal(change->move_count, 0);
        /* a quarter of 12 layers and two vocabulary tensors, 14 bytes a parameter */
        double head = 4 * 768 * 64 + 3 * 64, block = 2 * 768 * 64 + 64, rows = 768 * 64;
        assert_true(change->bytes == 14 * (12 * (3 * head + 12 * block) + 2 * 48 * rows));
        assert_true(change->bytes_most == change->bytes);
        ek_plan_change_destroy(change);
        ek_plan_destroy(after.plan);
        after.plan = NULL;
    }
    ek_plan_placement_destroy(from);
    planned_destroy(&before);
    planned_destroy(&after);
}

/* ----------------------------------------------------------------------------------- files that are no plan */

static void test_refused_files(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } files[] = {
        {"{", ":1: not JSON: string or '}' expected near end of file"},
        {"[]", ": evenkeel_plan: is missing; the output of evenkeel plan --format json is needed"},
        {"{\"evenkeel_plan\": 2}", ": evenkeel_plan: found version 2; 1 is needed"},
        {"{\"evenkeel_plan\": 1}",
         ": replicas, stages: lists of them are missing; the output of evenkeel plan --format json is needed"},
        {"{\"evenkeel_plan\": 1, \"job\": {\"tp\": 8, \"pp\": 1}, \"replicas\": [], \"stages\": [{}]}",
         ": job: a plan of TP8 and 1 stage cannot become one of TP2 and 1 stage; plan without --from"},
        {"{\"evenkeel_plan\": 1, \"job\": {\"tp\": 2, \"pp\": 1}, \"replicas\": [{\"stages\": [{\"nodes\": [{\"node\": "
         "\"node000\", \"gpus\": [0, 1], \"roles\": [0, 0]}]}]}], \"stages\": [{\"drop_order\": []}]}",
         ": replica 0, stage 0: two GPUs have one role; the output of evenkeel plan --format json is needed"},
        {"{\"evenkeel_plan\": 1, \"job\": {\"tp\": 2, \"pp\": 1}, \"replicas\": [{\"stages\": [{\"nodes\": [{\"node\": "
         "\"node000\", \"gpus\": [1, 1], \"roles\": [0, 1]}]}]}], \"stages\": [{\"drop_order\": []}]}",
         ": replica 0, stage 0: a GPU has two roles; the output of evenkeel plan --format json is needed"},
        {"{\"evenkeel_plan\": 1, \"job\": {\"tp\": 2, \"pp\": 1}, \"replicas\": [{\"stages\": [{\"nodes\": [{\"node\": "
         "\"node000\", \"gpus\": [0], \"roles\": [2]}]}]}], \"stages\": [{\"drop_order\": []}]}",
         ": replica 0, stage 0: a whole number in range is missing; the output of evenkeel plan --format json is "
         "needed"},
        {"{\"evenkeel_plan\": 1, \"job\": {\"tp\": 2, \"pp\": 1}, \"replicas\": [{\"stages\": [{\"nodes\": [{\"node\": "
         "\"node000\", \"gpus\": [0], \"roles\": [1]}]}]}], \"stages\": [{\"drop_order\": []}]}",
         ": stages[0].drop_order: a replica is below the sync level; the output of evenkeel plan --format json is "
         "needed"},
        {"{\"evenkeel_plan\": 1, \"job\": {\"tp\": 2, \"pp\": 1}, \"replicas\": [], \"stages\": [{\"drop_order\": [0, "
         "1]}]}",
         ": stages[0].drop_order: a list of fewer roles than tp is missing; the output of evenkeel plan --format json "
         "is needed"},
    };
    char folder[FOLDER_BYTES], path[PATH_BYTES], expected[600];
    folder_create(folder);
    test_plan planned;
    const test_cluster cluster = {1, 2, 2, "xx"};
    planned_prepare(&planned, &cluster, 1, 1, 2, NULL);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        ek_plan_placement *placement = NULL;
        folder_write(folder, "old.json", files[i].text, strlen(files[i].text), path);
        assert_int_equal(ek_plan_placement_read(&placement, path, planned.inventory, &planned.parallel), EK_INVALID);
        snprintf(expected, sizeof expected, "%s%s", path, files[i].error);
        assert_string_equal(ek_error(), expected);
        assert_null(placement);
    }
    planned_destroy(&planned);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_histories), cmocka_unit_test(test_in_place_is_recovery),
        cmocka_unit_test(test_exchange_by_hand), cmocka_unit_test(test_repair_by_hand),
        cmocka_unit_test(test_refused_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
