/* Checkpoints in their folder: written by one layout and read by another, bit for bit; what is torn, changed or of
 * another run is passed over by name; the last good one outlives everything. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "states.h"

static ek_checkpoint_dir *open_dir(const char *path, const ek_model_config *config)
{
    ek_checkpoint_dir *dir;
    assert_ok(ek_checkpoint_dir_open(&dir, path, &(ek_checkpoint_run){config, 7, 8}));
    return dir;
}

/* A checkpoint of a whole job. */
static void save(const ek_checkpoint_dir *dir, const char *path, uint64_t step, uint32_t keep,
                 const ek_model_config *config)
{
    ek_membership *membership = states_membership(config, 2, 2, 0);
    states_write(path, dir, step, membership, config, NULL);
    assert_ok(states_complete(dir, step, keep));
    ek_membership_destroy(membership);
}

static void assert_found(const ek_checkpoint_dir *dir, uint64_t expected)
{
    uint64_t step;
    char path[EK_CHECKPOINT_PATH_BYTES];
    assert_ok(states_find(dir, &step, path));
    assert_int_equal(step, expected);
}

static void test_any_layout_reads_any(void **state)
{
    (void)state;
    static const uint32_t layouts[][2] = {{2, 4}, {1, 1}, {3, 2}, {1, 4}};
    for (size_t model = 0; model < STATES_MODELS; model++) {
        ek_model_config wrote = states_model(model, 4), reads = states_model(model, 2); /* in other blocks too */
        ek_checkpoint_dir *dir = open_dir("layouts", &reads);
        for (uint64_t from = 0; from < 4; from++) {
            ek_membership *membership = states_membership(&wrote, layouts[from][0], layouts[from][1], 1);
            states_write("layouts", dir, 1 + from, membership, &wrote, NULL);
            ek_membership_destroy(membership);
            ek_checkpoint_dir *writer;
            /* opening it removes what is half done: complete it as the run that wrote it */
            char partial[EK_CHECKPOINT_PATH_BYTES], aside[] = "aside";
            ek_checkpoint_partial("layouts", ek_checkpoint_identity(dir), 1 + from, partial);
            assert_int_equal(rename(partial, aside), 0);
            ek_checkpoint_dir_close(dir);
            writer = open_dir("layouts", &wrote);
            ek_checkpoint_partial("layouts", ek_checkpoint_identity(writer), 1 + from, partial);
            assert_int_equal(rename(aside, partial), 0);
            assert_ok(states_complete(writer, 1 + from, 1));
            ek_checkpoint_dir_close(writer);
            dir = open_dir("layouts", &reads);
            uint64_t step;
            char path[EK_CHECKPOINT_PATH_BYTES];
            assert_ok(states_find(dir, &step, path));
            assert_int_equal(step, 1 + from);
            for (size_t to = 0; to < 4; to++) {
                membership = states_membership(&reads, layouts[to][0], layouts[to][1], 0);
                states_load(path, membership, &reads);
                ek_membership_destroy(membership);
            }
        }
        ek_checkpoint_dir_close(dir);
        assert_int_equal(system("rm -r layouts"), 0);
    }
}

/* ------------------------------------------------------------------------------------------- the folder */

