/* `evenkeel plan` from outside: refusals with their lines, files that are whole or not there, round trips, its
 * documentation, and what it costs. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "files.h"
#include "folder.h"
#include "plan/input.h"

static char folder[FOLDER_BYTES];

/* A cluster of 4 domains of 8, in two nodes each, and a job that takes it all. */
static const char cluster_text[] = "cluster:\n" /* line 1 */
                                   "  domains: 4\n"
                                   "  node_gpus: 4\n"
                                   "  failed: [1.2]\n"
                                   "device: {flops_per_second: 1e15, matmul_efficiency: 0.7, multiprocessors: 100,\n"
                                   "  memory_bytes: 80e9, memory_bytes_per_second: 3e12, memory_efficiency: 0.8,\n"
                                   "  tdp_watts: 700}\n"
                                   "network:\n"
                                   "  domain_slots: 8\n" /* line 9 */
                                   "  scale_up_bytes_per_second: 450e9\n"
                                   "  scale_up_efficiency: 0.75\n"
                                   "  scale_out_bytes_per_second: 50e9\n"
                                   "  scale_out_efficiency: 0.85\n";
static const char job_text[] = "model: {layers: 8, hidden: 1024, heads: 16, ffn: 4096, vocab: 32768, sequence: 1024}\n"
                               "parallel:\n" /* line 2 */
                               "  dp: 2\n"
                               "  tp: 8\n"
                               "  pp: 2\n"
                               "batch: {global: 32, policy: rebalance}\n"
                               "power: {}\n";

static int create_folder(void **state)
{
    (void)state;
    char path[PATH_BYTES];
    folder_create(folder);
    folder_write(folder, "cluster.yaml", cluster_text, strlen(cluster_text), path);
    folder_write(folder, "job.yaml", job_text, strlen(job_text), path);
    return chdir(folder);
}

static int remove_folder(void **state)
{
    (void)state;
    folder_remove(folder);
    return 0;
}

/* Runs evenkeel plan on the two files with more arguments; returns its exit status. Output and errors are in the files
 * out and err. */
