/* How many rows of tokens go from rank to rank where samples are spread over the ranks and experts are sharded (mode
 * ep). Routing is taken to be balanced: a token's experts are any top_k of them, each choice as likely as any other. */
#include "perf/parts.h"

#include <math.h>

enum { VALUE_BYTES = 2, CHOICE_BYTES = 4 }; /* a choice or its weight is a word, as in src/model/dispatch.c */

/* That one of top_k experts is among `held` of all: 1 - C(E - held, k) / C(E, k). `held` need not be whole. */
static double hit(const ek_perf_model *model, double held)
{
    double missed = 1;
    for (uint32_t i = 0; i < model->top_k && missed > 0; i++)
        missed *= fmax(model->experts - held - i, 0) / (model->experts - i);
    return 1 - missed;
}

/* At every level all ranks hold the same number of experts within one (src/layout). */
void perf_dispatch(const ek_perf *perf, uint32_t degree, bool free_units, ek_perf_dispatch *dispatch)
{
    const ek_perf_model *model = &perf->model;
    double even = (double)model->experts / degree;
    uint32_t fuller = free_units ? 0 : model->experts % degree; /* ranks with one expert more than the others */
    double fewest = free_units ? even : floor(even), most = fuller > 0 ? fewest + 1 : fewest;
    double least = hit(model, fewest), greatest = hit(model, most);
    *dispatch = (ek_perf_dispatch){.ranks = fuller * greatest + (degree - fuller) * least,
                                   .arriving = greatest * (degree - 1) / degree,
                                   .imbalance = most / even};
    dispatch->crossing = dispatch->ranks * (degree - 1) / degree;
    dispatch->leaving = dispatch->ranks - least;
    dispatch->bytes = dispatch->crossing * (perf_row_bytes(model, false) + perf_row_bytes(model, true));
}

void ek_perf_dispatch_at(const ek_perf *perf, uint32_t degree, ek_perf_dispatch *dispatch)
{
    perf_dispatch(perf, degree, false, dispatch);
}

/* Forward: the row with its choices and their weights, and what became of it; backward: its gradient, the gradient by
 * what it was, and those by its weights. */
double perf_row_bytes(const ek_perf_model *model, bool backward)
{
    return 2.0 * VALUE_BYTES * model->hidden + (backward ? 1.0 : 2.0) * CHOICE_BYTES * model->top_k;
}
