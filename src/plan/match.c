/* The assignment problem by shortest augmenting paths (H. W. Kuhn's Hungarian method in the form of J. Edmonds and R.
 * M. Karp, Journal of the ACM 19, 1972): rows that come without a column get one, one after the other, each time at the
 * least cost of all assignments of the rows so far. Costs are pairs, compared by moves and then by bytes. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/build.h"

typedef struct matching {
    uint32_t rows, columns;
    plan_cost_of cost_of;
    const void *user;
    uint32_t *row_of;                    /* [columns] or EK_NONE */
    plan_cost *row_price, *column_price; /* with them no cost less prices is below 0, and it is 0 where assigned */
    /* of one search */
    plan_cost *distance; /* [columns] of the shortest path to it */
    uint32_t *from;      /* [columns] the row that the path comes from */
    bool *done;          /* [columns] distance is final */
} matching;

static plan_cost add(plan_cost a, plan_cost b)
{
    return (plan_cost){a.moves + b.moves, a.bytes + b.bytes};
}

static plan_cost subtract(plan_cost a, plan_cost b)
{
    return (plan_cost){a.moves - b.moves, a.bytes - b.bytes};
}

static int compare(plan_cost a, plan_cost b)
{
    if (a.moves != b.moves)
        return a.moves < b.moves ? -1 : 1;
    return (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

/* Paths through `row`, which is reached at `reached`, may be shorter to columns that are not done. */
static void relax(matching *state, uint32_t row, plan_cost reached)
{
    plan_cost base = subtract(reached, state->row_price[row]);
    for (uint32_t column = 0; column < state->columns; column++) {
        if (state->done[column])
            continue;
        plan_cost cost = state->cost_of(state->user, row, column);
        if (cost.moves == PLAN_IMPOSSIBLE)
            continue;
        plan_cost length = add(base, subtract(cost, state->column_price[column]));
        if (state->distance[column].moves == PLAN_IMPOSSIBLE || compare(length, state->distance[column]) < 0) {
            state->distance[column] = length;
            state->from[column] = row;
        }
    }
}

/* The nearest column that is not done, a free one where there are several; or EK_NONE. */
static uint32_t nearest(const matching *state)
{
    uint32_t found = EK_NONE;
    for (uint32_t column = 0; column < state->columns; column++) {
        if (state->done[column] || state->distance[column].moves == PLAN_IMPOSSIBLE)
            continue;
        int order = found == EK_NONE ? -1 : compare(state->distance[column], state->distance[found]);
        if (order < 0 || (order == 0 && state->row_of[column] == EK_NONE && state->row_of[found] != EK_NONE))
            found = column;
    }
    return found;
}

/* Prices after a search from `start` that ended at distance `end`. */
static void update_prices(matching *state, uint32_t start, plan_cost end)
{
    state->row_price[start] = add(state->row_price[start], end);
    for (uint32_t column = 0; column < state->columns; column++) {
        if (!state->done[column])
            continue;
        plan_cost left = subtract(end, state->distance[column]);
        state->column_price[column] = subtract(state->column_price[column], left);
        uint32_t row = state->row_of[column];
        state->row_price[row] = add(state->row_price[row], left);
    }
}

static ek_status assign_row(matching *state, uint32_t start, uint32_t *choice)
{
    for (uint32_t column = 0; column < state->columns; column++) {
        state->distance[column] = (plan_cost){PLAN_IMPOSSIBLE, 0};
        state->done[column] = false;
    }
    uint32_t column, row = start;
    plan_cost reached = {0};
    for (;;) {
        relax(state, row, reached);
        column = nearest(state);
        if (column == EK_NONE)
            return ek_fail(EK_INVALID, "row %u of %u can be assigned to none of %u columns", start, state->rows,
                           state->columns);
        if (state->row_of[column] == EK_NONE)
            break;
        state->done[column] = true;
        row = state->row_of[column];
        reached = state->distance[column];
    }
    update_prices(state, start, state->distance[column]);
    while (column != EK_NONE) { /* hand columns on along the path */
        uint32_t taker = state->from[column], left = taker == start ? EK_NONE : choice[taker];
        state->row_of[column] = taker;
        choice[taker] = column;
        column = left;
    }
    return EK_OK;
}

ek_status plan_match(uint32_t rows, uint32_t columns, plan_cost_of cost_of, const void *user, uint32_t *choice)
{
    matching state = {.rows = rows, .columns = columns, .cost_of = cost_of, .user = user};
    size_t columns_or_one = (size_t)columns + 1, rows_or_one = (size_t)rows + 1;
    state.row_of = malloc(columns_or_one * sizeof *state.row_of);
    state.row_price = calloc(rows_or_one, sizeof *state.row_price);
    state.column_price = calloc(columns_or_one, sizeof *state.column_price);
    state.distance = malloc(columns_or_one * sizeof *state.distance);
    state.from = malloc(columns_or_one * sizeof *state.from);
    state.done = malloc(columns_or_one * sizeof *state.done);
    ek_status status = EK_OK;
    if (!state.row_of || !state.row_price || !state.column_price || !state.distance || !state.from || !state.done)
        status = ek_fail(EK_NO_MEMORY, "no memory to assign %u cells", rows);
    if (status == EK_OK)
        memset(state.row_of, 0xff, columns * sizeof *state.row_of);
    for (uint32_t row = 0; row < rows && status == EK_OK; row++)
        if (choice[row] != EK_NONE)
            state.row_of[choice[row]] = row;
    for (uint32_t row = 0; row < rows && status == EK_OK; row++)
        if (choice[row] == EK_NONE)
            status = assign_row(&state, row, choice);
    free(state.row_of);
    free(state.row_price);
    free(state.column_price);
    free(state.distance);
    free(state.from);
    free(state.done);
    return status;
}