static int plan(const char *arguments)
{
    char line[4096];
    snprintf(line, sizeof line, "%s plan --cluster cluster.yaml --job job.yaml %s >out 2>err", COMMAND, arguments);
    int status = system(line);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void assert_contains(const char *path, const char *text)
{
    char *content = read_file(path);
    if (!strstr(content, text))
        fail_msg("\"%s\" is not in: %s", text, content);
    free(content);
}

static void assert_same_files(const char *a, const char *b)
{
    char *left = read_file(a), *right = read_file(b);
    assert_string_equal(left, right);
    free(left);
    free(right);
}

/* ---------------------------------------------------------------------------------------------- refusals */

#define MIXTURE "--set parallel.mode=ep --set model.experts=24 --set model.top_k=2 --set model.expert_ffn=512"

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *arguments, *error;
    } refused[] = {
        {"--set parallel.dp=3", "--set parallel.dp=3: parallel.dp: 3 replicas of 2 stages of TP8 need 6 TP groups, 48 "
                                "GPUs; the cluster has room for 4 groups: 16 GPUs too few; at most 2 replicas fit"},
        {"--set cluster.domains=3", "job.yaml:3: parallel.dp: 2 replicas of 2 stages of TP8 need 4 TP groups, 32 GPUs; "
                                    "the cluster has room for 3 groups: 8 GPUs too few; at most 1 replica fit"},
        {"--set cluster.domain_slots=4 --set cluster.failed=[]",
         "job.yaml:4: parallel.tp: found 8; the largest domain has 4 slots: at most that is allowed"},
        {"--set cluster.failed=[1.8]", "--set cluster.failed=[1.8]: cluster.failed: found \"1.8\"; a domain (0 to 3), "
                                       "DOMAIN.SLOT as in 0.0, or a node of the cluster is needed"},
        {"--set cluster.node_gpus=3",
         "--set cluster.node_gpus=3: cluster.node_gpus: found 3; it must divide cluster.domain_slots, 8"},
        {"--set cluster.inventory=x.csv",
         "--set cluster.inventory=x.csv: cluster.inventory: stands beside cluster.domains; one source of the inventory "
         "is needed"},
        {"--set cluster.topology=x", "cluster.yaml: cluster.scontrol: is missing; it is needed with cluster.topology"},
        {"--set cluster.domain=3", "--set cluster.domain=3: unknown key \"cluster.domain\"; did you mean domains?"},
        {"--set color.red=1", "--set color.red=1: unknown section \"color\"; the sections are cluster, device and "
                              "network, and model, parallel, batch and power"},
        {"--set power.cap_watts=500",
         "--set power.cap_watts=500: power.cap_watts: found 500; 700, the default limit, to 910, where power.curve "
         "ends, is allowed"},
        {"--set 'power.curve=[[1, 1]]'", "--set power.curve=[[1, 1]]: power.curve: found 1 points; 2 to 32 are needed"},
        {"--set device.memory_bytes=1e6",
         "--set device.memory_bytes=1e6: device.memory_bytes: found 1e+06; the fullest "
         "rank needs "},
        {"--set model.layers=9", "--set model.layers=9: model.layers: "},
        {"--set 'cluster.drained=[0, 1, 2]'",
         "no replica can run: it needs 2 TP groups of 1 to 8 live GPUs, and the cluster has 1"},
        {"--drain 0,7", "--drain: found \"7\"; a domain, DOMAIN.SLOT or a node of the cluster is needed, with commas "
                        "between them"},
        {"--from missing.json",
         "missing.json: cannot be opened: No such file or directory; the output of evenkeel plan "
         "--format json is needed"},
        {"--from .", ".: is a folder, not a file; the output of evenkeel plan --format json is needed"},
        {"--from job.yaml", "job.yaml:1: not JSON: "},
        {"--set parallel.pp=1 --set parallel.dp=5",
         "--set parallel.dp=5: parallel.dp: 5 replicas of 1 stage of TP8 need 5 TP groups, 40 GPUs; the cluster has "
         "room for 4 groups: 8 GPUs too few; at most 4 replicas fit"},
        {"--set parallel.mode=ep",
         "--set parallel.mode=ep: parallel.mode: found ep; a model with experts (model.experts) is needed"},
        {"--set parallel.mode=ep --set model.experts=7",
         "--set model.experts=7: model.experts: 7 units of experts cannot be cut 8 ways (parallel.tp); at least one "
         "per role is needed"},
        {"--set parallel.mode=xp", "--set parallel.mode=xp: parallel.mode: found \"xp\"; tp or ep is needed"},
        {MIXTURE " --format megatron", "--set model.experts=24: model.experts: Megatron's nonuniform TP has no mapping "
                                       "for experts, and replicas are reduced to EP7: only a "
                                       "dense model, or a plan without reduced replicas, can be written for it"},
        {MIXTURE " --set cluster.failed=[] --format megatron",
         "--set parallel.mode=ep: parallel.mode: found ep; tp is needed: what is written for Megatron are the groups "
         "of tensor parallelism"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char expected[700];
        assert_int_equal(plan(refused[i].arguments), 2);
        snprintf(expected, sizeof expected, "evenkeel: %s", refused[i].error);
        char *errors = read_file("err"), *output = read_file("out");
        if (strncmp(errors, expected, strlen(expected)) != 0)
            fail_msg("%s: %s\ninstead of %s", refused[i].arguments, errors, expected);
        assert_string_equal(strchr(errors, '\n'), "\n"); /* one line */
        assert_string_equal(output, "");
        free(errors);
        free(output);
    }
}

static void test_refused_inventory(void **state)
{
    (void)state;
    static const char csv[] = "domain,node,gpu,state\na,n,0,live\na,n,0,live\n";
    char path[PATH_BYTES], *text = NULL;
    folder_write(folder, "twice.csv", csv, strlen(csv), path);
    assert_true(asprintf(&text, "cluster: {inventory: twice.csv}\n%s", strstr(cluster_text, "device:")) > 0);
    folder_write(folder, "csv.yaml", text, strlen(text), path);
    free(text);
    assert_int_equal(plan("--cluster csv.yaml"), 2);
    assert_contains("err",
                    "evenkeel: twice.csv:3: GPU 0 of node n is listed twice (first on line 2); remove one of the "
                    "two\n");
}

/* ------------------------------------------------------------------------------------------------- output */

static void test_table(void **state)
{
    (void)state;
    assert_int_equal(plan(""), 0);
    assert_contains("out", "cluster     4 domains, 32 GPUs: 31 live, 1 failed, 0 drained\n");
    assert_contains("out", "replicas    1 whole, 1 reduced (TP7 at least), 0 missing for want of domains\n");
    assert_contains("out", "d1-n0:2 failed\n");
    assert_int_equal(system(COMMAND " plan --cluster " LARGE_CLUSTER " --job " LARGE_JOB " >out"), 0);
    assert_contains("out", "replicas    126 whole, 1 reduced (TP31 at least), 1 missing for want of domains\n");
    assert_int_equal(plan("--set cluster.failed=[0.1,1.2,1.3,2.7,3.0,3.1,3.2,3.3,3.4] --drain 0.2"), 0);
    char *output = read_file("out");
    for (const char *line = output; *line; line = strchr(line, '\n') + 1)
        assert_in_range(strcspn(line, "\n"), 0, 100);
    free(output);
}

