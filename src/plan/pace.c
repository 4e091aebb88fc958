/* Samples, power and times: the governor decides as it does in training, with the times of src/perf for what ranks
 * would have measured. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/build.h"

#define LOOKS 16    /* steps that the governor sees: it decides anew after 1, 2, 4, 8 and 16 */
#define LOOK_BACK 4 /* replicas whose times are remembered while those that follow are asked for */

typedef struct pace_work {
    ek_plan *plan;
    const ek_plan_options *options;
    double cap_watts, domain_watts;
    ek_membership *by_least; /* every replica at its least degree, those that the job lacks retired */
    ek_governor *governor;
    double *work;      /* [N + 1] by degree: of the fullest rank, against that of a whole replica */
    double *busy;      /* [dp] */
    uint32_t *degrees; /* [replicas][stages] */
    double *speeds;    /* [replicas][stages] */
} pace_work;

static void free_work(pace_work *work)
{
    ek_membership_destroy(work->by_least);
    ek_governor_destroy(work->governor);
    free(work->work);
    free(work->busy);
    free(work->degrees);
    free(work->speeds);
}

/* A unit group weighs what all its layers have, so that shares stand for work. */
static ek_status make_membership(pace_work *work)
{
    const ek_plan *plan = work->plan;
    uint32_t degree = plan->base_degree, dp = plan->parallel.dp, lost_count = 0;
    ek_unit_group groups[EK_PERF_GROUPS_MOST];
    const ek_job job = {
        .replicas = dp, .base_degree = degree, .groups = groups, .group_count = ek_perf_groups(plan->perf, groups)};
    for (uint32_t group = 0; group < job.group_count; group++) {
        uint32_t layers = 0;
        for (uint32_t stage = 0; stage < plan->stages; stage++)
            layers += ek_perf_group_layers(plan->perf, group, stage);
        groups[group].unit_bytes *= layers;
    }
    uint32_t *lost = malloc((size_t)dp * degree * sizeof *lost);
    if (!lost)
        return ek_fail(EK_NO_MEMORY, "no memory for %u replicas", dp);
    for (uint32_t replica = 0; replica < dp; replica++) {
        uint32_t left = replica < plan->replicas ? plan->replica[replica].least_degree : 0;
        for (uint32_t position = left; position < degree; position++)
            lost[lost_count++] = replica * degree + position;
    }
    ek_membership *whole;
    ek_status status = ek_membership_create(&whole, &job);
    if (status == EK_OK) {
        status = ek_membership_lose(whole, lost, lost_count, &work->by_least);
        ek_membership_destroy(whole);
    }
    free(lost);
    return status;
}

/* The fullest rank's share at each degree that there is, against a whole replica's. */
static void set_work(const pace_work *work)
{
    const ek_membership *membership = work->by_least;
    const ek_job *job = ek_membership_job(membership);
    for (uint32_t level = 0; level <= ek_membership_sync_level(membership); level++) {
        double fullest = 0;
        for (uint32_t role = 0; role < job->base_degree; role++) {
            double share = 0;
            for (uint32_t group = 0; group < job->group_count; group++)
                share += (double)job->groups[group].unit_bytes *
                         ek_chain_count(ek_membership_chain(membership, group), level, role);
            fullest = fmax(fullest, share);
        }
        work->work[job->base_degree - level] = fullest / (level == 0 ? 1 : work->work[job->base_degree]);
    }
    work->work[job->base_degree] = 1;
}

static ek_status begin(pace_work *work)
{
    ek_plan *plan = work->plan;
    const ek_plan_options *options = work->options;
    uint32_t dp = plan->parallel.dp;
    size_t cells = (size_t)plan->replicas * plan->stages;
    work->work = calloc((size_t)plan->base_degree + 1, sizeof *work->work);
    work->busy = calloc(dp, sizeof *work->busy);
    work->degrees = malloc(cells * sizeof *work->degrees);
    work->speeds = malloc(cells * sizeof *work->speeds);
    if (!work->work || !work->busy || !work->degrees || !work->speeds)
        return ek_fail(EK_NO_MEMORY, "no memory for the pace of %u replicas", dp);
    for (size_t cell = 0; cell < cells; cell++)
        work->degrees[cell] = plan->cells[cell].degree;
    EK_TRY(make_membership(work));
    set_work(work);
    ek_governor_options governed = {.replicas = dp,
                                    .base_degree = plan->base_degree,
                                    .samples = plan->parallel.global_batch,
                                    .policy = options->policy,
                                    .curve = options->curve,
                                    .default_watts = options->hardware->tdp_watts,
                                    .cap_watts = options->cap_watts,
                                    .domain_watts = options->domain_watts};
    EK_TRY(ek_governor_complete_options(&governed));
    work->cap_watts = governed.cap_watts;
    work->domain_watts = governed.domain_watts;
    EK_TRY(ek_governor_create(&work->governor, &governed));
    ek_governor_reset(work->governor, work->by_least);
    return EK_OK;
}

/* Power of a stage whose replica's most reduced stages are given `watts`: as much as keeps it in step with them, that
 * is, less where it holds less of its layers. */
