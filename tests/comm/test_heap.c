/* The allocator: memory is zeroed, aligned, disjoint, given back, and whole again after any sequence. */
#include "jobs.h"

#include "comm/heap.h"

#include <sys/mman.h>

enum { HEAP_BYTES = 1 << 20, PIECES = 200, TURNS = 20000 };

struct piece {
    unsigned char *memory;
    size_t bytes;
    unsigned char mark;
};

static bool is_filled(const unsigned char *memory, size_t bytes, unsigned char mark)
{
    for (size_t i = 0; i < bytes; i++)
        if (memory[i] != mark)
            return false;
    return true;
}

static void release(struct heap *heap, struct piece *piece)
{
    assert_true(is_filled(piece->memory, piece->bytes, piece->mark)); /* nobody else wrote there */
    heap_free(heap, piece->memory);
    piece->memory = NULL;
}

static void test_random_pieces(void **state)
{
    (void)state;
    unsigned char *base = mmap(NULL, HEAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(base != MAP_FAILED);
    struct heap heap;
    assert_ok(heap_create(&heap, base, HEAP_BYTES));
    struct piece pieces[PIECES] = {{0}};
    size_t refused = 0;
    for (uint64_t turn = 0; turn < TURNS; turn++) {
        uint32_t words[4];
        ek_random_words(3, 0, turn, words);
        struct piece *piece = &pieces[words[0] % PIECES];
        if (piece->memory) {
            release(&heap, piece);
            continue;
        }
        size_t bytes = words[1] % 10 ? words[2] % 3000 : words[2] % 200000;
        void *memory;
        ek_status status = heap_alloc(&heap, bytes, &memory);
        if (status == EK_NO_MEMORY) {
            refused++;
            continue;
        }
        assert_ok(status);
        *piece = (struct piece){.memory = memory, .bytes = bytes, .mark = (unsigned char)(1 + turn % 255)};
        assert_int_equal((uintptr_t)memory % 64, 0);
        assert_true(piece->memory >= base && piece->memory + bytes <= base + HEAP_BYTES);
        assert_true(is_filled(piece->memory, bytes, 0));
        memset(memory, piece->mark, bytes);
    }
    for (int i = 0; i < PIECES; i++)
        if (pieces[i].memory)
            release(&heap, &pieces[i]);
    assert_true(refused > 0 && refused < TURNS / 2); /* it was full at times */

    unsigned char resident[HEAP_BYTES / 4096];
    assert_int_equal(mincore(base, HEAP_BYTES, resident), 0);
    for (size_t page = 0; page < sizeof resident; page++)
        assert_int_equal(resident[page] & 1, 0); /* all went back to the system */
    void *whole;
    assert_ok(heap_alloc(&heap, HEAP_BYTES, &whole));
    assert_true(is_filled(whole, HEAP_BYTES, 0));
    void *more;
    assert_int_equal(heap_alloc(&heap, 1, &more), EK_NO_MEMORY);
    assert_int_equal(heap_alloc(&heap, SIZE_MAX, &more), EK_NO_MEMORY);
    heap_free(&heap, whole);
    heap_destroy(&heap);
    munmap(base, HEAP_BYTES);
}

/* What is retired stays untouched until all of it is freed at once, whatever lies beside it. */
static void test_retired_pieces(void **state)
{
    (void)state;
    unsigned char *base = mmap(NULL, HEAP_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(base != MAP_FAILED);
    struct heap heap;
    assert_ok(heap_create(&heap, base, HEAP_BYTES));
    void *pieces[8], *more;
    for (int i = 0; i < 8; i++) {
        assert_ok(heap_alloc(&heap, HEAP_BYTES / 8, &pieces[i]));
        memset(pieces[i], i + 1, HEAP_BYTES / 8);
    }
    for (int i = 0; i < 8; i++)
        if (i != 3 && i != 6)
            heap_retire(&heap, pieces[i]);
    heap_free(&heap, pieces[3]);
    for (int i = 0; i < 8; i++)
        assert_true(is_filled(pieces[i], HEAP_BYTES / 8, i == 3 ? 0 : (unsigned char)(i + 1)));
    assert_int_equal(heap_alloc(&heap, HEAP_BYTES / 8 + 1, &more), EK_NO_MEMORY);
    heap_free_retired(&heap);
    assert_true(is_filled(pieces[6], HEAP_BYTES / 8, 7));
    heap_free(&heap, pieces[6]);
    assert_ok(heap_alloc(&heap, HEAP_BYTES, &more));
    assert_true(is_filled(more, HEAP_BYTES, 0));
    heap_destroy(&heap);
    munmap(base, HEAP_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_pieces), cmocka_unit_test(test_retired_pieces)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
