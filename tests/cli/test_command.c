/* The built command from outside: help, version, and refused command lines: exit status 2, one line on standard error,
 * nothing on standard output. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "command.h"
#include "files.h"

static void test_version(void **state)
{
    (void)state;
    outcome got = RUN("version");
    char expected[100];
    snprintf(expected, sizeof expected, "evenkeel %s\nengines: shm%s\n", ek_version(),
             ek_engines()[1] ? " mpi" : ""); /* where an MPI was found */
    assert_string_equal(got.output, expected);
    assert_string_equal(got.errors, "");
    assert_int_equal(got.status, 0);
}

/* Every command and the number of its options, in the order of `evenkeel --help`. */
#define COMMANDS "train, launch, plan, sim, bench, report, power, version"
static const struct {
    const char *name;
    unsigned options;
} commands[] = {{"train", 13}, {"launch", 6}, {"plan", 8},  {"sim", 7},
                {"bench", 2},  {"report", 3}, {"power", 4}, {"version", 1}};

/* Every option that `evenkeel COMMAND --help` lists is in docs/command-line.md, and the command itself. */
static void assert_command_documented(const char *command, unsigned options)
{
    outcome got = RUN(command, "--help");
    assert_int_equal(got.status, 0);
    assert_string_equal(got.errors, "");
    char *page = read_file(COMMAND_LINE_PAGE), wanted[100];
    snprintf(wanted, sizeof wanted, "\n## `evenkeel %s`\n", command);
    assert_non_null(strstr(page, wanted));
    unsigned found = 0;
    for (const char *option = got.output; (option = strstr(option, " --")); option++) {
        if (option[3] == ' ') /* what stands between the options of launch and those of its job */
            continue;
        found++;
        snprintf(wanted, sizeof wanted, "`%.*s", (int)strcspn(option + 1, "= \n"), option + 1);
        if (!strstr(page, wanted))
            fail_msg("docs/command-line.md lacks %s of evenkeel %s", wanted, command);
    }
    assert_int_equal(found, options);
    free(page);
}

static void test_help(void **state)
{
    (void)state;
    outcome got = RUN("--help");
    assert_int_equal(got.status, 0);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char line[100];
        snprintf(line, sizeof line, "\n  %s ", commands[i].name);
        assert_non_null(strstr(got.output, line));
        assert_command_documented(commands[i].name, commands[i].options);
    }
    got = RUN("train", "--help", "--nonsense"); /* whatever stands behind it */
    assert_int_equal(got.status, 0);
}

#define CONFIG "--config", TINY_CONFIG /* 60 steps, 2 replicas of 4 */
#define FAULT_FORM                                                                                                     \
    "STEP:REPLICA.SLOT[@PHASE] is needed, as in 20:1.2@backward; PHASE is forward, backward, sync, commit, optimizer " \
    "or recovery"
#define PLACE_FORM "STEP:REPLICA.SLOT is needed, as in 40:1.2"
#define SLOW_FORM "STEP:REPLICA.SLOT@FACTOR is needed, as in 20:1.2@1.5; FACTOR is up to 1000"
#define NOT_LOST "--rejoin: slot 2 of replica 1 is not lost before step 40; --kill or --hang it in an earlier step"
#define LINK_FORM "GBps:MICROSECONDS is needed, as in 12.5:3; 1e-6 to 1e6 and 0 to 1e7 are allowed"

#define ROUTES_FORM "record:FILE, replay:FILE or compare:FILE is needed"
#define RUN_NEEDED "RUN.jsonl is needed, what evenkeel train --metrics wrote; see evenkeel report --help"
#define POWER_FORM "show or restore is needed, as in evenkeel power show; see evenkeel power --help"