static void test_keep(void **state)
{
    (void)state;
    ek_model_config config = states_model(0, 4);
    ek_checkpoint_dir *dir = open_dir("keep", &config);
    uint64_t newest;
    assert_ok(ek_checkpoint_newest(dir, &newest));
    assert_int_equal(newest, 0);
    for (uint64_t step = 10; step <= 50; step += 10)
        save(dir, "keep", step, 2, &config);
    assert_int_equal(access("keep/step-0000000030", F_OK), -1);
    assert_int_equal(access("keep/step-0000000040", F_OK), 0);
    assert_found(dir, 50);
    char latest[64] = "";
    FILE *file = fopen("keep/latest", "r");
    assert_non_null(fgets(latest, sizeof latest, file));
    fclose(file);
    assert_string_equal(latest, "step-0000000050\n");
    /* a run that went on from 20, since 40 and 50 were no use: its own are kept, and nothing of it is counted against
     * them */
    assert_int_equal(system("echo x > keep/step-0000000040/manifest.json; echo x > keep/step-0000000050/manifest.json"),
                     0);
    save(dir, "keep", 25, 2, &config);
    save(dir, "keep", 30, 2, &config);
    save(dir, "keep", 35, 2, &config);
    assert_int_equal(access("keep/step-0000000025", F_OK), -1);
    assert_found(dir, 35);
    save(dir, "keep", 40, 2, &config); /* in the place of the one that was no use */
    assert_found(dir, 40);
    for (uint64_t step = 60; step <= 90; step += 10)
        save(dir, "keep", step, 0, &config); /* all */
    assert_int_equal(access("keep/step-0000000060", F_OK), 0);
    ek_checkpoint_dir_close(dir);
}

static void test_one_run_at_a_time(void **state)
{
    (void)state;
    ek_model_config config = states_model(0, 4);
    ek_checkpoint_dir *dir = open_dir("lock", &config), *other;
    char process[32];
    snprintf(process, sizeof process, "process %d", getpid());
    assert_int_equal(ek_checkpoint_dir_open(&other, "lock", &(ek_checkpoint_run){&config, 7, 8}), EK_INVALID);
    assert_non_null(strstr(ek_error(), process));
    pid_t rank = fork(); /* what lives on of a dead run holds the lock */
    if (rank == 0) {
        pause();
        _exit(0);
    }
    ek_checkpoint_dir_close(dir);
    assert_int_equal(ek_checkpoint_dir_open(&other, "lock", &(ek_checkpoint_run){&config, 7, 8}), EK_INVALID);
    kill(rank, SIGKILL);
    waitpid(rank, NULL, 0);
    ek_checkpoint_dir_close(open_dir("lock", &config));
}

static void test_folders_that_cannot_be(void **state)
{
    (void)state;
    ek_model_config config = states_model(0, 4);
    ek_checkpoint_dir *dir;
    const ek_checkpoint_run run = {&config, 7, 8};
    assert_int_equal(ek_checkpoint_dir_open(&dir, "no/such", &run), EK_IO);
    assert_non_null(strstr(ek_error(), "no/such"));
    assert_int_equal(system("echo > file"), 0);
    assert_int_equal(ek_checkpoint_dir_open(&dir, "file", &run), EK_IO);
    assert_int_equal(ek_checkpoint_dir_open(&dir, "/proc/self", &run), EK_IO);
}

static void test_what_a_dead_run_has_left_is_removed(void **state)
{
    (void)state;
    ek_model_config config = states_model(0, 4);
    ek_checkpoint_dir *dir = open_dir("left", &config);
    save(dir, "left", 10, 2, &config);
    ek_membership *membership = states_membership(&config, 2, 2, 0);
    states_write("left", dir, 20, membership, &config, NULL);
    ek_membership_destroy(membership);
    ek_checkpoint_dir_close(dir);
    assert_int_equal(system("ls -d left/partial-0000000020-*"), 0);
    assert_int_equal(mkdir("left/partial-20", 0777), 0); /* no name of ours */
    dir = open_dir("left", &config);
    assert_int_not_equal(system("ls -d left/partial-0000000020-* 2>/dev/null"), 0);
    assert_int_equal(access("left/partial-20", F_OK), 0);
    assert_found(dir, 10);
    ek_checkpoint_dir_close(dir);
}

/* What others have put into a checkpoint is removed with it, and does not keep those after it from being complete. Of
 * links only the link is: a checkpoint, or what was left of one, may have been moved to another disk. */
