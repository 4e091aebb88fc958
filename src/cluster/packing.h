/* Packing: which scale-up domain carries which tensor-parallel groups, and which of these make up which replica, so
 * that failures hurt as few replicas as possible (arXiv 2504.06095, section on packing: domains are sorted by failures
 * and packed, deepest first). Pure; the planner and the simulator share it.
 *
 * A cell is a TP group to be: `degree` live slots of one domain. A domain with room for several groups (72 slots, TP8)
 * makes several cells; slots beyond floor(slots / base_degree) * base_degree stand in for failed ones of the same
 * domain. A replica is one cell for each of its pipeline stages. */
#ifndef EK_CLUSTER_PACKING_H
#define EK_CLUSTER_PACKING_H

#include <evenkeel.h>

/* The cells of a domain: degrees[] gets their degrees, descending, each from min_degree to base_degree; returns how
 * many, at most slots / base_degree. Whole cells first: only the last ones are reduced, and none is given up that
 * min_degree slots are there for. degrees has room for slots / base_degree. */
uint32_t ek_packing_cells(uint32_t slots, uint32_t live, uint32_t base_degree, uint32_t min_degree, uint32_t *degrees);

/* The least degree of each replica when cells are packed, from their number by degree: cells[d] cells of degree d, d =
 * 0 … base_degree. Of all cells the `replicas * stages` best are used, the others are spare; they are packed in
 * ascending order of degree, `stages` to a replica, so replicas come out in ascending order of their least degree.
 * degrees is [replicas]; returns how many replicas there are cells for. Cost: O(replicas + base_degree). */
uint32_t ek_packing_degrees(const uint32_t *cells, uint32_t base_degree, uint32_t stages, uint32_t replicas,
                            uint32_t *degrees);

#endif
