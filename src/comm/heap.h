/* The allocator of one rank's heap, a part of the shared mapping. What is where is known to the owner alone (ordinary
 * private memory), so no other rank can damage it, and a death leaves nothing to clean up. Free memory is always
 * zero, and whole free pages are given back to the system. Safe to use from the rank's threads. */
#ifndef EK_COMM_HEAP_H
#define EK_COMM_HEAP_H

#include <evenkeel.h>
#include <pthread.h>

struct heap_extent {
    size_t offset; /* the extent ends where the next one begins */
    bool used;
    bool retired; /* in use until heap_free_retired */
};

struct heap {
    unsigned char *base; /* aligned to a page */
    size_t bytes, page_bytes;
    pthread_mutex_t mutex;
    struct heap_extent *extents; /* by offset; no two free ones are neighbours; a last one, in use, at `bytes` */
    size_t count, capacity;
};

/* For each of `heaps` heaps of this machine where nobody says: half of its memory, as far as address space (47 bits)
 * lasts; it is taken only when touched. */
size_t heap_default_bytes(size_t heaps);

ek_status heap_create(struct heap *heap, void *base, size_t bytes);
void heap_destroy(struct heap *heap);

/* Zeroed, aligned to 64 bytes. Zero bytes give a distinct address too. */
ek_status heap_alloc(struct heap *heap, size_t bytes, void **memory);
void heap_free(struct heap *heap, void *memory);
/* Frees the memory later: until heap_free_retired it keeps what it holds and is not given out. */
void heap_retire(struct heap *heap, void *memory);
void heap_free_retired(struct heap *heap);

#endif