static void test_what_others_have_put_there(void **state)
{
    (void)state;
    ek_model_config config = states_model(0, 4);
    ek_checkpoint_dir *dir = open_dir("shared", &config);
    save(dir, "shared", 10, 2, &config);
    save(dir, "shared", 20, 2, &config);
    assert_int_equal(
        system("mkdir -p shared/step-0000000010/scores/deep && echo 1 > shared/step-0000000010/scores/deep/file"
               " && mv shared/step-0000000020 archive && ln -s ../archive shared/step-0000000020"),
        0);
    for (uint64_t step = 30; step <= 60; step += 10)
        save(dir, "shared", step, 2, &config);
    assert_int_equal(system("test \"$(echo shared/step-* shared/partial-*)\" = "
                            "'shared/step-0000000050 shared/step-0000000060 shared/partial-*'"),
                     0);
    ek_checkpoint_dir_close(dir);
    assert_int_equal(system("ln -s ../archive shared/partial-0000000070-00000000000000aa;"
                            "echo > shared/partial-0000000080-00000000000000aa"),
                     0);
    dir = open_dir("shared", &config);
    assert_int_equal(system("test \"$(echo shared/partial-*)\" = 'shared/partial-*'"), 0);
    assert_int_equal(access("archive/model.safetensors", F_OK), 0);
    ek_checkpoint_dir_close(dir);
}

/* The lock of a run that is cut off may be given to another one: what the first then makes is no checkpoint, whatever
 * it writes, and takes nothing from the second. */
static void test_a_run_that_was_replaced_makes_nothing_complete(void **state)
{
    (void)state;
    ek_model_config config = states_model(0, 4);
    ek_membership *membership = states_membership(&config, 2, 2, 0);
    ek_checkpoint_dir *first = open_dir("taken", &config), *second;
    save(first, "taken", 10, 0, &config);
    assert_int_equal(system("mv taken/lock other; cp other taken/lock"), 0); /* a lock that the first does not hold */
    second = open_dir("taken", &config);
    assert_int_not_equal(ek_checkpoint_identity(first), ek_checkpoint_identity(second));
    states_write("taken", second, 20, membership, &config, NULL);
    states_write("taken", first, 20, membership, &config, NULL);
    assert_int_equal(states_complete(first, 20, 0), EK_FENCED);
    assert_non_null(strstr(ek_error(), "another run has taken it over"));
    assert_found(second, 10);
    ek_checkpoint_abandon(first, 20);
    assert_ok(states_complete(second, 20, 0));
    assert_found(second, 20);
    ek_checkpoint_dir_close(first);
    ek_checkpoint_dir_close(second);
    ek_membership_destroy(membership);
}

/* Parts that are missing, or written twice, do not make a checkpoint. */
static void test_parts_must_fit(void **state)
{
    (void)state;
    ek_model_config config = states_model(0, 4);
    ek_checkpoint_dir *dir = open_dir("parts", &config);
    ek_membership *membership = states_membership(&config, 2, 2, 0);
    states_write("parts", dir, 10, membership, &config, NULL);
    assert_int_equal(system("mv parts/partial-*/sums.1 sums"), 0);
    assert_int_equal(states_complete(dir, 10, 2), EK_CORRUPT);
    assert_non_null(strstr(ek_error(), "was not written"));
    assert_int_equal(system("for part in parts/partial-*; do cp sums $part/sums.1; cp sums $part/sums.9; done"), 0);
    assert_int_equal(states_complete(dir, 10, 2), EK_CORRUPT);
    assert_non_null(strstr(ek_error(), "twice"));
    assert_int_equal(system("truncate -s 0 parts/partial-*/sums.9"), 0);
    assert_ok(states_complete(dir, 10, 2));
    assert_found(dir, 10);
    ek_checkpoint_abandon(dir, 20); /* is not there: no harm */
    ek_checkpoint_dir_close(dir);
    ek_membership_destroy(membership);
}

/* --------------------------------------------------------------------------------- damage, and other runs */

static unsigned char *read_whole(const char *path, size_t *count)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    static unsigned char bytes[1 << 20];
    *count = fread(bytes, 1, sizeof bytes, file);
    fclose(file);
    return bytes;
}

static void write_whole(const char *path, const unsigned char *bytes, size_t count)
{
    int file = open(path, O_WRONLY | O_TRUNC);
    assert_true(file >= 0);
    assert_int_equal(write(file, bytes, count), (ssize_t)count);
    close(file);
}

