/* The formula for a pipeline's schedule beside the schedule itself, played event by event. */
#include <math.h>
#include <stdlib.h>

#include "perf/jobs.h"
#include "perf/parts.h"
#include "testing.h"

#define STAGES_MOST 8
#define CHUNKS_MOST 4
#define MICRO_BATCHES_MOST 48

typedef struct turn {
    bool backward;
    uint32_t chunk, micro_batch;
} turn;

/* What stages do, in which order, and when it was done; seconds[i] of a whole micro-batch in stage i, forward and
 * backward together, a third of it forward. */
typedef struct schedule {
    uint32_t stages, chunks, micro_batches;
    double seconds[STAGES_MOST];
    turn order[STAGES_MOST][2 * CHUNKS_MOST * MICRO_BATCHES_MOST];
    double done[2][STAGES_MOST][CHUNKS_MOST][MICRO_BATCHES_MOST]; /* NAN: not yet */
} schedule;

static uint32_t forwards(const schedule *play)
{
    return play->chunks * play->micro_batches;
}

/* The n-th forward or backward of a stage: in groups of as many micro-batches as there are stages, chunk by chunk. */
static turn nth(const schedule *play, bool backward, uint32_t n)
{
    if (play->chunks == 1)
        return (turn){backward, 0, n};
    uint32_t group = n / (play->stages * play->chunks), first = group * play->stages;
    uint32_t left = play->micro_batches - first, members = left < play->stages ? left : play->stages;
    uint32_t place = n - first * play->chunks, chunk = place / members;
    return (turn){backward, backward ? play->chunks - 1 - chunk : chunk, first + place % members};
}

/* Forwards alone to begin with, then one forward and one backward in turn. */
static void make_order(schedule *play, uint32_t stage)
{
    uint32_t count = forwards(play), behind = play->stages - 1 - stage, made = 0;
    uint32_t warm_up = play->chunks == 1 ? behind : 2 * behind + (play->chunks - 1) * play->stages;
    if (warm_up > count || (play->chunks > 1 && play->micro_batches <= play->stages))
        warm_up = count;
    for (uint32_t n = 0; n < warm_up; n++)
        play->order[stage][made++] = nth(play, false, n);
    for (uint32_t n = 0; n < count; n++) {
        if (warm_up + n < count)
            play->order[stage][made++] = nth(play, false, warm_up + n);
        play->order[stage][made++] = nth(play, true, n);
    }
}

/* When what a pass needs was done: 0 if it needs nothing, NAN if it is not. */
static double ready(const schedule *play, uint32_t stage, turn wanted)
{
    uint32_t last = play->stages - 1;
    if (!wanted.backward) {
        if (stage > 0)
            return play->done[0][stage - 1][wanted.chunk][wanted.micro_batch];
        return wanted.chunk > 0 ? play->done[0][last][wanted.chunk - 1][wanted.micro_batch] : 0;
    }
    if (stage < last)
        return play->done[1][stage + 1][wanted.chunk][wanted.micro_batch];
    return wanted.chunk + 1 < play->chunks ? play->done[1][0][wanted.chunk + 1][wanted.micro_batch]
                                           : play->done[0][last][wanted.chunk][wanted.micro_batch];
}

static double played(schedule *play)
{
    uint32_t at[STAGES_MOST] = {0}, left = 2 * forwards(play) * play->stages;
    double now[STAGES_MOST] = {0}, end = 0;
    for (size_t i = 0; i < sizeof play->done / sizeof(double); i++)
        (&play->done[0][0][0][0])[i] = NAN;
    for (uint32_t stage = 0; stage < play->stages; stage++)
        make_order(play, stage);
    while (left > 0) {
        uint32_t before = left;
        for (uint32_t stage = 0; stage < play->stages; stage++)
            while (at[stage] < 2 * forwards(play)) {
                turn next = play->order[stage][at[stage]];
                double start = ready(play, stage, next);
                if (isnan(start))
                    break;
                now[stage] = fmax(now[stage], start) + play->seconds[stage] * (next.backward + 1) / 3 / play->chunks;
                play->done[next.backward][stage][next.chunk][next.micro_batch] = now[stage];
                end = fmax(end, now[stage]);
                at[stage]++;
                left--;
            }
        assert_true(left < before); /* no stage waits for ever */
    }
    return end;
}

static double formula(const schedule *play)
{
    double sum = 0, slowest = 0;
    for (uint32_t stage = 0; stage < play->stages; stage++) {
        sum += play->seconds[stage];
        slowest = fmax(slowest, play->seconds[stage]);
    }
    perf_schedule found = perf_schedule_of(play->stages, play->chunks, play->micro_batches);
    return found.turns * slowest + found.once * (sum - slowest);
}

/* Played time over the formula's, at the least and at the most, over random pipelines. */
static void ratios(double spread, double range[2])
{
    schedule *one = malloc(sizeof *one);
    assert_non_null(one);
    range[0] = INFINITY;
    range[1] = 0;
    for (uint64_t n = 0; n < 1000; n++) {
        one->stages = job_draw(n, 0, 2, STAGES_MOST);
        one->chunks = job_draw(n, 1, 1, CHUNKS_MOST);
        one->micro_batches = one->stages * job_draw(n, 2, 1, MICRO_BATCHES_MOST / STAGES_MOST);
        if (one->chunks == 1)
            one->micro_batches = job_draw(n, 3, 1, MICRO_BATCHES_MOST);
        for (uint32_t stage = 0; stage < one->stages; stage++)
            one->seconds[stage] = 1 + spread * job_draw(n, 100 + stage, 0, 1000) / 1000;
        double ratio = played(one) / formula(one);
        range[0] = fmin(range[0], ratio);
        range[1] = fmax(range[1], ratio);
    }
    free(one);
}

static void equal_stages_take_what_the_formula_says(void **state)
{
    (void)state;
    double range[2];
    ratios(0, range);
    assert_true(range[0] > 1 - 1e-9 && range[1] < 1 + 1e-9);
}

/* Stages up to a fifth slower than others: never longer than the formula, and at most a tenth shorter. */
static void unequal_stages_take_no_longer(void **state)
{
    (void)state;
    double range[2];
    ratios(0.2, range);
    print_message("unequal stages: %.3f to %.3f of the formula\n", range[0], range[1]);
    assert_true(range[0] > 0.9 && range[1] < 1 + 1e-9);
}

/* A group of fewer micro-batches than stages waits for its own first one to come round: what it lacks of a whole group
 * is one chunk's time for each missing micro-batch, no more. */
static void a_partial_group_takes_nearly_as_long_as_a_whole_one(void **state)
{
    (void)state;
    schedule *one = malloc(sizeof *one);
    assert_non_null(one);
    for (one->stages = 2; one->stages <= STAGES_MOST; one->stages++)
        for (one->chunks = 2; one->chunks <= CHUNKS_MOST; one->chunks++)
            for (one->micro_batches = 1; one->micro_batches < one->stages; one->micro_batches++) {
                for (uint32_t stage = 0; stage < one->stages; stage++)
                    one->seconds[stage] = 1;
                double lacking = (double)(one->stages - one->micro_batches) / one->chunks;
                assert_true(fabs(played(one) + lacking - formula(one)) < 1e-9);
            }
    free(one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_stages_take_what_the_formula_says),
        cmocka_unit_test(unequal_stages_take_no_longer),
        cmocka_unit_test(a_partial_group_takes_nearly_as_long_as_a_whole_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
