/* What fails and returns in a cluster over time: drawn from the failure model, or as it really happened. It depends on
 * the seed and the history's number alone, never on what is done about failures, so that all policies meet the same. */
#ifndef EK_SIM_HISTORY_H
#define EK_SIM_HISTORY_H

#include "sim/scenario.h"

typedef struct ek_change {
    double hours;
    uint32_t domain;
    uint32_t failed; /* slots of the domain that are down from now on */
    bool failure;    /* slots have failed; otherwise they are back */
} ek_change;

typedef struct ek_history {
    ek_change *changes; /* in order of time */
    size_t count, room;
} ek_history;

/* History `number` of a cluster of `domains` domains, up to the scenario's horizon. A drawn one begins before hour 0,
 * by as much as the longest repair takes, so that at hour 0 as many devices are down as in the long run. */
ek_status ek_history_create(ek_history **history, const ek_scenario *scenario, uint32_t domains, uint64_t number);
void ek_history_destroy(ek_history *history);

#endif
