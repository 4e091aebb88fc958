/* Embedding libevenkeel: a model of one's own, trained through the loss of a rank.
 *
 *     cc embed.c $(pkg-config --cflags --libs evenkeel) -lm -o embed && ./embed
 *
 * The model is a two-layer network y = A^T relu(B x), cut by its hidden columns (the "units"), in 2 replicas of 4
 * ranks. At step 30 rank 6 (replica 1, slot 2) is killed in the middle of its step. Replica 1 goes on with three ranks;
 * the losses are those of a run without the failure, which the program checks. */
#include <evenkeel.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { REPLICAS = 2, DEGREE = 4, HIDDEN = 26, INPUTS = 8, OUTPUTS = 4, SAMPLES = 16, STEPS = 60, KILLED = 6 };

/* Per hidden column: its row of B, its row of A. Both are sharded by the one unit group "hidden". */
static const ek_tensor tensors[] = {
    {.name = "A", .group = 0, .bucket = 0, .unit_elements = OUTPUTS},
    {.name = "B", .group = 0, .bucket = 1, .unit_elements = INPUTS},
};

typedef struct weights { /* room for any share */
    float A[HIDDEN * OUTPUTS], B[HIDDEN * INPUTS];
} weights;

typedef struct job {
    ek_membership *membership;
    uint64_t kill_step;       /* 0: never */
    double losses[STEPS + 1]; /* filled in by on_report, in the launching process */
} job;

#define TRY(call)                                                                                                      \
    for (ek_status try_status = (call); try_status != EK_OK;)                                                          \
    return try_status

/* "Random" numbers in (-1, 1) by what they are for, so that they do not depend on the layout. */
static float value(int kind, uint32_t i, uint32_t j)
{
    return (float)sin(12.9898 * kind + 78.233 * i + 37.719 * j);
}

/* Forward and backward of this replica's samples on the columns that this rank holds. */
static ek_status compute(ek_group *tp, uint32_t replica, uint32_t columns, const weights *w, float *grad_A,
                         float *grad_B, double *loss)
{
    for (uint32_t s = replica; s < SAMPLES; s += REPLICAS) {
        float hidden[HIDDEN] = {0}, x[INPUTS], y[OUTPUTS] = {0};
        for (uint32_t c = 0; c < columns; c++) {
            for (uint32_t i = 0; i < INPUTS; i++)
                hidden[c] += w->B[c * INPUTS + i] * (x[i] = value(3, s, i));
            hidden[c] = fmaxf(hidden[c], 0);
            for (uint32_t o = 0; o < OUTPUTS; o++)
                y[o] += w->A[c * OUTPUTS + o] * hidden[c];
        }
        TRY(ek_all_reduce(tp, y, OUTPUTS, EK_SUM, NULL));
        for (uint32_t o = 0; o < OUTPUTS; o++) {
            float error = y[o] - value(4, s, o);
            *loss += 0.5 * error * error / SAMPLES;
            y[o] = error / SAMPLES;
        }
        for (uint32_t c = 0; c < columns; c++) {
            float grad = 0;
            for (uint32_t o = 0; o < OUTPUTS; o++) {
                grad_A[c * OUTPUTS + o] += hidden[c] * y[o];
                grad += w->A[c * OUTPUTS + o] * y[o];
            }
            for (uint32_t i = 0; hidden[c] > 0 && i < INPUTS; i++)
                grad_B[c * INPUTS + i] += grad * x[i];
        }
    }
    return EK_OK;
}

/* One step: nothing of it stays unless the vote says that all ranks have done their part. */
static ek_status step(ek_engine *engine, ek_group *tp, ek_sync *sync, uint32_t replica, uint32_t columns, weights *w,
                      float *gradients, uint64_t number, uint64_t kill_step)
{
    float *grad_A = gradients + ek_sync_offset(sync, 0), *grad_B = gradients + ek_sync_offset(sync, 1);
    double loss = 0, total;
    memset(gradients, 0, ek_sync_elements(sync) * sizeof(float));
    ek_beat(engine, number);
    TRY(compute(tp, replica, columns, w, grad_A, grad_B, &loss));
    TRY(ek_sync_start(sync, gradients, 0)); /* a real model does this while its backward goes on */
    if (number == kill_step && ek_engine_rank(engine) == KILLED)
        ek_inject(engine, EK_FAULT_KILL);
    TRY(ek_sync_start(sync, gradients, 1));
    TRY(ek_sync_finish(sync, gradients));
    if (ek_group_index(tp) != 0)
        loss = 0; /* each replica's loss counts once */
    TRY(ek_vote(engine, number, &loss, &total, 1));
    for (uint32_t i = 0; i < columns * OUTPUTS; i++)
        w->A[i] -= 0.2f * grad_A[i];
    for (uint32_t i = 0; i < columns * INPUTS; i++)
        w->B[i] -= 0.2f * grad_B[i];
    return ek_report(engine, (double[]){(double)number, total}, 2 * sizeof(double));
}

