/* Which cells a domain makes, and which replicas they make. */
#include "cluster/packing.h"

uint32_t ek_packing_cells(uint32_t slots, uint32_t live, uint32_t base_degree, uint32_t min_degree, uint32_t *degrees)
{
    uint32_t most = slots / base_degree, count = live / min_degree;
    if (count > most)
        count = most;
    for (uint32_t cell = 0; cell < count; cell++) {
        uint32_t kept = (count - cell - 1) * min_degree; /* for the cells that follow */
        degrees[cell] = live - kept < base_degree ? live - kept : base_degree;
        live -= degrees[cell];
    }
    return count;
}

uint32_t ek_packing_degrees(const uint32_t *cells, uint32_t base_degree, uint32_t stages, uint32_t replicas,
                            uint32_t *degrees)
{
    uint64_t total = 0;
    for (uint32_t degree = 1; degree <= base_degree; degree++)
        total += cells[degree];
    uint32_t count = total / stages < replicas ? (uint32_t)(total / stages) : replicas;
    uint64_t next = total - (uint64_t)count * stages; /* the replica's first cell, in ascending order of degree */
    uint64_t passed = 0;                              /* cells of degrees below `degree` */
    uint32_t degree = 1;
    for (uint32_t replica = 0; replica < count; replica++, next += stages) {
        for (; passed + cells[degree] <= next; degree++)
            passed += cells[degree];
        degrees[replica] = degree;
    }
    return count;
}
