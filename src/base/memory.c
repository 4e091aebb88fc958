/* Large memory in huge pages. */
#include "base/memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

void *ek_large_alloc(size_t bytes)
{
    size_t rounded = bytes ? (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE : HUGE_PAGE;
    void *memory = aligned_alloc(HUGE_PAGE, rounded);
    if (memory)
        madvise(memory, rounded, MADV_HUGEPAGE); /* refused: small pages then */
    return memory;
}
