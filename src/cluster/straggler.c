/* Stragglers: ranks that take longer than their peers step after step. */
#include "cluster/straggler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

typedef struct watched_rank {
    bool straggler;
    uint32_t streak; /* steps in a row that speak against `straggler` */
    double slowdown; /* in the last step, of a rank that was slow */
} watched_rank;

/* R replicas of base degree N. */
struct ek_stragglers {
    uint32_t replicas, base_degree, rank_count, steps;
    double factor;
    watched_rank *rank; /* [rank_count] */
    uint32_t *degrees;  /* [R] */
    uint32_t *members;  /* [R][N] ranks in order of roles */
    double *ratio;      /* [R][N][N] how many times a peer's time a member may take, by member and peer */
    double *expected;   /* [N] scratch */
};

ek_status ek_stragglers_create(ek_stragglers **stragglers, const ek_job *job, double factor, uint32_t steps)
{
    ek_stragglers *created = calloc(1, sizeof *created);
    size_t members = (size_t)job->replicas * job->base_degree;
    if (created) {
        created->replicas = job->replicas;
        created->base_degree = job->base_degree;
        created->rank_count = (uint32_t)members + job->spares;
        created->steps = steps;
        created->factor = factor;
        created->rank = calloc(created->rank_count, sizeof *created->rank);
        created->degrees = calloc(job->replicas, sizeof *created->degrees);
        created->members = calloc(members, sizeof *created->members);
        created->ratio = calloc(members * job->base_degree, sizeof *created->ratio);
        created->expected = calloc(job->base_degree, sizeof *created->expected);
    }
    if (!created || !created->rank || !created->degrees || !created->members || !created->ratio || !created->expected) {
        ek_stragglers_destroy(created);
        return ek_fail(EK_NO_MEMORY, "no memory to watch %zu ranks", members);
    }
    *stragglers = created;
    return EK_OK;
}

void ek_stragglers_destroy(ek_stragglers *stragglers)
{
    if (!stragglers)
        return;
    free(stragglers->rank);
    free(stragglers->degrees);
    free(stragglers->members);
    free(stragglers->ratio);
    free(stragglers->expected);
    free(stragglers);
}

/* How many times the peer's units the rank has in the unit group where that is most; at least 1. */
static double units_ratio(const ek_membership *membership, uint32_t rank, uint32_t peer)
{
    double most = 1;
    for (uint32_t group = 0; group < ek_membership_job(membership)->group_count; group++) {
        uint32_t units, peer_units;
        ek_membership_units(membership, rank, group, &units);
        ek_membership_units(membership, peer, group, &peer_units);
        most = fmax(most, (double)units / peer_units);
    }
    return most;
}

void ek_stragglers_reset(ek_stragglers *stragglers, const ek_membership *membership)
{
    size_t n = stragglers->base_degree;
    memset(stragglers->rank, 0, stragglers->rank_count * sizeof *stragglers->rank);
    for (uint32_t replica = 0; replica < stragglers->replicas; replica++) {
        uint32_t *members = stragglers->members + replica * n;
        uint32_t degree = stragglers->degrees[replica] = ek_membership_replica(membership, replica, members);
        for (uint32_t i = 0; i < degree; i++)
            for (uint32_t peer = 0; peer < degree; peer++)
                stragglers->ratio[(replica * n + i) * n + peer] = units_ratio(membership, members[i], members[peer]);
    }
}

static int compare_doubles(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* How many times the time that its peers let expect member `i` took: the upper median over them; 0 if that is unknown
 * or certainly within the factor. */
static double slowdown(const ek_stragglers *stragglers, uint32_t replica, uint32_t i, const double *busy_seconds)
{
    size_t n = stragglers->base_degree;
    const uint32_t *members = stragglers->members + replica * n;
    const double *ratio = stragglers->ratio + (replica * n + i) * n;
    double busy = busy_seconds[members[i]];
    uint32_t count = 0, exceeded = 0;
    for (uint32_t peer = 0; peer < stragglers->degrees[replica]; peer++) {
        double expected = busy_seconds[members[peer]] * ratio[peer];
        if (peer == i || !(expected > 0))
            continue;
        exceeded += busy > stragglers->factor * expected;
        stragglers->expected[count++] = expected;
    }
    if (exceeded <= count / 2)
        return 0;
    qsort(stragglers->expected, count, sizeof *stragglers->expected, compare_doubles);
    return busy / stragglers->expected[count / 2];
}

uint32_t ek_stragglers_observe(ek_stragglers *stragglers, const double *busy_seconds, uint32_t *found)
{
    uint32_t found_count = 0;
    for (uint32_t replica = 0; replica < stragglers->replicas; replica++)
        for (uint32_t i = 0; i < stragglers->degrees[replica]; i++) {
            uint32_t rank = stragglers->members[(size_t)replica * stragglers->base_degree + i];
            watched_rank *watched = &stragglers->rank[rank];
            double slow = slowdown(stragglers, replica, i, busy_seconds);
            if (slow > 0)
                watched->slowdown = slow;
            watched->streak = (slow > 0) == watched->straggler ? 0 : watched->streak + 1;
            if (watched->streak < stragglers->steps)
                continue;
            watched->streak = 0;
            watched->straggler = !watched->straggler;
            if (watched->straggler)
                found[found_count++] = rank;
        }
    return found_count;
}

bool ek_stragglers_is(const ek_stragglers *stragglers, uint32_t rank, double *slowdown_seen)
{
    if (!stragglers->rank[rank].straggler)
        return false;
    *slowdown_seen = stragglers->rank[rank].slowdown;
    return true;
}
