/* First fit over one rank's part of the shared mapping; pages that are wholly free go back to the system. */
#include "comm/heap.h"

#include "base/error.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 64

size_t heap_default_bytes(size_t heaps)
{
    size_t half = (size_t)sysconf(_SC_PHYS_PAGES) / 2 * (size_t)sysconf(_SC_PAGESIZE);
    size_t most = ((size_t)1 << 45) / heaps;
    return half < most ? half : most;
}

ek_status heap_create(struct heap *heap, void *base, size_t bytes)
{
    *heap = (struct heap){.base = base, .bytes = bytes, .page_bytes = (size_t)sysconf(_SC_PAGESIZE), .capacity = 64};
    heap->extents = malloc(heap->capacity * sizeof *heap->extents);
    if (!heap->extents)
        return ek_fail(EK_NO_MEMORY, "out of memory for the engine's heap table");
    heap->extents[0] = (struct heap_extent){.offset = 0};
    heap->extents[1] = (struct heap_extent){.offset = bytes, .used = true};
    heap->count = 2;
    pthread_mutex_init(&heap->mutex, NULL);
    return EK_OK;
}

void heap_destroy(struct heap *heap)
{
    pthread_mutex_destroy(&heap->mutex);
    free(heap->extents);
}

/* Makes room for an extent at place i. */
static bool insert_extent(struct heap *heap, size_t i)
{
    if (heap->count == heap->capacity) {
        struct heap_extent *grown = realloc(heap->extents, 2 * heap->capacity * sizeof *grown);
        if (!grown)
            return false;
        heap->extents = grown;
        heap->capacity *= 2;
    }
    memmove(heap->extents + i + 1, heap->extents + i, (heap->count - i) * sizeof *heap->extents);
    heap->count++;
    return true;
}

static void remove_extent(struct heap *heap, size_t i)
{
    heap->count--;
    memmove(heap->extents + i, heap->extents + i + 1, (heap->count - i) * sizeof *heap->extents);
}

/* First fit. */
static void *take(struct heap *heap, size_t bytes)
{
    for (size_t i = 0; i + 1 < heap->count; i++) {
        struct heap_extent *extent = heap->extents + i;
        size_t room = extent[1].offset - extent->offset;
        if (extent->used || room < bytes)
            continue;
        size_t offset = extent->offset;
        if (room > bytes) {
            if (!insert_extent(heap, i + 1))
                return NULL;
            heap->extents[i + 1] = (struct heap_extent){.offset = offset + bytes};
        }
        heap->extents[i].used = true;
        return heap->base + offset;
    }
    return NULL;
}

ek_status heap_alloc(struct heap *heap, size_t bytes, void **memory)
{
    void *taken = NULL;
    if (bytes <= heap->bytes) {
        size_t rounded = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
        pthread_mutex_lock(&heap->mutex);
        taken = take(heap, rounded);
        pthread_mutex_unlock(&heap->mutex);
    }
    if (!taken)
        return ek_fail(EK_NO_MEMORY,
                       "the engine's heap of %zu bytes has no room for %zu more: raise the engine's heap_bytes",
                       heap->bytes, bytes);
    *memory = taken;
    return EK_OK;
}

/* The place of the extent at an offset. */
static size_t find(const struct heap *heap, size_t offset)
{
    size_t low = 0, high = heap->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (heap->extents[middle].offset <= offset)
            low = middle;
        else
            high = middle;
    }
    assert(heap->extents[low].offset == offset && heap->extents[low].used && !heap->extents[low].retired);
    return low;
}

/* Zeroes [first, last) in the free extent [extent_first, extent_last): pages that are now wholly free are dropped. */
static void clear(const struct heap *heap, size_t first, size_t last, size_t extent_first, size_t extent_last)
{
    size_t page = heap->page_bytes;
    size_t pages_first = first / page * page;
    if (pages_first < extent_first)
        pages_first += page;
    size_t pages_last = (last + page - 1) / page * page;
    if (pages_last > extent_last)
        pages_last -= page;
    bool dropped =
        pages_first < pages_last && madvise(heap->base + pages_first, pages_last - pages_first, MADV_REMOVE) == 0;
    if (!dropped) {
        memset(heap->base + first, 0, last - first);
        return;
    }
    if (first < pages_first)
        memset(heap->base + first, 0, pages_first - first);
    if (pages_last < last)
        memset(heap->base + pages_last, 0, last - pages_last);
}

static size_t find_memory(const struct heap *heap, const void *memory)
{
    return find(heap, (size_t)((const unsigned char *)memory - heap->base));
}

/* Frees the extent at place i. The place of the free extent that it is in then. */
static size_t release(struct heap *heap, size_t i)
{
    size_t first = heap->extents[i].offset, last = heap->extents[i + 1].offset;
    heap->extents[i].used = heap->extents[i].retired = false;
    if (!heap->extents[i + 1].used)
        remove_extent(heap, i + 1);
    if (i > 0 && !heap->extents[i - 1].used)
        remove_extent(heap, i--);
    clear(heap, first, last, heap->extents[i].offset, heap->extents[i + 1].offset);
    return i;
}

void heap_free(struct heap *heap, void *memory)
{
    pthread_mutex_lock(&heap->mutex);
    release(heap, find_memory(heap, memory));
    pthread_mutex_unlock(&heap->mutex);
}

void heap_retire(struct heap *heap, void *memory)
{
    pthread_mutex_lock(&heap->mutex);
    heap->extents[find_memory(heap, memory)].retired = true;
    pthread_mutex_unlock(&heap->mutex);
}

void heap_free_retired(struct heap *heap)
{
    pthread_mutex_lock(&heap->mutex);
    for (size_t i = 0; i < heap->count; i++)
        if (heap->extents[i].retired)
            i = release(heap, i);
    pthread_mutex_unlock(&heap->mutex);
}