static const struct {
    const char *arguments[9];
    const char *error; /* behind "evenkeel: " */
} refusals[] = {
    {{NULL}, "a command is needed; the commands are " COMMANDS "; see evenkeel --help"},
    {{"fly"}, "unknown command \"fly\"; the commands are " COMMANDS "; see evenkeel --help"},
    {{"--fly"}, "unknown option \"--fly\"; the commands are " COMMANDS "; see evenkeel --help"},
    {{""}, "unknown command \"\"; the commands are " COMMANDS "; see evenkeel --help"},
    {{"version", "now"}, "unexpected argument \"now\"; see evenkeel version --help"},
    {{"version", "--quiet"}, "unknown option \"--quiet\"; see evenkeel version --help"},
    {{"train"}, "--config FILE is needed; see evenkeel train --help"},
    {{"train", "--fly"}, "unknown option \"--fly\"; see evenkeel train --help"},
    {{"train", "--fly=3", "--quiet"}, "unknown option \"--fly=3\"; see evenkeel train --help"},
    {{"train", "--quiet", "-x"}, "unknown option \"-x\"; see evenkeel train --help"},
    {{"train", "--quiet", "-xy"}, "unknown option \"-xy\"; see evenkeel train --help"},
    {{"train", "--", "-x"}, "unexpected argument \"-x\"; see evenkeel train --help"},
    {{"train", "--quiet", "--config"}, "--config needs a value: --config=FILE"},
    {{"train", "--quiet=3"}, "--quiet takes no value; see evenkeel train --help"},
    {{"train", CONFIG, "60"}, "unexpected argument \"60\"; see evenkeel train --help"},
    {{"train", "--config", "missing.yaml"},
     "missing.yaml: cannot be opened (No such file or directory); a YAML file is needed"},
    {{"train", CONFIG, "--set", "parallel.tp=four"},
     "--set parallel.tp=four: parallel.tp: found \"four\"; a whole number from 1 to 1024 is needed"},
    {{"train", CONFIG, "--kill", ""}, "--kill : " FAULT_FORM},
    {{"train", CONFIG, "--kill", "nonsense"}, "--kill nonsense: " FAULT_FORM},
    {{"train", CONFIG, "--kill", "20"}, "--kill 20: " FAULT_FORM},
    {{"train", CONFIG, "--kill", "20:1"}, "--kill 20:1: " FAULT_FORM},
    {{"train", CONFIG, "--kill", "20:1."}, "--kill 20:1.: " FAULT_FORM},
    {{"train", CONFIG, "--kill", "20:1.2@"}, "--kill 20:1.2@: " FAULT_FORM},
    {{"train", CONFIG, "--kill", "20:1.2@sleep"}, "--kill 20:1.2@sleep: " FAULT_FORM},
    {{"train", CONFIG, "--kill", "20:1.2 "}, "--kill 20:1.2 : " FAULT_FORM},
    {{"train", CONFIG, "--kill", "-1:1.2"}, "--kill -1:1.2: " FAULT_FORM},
    {{"train", CONFIG, "--kill", "20: 1.2"}, "--kill 20: 1.2: " FAULT_FORM},
    {{"train", CONFIG, "--kill", "99999999999999999999:1.2"}, "--kill 99999999999999999999:1.2: " FAULT_FORM},
    {{"train", CONFIG, "--kill", "20:4294967296.2"}, "--kill 20:4294967296.2: " FAULT_FORM},
    {{"train", CONFIG, "--hang", "20:1.2.3"}, "--hang 20:1.2.3: " FAULT_FORM},
    {{"train", CONFIG, "--kill", "0:1.2"}, "--kill: there is no step 0; 1 to 60 is allowed (train.steps)"},
    {{"train", CONFIG, "--kill", "61:1.2"}, "--kill: there is no step 61; 1 to 60 is allowed (train.steps)"},
    {{"train", CONFIG, "--hang", "20:2.0"}, "--hang: there is no replica 2; 0 to 1 is allowed (parallel.dp)"},
    {{"train", CONFIG, "--hang", "20:1.4"}, "--hang: there is no slot 4 in a replica; 0 to 3 is allowed (parallel.tp)"},
    {{"train", CONFIG, "--set=parallel.degrees=[4,3]", "--kill=20:1.3"},
     "--kill: slot 3 of replica 1 does not start; 0 to 2 do (parallel.degrees)"},
    {{"train", CONFIG, "--rejoin", "40"}, "--rejoin 40: " PLACE_FORM},
    {{"train", CONFIG, "--rejoin", "40:1"}, "--rejoin 40:1: " PLACE_FORM},
    {{"train", CONFIG, "--rejoin", "40:1.2@sync"}, "--rejoin 40:1.2@sync: " PLACE_FORM},
    {{"train", CONFIG, "--rejoin", "61:1.2"}, "--rejoin: there is no step 61; 1 to 60 is allowed (train.steps)"},
    {{"train", CONFIG, "--rejoin", "40:1.2"}, NOT_LOST},
    {{"train", CONFIG, "--kill=20:1.1", "--rejoin=40:1.2"}, NOT_LOST},
    {{"train", CONFIG, "--hang=40:1.2", "--rejoin=40:1.2"}, NOT_LOST},
    {{"train", CONFIG, "--flip", ""}, "--flip : " PLACE_FORM},
    {{"train", CONFIG, "--flip", "20:1.2 "}, "--flip 20:1.2 : " PLACE_FORM},
    {{"train", CONFIG, "--flip", "20:2.0"}, "--flip: there is no replica 2; 0 to 1 is allowed (parallel.dp)"},
    {{"train", CONFIG, "--slow", "20:1.2"}, "--slow 20:1.2: " SLOW_FORM},
    {{"train", CONFIG, "--slow", "20:1.2@"}, "--slow 20:1.2@: " SLOW_FORM},
    {{"train", CONFIG, "--slow", "20:1.2@0"}, "--slow 20:1.2@0: " SLOW_FORM},
    {{"train", CONFIG, "--slow", "20:1.2@1001"}, "--slow 20:1.2@1001: " SLOW_FORM},
    {{"train", CONFIG, "--slow", "20:1.2@2x"}, "--slow 20:1.2@2x: " SLOW_FORM},
    {{"train", CONFIG, "--slow", "20:1.4@2"},
     "--slow: there is no slot 4 in a replica; 0 to 3 is allowed (parallel.tp)"},
    {{"train", CONFIG, SET_DATA, "--set=power.curve=[[1, 1], [1.3, 1]]"},
     "power.curve: found [1.3, 1] after [1, 1]; power and speed must both increase"},
    {{"train", CONFIG, SET_DATA, "--set=power.cap_watts=920"},
     "power.cap_watts: found 920; 700, the default limit, to 910, where power.curve ends, is allowed"},
    {{"train", CONFIG, SET_DATA, "--set=power.domain_watts=2799"},
     "power.domain_watts: found 2799; at least 2800, 4 devices at their default limit, is needed"},
    {{"report"}, RUN_NEEDED},
    {{"report", "-o", "run.html"}, RUN_NEEDED},
    {{"report", "run.jsonl"}, "--output FILE is needed, as in -o run.html; see evenkeel report --help"},
    {{"report", "run.jsonl", "-o"}, "--output needs a value: --output=FILE"},
    {{"report", "run.jsonl", "--output"}, "--output needs a value: --output=FILE"},
    {{"report", "run.jsonl", "other.jsonl"}, "unexpected argument \"other.jsonl\"; a report is about one run"},
    {{"report", "-x", "run.jsonl"}, "unknown option \"-x\"; see evenkeel report --help"},
    {{"report", "run.jsonl", "--fly"}, "unknown option \"--fly\"; see evenkeel report --help"},
    {{"report", TINY_CONFIG, "-o" TINY_CONFIG},
     "--output " TINY_CONFIG ": that is " TINY_CONFIG ", which is used too; name another file"},
    {{"report", "missing.jsonl", "-o", "run.html"},
     "missing.jsonl: cannot be opened: No such file or directory; a file that evenkeel train --metrics wrote is "
     "needed"},
    {{"report", "-orun.html", TINY_CONFIG},
     TINY_CONFIG
     ":1: no JSON object ('[' or '{' expected near '#'); a file that evenkeel train --metrics wrote is needed"},
    {{"launch"}, "-- train ARGUMENT... is needed, the job; see evenkeel launch --help"},
    {{"launch", "--"}, "-- train ARGUMENT... is needed, the job; see evenkeel launch --help"},
    {{"launch", "--", "plan"}, "-- train ARGUMENT... is needed, the job; see evenkeel launch --help"},
    {{"launch", "train"}, "unexpected argument \"train\"; the job stands behind --"},
    {{"launch", "--host=a:0", "--", "train"},
     "--host a:0: HOST:SLOTS,… is needed, as in node1:8,node2:8; 1 to 65536 slots"},
    {{"launch", "--hostfile=missing", "--", "train"},
     "--hostfile missing: cannot be opened: No such file or directory"},
    {{"launch", "--max-restarts=-1", "--", "train"}, "--max-restarts: found \"-1\"; 0 to 1000000 is allowed"},
    {{"launch", "--", "train"}, "--config FILE is needed; see evenkeel train --help"},
    {{"launch", "--", "train", "--fly"}, "unknown option \"--fly\"; see evenkeel train --help"},
    {{"launch", "--", "train", CONFIG},
     "checkpoint.dir is needed, the folder of checkpoints that a restart goes on from"},
    {{"launch", "--", "train", CONFIG, "--set=checkpoint.dir=x", "--set=parallel.degrees=[4, 3]"},
     "parallel.degrees: evenkeel launch sets them, by the slots of each host"},
    {{"launch", "--host=localhost:2", "--", "train", CONFIG, "--set=checkpoint.dir=x", "--set=parallel.min_tp=3"},
     "no host has 3 slots, what the smallest replica needs (parallel.min_tp)"},
    {{"plan"}, "--cluster FILE is needed; see evenkeel plan --help"},
    {{"plan", "--cluster=c.yaml"}, "--job FILE is needed; see evenkeel plan --help"},
    {{"plan", "--format=xml"}, "--format: found \"xml\"; table, json, megatron or slurm is needed"},
    {{"plan", "--cluster", "missing.yaml", "--job", "missing.yaml"},
     "missing.yaml: cannot be opened (No such file or directory); a YAML file is needed"},
    {{"power"}, POWER_FORM},
    {{"power", "--state=x"}, POWER_FORM},
    {{"power", "raise"}, POWER_FORM},
    {{"power", "show", "restore"}, "unexpected argument \"restore\"; see evenkeel power --help"},
    {{"power", "show", "--state=x"}, "--state is for evenkeel power restore"},
    {{"power", "restore", "--path", "/x"}, "--backend and --path are for evenkeel power show"},
    {{"power", "show", "--backend=steam"}, "unknown power backend \"steam\"; nvml, powercap and emulated are there"},
    {{"power", "show", "--backend=emulated"},
     "--backend emulated: --path is needed too: the file that a job's power.path names"},
    {{"train", CONFIG, "--routes", ""}, "--routes : " ROUTES_FORM},
    {{"train", CONFIG, "--routes", "replay"}, "--routes replay: " ROUTES_FORM},
    {{"train", CONFIG, "--routes", "record:"}, "--routes record:: " ROUTES_FORM},
    {{"train", CONFIG, "--routes", "follow:x"}, "--routes follow:x: " ROUTES_FORM},
    {{"train", CONFIG, SET_DATA, "--routes", "record:/dev/null"}, "--routes: the model has no experts (model.experts)"},
    {{"train", CONFIG, "--emulate-link", "fast"}, "--emulate-link fast: " LINK_FORM},
    {{"train", CONFIG, "--emulate-link", "12.5"}, "--emulate-link 12.5: " LINK_FORM},
    {{"train", CONFIG, "--emulate-link", "0:3"}, "--emulate-link 0:3: " LINK_FORM},
    {{"train", CONFIG, "--emulate-link", "-1:3"}, "--emulate-link -1:3: " LINK_FORM},
    {{"train", CONFIG, "--emulate-link", "0x1:3"}, "--emulate-link 0x1:3: " LINK_FORM},
    {{"train", CONFIG, "--emulate-link", "inf:3"}, "--emulate-link inf:3: " LINK_FORM},
    {{"train", CONFIG, "--emulate-link", "1:nan"}, "--emulate-link 1:nan: " LINK_FORM},
    {{"train", CONFIG, "--emulate-link", "1:3us"}, "--emulate-link 1:3us: " LINK_FORM},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        outcome got = run_command(refusals[i].arguments);
        char expected[600];
        snprintf(expected, sizeof expected, "evenkeel: %s\n", refusals[i].error);
        assert_string_equal(got.errors, expected);
        assert_string_equal(got.output, "");
        assert_int_equal(got.status, 2);
    }
}