/* The newest checkpoint is damaged: found is the one before it, with a line that names the damaged one; or, if the
 * damage is of no consequence, the newest, and what is loaded is as it was. */
static void look(const ek_checkpoint_dir *dir, const ek_membership *membership, const ek_model_config *config,
                 size_t *passed_over)
{
    uint64_t step;
    char path[EK_CHECKPOINT_PATH_BYTES];
    assert_ok(states_find(dir, &step, path));
    if (step == 10) {
        assert_ptr_equal(strstr(states_refused, "damage/step-0000000020: "), states_refused);
        ++*passed_over;
        return;
    }
    assert_int_equal(step, 20);
    states_load(path, membership, config);
}

static void test_every_kind_of_damage(void **state)
{
    (void)state;
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "manifest.json", "config.json"};
    ek_model_config config = states_model(0, 4);
    config.layers = 1;
    ek_checkpoint_dir *dir = open_dir("damage", &config);
    save(dir, "damage", 10, 2, &config);
    save(dir, "damage", 20, 2, &config);
    ek_membership *membership = states_membership(&config, 1, 1, 0);
    for (size_t i = 0; i < 4; i++) {
        char path[64];
        size_t count, cuts = 0, flips = 0, tried_cuts = 0, tried_flips = 0;
        snprintf(path, sizeof path, "damage/step-0000000020/%s", names[i]);
        unsigned char *bytes = read_whole(path, &count);
        /* at every length of the small ones, of the others at a few hundred */
        for (size_t length = 0; length < count; length += 1 + count / 300, tried_cuts++) {
            assert_int_equal(truncate(path, (off_t)length), 0);
            look(dir, membership, &config, &cuts);
            write_whole(path, bytes, count);
        }
        size_t stride = 1 + 8 * count / 600;
        for (size_t bit = i; bit < 8 * count; bit += stride, tried_flips++) {
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
            write_whole(path, bytes, count);
            look(dir, membership, &config, &flips);
            bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
        write_whole(path, bytes, count);
        assert_int_equal(unlink(path), 0);
        look(dir, membership, &config, &flips);
        assert_int_equal(mkfifo(path, 0666), 0); /* which nobody writes to: it must not be waited for */
        look(dir, membership, &config, &flips);
        assert_int_equal(unlink(path), 0);
        FILE *file = fopen(path, "w");
        fclose(file);
        write_whole(path, bytes, count);
        print_message("%s: %zu of %zu cuts and %zu of %zu flips are passed over\n", names[i], cuts, tried_cuts, flips,
                      tried_flips + 2);
        assert_true(cuts >= tried_cuts - 1); /* without its last newline JSON is whole */
        assert_true(flips > tried_flips / 4);
    }
    assert_found(dir, 20);
    ek_membership_destroy(membership);
    ek_checkpoint_dir_close(dir);
}

