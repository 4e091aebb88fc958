/* Scenarios for tests: the ready ones, and small ones written for a test. */
#ifndef TESTS_SIM_SCENARIOS_H
#define TESTS_SIM_SCENARIOS_H

#include "sim/scenario.h"
#include "testing.h"

/* examples/sim/NAME.yaml with overrides, which end with NULL. */
ek_scenario *scenario_ready(const char *name, const char *const *overrides);
#define READY(name, ...) scenario_ready(name, (const char *const[]){__VA_ARGS__, NULL})

/* Writes text to a file that goes with the process, and gives its path. At most 16. */
const char *scenario_file(const char *text, size_t bytes);

/* A small job: 4 replicas of 2 stages of TP4 on 10 domains, two of them spare; 32 samples. */
extern const char scenario_small[];
ek_scenario *scenario_of_small(const char *const *overrides);
#define SMALL(...) scenario_of_small((const char *const[]){__VA_ARGS__, NULL})

#endif
