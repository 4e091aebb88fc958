/* Random jobs and random histories of failures and returns, all from a seed. */
#ifndef TESTS_CLUSTER_HISTORIES_H
#define TESTS_CLUSTER_HISTORIES_H

#include "testing.h"

typedef struct history_random {
    uint64_t seed, draws;
} history_random;

/* Uniform in [0, below). */
uint32_t history_draw(history_random *random, uint32_t below);

/* The number of roles that ranks hold. */
uint32_t history_active_ranks(const ek_membership *membership);

/* The ranks of the job that hold a role or are spares, ascending; returns how many. ranks is [ek_membership_ranks]. */
uint32_t history_known_ranks(const ek_membership *membership, uint32_t *ranks);

/* `count` distinct ranks out of the known ones; all if there are fewer. Returns how many. */
uint32_t history_draw_lost(history_random *random, const ek_membership *membership, uint32_t count, uint32_t *lost);

/* A rank without a role, or EK_NONE. */
uint32_t history_draw_returning(history_random *random, const ek_membership *membership);

#define HISTORY_MAX_GROUPS 3

/* A job of up to 5 replicas of up to 8 ranks, with up to `spares` spares. groups is the room for its unit groups. */
ek_job history_draw_job(history_random *random, uint32_t spares, ek_unit_group groups[HISTORY_MAX_GROUPS]);

#endif
