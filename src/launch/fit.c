/* See fit.h. */
#include "launch/fit.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The host with the most slots left for a reduced replica, the first of those that are alike, once all whole ones are
 * dealt out; `hosts`: none has enough. */
static size_t find_reduced(const ek_fit_job *job, const uint32_t *slots, const uint32_t *used, size_t hosts)
{
    size_t best = hosts;
    uint32_t most = job->min_tp - 1;
    for (size_t h = 0; h < hosts; h++) {
        uint32_t left = slots[h] - used[h]; /* 0 where it has one */
        if (left > most) {
            most = left;
            best = h;
        }
    }
    return best;
}

/* Replicas host by host: the order of ranks. */
static void number_replicas(const ek_fit_job *job, const uint32_t *used, size_t hosts, ek_fit *fit)
{
    fit->dp = 0;
    for (size_t h = 0; h < hosts; h++) {
        for (uint32_t left = used[h]; left > 0; left -= fit->degrees[fit->dp++])
            fit->degrees[fit->dp] = least(left, job->tp);
        fit->ranks += used[h];
    }
}

static void place_spares(const ek_fit_job *job, const uint32_t *slots, size_t hosts, ek_fit *fit, uint32_t *used)
{
    size_t last = hosts;
    while (used[last - 1] == 0)
        last--;
    for (size_t h = last - 1; h < hosts; h++) {
        uint32_t spares = least(job->spares - fit->spares, slots[h] - used[h]);
        fit->spares += spares;
        used[h] += spares;
    }
    fit->ranks += fit->spares;
}

ek_status ek_fit_make(const ek_fit_job *job, const uint32_t *slots, size_t hosts, ek_fit *fit, uint32_t *used)
{
    uint32_t placed = 0;
    *fit = (ek_fit){0};
    for (size_t h = 0; h < hosts; h++) {
        uint32_t whole = least(slots[h] / job->tp, job->dp - placed);
        used[h] = whole * job->tp;
        placed += whole;
    }
    for (size_t h; placed < job->dp && (h = find_reduced(job, slots, used, hosts)) < hosts; placed++)
        used[h] = slots[h];
    if (placed == 0)
        return ek_fail(EK_INVALID, "no host has %u slots, what the smallest replica needs (parallel.min_tp)",
                       job->min_tp);
    number_replicas(job, used, hosts, fit);
    place_spares(job, slots, hosts, fit, used);
    return EK_OK;
}

bool ek_fit_is_whole(const ek_fit *fit, const ek_fit_job *job)
{
    return fit->ranks == job->dp * job->tp + job->spares;
}

void ek_fit_describe(const ek_fit *fit, const char *parallelism, char *text, size_t size)
{
    size_t length = 0;
    text[0] = '\0';
    for (uint32_t r = 0; r < fit->dp && length < size; r++)
        length += (size_t)snprintf(text + length, size - length, "%s%s%u", r > 0 ? "+" : "", parallelism, fit->degrees[r]);
    if (fit->spares > 0 && length < size)
        snprintf(text + length, size - length, ", %u %s", fit->spares, fit->spares == 1 ? "spare" : "spares");
}
