/* Who writes what: after any history of failures and returns every unit is written by exactly one rank (the manifest
 * refuses anything else), all write about as much, and what they have written is the state. */
#include <stdio.h>
#include <stdlib.h>

#include "cluster/histories.h"
#include "states.h"

#define SEED 61
enum { JOBS = 60, CHANGES = 4 };

static void change(ek_membership **membership, history_random *random)
{
    uint32_t lost[64], returning;
    ek_membership *next = NULL;
    if (history_draw(random, 3) == 0 && (returning = history_draw_returning(random, *membership)) != EK_NONE) {
        assert_ok(ek_membership_join(*membership, returning, &next));
    } else {
        uint32_t count = history_draw_lost(random, *membership, 1 + history_draw(random, 2), lost);
        if (ek_membership_lose(*membership, lost, count, &next) != EK_OK)
            return;
    }
    ek_membership_destroy(*membership);
    *membership = next;
}

static void test_one_writer(void **state)
{
    (void)state;
    history_random random = {.seed = SEED};
    ek_model_config config;
    ek_checkpoint_dir *dir;
    for (uint64_t job = 1; job <= JOBS; job++) {
        config = states_model(history_draw(&random, STATES_MODELS), 1u << history_draw(&random, 3));
        ek_membership *membership = states_membership(&config, 1 + history_draw(&random, 4),
                                                      1 + history_draw(&random, 4), history_draw(&random, 3));
        for (uint32_t i = history_draw(&random, CHANGES); i > 0; i--)
            change(&membership, &random);
        assert_ok(ek_checkpoint_dir_open(&dir, "random", &(ek_checkpoint_run){&config, 1, 8}));
        states_write("random", dir, job, membership, &config, NULL);
        assert_ok(states_complete(dir, job, 1));
        ek_checkpoint_dir_close(dir);
        ek_membership_destroy(membership);
    }
}

/* In a model of many layers no rank writes more than a layer's share above what an even split of its replica's part
 * among its members is: a replica's part is its share of all bytes. */
static void test_balance(void **state)
{
    (void)state;
    history_random random = {.seed = SEED + 1};
    for (uint64_t job = 1; job <= 30; job++) {
        ek_model_config config = states_model(history_draw(&random, STATES_MODELS), 1);
        config.layers = 16;
        uint32_t replicas = 1 + history_draw(&random, 4), base = 1 + history_draw(&random, 4);
        ek_membership *membership = states_membership(&config, replicas, base, 0);
        if (replicas * base > 2)
            change(&membership, &random);
        uint64_t bytes[16], total = 0, layer = 12 * (uint64_t)ek_model_parameters(&config) / config.layers;
        ek_checkpoint_dir *dir;
        assert_ok(ek_checkpoint_dir_open(&dir, "balance", &(ek_checkpoint_run){&config, 1, 8}));
        states_write("balance", dir, job, membership, &config, bytes);
        assert_ok(states_complete(dir, job, 1));
        ek_checkpoint_dir_close(dir);
        uint32_t active = 0;
        for (uint32_t r = 0; r < replicas; r++)
            active += ek_membership_degree(membership, r) > 0;
        for (uint32_t rank = 0; rank < replicas * base; rank++)
            total += bytes[rank];
        assert_int_equal(total, 12 * (uint64_t)ek_model_parameters(&config));
        for (uint32_t r = 0; r < replicas; r++) {
            uint32_t degree = ek_membership_degree(membership, r), ranks[4];
            ek_membership_replica(membership, r, ranks);
            for (uint32_t i = 0; i < degree; i++) {
                uint64_t even = total / active / degree;
                if (bytes[ranks[i]] > even + even / 2 + layer)
                    fail_msg("model of %u replicas of %u: rank %u writes %llu bytes of %llu; even: %llu, a layer: %llu",
                             replicas, base, ranks[i], (unsigned long long)bytes[ranks[i]], (unsigned long long)total,
                             (unsigned long long)even, (unsigned long long)layer);
            }
        }
        ek_membership_destroy(membership);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_writer), cmocka_unit_test(test_balance)};
    return cmocka_run_group_tests(tests, states_enter, states_leave);
}