/* A run of a moment. */
#define SHORT                                                                                                          \
    "train", CONFIG, SET_DATA, "--set=model.layers=1", "--set=model.hidden=32", "--set=model.ffn=64",                  \
        "--set=train.steps=4", "--quiet"

static void assert_fails(const outcome *got, int status, const char *error)
{
    assert_string_equal(got->errors, error);
    assert_string_equal(got->output, "");
    assert_int_equal(got->status, status);
}

/* What strikes before the ranks start is refused, what strikes later has failed: one line each. */
static void test_files_that_cannot_be_used(void **state)
{
    (void)state;
    outcome got = RUN(SHORT, "--set=data.path=missing.txt");
    assert_int_equal(got.status, 2);
    assert_non_null(strstr(got.errors, "evenkeel: missing.txt"));
    got = RUN(SHORT, "--metrics=missing/metrics.jsonl");
    assert_fails(&got, 2,
                 "evenkeel: --metrics missing/metrics.jsonl: No such file or directory; name a file that can be "
                 "written\n");
    got = RUN(SHORT, "--metrics=/dev/full");
    assert_fails(&got, 1,
                 "evenkeel: cannot write metrics to /dev/full: No space left on device; make room, or name another "
                 "file with --metrics\n");
}

/* An output that is used for something else is refused before anything is opened: all files stay as they are. */
static void test_outputs_that_are_used(void **state)
{
    (void)state;
    static const struct {
        const char *arguments[12], *error;
    } refused[] = {
        {{"train", "--config", EXPERTS_CONFIG, SET_DATA, "--routes=record:used", "--metrics=./used"},
         "--metrics ./used: that is used, which is used too; name another file"},
        {{"train", "--config", EXPERTS_CONFIG, SET_DATA, "--routes=record:none", "--metrics=none"},
         "--metrics none: that is none, which is used too; name another file"},
        {{"train", "--config", EXPERTS_CONFIG, "--set=data.path=used", "--routes=record:linked"},
         "--routes linked: that is used, which is used too; name another file"},
        {{"train", CONFIG, "--set=data.path=tokens", "--set=data.format=megatron", "--metrics=tokens.bin"},
         "--metrics tokens.bin: that is tokens.bin, which is used too; name another file"},
        {{"plan", "--cluster=used", "--job=none", "-oused"},
         "--output used: that is used, which is used too; name another file"},
        {{"plan", "--cluster=none", "--job=used", "-olinked"},
         "--output linked: that is used, which is used too; name another file"},
        {{"report", "used", "-olinked"}, "--output linked: that is used, which is used too; name another file"},
    };
    assert_int_equal(system("echo text > used; echo text > tokens.bin; ln -sf used linked; rm -f none"), 0);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char expected[200];
        outcome got = run_command(refused[i].arguments);
        snprintf(expected, sizeof expected, "evenkeel: %s\n", refused[i].error);
        assert_string_equal(got.errors, expected);
        assert_int_equal(got.status, 2);
        assert_int_equal(system("test \"$(cat used tokens.bin)\" = \"$(printf 'text\\ntext')\" -a ! -e none"), 0);
    }
}

