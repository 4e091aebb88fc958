/* What ranks do in tests of any engine: each is a main for ek_launch, and needs no `user`. */
#ifndef TESTS_COMM_CHECKS_H
#define TESTS_COMM_CHECKS_H

#include "jobs.h"

/* All collectives in the world, reversed, and in a group that not all are in; the same of several MiB; and without end
 * of lanes, groups, memory and votes. */
ek_status try_everything(ek_engine *engine, void *user);
ek_status try_large(ek_engine *engine, void *user);
ek_status run_both_lanes(ek_engine *engine, void *user);
ek_status stage_much(ek_engine *engine, void *user);
ek_status remake_groups(ek_engine *engine, void *user);
ek_status alternate_groups(ek_engine *engine, void *user); /* of 2 to 8 ranks */
ek_status race_votes(ek_engine *engine, void *user);       /* steps 1 to 3000 */

ek_status exchange_randomly(ek_engine *engine, void *user);

#endif
