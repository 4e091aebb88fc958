/* Where hosts are named, and which of them answer. */
#include "launch/hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "testing.h"

/* "a:4 b:3" */
static void assert_hosts(ek_hosts *hosts, const char *expected)
{
    char text[1024] = "";
    int length = 0;
    for (size_t h = 0; h < hosts->count; h++)
        length += snprintf(text + length, sizeof text - (size_t)length, "%s%s:%u", h > 0 ? " " : "",
                           hosts->list[h].name, hosts->list[h].slots);
    assert_string_equal(text, expected);
    ek_hosts_free(hosts);
}

static void test_list(void **state)
{
    (void)state;
    ek_hosts hosts = {0};
    assert_ok(ek_hosts_add_list(&hosts, "--host", "node1:8,10.0.0.7:4,login"));
    assert_ok(ek_hosts_add_list(&hosts, "--host", "node2:2,node1:1"));
    assert_hosts(&hosts, "node1:9 10.0.0.7:4 login:1 node2:2");
    const char *const wrong[] = {"", ",", "a:", "a:0", "a:-1", "a:4x", ":4", "a:4,", "a:65537"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char expected[200];
        snprintf(expected, sizeof expected,
                 "--host %s: HOST:SLOTS,… is needed, as in node1:8,node2:8; 1 to 65536 slots", wrong[i]);
        assert_int_equal(ek_hosts_add_list(&hosts, "--host", wrong[i]), EK_INVALID);
        assert_string_equal(ek_error(), expected);
    }
    ek_hosts_free(&hosts);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static void test_file(void **state)
{
    (void)state;
    char path[] = "/tmp/evenkeel-hosts-XXXXXX", expected[200];
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    ek_hosts hosts = {0};
    write_file(path, "# racks\nnode1 slots=8\n\n  node2\tslots=4 max_slots=8 # half\nnode1 slots=1");
    assert_ok(ek_hosts_add_file(&hosts, path));
    assert_hosts(&hosts, "node1:9 node2:4");

    write_file(path, "node1 slots=8\nnode2\n");
    assert_int_equal(ek_hosts_add_file(&hosts, path), EK_INVALID);
    snprintf(expected, sizeof expected, "%s:2: node2 has no slots=N", path);
    assert_string_equal(ek_error(), expected);

    write_file(path, "node1 slots=8 fast\n");
    assert_int_equal(ek_hosts_add_file(&hosts, path), EK_INVALID);
    snprintf(expected, sizeof expected, "%s:1: found \"fast\"; HOST slots=N is needed, 1 to 65536", path);
    assert_string_equal(ek_error(), expected);
    unlink(path);
    assert_int_equal(ek_hosts_add_file(&hosts, path), EK_INVALID);
    ek_hosts_free(&hosts);
}

static void test_slurm(void **state)
{
    (void)state;
    ek_hosts hosts = {0};
    assert_ok(ek_hosts_add_slurm(&hosts, "node[1-3],login", "4(x2),3,1"));
    assert_hosts(&hosts, "node1:4 node2:4 node3:3 login:1");
    assert_ok(ek_hosts_add_slurm(&hosts, "node7", "8"));
    assert_hosts(&hosts, "node7:8");
    const char *const wrong[] = {"", "4", "4(x1),3x", "4(x", "4(x2", "4(x0),4"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(ek_hosts_add_slurm(&hosts, "node[1-3]", wrong[i]), EK_INVALID);
        ek_hosts_free(&hosts);
    }
    assert_int_equal(ek_hosts_add_slurm(&hosts, "node[1-", "4"), EK_INVALID);
    ek_hosts_free(&hosts);
}

/* This machine answers unasked, whatever the agent; one that says nothing is given up. */
static void test_probe(void **state)
{
    (void)state;
    ek_hosts hosts = {0};
    struct timespec begun, ended;
    assert_ok(ek_hosts_add_list(&hosts, "--host", "localhost,203.0.113.1,203.0.113.2,203.0.113.3"));
    assert_true(ek_host_is_here("localhost"));
    assert_false(ek_host_is_here("203.0.113.1"));
    clock_gettime(CLOCK_MONOTONIC, &begun);
    assert_ok(ek_hosts_probe(&hosts, 0, hosts.count, "sh -c 'case $0 in *.1) $1;; *.2) sleep 100;; *) exit 255;; esac'",
                             0.5));
    clock_gettime(CLOCK_MONOTONIC, &ended);
    assert_true(hosts.list[0].answers);
    assert_true(hosts.list[1].answers);
    assert_false(hosts.list[2].answers);
    assert_false(hosts.list[3].answers);
    assert_in_range(ended.tv_sec - begun.tv_sec, 0, 5);
    ek_hosts_free(&hosts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_list),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_slurm),
        cmocka_unit_test(test_probe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