/* The same domains with experts over their ranks; replicas that are alike stand in one line, with their numbers. */
static void test_expert_table(void **state)
{
    (void)state;
    assert_int_equal(plan(MIXTURE " --set batch.global=96"), 0);
    assert_contains("out", "job         2 replicas of 2 stages of EP8; 96 samples a step, policy rebalance\n");
    assert_contains("out", "replicas    1 whole, 1 reduced (EP7 at least), 0 missing for want of domains\n");
    assert_contains("out", "  experts 3-4\n");
    /* two of 24 experts, three on each of eight ranks: another rank has one of them for 1 - 21 x 20 / (24 x 23) */
    assert_contains("out", "    8        1.913        1.674      13.8 kB      1.000\n");
    assert_int_equal(plan(MIXTURE " --set batch.global=96 --format json -o experts.json"), 0);
    assert_int_equal(plan(MIXTURE " --set batch.global=96 --from experts.json"), 0);
    assert_contains("out", "change      0 EP groups move, in 0 domains; 0 B to fetch");
    assert_int_equal(plan("--from experts.json"), 2);
    assert_contains("err", "a plan of EP8 and 2 stages cannot become one of TP8 and 2 stages; plan without --from");
}

/* Two replicas of nine samples in twenty: which they are, in one line. */
static void test_kinds_of_replicas(void **state)
{
    (void)state;
    assert_int_equal(plan("--set parallel.tp=1 --set parallel.pp=1 --set parallel.dp=20 --set batch.global=162"), 0);
    char *output = read_file("out");
    const char *lines = strstr(output, "  which\n");
    assert_non_null(lines);
    uint32_t count, samples, sum = 0, all = 0, kinds = 0;
    for (lines = strchr(lines, '\n'); sscanf(lines, "%u %u", &count, &samples) == 2; kinds++) {
        sum += count * samples;
        all += count;
        lines = strchr(lines + 1, '\n');
    }
    assert_int_equal(kinds, 2);
    assert_int_equal(all, 20);
    assert_int_equal(sum, 162);
    free(output);
}

/* A plan is replanned from itself to the same placement, and from its JSON and an inventory with a failure more. */
static void test_round_trip(void **state)
{
    (void)state;
    assert_int_equal(plan("--format json -o plan.json"), 0);
    assert_contains("out", "");
    assert_int_equal(plan("--from plan.json"), 0);
    assert_contains("out", "change      0 TP groups move, in 0 domains; 0 B to fetch");
    assert_contains("out", "moving      nothing moves\n");
    assert_int_equal(plan("--from plan.json --format json -o again.json"), 0);
    assert_int_equal(plan("--from again.json --format json -o last.json"), 0);
    assert_same_files("again.json", "last.json");
    assert_int_equal(plan("--from plan.json --set 'cluster.failed=[1.2, 2.0]'"), 0);
    assert_contains("out", "in place (");
    assert_int_equal(plan("--from plan.json --set parallel.tp=4"), 2);
    assert_contains("err", "plan.json: job: a plan of TP8 and 2 stages cannot become one of TP4 and 2 stages");
}

static void test_output_files(void **state)
{
    (void)state;
    assert_int_equal(plan(""), 0);
    assert_int_equal(rename("out", "expected"), 0);
    assert_int_equal(plan("-o table.txt"), 0);
    assert_same_files("expected", "table.txt");
    assert_int_equal(plan("--output=/dev/stdout"), 0);
    assert_same_files("expected", "out");
    assert_int_equal(symlink("elsewhere", "link"), 0); /* a link is followed, not replaced */
    assert_int_equal(plan("-o link"), 0);
    assert_same_files("expected", "elsewhere");
    assert_int_equal(plan("-o missing/table.txt"), 1);
    assert_contains("err",
                    "evenkeel: missing/table.txt: cannot be written (No such file or directory); name a file that "
                    "can be written\n");
    assert_int_equal(plan("-o /dev/full"), 1);
    assert_contains("err", "evenkeel: /dev/full: cannot be written (No space left on device)");
    assert_int_equal(plan("-o table.txt --set parallel.dp=3"), 2); /* what was there stays */
    assert_same_files("expected", "table.txt");
    assert_int_equal(system("ls | grep -q part"), 1 << 8); /* and nothing half-written is left */
}

