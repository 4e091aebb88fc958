/* Packing, against what it promises, on every small domain and on random clusters. */
#include "cluster/packing.h"

#include <stdlib.h>

#include "base/rng.h"
#include "testing.h"

static uint32_t below(uint64_t draw, uint32_t limit)
{
    return (uint32_t)(ek_random_u64(1, 0, draw) % limit);
}

static void test_cells_of_a_domain(void **state)
{
    (void)state;
    uint32_t degrees[20];
    for (uint32_t slots = 1; slots <= 20; slots++)
        for (uint32_t base = 1; base <= slots; base++)
            for (uint32_t least = 1; least <= base; least++)
                for (uint32_t live = 0; live <= slots; live++) {
                    uint32_t count = ek_packing_cells(slots, live, base, least, degrees), used = 0;
                    uint32_t most = slots / base;
                    assert_int_equal(count, live / least < most ? live / least : most); /* none is given up */
                    for (uint32_t cell = 0; cell < count; cell++) {
                        assert_in_range(degrees[cell], least, cell ? degrees[cell - 1] : base);
                        used += degrees[cell];
                    }
                    if (count)
                        assert_int_equal(used, live < count * base ? live : count * base); /* none lies idle */
                    /* whole cells first: at most one is neither whole nor at the least degree */
                    uint32_t between = 0;
                    for (uint32_t cell = 0; cell < count; cell++)
                        between += degrees[cell] != base && degrees[cell] != least;
                    assert_true(between <= 1);
                }
    assert_int_equal(ek_packing_cells(72, 70, 64, 1, degrees), 1);
    assert_int_equal(degrees[0], 64); /* slots beyond the cells stand in */
}

static int ascending(const void *a, const void *b)
{
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

static void test_replicas_of_a_cluster(void **state)
{
    (void)state;
    enum { BASE = 6, CELLS_MOST = 60 };
    uint64_t draw = 0;
    for (uint32_t trial = 0; trial < 2000; trial++) {
        uint32_t cells[BASE + 1] = {0}, list[CELLS_MOST], degrees[CELLS_MOST], total = below(draw++, CELLS_MOST);
        for (uint32_t i = 0; i < total; i++)
            cells[list[i] = 1 + below(draw++, BASE)]++;
        cells[0] = below(draw++, 5); /* of no use */
        uint32_t stages = 1 + below(draw++, 5), wanted = 1 + below(draw++, 12);
        uint32_t count = ek_packing_degrees(cells, BASE, stages, wanted, degrees);
        assert_int_equal(count, total / stages < wanted ? total / stages : wanted);
        qsort(list, total, sizeof *list, ascending);
        for (uint32_t replica = 0; replica < count; replica++)
            assert_int_equal(degrees[replica], list[total - count * stages + replica * stages]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cells_of_a_domain),
        cmocka_unit_test(test_replicas_of_a_cluster),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
