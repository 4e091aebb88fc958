/* Headers of safetensors files: what is written is read again; what is torn, changed or of another kind is refused. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/safetensors.h"
#include "states.h"

static const char file_name[] = "file.safetensors";

static void put(const void *bytes, size_t count)
{
    FILE *file = fopen(file_name, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* A file with this header and so many bytes of data. */
static void put_header(const char *header, size_t data_bytes)
{
    const unsigned char length[8] = {(unsigned char)strlen(header), (unsigned char)(strlen(header) >> 8)};
    FILE *file = fopen(file_name, "w");
    assert_non_null(file);
    fwrite(length, 1, sizeof length, file);
    fputs(header, file);
    for (size_t i = 0; i < data_bytes; i++)
        fputc(0, file);
    assert_int_equal(fclose(file), 0);
}

static void assert_refused(const char *part_of_text)
{
    ek_safetensors *file;
    assert_int_equal(ek_safetensors_open(&file, file_name), EK_CORRUPT);
    assert_ptr_equal(strstr(ek_error(), file_name), ek_error());
    if (!strstr(ek_error(), part_of_text))
        fail_msg("\"%s\" says nothing of \"%s\"", ek_error(), part_of_text);
}

#define TENSORS 3
#define NUMBERS (6 + 5 + 4)

/* A file of three tensors with the numbers 1, 2, 3 … */
static size_t make(unsigned char **out, ek_safetensor tensors[TENSORS])
{
    static const ek_safetensor made[TENSORS] = {
        {"b", EK_F32, 2, 3, 0}, {"a.weight", EK_F32, 0, 5, 0}, {"c", EK_F32, 4, 1, 0}};
    void *header;
    size_t bytes;
    uint64_t file_bytes;
    memcpy(tensors, made, sizeof made);
    assert_ok(ek_safetensors_header(tensors, TENSORS, "step", "12", &header, &bytes, &file_bytes));
    assert_int_equal(bytes % 64, 0);
    assert_int_equal(file_bytes, bytes + NUMBERS * sizeof(float));
    unsigned char *all = malloc(file_bytes);
    assert_non_null(all);
    memcpy(all, header, bytes);
    free(header);
    for (size_t i = 0; i < NUMBERS; i++) {
        float number = (float)(i + 1);
        memcpy(all + bytes + i * sizeof number, &number, sizeof number);
    }
    *out = all;
    return file_bytes;
}

static void test_written_is_read(void **state)
{
    (void)state;
    ek_safetensor tensors[TENSORS];
    unsigned char *bytes;
    size_t count = make(&bytes, tensors);
    put(bytes, count);
    ek_safetensors *file;
    assert_ok(ek_safetensors_open(&file, file_name));
    float expected = 1.0f, values[6];
    for (size_t t = 0; t < TENSORS; t++) {
        const ek_safetensor *found = ek_safetensors_find(file, tensors[t].name);
        assert_non_null(found);
        assert_int_equal(found->rows, tensors[t].rows);
        assert_int_equal(found->columns, tensors[t].columns);
        assert_int_equal(found->offset, tensors[t].offset);
        size_t numbers = (tensors[t].rows ? tensors[t].rows : 1) * tensors[t].columns;
        assert_ok(ek_safetensors_read(file, found, 0, numbers, values));
        for (size_t i = 0; i < numbers; i++)
            assert_true(values[i] == expected++);
        assert_ok(ek_safetensors_read(file, found, numbers - 2, 2, values));
        assert_true(values[1] == expected - 1.0f);
    }
    assert_null(ek_safetensors_find(file, "d"));
    assert_null(ek_safetensors_find(file, "__metadata__"));
    ek_safetensors_close(file);
    free(bytes);
}

static void test_truncated_at_every_length(void **state)
{
    (void)state;
    ek_safetensor tensors[TENSORS];
    unsigned char *bytes;
    size_t count = make(&bytes, tensors);
    for (size_t length = 0; length < count; length++) {
        put(bytes, length);
        assert_refused("");
    }
    bytes = realloc(bytes, count + 1);
    bytes[count] = 0;
    put(bytes, count + 1); /* too long is as bad */
    assert_refused("header says");
    free(bytes);
}