/* -------------------------------------------------------------------------------------------- documentation */

/* docs/planner.md has a row for every key of the planner's own. */
static void test_documented(void **state)
{
    (void)state;
    char *page = read_file(PLANNER_PAGE);
    size_t count, rows = 0;
    const ek_field *fields = ek_plan_fields(&count);
    assert_documented(PLANNER_PAGE, fields, count);
    for (const char *row = page; (row = strstr(row, "\n| `")); row++)
        rows += strncmp(row + 4, "cluster.", 8) == 0 || strncmp(row + 4, "batch.", 6) == 0 ||
                strncmp(row + 4, "power.", 6) == 0;
    assert_int_equal(rows, count);
    free(page);
}

/* Every key in the value is on the page; below `units` the keys are names of unit groups. */
static void assert_keys(const char *page, json_t *value)
{
    const char *key;
    json_t *member;
    size_t index;
    json_array_foreach(value, index, member) assert_keys(page, member);
    json_object_foreach(value, key, member)
    {
        char wanted[100];
        snprintf(wanted, sizeof wanted, "`%s`", key);
        if (!strstr(page, wanted))
            fail_msg("docs/planner.md lacks the key %s of the JSON", wanted);
        if (strcmp(key, "units") != 0)
            assert_keys(page, member);
    }
}

static void test_json_documented(void **state)
{
    (void)state;
    char *page = read_file(PLANNER_PAGE);
    assert_int_equal(plan("--format json --drain 0.1,2 -o keys.json"), 0);
    json_t *json = json_load_file("keys.json", 0, NULL);
    assert_non_null(json_object_get(json, "change"));
    assert_int_equal(json_array_size(json_object_get(json, "not_live")), 10);
    assert_keys(page, json);
    json_decref(json);
    assert_int_equal(plan(MIXTURE " --format json -o keys.json"), 0);
    json = json_load_file("keys.json", 0, NULL);
    assert_keys(page, json);
    json_decref(json);
    free(page);
}

/* ---------------------------------------------------------------------------------------------------- cost */

/* CPU time of the whole command in seconds and its memory in bytes. */
static void measure(const char *const *arguments, double *seconds, double *bytes)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!freopen("/dev/null", "w", stdout))
            _exit(126);
        execv(COMMAND, (char *const *)arguments);
        _exit(127);
    }
    int status;
    struct rusage used;
    assert_int_equal(wait4(child, &status, 0, &used), child);
    assert_int_equal(status, 0);
    *seconds = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
               1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
    *bytes = 1024.0 * (double)used.ru_maxrss;
}

#define SECONDS_MOST 0.050
#define BYTES_MOST 100e6

/* 32,768 GPUs, 100 failures: the best of a few runs, as the machine may be busy. */
static void test_cost(void **state)
{
    (void)state;
#ifdef EK_SANITIZE
    skip(); /* a sanitizer is slow and large by itself */
#endif
    char failed[2000] = "--set=cluster.failed=[";
    for (uint32_t i = 0; i < 100; i++)
        sprintf(failed + strlen(failed), "%s%u.%u", i > 0 ? "," : "",
                (unsigned)ek_random_permute(1, i, 1024), /* no domain twice */
                (unsigned)(ek_random_u64(2, i, 0) % 32));
    strcat(failed, "]");
    static const char *const formats[] = {"--format=table", "--format=json"};
    for (size_t format = 0; format < 2; format++) {
        const char *const arguments[] = {
            COMMAND,         "plan", "--cluster=" LARGE_CLUSTER, "--job=" LARGE_JOB, failed, "--set=cluster.drained=[]",
            formats[format], NULL};
        double best_seconds = 1e9, seconds, bytes = 0;
        for (int i = 0; i < 20 && (i < 5 || best_seconds >= SECONDS_MOST); i++) {
            measure(arguments, &seconds, &bytes);
            best_seconds = seconds < best_seconds ? seconds : best_seconds;
        }
        print_message("%s: %.1f ms, %.1f MB\n", formats[format], 1e3 * best_seconds, 1e-6 * bytes);
        assert_true(best_seconds < SECONDS_MOST);
        assert_true(bytes < BYTES_MOST);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_refused_inventory),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_expert_table),
        cmocka_unit_test(test_kinds_of_replicas),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_output_files),
        cmocka_unit_test(test_documented),
        cmocka_unit_test(test_json_documented),
        cmocka_unit_test(test_cost),
    };
    return cmocka_run_group_tests(tests, create_folder, remove_folder);
}