/* examples/moe.yaml trains as it stands, but for its data and its steps; it is expert-parallel, and says so. */
static void test_experts(void **state)
{
    (void)state;
    outcome got = RUN("train", "--config", EXPERTS_CONFIG, SET_DATA, "--set=train.steps=2");
    assert_string_equal(got.errors, "");
    assert_int_equal(got.status, 0);
    assert_non_null(strstr(got.output, "training 13.9 M parameters on EP4+EP4: 2 steps of 16 samples, 2048 tokens\n"));
    assert_non_null(strstr(got.output, "2xEP4 (700 W, 8)"));
}

static void test_unit_lost(void **state)
{
    (void)state;
    outcome got = RUN(SHORT, "--set=parallel.dp=1", "--kill=2:0.1");
    assert_fails(&got, 1,
                 "evenkeel: no survivor holds unit 1 of attention (lost with rank 1); more replicas "
                 "(parallel.dp) hold more copies\n");
}

static void test_no_memory(void **state)
{
    (void)state;
#ifdef EK_SANITIZE
    skip(); /* a sanitizer needs more address space than any limit that would mean something */
#endif
    struct rlimit before, tight = {.rlim_cur = (rlim_t)1 << 31, .rlim_max = RLIM_INFINITY};
    getrlimit(RLIMIT_AS, &before);
    tight.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_AS, &tight), 0);
    outcome got = RUN(SHORT), enough = RUN(SHORT, "--set=engine.heap_bytes=10000000");
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_int_equal(got.status, 1);
    assert_non_null(strstr(got.errors, "Cannot allocate memory; lower the engine's heap_bytes, or raise the address "
                                       "space limit (ulimit -v) or vm.overcommit_memory\n"));
    assert_int_equal(enough.status, 0);
    got = RUN(SHORT, "--set=engine.heap_bytes=100000");
    assert_fails(&got, 2,
                 "evenkeel: engine.heap_bytes: found 100000: a rank's share of the state does not fit its 42855 "
                 "bytes at degree 4\n");
}

static void assert_exit_status(const char *line, int expected)
{
    int status = system(line);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), expected);
}

static void test_full_output(void **state)
{
    (void)state;
    assert_exit_status(COMMAND " version >/dev/full 2>/dev/null", 1);
    assert_exit_status(
        COMMAND " train --config " TINY_CONFIG " " SET_DATA " --set train.steps=1 >/dev/full 2>/dev/null", 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_files_that_cannot_be_used),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_unit_lost),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_full_output),
        cmocka_unit_test(test_outputs_that_are_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