/* A bit of the header: refused, or a name has changed, or all is as before (in the metadata). Never other places. */
static void test_every_bit_of_the_header_flipped(void **state)
{
    (void)state;
    ek_safetensor tensors[TENSORS];
    unsigned char *bytes;
    size_t count = make(&bytes, tensors), header = count - NUMBERS * sizeof(float), accepted = 0;
    for (size_t bit = 0; bit < 8 * header; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        put(bytes, count);
        ek_safetensors *file;
        ek_status status = ek_safetensors_open(&file, file_name);
        if (status == EK_OK) {
            size_t found = 0;
            for (size_t t = 0; t < TENSORS; t++) {
                const ek_safetensor *tensor = ek_safetensors_find(file, tensors[t].name);
                found += tensor != NULL;
                assert_true(!tensor || (tensor->dtype == tensors[t].dtype && tensor->rows == tensors[t].rows &&
                                        tensor->columns == tensors[t].columns && tensor->offset == tensors[t].offset));
            }
            assert_true(found >= TENSORS - 1);
            ek_safetensors_close(file);
            accepted++;
        } else {
            assert_int_equal(status, EK_CORRUPT);
        }
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    assert_in_range(accepted, 1, 8 * 40);
    free(bytes);
}

static void test_foreign_headers(void **state)
{
    (void)state;
    ek_safetensors *file;
    assert_int_equal(ek_safetensors_open(&file, "none.safetensors"), EK_IO);
    put("{\"a\": 1}", 8);
    assert_refused("not a safetensors file");
    put_header("[]", 0);
    assert_refused("not JSON");
    put_header("{\"a\": 1", 0);
    assert_refused("not JSON");
    put_header("{\"a\": 7}", 0);
    assert_refused("type");
    put_header("{\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8);
    assert_refused("type");
    put_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1],\"data_offsets\":[0,4]}}", 4);
    assert_refused("no vector and no matrix");
    put_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4);
    assert_refused("shape");
    put_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", 4);
    assert_refused("shape");
    put_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4);
    assert_refused("not in the file");
    put_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4);
    assert_refused("not in the file");
    put_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4);
    assert_refused("not in the file");
    put_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,9223372036854775807]}}", 4);
    assert_refused("not in the file");
    put_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8);
    assert_refused("as long as its shape");
    put_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8);
    assert_refused("begins at"); /* a hole */
    put_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
               "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
               4);
    assert_refused("begins at"); /* an overlap */
    put_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
               "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
               8);
    assert_refused("not JSON"); /* a name twice */
}

/* Every number of 16 bits, against what the format's definition says. */
static void test_half_numbers(void **state)
{
    (void)state;
    static uint16_t numbers[65536];
    static float values[65536];
    static const char *const types[2] = {"F16", "BF16"};
    for (size_t type = 0; type < 2; type++) {
        char header[120];
        snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"%s\",\"shape\":[65536],\"data_offsets\":[0,131072]}}",
                 types[type]);
        put_header(header, 0);
        FILE *out = fopen(file_name, "a");
        for (size_t i = 0; i < 65536; i++)
            numbers[i] = (uint16_t)i;
        assert_int_equal(fwrite(numbers, sizeof *numbers, 65536, out), 65536);
        assert_int_equal(fclose(out), 0);
        ek_safetensors *file;
        assert_ok(ek_safetensors_open(&file, file_name));
        assert_ok(ek_safetensors_read(file, ek_safetensors_find(file, "a"), 0, 65536, values));
        unsigned mantissa_bits = type ? 7 : 10, exponent_bits = 15 - mantissa_bits;
        int bias = (1 << (exponent_bits - 1)) - 1;
        for (unsigned i = 0; i < 65536; i++) {
            unsigned exponent = i >> mantissa_bits & ((1u << exponent_bits) - 1),
                     mantissa = i & ((1u << mantissa_bits) - 1);
            double expected =
                exponent ? 1.0 + (double)mantissa / (1u << mantissa_bits) : (double)mantissa / (1u << mantissa_bits);
            expected = __builtin_ldexp(expected, (exponent ? (int)exponent : 1) - bias) * (i >> 15 ? -1.0 : 1.0);
            if (exponent != (1u << exponent_bits) - 1)
                assert_true((double)values[i] == expected);
            else
                assert_true(mantissa ? values[i] != values[i]
                                     : __builtin_isinf(values[i]) && (values[i] < 0) == (i >> 15));
        }
        ek_safetensors_close(file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_written_is_read),
        cmocka_unit_test(test_truncated_at_every_length),
        cmocka_unit_test(test_every_bit_of_the_header_flipped),
        cmocka_unit_test(test_foreign_headers),
        cmocka_unit_test(test_half_numbers),
    };
    return cmocka_run_group_tests(tests, states_enter, states_leave);
}
