/* Stragglers: ranks that take longer than their peers step after step. Pure; like the governor's its state depends on
 * what came since the last reset alone.
 *
 * A rank is compared with the other ranks of its replica, which have the same samples and the same power. They need not
 * hold the same number of units, and nobody knows what part of a rank's time goes with them. But a rank that has at
 * most q >= 1 times a peer's units, in every unit group, should take at most q times that peer's time, and that is what
 * it is compared with: uneven layouts raise no false alarm. (Where a rank has two units and its peers have one, a
 * slowdown below 2 x the factor therefore passes unseen.) */
#ifndef EK_CLUSTER_STRAGGLER_H
#define EK_CLUSTER_STRAGGLER_H

#include <evenkeel.h>

typedef struct ek_stragglers ek_stragglers;

/* `factor` > 1: how many times the median over its peers a rank may take; `steps` >= 1: for how many steps in a row it
 * must have taken more to be a straggler, and not more to be none again. */
ek_status ek_stragglers_create(ek_stragglers **stragglers, const ek_job *job, double factor, uint32_t steps);
void ek_stragglers_destroy(ek_stragglers *stragglers);

/* Forgets everything; the membership is one of the job. */
void ek_stragglers_reset(ek_stragglers *stragglers, const ek_membership *membership);

/* busy_seconds[rank] of a committed step at the default power limit (as reported, times the speed at the power that the
 * rank had, so that a straggler that is given more power stays one). Ranks without a role are ignored; values that are
 * not above 0 say nothing, as is right for a replica without samples. Returns how many ranks have become stragglers and
 * puts them into found[ranks of the job], in order of replica and role. */
uint32_t ek_stragglers_observe(ek_stragglers *stragglers, const double *busy_seconds, uint32_t *found);

/* Whether a rank is a straggler, and then how many times the time of its peers it took when it last was slow. */
bool ek_stragglers_is(const ek_stragglers *stragglers, uint32_t rank, double *slowdown_seen);

#endif
