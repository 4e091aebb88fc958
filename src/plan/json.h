/* A plan as JSON; docs/planner.md has the schema. */
#ifndef EK_PLAN_JSON_H
#define EK_PLAN_JSON_H

#include <evenkeel.h>
#include <jansson.h>

#include "plan/plan.h"

#define EK_PLAN_JSON_VERSION 1

/* *json is the caller's. */
ek_status ek_plan_json(const ek_plan *plan, json_t **json);

#endif