/* Steps under one membership, until the last step or a loss (EK_PEER_LOST). */
static ek_status train(ek_engine *engine, const ek_membership *membership, weights *w, uint64_t *committed,
                       uint64_t kill_step)
{
    float gradients[HIDDEN * (OUTPUTS + INPUTS)];
    uint32_t replica, columns, ranks[DEGREE], rank = ek_engine_rank(engine);
    ek_membership_place(membership, rank, &replica, NULL);
    ek_membership_units(membership, rank, 0, &columns);
    uint32_t degree = ek_membership_replica(membership, replica, ranks);
    ek_group *tp = NULL;
    ek_sync *sync = NULL;
    ek_status status = ek_group_create(&tp, engine, EK_LANE_COMPUTE, replica, ranks, degree);
    if (status == EK_OK)
        status = ek_sync_create(&sync, engine, membership, tensors, 2);
    while (status == EK_OK && *committed < STEPS) {
        status = step(engine, tp, sync, replica, columns, w, gradients, *committed + 1, kill_step);
        *committed += status == EK_OK;
    }
    ek_sync_destroy(sync);
    ek_group_destroy(tp);
    return status;
}

/* Agrees with the other survivors on the new membership and fetches the columns that this rank now lacks. */
static ek_status recover(ek_engine *engine, ek_membership **membership, weights *w)
{
    ek_status status;
    do {
        ek_recovery *recovery;
        ek_membership *next;
        weights new = {0}; /* beside the old ones: they are served from, and kept if this attempt fails */
        const ek_state states[] = {{0, OUTPUTS * sizeof(float), w->A, new.A}, {0, INPUTS * sizeof(float), w->B, new.B}};
        TRY(ek_recovery_begin(&recovery, engine, *membership));
        status = ek_recovery_move(recovery, states, 2);
        status = ek_recovery_end(&recovery, status, &next);
        if (status == EK_OK) {
            *w = new;
            ek_membership_destroy(*membership);
            *membership = next;
        }
    } while (status == EK_PEER_LOST);
    return status;
}

static ek_status rank_main(ek_engine *engine, void *user)
{
    const job *job = user;
    weights w = {0};
    ek_membership *membership;
    uint64_t committed = 0;
    uint32_t columns;
    TRY(ek_membership_lose(job->membership, NULL, 0, &membership)); /* a copy */
    const uint32_t *units = ek_membership_units(membership, ek_engine_rank(engine), 0, &columns);
    for (uint32_t i = 0; i < columns * OUTPUTS; i++)
        w.A[i] = 0.3f * value(1, units[i / OUTPUTS], i % OUTPUTS);
    for (uint32_t i = 0; i < columns * INPUTS; i++)
        w.B[i] = 0.3f * value(2, units[i / INPUTS], i % INPUTS);
    ek_status status;
    while ((status = train(engine, membership, &w, &committed, job->kill_step)) == EK_PEER_LOST)
        TRY(recover(engine, &membership, &w));
    ek_membership_destroy(membership);
    return status;
}

static ek_status on_report(void *user, uint32_t rank, const void *record, size_t bytes)
{
    double step_and_loss[2];
    memcpy(step_and_loss, record, bytes); /* all ranks report the same */
    ((job *)user)->losses[(int)step_and_loss[0]] = step_and_loss[1];
    return rank < REPLICAS * DEGREE ? EK_OK : EK_INVALID;
}

static ek_status on_lost(void *user, const ek_loss *loss)
{
    (void)user;
    printf("rank %u was lost in step %llu\n", loss->rank, (unsigned long long)loss->note);
    return EK_OK;
}

int main(void)
{
    static job jobs[2] = {{.kill_step = 0}, {.kill_step = 30}}; /* without the failure, and with it */
    ek_unit_group hidden = {.name = "hidden", .units = HIDDEN};
    ek_job shape = {.replicas = REPLICAS, .base_degree = DEGREE, .groups = &hidden, .group_count = 1};
    ek_launch_options options = {.engine = "shm", .ranks = REPLICAS * DEGREE, .timeout_seconds = 10};
    options.main = rank_main, options.on_report = on_report, options.on_lost = on_lost;
    ek_status status = ek_membership_create(&jobs[0].membership, &shape);
    jobs[1].membership = jobs[0].membership;
    for (int i = 0; i < 2 && status == EK_OK; i++) {
        options.user = &jobs[i];
        status = ek_launch(&options);
    }
    double worst = 0;
    for (int step = 1; step <= STEPS; step++)
        worst = fmax(worst, fabs(jobs[1].losses[step] / jobs[0].losses[step] - 1));
    if (status != EK_OK)
        fprintf(stderr, "embed: %s\n", ek_error());
    else
        printf("loss %.6f to %.6f in %d steps; the losses with and without the failure differ by %.1e at most\n",
               jobs[0].losses[1], jobs[1].losses[STEPS], STEPS, worst);
    ek_membership_destroy(jobs[0].membership);
    return status == EK_OK && worst < 1e-5 ? 0 : 1;
}