static double stage_watts(const pace_work *work, const ek_plan_replica *replica, uint32_t degree, double watts)
{
    double default_watts = work->options->hardware->tdp_watts;
    if (degree == replica->least_degree || watts <= default_watts)
        return watts;
    double speed = ek_curve_speed(&work->options->curve, watts / default_watts);
    speed *= work->work[degree] / work->work[replica->least_degree];
    double wanted = ek_curve_power(&work->options->curve, speed) * default_watts;
    return fmax(fmin(wanted, ek_governor_limit_watts(work->cap_watts, work->domain_watts, degree)), default_watts);
}

static bool same_question(const pace_work *work, uint32_t a, uint32_t b)
{
    const ek_plan *plan = work->plan;
    size_t stages = plan->stages;
    return plan->replica[a].share.count == plan->replica[b].share.count &&
           memcmp(work->degrees + a * stages, work->degrees + b * stages, stages * sizeof *work->degrees) == 0 &&
           memcmp(work->speeds + a * stages, work->speeds + b * stages, stages * sizeof *work->speeds) == 0;
}

/* The most that a device of the replica reshards: there before the reduction, and back after it. */
static double reshard_bytes(const ek_plan *plan, uint32_t replica)
{
    double most = 0;
    for (uint32_t stage = 0; stage < plan->stages; stage++) {
        uint32_t level = plan->base_degree - ek_plan_cell_at(plan, replica, stage)->degree;
        const ek_plan_reshard *reshard = plan_reshard_at(plan, stage, level);
        most = reshard ? fmax(most, reshard->most_bytes) : most;
    }
    return 2 * most;
}

static ek_status ask_time(const pace_work *work, uint32_t replica)
{
    ek_plan *plan = work->plan;
    for (uint32_t back = 1; back <= LOOK_BACK && back <= replica; back++) {
        if (same_question(work, replica - back, replica)) {
            plan->replica[replica].time = plan->replica[replica - back].time;
            return EK_OK;
        }
    }
    const ek_perf_replica question = {.degrees = work->degrees + (size_t)replica * plan->stages,
                                      .speeds = work->speeds + (size_t)replica * plan->stages,
                                      .samples = plan->replica[replica].share.count,
                                      .reshard_bytes = reshard_bytes(plan, replica)};
    return ek_perf_step(plan->perf, &question, &plan->replica[replica].time);
}

/* What the governor has decided, and how long that takes. */
static ek_status adopt(const pace_work *work)
{
    ek_plan *plan = work->plan;
    for (uint32_t i = 0; i < plan->replicas; i++) {
        ek_plan_replica *replica = &plan->replica[i];
        ek_decision decision = ek_governor_decision(work->governor, i);
        replica->watts = decision.watts;
        replica->share = decision.share;
        for (uint32_t stage = 0; stage < plan->stages; stage++) {
            ek_plan_cell *cell = &plan->cells[(size_t)i * plan->stages + stage];
            cell->watts = stage_watts(work, replica, cell->degree, decision.watts);
            work->speeds[(size_t)i * plan->stages + stage] =
                ek_curve_speed(&work->options->curve, cell->watts / work->options->hardware->tdp_watts);
        }
        EK_TRY(ask_time(work, i));
        work->busy[i] = replica->time.compute; /* as in training: what power speeds up, without waiting */
    }
    return EK_OK;
}

/* With no failure: all whole, the batch split evenly. */
static ek_status set_whole(const pace_work *work)
{
    ek_plan *plan = work->plan;
    uint32_t *degrees = malloc(plan->stages * sizeof *degrees);
    if (!degrees)
        return ek_fail(EK_NO_MEMORY, "no memory for %u stages", plan->stages);
    for (uint32_t stage = 0; stage < plan->stages; stage++)
        degrees[stage] = plan->base_degree;
    uint32_t largest = (plan->parallel.global_batch - 1) / plan->parallel.dp + 1;
    const ek_perf_replica question = {.degrees = degrees, .samples = largest};
    ek_perf_time time;
    ek_status status = ek_perf_step(plan->perf, &question, &time);
    free(degrees);
    if (status != EK_OK)
        return status;
    plan->whole_step_seconds = time.total;
    plan->whole_samples_per_second = plan->parallel.global_batch / time.total;
    return EK_OK;
}

static void sum_up(ek_plan *plan)
{
    double samples = 0;
    for (uint32_t replica = 0; replica < plan->replicas; replica++) {
        plan->step_seconds = fmax(plan->step_seconds, plan->replica[replica].time.total);
        samples += plan->replica[replica].share.count;
    }
    plan->samples_per_second = samples / plan->step_seconds;
}

static ek_status set_pace(pace_work *work)
{
    EK_TRY(begin(work));
    EK_TRY(adopt(work));
    for (uint32_t look = 0; look < LOOKS; look++) {
        ek_governor_observe(work->governor, work->busy);
        EK_TRY(adopt(work));
    }
    EK_TRY(set_whole(work));
    sum_up(work->plan);
    return EK_OK;
}

ek_status plan_pace(ek_plan *plan, const ek_plan_options *options)
{
    pace_work work = {.plan = plan, .options = options};
    ek_status status = set_pace(&work);
    free_work(&work);
    return status;
}