/* Every bit of the numbers. */
static void test_every_bit_of_the_weights(void **state)
{
    (void)state;
    ek_model_config config = {.layers = 1,
                              .hidden = 2,
                              .heads = 1,
                              .kv_heads = 1,
                              .ffn = 1,
                              .vocab = 2,
                              .sequence = 2,
                              .rope_theta = 1e4f,
                              .norm_eps = 1e-5f};
    assert_ok(ek_model_config_finish(&config, 1));
    ek_checkpoint_dir *dir = open_dir("bits", &config);
    ek_membership *membership = states_membership(&config, 1, 1, 0);
    states_write("bits", dir, 10, membership, &config, NULL);
    assert_ok(states_complete(dir, 10, 2));
    size_t count, header;
    unsigned char *bytes = read_whole("bits/step-0000000010/model.safetensors", &count);
    header = count - sizeof(float) * (size_t)ek_model_parameters(&config);
    for (size_t bit = 8 * header; bit < 8 * count; bit++) {
        uint64_t step;
        char path[EK_CHECKPOINT_PATH_BYTES];
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        write_whole("bits/step-0000000010/model.safetensors", bytes, count);
        assert_int_equal(states_find(dir, &step, path), EK_INVALID); /* there is none before it */
        assert_non_null(strstr(states_refused, "do not have their checksum"));
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    ek_membership_destroy(membership);
    ek_checkpoint_dir_close(dir);
}

static void assert_refused_for(const ek_checkpoint_run *run, const char *name)
{
    ek_checkpoint_dir *dir;
    uint64_t step;
    char path[EK_CHECKPOINT_PATH_BYTES];
    assert_ok(ek_checkpoint_dir_open(&dir, "others", run));
    assert_int_equal(states_find(dir, &step, path), EK_INVALID);
    assert_non_null(strstr(ek_error(), "others: none of the checkpoints (1) can be used"));
    if (!strstr(states_refused, name))
        fail_msg("\"%s\" does not name %s", states_refused, name);
    ek_checkpoint_dir_close(dir);
}

static void test_other_runs(void **state)
{
    (void)state;
    ek_model_config config = states_model(0, 4), other = config;
    ek_checkpoint_dir *dir = open_dir("others", &config);
    save(dir, "others", 10, 2, &config);
    ek_checkpoint_dir_close(dir);
    assert_refused_for(&(ek_checkpoint_run){&config, 8, 8}, "train.seed");
    assert_refused_for(&(ek_checkpoint_run){&config, 7, 16}, "batch.global");
    other.sequence = 16;
    assert_refused_for(&(ek_checkpoint_run){&other, 7, 8}, "model.sequence");
    other = config;
    other.layers = 2;
    assert_refused_for(&(ek_checkpoint_run){&other, 7, 8}, "num_hidden_layers");
    other = states_model(2, 4);
    assert_refused_for(&(ek_checkpoint_run){&other, 7, 8}, "model_type");
    assert_int_equal(rename("others/step-0000000010", "others/step-0000000011"), 0);
    assert_refused_for(&(ek_checkpoint_run){&config, 7, 8}, "step is 10; its name's is 11");
}

/* ------------------------------------------------------------------------------------ weights of elsewhere */

static uint16_t narrow(float value, bool brain)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (brain)
        return (uint16_t)(bits >> 16);
    /* normal numbers suffice here */
    return (uint16_t)((bits >> 16 & 0x8000) | ((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff));
}

/* A file with the tensors of the model for which number % parts == part. */
static void write_foreign(const char *path, const ek_model_config *config, const char *dtype, uint32_t part,
                          uint32_t parts, json_t *map)
{
    ek_hf_tensor *hf;
    size_t count;
    assert_ok(ek_hf_tensors(config, &hf, &count));
    json_t *header = json_object();
    json_int_t next = 0;
    size_t bytes = strcmp(dtype, "F32") == 0 ? 4 : 2;
    for (size_t i = part; i < count; i += parts) {
        json_int_t rows = (json_int_t)hf[i].rows, columns = (json_int_t)hf[i].columns,
                   size = (rows ? rows : 1) * columns * (json_int_t)bytes;
        json_t *shape = rows ? json_pack("[I,I]", rows, columns) : json_pack("[I]", columns);
        json_object_set_new(
            header, hf[i].name,
            json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype, "shape", shape, "data_offsets", next, next + size));
        json_object_set_new(map, hf[i].name, json_string(strrchr(path, '/') + 1));
        next += size;
    }
    char *text = json_dumps(header, 0);
    uint64_t length = strlen(text);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fwrite(&length, sizeof length, 1, file);
    fwrite(text, 1, length, file);
    for (size_t i = part; i < count; i += parts)
        for (uint64_t element = 0; element < (hf[i].rows ? hf[i].rows : 1) * hf[i].columns; element++) {
            float value = states_number(0, i, element);
            uint16_t half = narrow(value, strcmp(dtype, "BF16") == 0);
            fwrite(bytes == 4 ? (const void *)&value : &half, bytes, 1, file);
        }
    assert_int_equal(fclose(file), 0);
    free(text);
    json_decref(header);
    free(hf);
}

