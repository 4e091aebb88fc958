/* Token files: all formats read, every fault refused with its exact text, every epoch a permutation. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "testing.h"
#include "train/data.h"

/* The tests run in a directory of their own, so that messages name bare files. */
static char directory[] = "/tmp/evenkeel-data-XXXXXX";

static int enter_directory(void **state)
{
    (void)state;
    return mkdtemp(directory) && chdir(directory) == 0 && mkdir("folder", 0700) == 0 && mkfifo("fifo", 0600) == 0 ? 0
                                                                                                                  : -1;
}

static int remove_directory(void **state)
{
    (void)state;
    return remove("t") | remove("m.bin") | remove("m.idx") | remove("folder") | remove("fifo") | remove(directory);
}

static void write_file(const char *name, const void *content, size_t bytes)
{
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(content, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void assert_refused(const char *path, ek_data_format format, ek_status status, const char *error)
{
    ek_data *data = NULL;
    assert_int_equal(ek_data_open(&data, path, format, 4, 100), status);
    assert_string_equal(ek_error(), error);
    assert_null(data);
}

/* The file holds tokens 0 1 2 … count-1: sample by sample an epoch must give each window once, whole. */
static void assert_counts_up(const ek_data *data, uint32_t sequence, uint64_t windows)
{
    uint32_t *tokens = malloc((sequence + 1) * sizeof *tokens);
    bool *seen = calloc(windows, 1);
    assert_true(tokens && seen);
    assert_int_equal(ek_data_windows(data), windows);
    for (uint64_t i = 0; i < windows; i++) {
        ek_data_sample(data, 7, i, tokens);
        assert_int_equal(tokens[0] % sequence, 0);
        assert_true(tokens[0] / sequence < windows && !seen[tokens[0] / sequence]);
        seen[tokens[0] / sequence] = true;
        for (uint32_t t = 0; t <= sequence; t++)
            assert_int_equal(tokens[t], tokens[0] + t);
    }
    free(tokens);
    free(seen);
}

/* ---------------------------------------------------------------------------------------------------- bytes */

static void test_bytes(void **state)
{
    (void)state;
    unsigned char content[99];
    for (unsigned i = 0; i < sizeof content; i++)
        content[i] = (unsigned char)i;
    /* T, windows: 99 tokens hold floor(98 / T) windows; the last token is a target alone */
    const uint32_t cases[][2] = {{4, 24}, {98, 1}, {49, 2}, {1, 98}};
    write_file("t", content, sizeof content);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ek_data *data;
        assert_ok(ek_data_open(&data, "t", EK_DATA_BYTES, cases[i][0], 99));
        assert_counts_up(data, cases[i][0], cases[i][1]);
        ek_data_close(data);
    }
}

static void test_bytes_refused(void **state)
{
    (void)state;
    const unsigned char content[] = {1, 2, 3, 4, 100, 5};
    assert_refused("missing", EK_DATA_BYTES, EK_IO,
                   "missing: cannot be opened (No such file or directory); data.path must name a file of tokens");
    assert_refused("folder", EK_DATA_BYTES, EK_INVALID, "folder: is a directory; data.path must name a file of tokens");
    assert_refused("fifo", EK_DATA_BYTES, EK_INVALID, "fifo: is no regular file; data.path must name a file of tokens");
    write_file("t", "", 0);
    assert_refused("t", EK_DATA_BYTES, EK_INVALID, "t: is empty; data.path must name a file of tokens");
    write_file("t", content, 4);
    assert_refused("t", EK_DATA_BYTES, EK_INVALID,
                   "t: has 4 tokens; at least 5 are needed (model.sequence and one more)");
    write_file("t", content, sizeof content);
    assert_refused("t", EK_DATA_BYTES, EK_INVALID, "t: token 4 is 100; 0 to 99 is allowed (model.vocab 100)");
}

/* ---------------------------------------------------------------------------------------------------- llm.c */

typedef struct llmc_file {
    int32_t header[256];
    uint16_t tokens[1000];
} llmc_file;

static llmc_file llmc_counting_up(void)
{
    llmc_file file = {.header = {20240520, 1, 1000}};
    for (unsigned i = 0; i < 1000; i++)
        file.tokens[i] = (uint16_t)i;
    return file;
}

static void test_llmc(void **state)
{
    (void)state;
    llmc_file file = llmc_counting_up();
    write_file("t", &file, sizeof file);
    ek_data *data;
    assert_ok(ek_data_open(&data, "t", EK_DATA_LLMC, 10, 1000));
    assert_counts_up(data, 10, 99);
    ek_data_close(data);
}

static void test_llmc_refused(void **state)
{
    (void)state;
    llmc_file file = llmc_counting_up();
    write_file("t", &file, 1023);
    assert_refused("t", EK_DATA_LLMC, EK_INVALID,
                   "t: 1023 bytes are fewer than llm.c's header of 1024; is data.format right?");
    write_file("t", &file, sizeof file - 1);
    assert_refused("t", EK_DATA_LLMC, EK_INVALID,
                   "t: 3023 bytes, where a header and the 1000 tokens that it tells of need 3024");
    write_file("t", &file, sizeof file);
    assert_refused("t", EK_DATA_LLMC, EK_INVALID, "t: token 100 is 100; 0 to 99 is allowed (model.vocab 100)");
    file.header[2] = -1;
    write_file("t", &file, sizeof file);
    assert_refused("t", EK_DATA_LLMC, EK_INVALID,
                   "t: 3024 bytes, where a header and the 4294967295 tokens that it tells of need 8589935614");
    file.header[1] = 2;
    write_file("t", &file, sizeof file);
    assert_refused("t", EK_DATA_LLMC, EK_INVALID, "t: has version 2; llm.c's version 1 (uint16 tokens) is needed");
    file.header[0] = 20240801;
    write_file("t", &file, sizeof file);
    assert_refused("t", EK_DATA_LLMC, EK_INVALID, "t: begins with 20240801; llm.c's magic number 20240520 is needed");
}

/* ------------------------------------------------------------------------------------------------- Megatron */

/* Everything that an index says, to be written true or false. */
typedef struct megatron_index {
    char magic[9];
    uint64_t version;
    uint8_t type;
    uint64_t sequences, documents;
    int32_t lengths[3];
    int64_t starts[3];
    int64_t document_starts[3];
} megatron_index;

static void append(unsigned char **place, const void *content, size_t bytes)
{
    memcpy(*place, content, bytes);
    *place += bytes;
}

static void write_index(const megatron_index *index, size_t cut)
{
    unsigned char content[sizeof *index], *place = content;
    append(&place, index->magic, sizeof index->magic);
    append(&place, &index->version, sizeof index->version);
    append(&place, &index->type, sizeof index->type);
    append(&place, &index->sequences, sizeof index->sequences);
    append(&place, &index->documents, sizeof index->documents);
    append(&place, index->lengths, sizeof index->lengths);
    append(&place, index->starts, sizeof index->starts);
    append(&place, index->document_starts, sizeof index->document_starts);
    write_file("m.idx", content, (size_t)(place - content) - cut);
}

/* An index of 90 tokens in three sequences (one empty) and two documents. */
static megatron_index index_of(uint8_t type, size_t token_bytes)
{
    int64_t end = 60 * (int64_t)token_bytes;
    return (megatron_index){"MMIDIDX", 1, type, 3, 3, {60, 0, 30}, {0, end, end}, {0, 2, 3}};
}

static void write_counting_up(size_t token_bytes)
{
    unsigned char content[90 * 8] = {0}, *place = content;
    for (int64_t i = 0; i < 90; i++)
        append(&place, &i, token_bytes);
    write_file("m.bin", content, 90 * token_bytes);
}

static void test_megatron(void **state)
{
    (void)state;
    const struct {
        uint8_t type;
        size_t token_bytes;
    } cases[] = {{1, 1}, {2, 1}, {3, 2}, {4, 4}, {5, 8}, {8, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        megatron_index index = index_of(cases[i].type, cases[i].token_bytes);
        write_index(&index, 0);
        write_counting_up(cases[i].token_bytes);
        ek_data *data;
        assert_ok(ek_data_open(&data, "m", EK_DATA_MEGATRON, 8, 90));
        assert_counts_up(data, 8, 11);
        ek_data_close(data);
    }
}

static void assert_index_refused(megatron_index index, const char *error)
{
    write_index(&index, 0);
    assert_refused("m", EK_DATA_MEGATRON, EK_INVALID, error);
}

static void test_megatron_index_refused(void **state)
{
    (void)state;
    write_counting_up(2);
    remove("m.idx");
    assert_refused("m", EK_DATA_MEGATRON, EK_IO,
                   "m.idx: cannot be opened (No such file or directory); data.path must name a file of tokens");
    const megatron_index right = index_of(8, 2);
    megatron_index wrong = right;
    wrong.magic[6] = 'Y';
    assert_index_refused(wrong, "m.idx: does not begin as a Megatron index (MMIDIDX); is data.format right?");
    wrong = right;
    wrong.version = 2;
    assert_index_refused(wrong, "m.idx: has version 2; version 1 is needed");
    const uint8_t types[] = {0, 6, 7, 9, 255};
    for (size_t i = 0; i < sizeof types; i++) {
        char error[200];
        snprintf(error, sizeof error,
                 "m.idx: has tokens of type code %u; a code of whole numbers (1 to 5, 8) is needed", types[i]);
        wrong = right;
        wrong.type = types[i];
        assert_index_refused(wrong, error);
    }
    wrong = right;
    wrong.sequences = UINT64_MAX / 12 + 2; /* times 12 is small again */
    assert_index_refused(
        wrong, "m.idx: 94 bytes do not fit the 1537228672809129303 sequences and 3 documents that it tells of");
    wrong = right;
    wrong.documents = 2;
    assert_index_refused(wrong, "m.idx: 94 bytes do not fit the 3 sequences and 2 documents that it tells of");
    wrong = right;
    wrong.lengths[1] = -1;
    assert_index_refused(
        wrong, "m.idx: sequence 1 has -1 tokens from byte 120; sequences must lie end to end, this one from byte 120");
    wrong = right;
    wrong.starts[2] = 122;
    assert_index_refused(
        wrong, "m.idx: sequence 2 has 30 tokens from byte 122; sequences must lie end to end, this one from byte 120");
    write_index(&right, 1);
    assert_refused("m", EK_DATA_MEGATRON, EK_INVALID,
                   "m.idx: 93 bytes do not fit the 3 sequences and 3 documents that it tells of");
    write_index(&right, 94 - 33);
    assert_refused("m", EK_DATA_MEGATRON, EK_INVALID,
                   "m.idx: does not begin as a Megatron index (MMIDIDX); is data.format right?");
}

static void test_megatron_tokens_refused(void **state)
{
    (void)state;
    megatron_index index = index_of(3, 2);
    write_index(&index, 0);
    remove("m.bin");
    assert_refused("m", EK_DATA_MEGATRON, EK_IO,
                   "m.bin: cannot be opened (No such file or directory); data.path must name a file of tokens");
    int16_t tokens[90] = {0};
    write_file("m.bin", tokens, sizeof tokens - 2);
    assert_refused("m", EK_DATA_MEGATRON, EK_INVALID,
                   "m.bin: 178 bytes, where the 90 int16 tokens of its index need 180");
    tokens[89] = -3;
    write_file("m.bin", tokens, sizeof tokens);
    assert_refused("m", EK_DATA_MEGATRON, EK_INVALID, "m: token 89 is -3; 0 to 99 is allowed (model.vocab 100)");
}

/* -------------------------------------------------------------------------------------------------- samples */

/* The order differs from epoch to epoch and from seed to seed, and is no plain sequence. */
static void test_order(void **state)
{
    (void)state;
    llmc_file file = llmc_counting_up();
    write_file("t", &file, sizeof file);
    ek_data *data;
    assert_ok(ek_data_open(&data, "t", EK_DATA_LLMC, 10, 1000));
    uint64_t windows = ek_data_windows(data);
    unsigned same_epoch = 0, same_seed = 0, same_place = 0;
    for (uint64_t i = 0; i < windows; i++) {
        uint32_t first[11], later[11], other[11], again[11];
        ek_data_sample(data, 1, i, first);
        ek_data_sample(data, 1, windows + i, later);
        ek_data_sample(data, 2, i, other);
        ek_data_sample(data, 1, i, again);
        same_epoch += first[0] == later[0];
        same_seed += first[0] == other[0];
        same_place += first[0] == 10 * i;
        assert_memory_equal(first, again, sizeof first);
    }
    /* about one of 99 windows keeps its place by chance */
    assert_in_range(same_epoch, 0, 8);
    assert_in_range(same_seed, 0, 8);
    assert_in_range(same_place, 0, 8);
    ek_data_close(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_bytes_refused),
        cmocka_unit_test(test_llmc),
        cmocka_unit_test(test_llmc_refused),
        cmocka_unit_test(test_megatron),
        cmocka_unit_test(test_megatron_index_refused),
        cmocka_unit_test(test_megatron_tokens_refused),
        cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests(tests, enter_directory, remove_directory);
}
