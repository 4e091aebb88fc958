/* Which cell serves which replica and stage: packed in the order of domains, or left where they are. keep.c has the way
 * between the two. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cluster/packing.h"
#include "plan/build.h"

ek_status plan_assign_packed(const plan_candidates *candidates, const ek_plan_options *options,
                             plan_assignment *assignment)
{
    uint32_t stages = options->parallel->pp, degree = options->parallel->tp;
    uint32_t whole = (uint32_t)(candidates->count / stages);
    assignment->replicas = whole < options->parallel->dp ? whole : options->parallel->dp;
    size_t end = (size_t)assignment->replicas * stages;
    /* the best, of equals the first, from the back: so they stand in ascending order of degree */
    for (; degree > 0 && end > 0; degree--) {
        size_t of_degree = 0;
        for (size_t i = 0; i < candidates->count; i++)
            of_degree += candidates->items[i].degree == degree;
        size_t taken = of_degree < end ? of_degree : end, next = end - taken;
        for (size_t i = 0; i < candidates->count && next < end; i++)
            if (candidates->items[i].degree == degree)
                assignment->chosen[next++] = (uint32_t)i;
        end -= taken;
    }
    return EK_OK;
}

/* ------------------------------------------------------------------------------------------------- in place */

typedef struct placed_replica {
    uint32_t old, least_degree; /* 0: a stage is missing */
} placed_replica;

static int compare_replicas(const void *a, const void *b)
{
    const placed_replica *left = a, *right = b;
    if (left->least_degree != right->least_degree)
        return left->least_degree < right->least_degree ? -1 : 1;
    return (left->old > right->old) - (left->old < right->old);
}

ek_status plan_assign_in_place(const plan_candidates *candidates, const ek_plan_options *options,
                               plan_assignment *assignment)
{
    const ek_plan_placement *from = options->from;
    uint32_t stages = from->stages;
    size_t positions = (size_t)from->replicas * stages;
    uint32_t *candidate_at = malloc((positions + 1) * sizeof *candidate_at);
    placed_replica *placed = malloc(((size_t)from->replicas + 1) * sizeof *placed);
    if (!candidate_at || !placed) {
        free(candidate_at);
        free(placed);
        return ek_fail(EK_NO_MEMORY, "no memory for %u replicas", from->replicas);
    }
    memset(candidate_at, 0xff, positions * sizeof *candidate_at);
    for (size_t i = 0; i < candidates->count; i++)
        candidate_at[candidates->items[i].old] = (uint32_t)i;
    uint32_t missing = 0;
    for (uint32_t replica = 0; replica < from->replicas; replica++) {
        placed[replica] = (placed_replica){replica, options->parallel->tp};
        for (uint32_t stage = 0; stage < stages; stage++) {
            uint32_t i = candidate_at[(size_t)replica * stages + stage];
            uint32_t degree = i == EK_NONE ? 0 : candidates->items[i].degree;
            placed[replica].least_degree =
                degree < placed[replica].least_degree ? degree : placed[replica].least_degree;
        }
        missing += placed[replica].least_degree == 0;
    }
    qsort(placed, from->replicas, sizeof *placed, compare_replicas);
    uint32_t left = from->replicas - missing, dp = options->parallel->dp;
    assignment->replicas = left < dp ? left : dp;
    for (uint32_t replica = 0; replica < assignment->replicas; replica++) {
        uint32_t old = placed[from->replicas - assignment->replicas + replica].old;
        assignment->was[replica] = old;
        memcpy(assignment->chosen + (size_t)replica * stages, candidate_at + (size_t)old * stages,
               stages * sizeof *assignment->chosen);
    }
    free(candidate_at);
    free(placed);
    return EK_OK;
}