static void progress(void *count)
{
    ++*(size_t *)count;
}

static void load_foreign(const ek_model_config *config, double tolerance)
{
    size_t units = 0;
    ek_membership *membership = states_membership(config, 2, 2, 0);
    assert_ok(ek_checkpoint_check_weights("foreign", config));
    for (uint32_t rank = 0; rank < 4; rank++) {
        states of;
        states_make(&of, membership, rank, config);
        assert_ok(ek_checkpoint_load_weights("foreign", &of.share, of.planes[0], progress, &units));
        states_check(&of, 0, 1, tolerance);
        states_free(&of);
    }
    assert_true(units > 40);
    ek_membership_destroy(membership);
}

static void test_weights_of_other_tools(void **state)
{
    (void)state;
    ek_model_config config = states_model(0, 4);
    assert_int_equal(mkdir("foreign", 0777), 0);
    json_t *json = ek_hf_config(&config), *map = json_object();
    json_dump_file(json, "foreign/config.json", 0);
    json_decref(json);
    static const struct {
        const char *name;
        double tolerance;
    } dtypes[] = {{"F32", 0.0}, {"F16", 1e-3}, {"BF16", 1e-2}};
    for (size_t i = 0; i < 3; i++) {
        write_foreign("foreign/model.safetensors", &config, dtypes[i].name, 0, 1, map);
        load_foreign(&config, dtypes[i].tolerance);
    }
    assert_int_equal(unlink("foreign/model.safetensors"), 0);
    assert_int_equal(ek_checkpoint_check_weights("foreign", &config), EK_IO);
    json_object_clear(map);
    write_foreign("foreign/model-1.safetensors", &config, "F32", 0, 2, map);
    write_foreign("foreign/model-2.safetensors", &config, "BF16", 1, 2, map);
    json_t *index = json_pack("{s:O}", "weight_map", map);
    json_dump_file(index, "foreign/model.safetensors.index.json", 0);
    load_foreign(&config, 1e-2);
    json_object_set_new(map, "model.norm.weight", json_string("../foreign/model-1.safetensors"));
    json_dump_file(index, "foreign/model.safetensors.index.json", 0);
    assert_int_equal(ek_checkpoint_check_weights("foreign", &config), EK_CORRUPT);
    assert_non_null(strstr(ek_error(), "elsewhere"));
    json_object_del(map, "model.norm.weight");
    json_dump_file(index, "foreign/model.safetensors.index.json", 0);
    assert_int_equal(ek_checkpoint_check_weights("foreign", &config), EK_CORRUPT);
    assert_non_null(strstr(ek_error(), "model.norm.weight"));
    json_dump_file(map, "foreign/model.safetensors.index.json", 0);
    assert_int_equal(ek_checkpoint_check_weights("foreign", &config), EK_CORRUPT);
    assert_non_null(strstr(ek_error(), "not an index"));
    json_decref(index);
    json_decref(map);
    config.vocab = 64;
    assert_int_equal(ek_checkpoint_check_weights("foreign", &config), EK_INVALID);
    assert_non_null(strstr(ek_error(), "vocab_size"));
    assert_int_equal(ek_checkpoint_check_weights("none", &config), EK_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_layout_reads_any),
        cmocka_unit_test(test_keep),
        cmocka_unit_test(test_one_run_at_a_time),
        cmocka_unit_test(test_folders_that_cannot_be),
        cmocka_unit_test(test_what_a_dead_run_has_left_is_removed),
        cmocka_unit_test(test_what_others_have_put_there),
        cmocka_unit_test(test_a_run_that_was_replaced_makes_nothing_complete),
        cmocka_unit_test(test_parts_must_fit),
        cmocka_unit_test(test_every_kind_of_damage),
        cmocka_unit_test(test_every_bit_of_the_weights),
        cmocka_unit_test(test_other_runs),
        cmocka_unit_test(test_weights_of_other_tools),
    };
    return cmocka_run_group_tests(tests, states_enter, states_leave);
}
