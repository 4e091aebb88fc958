/* The configuration: what is read, what is derived, and every refusal with its exact text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "testing.h"
#include "train/config.h"

/* The tests run in a directory of their own, so that messages name the file as "c.yaml". */
static char directory[] = "/tmp/evenkeel-config-XXXXXX";

static int enter_directory(void **state)
{
    (void)state;
    return mkdtemp(directory) && chdir(directory) == 0 && mkdir("folder", 0700) == 0 ? 0 : -1;
}

static int remove_directory(void **state)
{
    (void)state;
    return remove("c.yaml") | remove("folder") | remove(directory);
}

static void write_file(const char *text, size_t length)
{
    FILE *file = fopen("c.yaml", "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static ek_status read_text(ek_config **config, const char *text, const char *const *overrides, size_t count)
{
    write_file(text, strlen(text));
    return ek_config_read(config, "c.yaml", overrides, count);
}

#define MODEL "model: {layers: 2, hidden: 64, heads: 8, ffn: 96, vocab: 256, sequence: 32}\n" /* line 1 */
#define DATA "data: {path: a.txt}\n"
#define PARALLEL "parallel: {dp: 2, tp: 4}\n"
#define BATCH "batch: {global: 6}\n"
#define TRAIN "train: {steps: 60}\n" /* line 5 */
#define LEAST MODEL DATA PARALLEL BATCH TRAIN
#define EXPERTS                                                                                                        \
    "model: {layers: 2, hidden: 64, heads: 8, ffn: 96, vocab: 256, sequence: 32, experts: 12}\n" DATA                  \
    "parallel: {mode: ep, dp: 2, tp: 4}\n" BATCH TRAIN

static void test_least(void **state)
{
    (void)state;
    ek_config *config;
    assert_ok(read_text(&config, LEAST, NULL, 0));
    assert_int_equal(config->model.layers, 2);
    assert_int_equal(config->model.hidden, 64);
    assert_int_equal(config->model.heads, 8);
    assert_int_equal(config->model.kv_heads, 8);
    assert_int_equal(config->model.ffn, 96);
    assert_int_equal(config->model.ffn_block, 4); /* 96 / 4 units are at least 4 * 4; 8 would leave 12 */
    assert_int_equal(config->model.vocab, 256);
    assert_int_equal(config->model.vocab_block, 16);
    assert_int_equal(config->model.sequence, 32);
    assert_false(config->model.tied_embeddings);
    assert_true(config->model.rope_theta == 10000.0f);
    assert_true(config->model.norm_eps == 1e-5f);
    assert_int_equal(config->model.experts, 0);
    assert_int_equal(config->parallel.mode, EK_MODE_TP);
    assert_false(config->model.expert_parallel);
    assert_string_equal(config->data.path, "a.txt");
    assert_int_equal(config->data.format, EK_DATA_BYTES);
    assert_int_equal(config->parallel.dp, 2);
    assert_int_equal(config->parallel.tp, 4);
    assert_int_equal(config->parallel.min_tp, 1);
    assert_null(config->parallel.degrees);
    assert_int_equal(config->parallel.degree_count, 0);
    assert_int_equal(config->batch.global, 6);
    assert_int_equal(config->batch.micro, 3); /* a replica's share */
    assert_true(config->optimizer.lr == 1e-3);
    assert_true(config->optimizer.min_lr == 1e-3 / 10);
    assert_true(config->optimizer.weight_decay == 0.1);
    assert_true(config->optimizer.beta1 == 0.9);
    assert_true(config->optimizer.beta2 == 0.95);
    assert_true(config->optimizer.eps == 1e-8);
    assert_true(config->optimizer.clip == 1);
    assert_int_equal(config->optimizer.warmup_steps, 0);
    assert_int_equal(config->train.steps, 60);
    assert_int_equal(config->train.seed, 1);
    assert_int_equal(config->batch.policy, EK_BATCH_KEEP);
    assert_int_equal(config->power.backend, EK_POWER_NONE);
    assert_null(config->power.path);
    assert_true(config->power.default_watts == 700);
    assert_true(config->power.emulated_flops_per_second == 0);
    assert_true(config->power.cap_watts == 0 && config->power.domain_watts == 0);
    assert_null(config->power.curve);
    assert_null(config->power.state_file);
    assert_int_equal(config->health.compare_every, 0);
    assert_true(config->health.straggler_factor == 0);
    assert_int_equal(config->health.straggler_steps, 5);
    assert_false(config->health.straggler_fails);
    assert_true(config->recovery.respawn_seconds == 0);
    assert_int_equal(config->recovery.spares, 0);
    assert_string_equal(config->engine.name, "shm");
    assert_true(config->engine.timeout_seconds == 10);
    assert_false(config->engine.threads);
    assert_true(config->engine.link_bytes_per_second == 0 && config->engine.link_latency_seconds == 0);
    ek_config_destroy(config);
}

static void test_everything(void **state)
{
    (void)state;
    ek_config *config;
    assert_ok(read_text(&config,
                        "# block style, comments, an anchor, quoted keys\n"
                        "model:\n"
                        "  layers: 3\n"
                        "  hidden: &width 96\n"
                        "  heads: 12\n"
                        "  kv_heads: 6\n"
                        "  ffn: *width\n"
                        "  ffn_block: 8\n"
                        "  vocab: 512\n"
                        "  vocab_block: 2\n"
                        "  \"sequence\": 16\n"
                        "  tied_embeddings: true\n"
                        "  rope_theta: 5.0e+5\n"
                        "  norm_eps: .000001\n"
                        "data: {path: 'with a: colon', format: megatron}\n"
                        "parallel: {dp: 3, tp: 4, min_tp: 2, degrees: [4, 3, 2]}\n"
                        "batch: {global: 24, micro: 2, policy: rebalance}\n"
                        "optimizer: {lr: 3e-4, min_lr: 0, warmup_steps: 7, weight_decay: 0, beta1: 0, beta2: 0.999,\n"
                        "  eps: 1e-10, clip: 0}\n"
                        "train: {steps: 1000000000, seed: 18446744073709551615}\n"
                        "power:\n"
                        "  backend: emulated\n"
                        "  path: limits\n"
                        "  default_watts: 500\n"
                        "  emulated_flops_per_second: 1e12\n"
                        "  cap_watts: 600.5\n"
                        "  domain_watts: 2100\n"
                        "  curve: [[0.5, 0.6], [1, 1], [1.25, 1.125]]\n"
                        "  state_file: state.json\n"
                        "health: {compare_every: 5, straggler_factor: 1.5, straggler_steps: 3, straggler_fails: true}\n"
                        "recovery: {respawn_seconds: 0.25, spares: 2}\n"
                        "engine: {name: shm, timeout_seconds: 0.5, threads: true}\n",
                        NULL, 0));
    assert_int_equal(config->model.layers, 3);
    assert_int_equal(config->model.hidden, 96);
    assert_int_equal(config->model.heads, 12);
    assert_int_equal(config->model.kv_heads, 6);
    assert_int_equal(config->model.ffn, 96);
    assert_int_equal(config->model.ffn_block, 8);
    assert_int_equal(config->model.vocab, 512);
    assert_int_equal(config->model.vocab_block, 2);
    assert_int_equal(config->model.sequence, 16);
    assert_true(config->model.tied_embeddings);
    assert_true(config->model.rope_theta == 5e5f);
    assert_true(config->model.norm_eps == 1e-6f);
    assert_string_equal(config->data.path, "with a: colon");
    assert_int_equal(config->data.format, EK_DATA_MEGATRON);
    assert_int_equal(config->parallel.dp, 3);
    assert_int_equal(config->parallel.min_tp, 2);
    assert_int_equal(config->parallel.degree_count, 3);
    assert_int_equal(config->parallel.degrees[0], 4);
    assert_int_equal(config->parallel.degrees[1], 3);
    assert_int_equal(config->parallel.degrees[2], 2);
    assert_int_equal(config->batch.micro, 2);
    assert_true(config->optimizer.lr == 3e-4);
    assert_true(config->optimizer.min_lr == 0);
    assert_int_equal(config->optimizer.warmup_steps, 7);
    assert_true(config->optimizer.weight_decay == 0);
    assert_true(config->optimizer.beta1 == 0);
    assert_true(config->optimizer.beta2 == 0.999);
    assert_true(config->optimizer.eps == 1e-10);
    assert_true(config->optimizer.clip == 0);
    assert_int_equal(config->train.steps, 1000000000);
    assert_true(config->train.seed == UINT64_MAX);
    assert_int_equal(config->batch.policy, EK_BATCH_REBALANCE);
    assert_int_equal(config->power.backend, EK_POWER_EMULATED);
    assert_string_equal(config->power.path, "limits");
    assert_true(config->power.default_watts == 500);
    assert_true(config->power.emulated_flops_per_second == 1e12);
    assert_true(config->power.cap_watts == 600.5);
    assert_true(config->power.domain_watts == 2100);
    assert_int_equal(config->power.curve_count, 3);
    const double curve[] = {0.5, 0.6, 1, 1, 1.25, 1.125};
    assert_memory_equal(config->power.curve, curve, sizeof curve);
    assert_string_equal(config->power.state_file, "state.json");
    assert_int_equal(config->health.compare_every, 5);
    assert_true(config->health.straggler_factor == 1.5);
    assert_int_equal(config->health.straggler_steps, 3);
    assert_true(config->health.straggler_fails);
    assert_true(config->recovery.respawn_seconds == 0.25);
    assert_int_equal(config->recovery.spares, 2);
    assert_true(config->engine.timeout_seconds == 0.5);
    assert_true(config->engine.threads);
    ek_config_destroy(config);
}

static void test_overrides(void **state)
{
    (void)state;
    const char *overrides[] = {
        "parallel.tp=2",     "parallel.degrees=[1, 2]", "parallel.degrees=[2,1]", "data.path=b=c",
        "optimizer.lr=1e-2", "engine.threads=true",     "data.format=llmc",       "data.path=d e"};
    ek_config *config;
    assert_ok(read_text(&config, LEAST, overrides, sizeof overrides / sizeof *overrides));
    assert_int_equal(config->parallel.tp, 2);
    assert_int_equal(config->parallel.degree_count, 2);
    assert_int_equal(config->parallel.degrees[0], 2); /* the last of a key wins */
    assert_int_equal(config->parallel.degrees[1], 1);
    assert_string_equal(config->data.path, "d e");
    assert_true(config->optimizer.lr == 1e-2);
    assert_true(config->optimizer.min_lr == 1e-2 / 10);
    assert_true(config->engine.threads);
    assert_int_equal(config->data.format, EK_DATA_LLMC);
    ek_config_destroy(config);
}

#define SECTION_NAMES "model, data, parallel, batch, optimizer, train, power, health, recovery, checkpoint, engine"
#define SECTIONS "the sections are " SECTION_NAMES

static const struct {
    const char *file;
    const char *override; /* NULL: none */
    const char *error;
} refusals[] = {
    /* not the file that is meant */
    {"", NULL, "c.yaml: the file is empty; " SECTIONS},
    {"# nothing\n", NULL, "c.yaml: the file is empty; " SECTIONS},
    {"~\n", NULL, "c.yaml: the file is empty; " SECTIONS},
    {"\n- model\n", NULL, "c.yaml:2: found a list; a mapping of the sections " SECTION_NAMES " is needed"},
    {"hello\n", NULL, "c.yaml:1: found \"hello\"; a mapping of the sections " SECTION_NAMES " is needed"},
    {LEAST "---\ntrain: {seed: 2}\n", NULL, "c.yaml:7: a second document begins here; one is allowed"},

    /* broken YAML */
    {MODEL "data: [a\n", NULL, "c.yaml:3: not YAML: did not find expected ',' or ']'"},
    {MODEL "data:\n\tpath: a\n", NULL, "c.yaml:3: not YAML: found character that cannot start any token"},
    {MODEL "data: *nowhere\n", NULL, "c.yaml:2: not YAML: found undefined alias"},
    {MODEL DATA "parallel: {dp: 2, tp: \x01}\n", NULL, "c.yaml:3: not YAML: control characters are not allowed"},
    {MODEL "data: {path: \"\xff\"}\n", NULL, "c.yaml:2: not YAML: invalid leading UTF-8 octet"},

    /* keys */
    {LEAST "optimiser: {lr: 1}\n", NULL, "c.yaml:6: unknown section \"optimiser\"; did you mean optimizer? " SECTIONS},
    {LEAST "parallel.tp: 3\n", NULL, "c.yaml:6: unknown section \"parallel.tp\"; " SECTIONS},
    {LEAST "optimizer:\n  lr: 1\n  learning_rate: 1\n", NULL,
     "c.yaml:8: unknown key \"optimizer.learning_rate\"; optimizer has lr, min_lr, warmup_steps, weight_decay, beta1, "
     "beta2, eps, clip"},
    {LEAST "optimizer: {warmup_step: 1}\n", NULL,
     "c.yaml:6: unknown key \"optimizer.warmup_step\"; did you mean warmup_steps? optimizer has lr, min_lr, "
     "warmup_steps, weight_decay, beta1, beta2, eps, clip"},
    {LEAST
     "engine: {aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa: 1}\n",
     NULL,
     "c.yaml:6: unknown key \"engine.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...\"; engine has "
     "name, "
     "timeout_seconds, heap_bytes, threads"},
    {LEAST "engine: {\"a\\nb\": 1}\n", NULL,
     "c.yaml:6: unknown key \"engine.a?b\"; engine has name, timeout_seconds, heap_bytes, threads"},
    {LEAST "engine: {\"name\\0\": shm}\n", NULL, "c.yaml:6: found \"name?\" in quotes where a key is needed"},
    {LEAST "engine: {[name]: shm}\n", NULL, "c.yaml:6: found a list where a key is needed"},
    {LEAST "engine: {name: shm,\n  name: shm}\n", NULL, "c.yaml:7: engine.name is given twice; first on line 6"},
    {LEAST "train: {seed: 3}\n", NULL, "c.yaml:6: train is given twice; first on line 5"},
    {LEAST "engine: shm\n", NULL,
     "c.yaml:6: engine: found \"shm\"; a mapping of name, timeout_seconds, heap_bytes, threads is needed"},
    {LEAST "engine:\n", NULL,
     "c.yaml:6: engine: found nothing; a mapping of name, timeout_seconds, heap_bytes, threads is needed"},
    {LEAST "engine: [1]\n", NULL,
     "c.yaml:6: engine: found a list; a mapping of name, timeout_seconds, heap_bytes, threads is needed"},
    {MODEL DATA "parallel: {tp: 4}\n" BATCH TRAIN, NULL,
     "c.yaml: parallel.dp is missing (data-parallel replicas); a whole number from 1 to 256 is needed"},
    {MODEL PARALLEL BATCH TRAIN, NULL,
     "c.yaml: data.path is missing (the file of tokens, from the working directory; for megatron without .bin and "
     ".idx); a string is needed"},

    /* overrides */
    {LEAST, "parallel", "--set parallel: KEY=VALUE is needed, as in --set model.layers=VALUE"},
    {LEAST, "parallel=3", "--set parallel=3: unknown key \"parallel\"; parallel has mode, dp, tp, min_tp, degrees"},
    {LEAST, "=3", "--set =3: unknown section \"\"; " SECTIONS},
    {LEAST, "paralel.tp=3", "--set paralel.tp=3: unknown section \"paralel\"; did you mean parallel? " SECTIONS},
    {LEAST, "parallel.td=3",
     "--set parallel.td=3: unknown key \"parallel.td\"; did you mean tp? parallel has mode, dp, tp, min_tp, degrees"},
    {LEAST, "parallel.tp=", "--set parallel.tp=: parallel.tp: found nothing; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.tp=[", "--set parallel.tp=[: not YAML: did not find expected node content"},
    {LEAST, "parallel.tp=3\n--- 4", "--set parallel.tp=3?--- 4: a second document begins here; one is allowed"},

    /* whole numbers */
    {MODEL DATA "parallel:\n  dp: 2\n  tp: four\n" BATCH TRAIN, NULL,
     "c.yaml:5: parallel.tp: found \"four\"; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.tp=four",
     "--set parallel.tp=four: parallel.tp: found \"four\"; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.tp=0", "--set parallel.tp=0: parallel.tp: found \"0\"; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.tp=1025",
     "--set parallel.tp=1025: parallel.tp: found \"1025\"; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.tp=-4",
     "--set parallel.tp=-4: parallel.tp: found \"-4\"; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.tp=+4",
     "--set parallel.tp=+4: parallel.tp: found \"+4\"; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.tp=04",
     "--set parallel.tp=04: parallel.tp: found \"04\"; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.tp=0x4",
     "--set parallel.tp=0x4: parallel.tp: found \"0x4\"; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.tp=4.0",
     "--set parallel.tp=4.0: parallel.tp: found \"4.0\"; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.tp=1e2",
     "--set parallel.tp=1e2: parallel.tp: found \"1e2\"; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.tp=\"4\"",
     "--set parallel.tp=\"4\": parallel.tp: found \"4\" in quotes; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.tp=!!int 4",
     "--set parallel.tp=!!int 4: parallel.tp: found \"4\" with a tag; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.tp=null",
     "--set parallel.tp=null: parallel.tp: found nothing; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.tp=[4]",
     "--set parallel.tp=[4]: parallel.tp: found a list; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.tp={a: 4}",
     "--set parallel.tp={a: 4}: parallel.tp: found a mapping; a whole number from 1 to 1024 is needed"},
    {LEAST, "train.seed=18446744073709551616",
     "--set train.seed=18446744073709551616: train.seed: found \"18446744073709551616\"; a whole number from 0 to "
     "18446744073709551615 is needed"},
    {LEAST, "train.seed=9999999999999999999999999999999999999999999999999999999999999999",
     "--set train.seed=9999999999999999999999999999999999999999999999999...: train.seed: found "
     "\"999999999999999999999999999999999999999999999999999999999999...\"; a whole number from 0 to "
     "18446744073709551615 is needed"},

    /* real numbers */
    {LEAST, "optimizer.lr=fast",
     "--set optimizer.lr=fast: optimizer.lr: found \"fast\"; a number from 0 to 1000 is needed"},
    {LEAST, "optimizer.lr=-1e-3",
     "--set optimizer.lr=-1e-3: optimizer.lr: found \"-1e-3\"; a number from 0 to 1000 is needed"},
    {LEAST, "optimizer.lr=1e999",
     "--set optimizer.lr=1e999: optimizer.lr: found \"1e999\"; a number from 0 to 1000 is needed"},
    {LEAST, "optimizer.lr=.inf",
     "--set optimizer.lr=.inf: optimizer.lr: found \".inf\"; a number from 0 to 1000 is needed"},
    {LEAST, "optimizer.lr=.nan",
     "--set optimizer.lr=.nan: optimizer.lr: found \".nan\"; a number from 0 to 1000 is needed"},
    {LEAST, "optimizer.lr=inf",
     "--set optimizer.lr=inf: optimizer.lr: found \"inf\"; a number from 0 to 1000 is needed"},
    {LEAST, "optimizer.lr=nan",
     "--set optimizer.lr=nan: optimizer.lr: found \"nan\"; a number from 0 to 1000 is needed"},
    {LEAST, "optimizer.lr=0x1p-3",
     "--set optimizer.lr=0x1p-3: optimizer.lr: found \"0x1p-3\"; a number from 0 to 1000 is needed"},
    {LEAST, "optimizer.lr=1e", "--set optimizer.lr=1e: optimizer.lr: found \"1e\"; a number from 0 to 1000 is needed"},
    {LEAST, "optimizer.lr=1-2",
     "--set optimizer.lr=1-2: optimizer.lr: found \"1-2\"; a number from 0 to 1000 is needed"},
    {LEAST, "optimizer.lr=.", "--set optimizer.lr=.: optimizer.lr: found \".\"; a number from 0 to 1000 is needed"},
    {LEAST, "optimizer.beta1=1",
     "--set optimizer.beta1=1: optimizer.beta1: found \"1\"; a number from 0 to 0.999999 is needed"},
    {LEAST, "optimizer.eps=0", "--set optimizer.eps=0: optimizer.eps: found \"0\"; a number from 1e-30 to 1 is needed"},

    /* booleans, choices, strings, lists */
    {LEAST, "engine.threads=yes", "--set engine.threads=yes: engine.threads: found \"yes\"; true or false is needed"},
    {LEAST, "engine.threads=1", "--set engine.threads=1: engine.threads: found \"1\"; true or false is needed"},
    {LEAST, "engine.threads='true'",
     "--set engine.threads='true': engine.threads: found \"true\" in quotes; true or false is needed"},
    {LEAST, "data.format=text",
     "--set data.format=text: data.format: found \"text\"; bytes, llmc or megatron is needed"},
    {LEAST, "data.format=", "--set data.format=: data.format: found nothing; bytes, llmc or megatron is needed"},
    {LEAST, "engine.name=nccl", "--set engine.name=nccl: engine.name: found \"nccl\"; shm or mpi is needed"},
    {LEAST, "data.path=\"\"", "--set data.path=\"\": data.path: found \"\" in quotes; a string is needed"},
    {LEAST, "data.path=~", "--set data.path=~: data.path: found nothing; a string is needed"},
    {LEAST, "data.path=\"a\\0b\"", "--set data.path=\"a\\0b\": data.path: found \"a?b\" in quotes; a string is needed"},
    {LEAST, "data.path=[a]", "--set data.path=[a]: data.path: found a list; a string is needed"},
    {LEAST, "parallel.degrees=4",
     "--set parallel.degrees=4: parallel.degrees: found \"4\"; a list of whole numbers from 1 to 1024 is needed"},
    {LEAST, "parallel.degrees=[4, x]",
     "--set parallel.degrees=[4, x]: parallel.degrees[1]: found \"x\"; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.degrees=[[4], 3]",
     "--set parallel.degrees=[[4], 3]: parallel.degrees[0]: found a list; a whole number from 1 to 1024 is needed"},
    {LEAST, "parallel.degrees=[&a [*a], 3]",
     "--set parallel.degrees=[&a [*a], 3]: parallel.degrees[0]: found a list; a whole number from 1 to 1024 is needed"},

    /* pairs */
    {LEAST, "power.curve=fast",
     "--set power.curve=fast: power.curve: found \"fast\"; a list of pairs of numbers from 0 to 10 is needed"},
    {LEAST, "power.curve=[1, 1]",
     "--set power.curve=[1, 1]: power.curve[0]: found \"1\"; a pair of numbers from 0 to 10 is needed"},
    {LEAST, "power.curve=[[1, 1], [1.3]]",
     "--set power.curve=[[1, 1], [1.3]]: power.curve[1]: found a list; a pair of numbers from 0 to 10 is needed"},
    {LEAST, "power.curve=[[1, 1], [1.3, fast]]",
     "--set power.curve=[[1, 1], [1.3, fast]]: power.curve[1]: found a list; a pair of numbers from 0 to 10 is needed"},
    {LEAST, "power.curve=[[1, 1], [11, 1.2]]",
     "--set power.curve=[[1, 1], [11, 1.2]]: power.curve[1]: found a list; a pair of numbers from 0 to 10 is needed"},

    /* choices and ranges of power, health and recovery */
    {LEAST, "batch.policy=best",
     "--set batch.policy=best: batch.policy: found \"best\"; keep, shrink or rebalance is needed"},
    {LEAST, "power.backend=steam",
     "--set power.backend=steam: power.backend: found \"steam\"; none, nvml, powercap or emulated is needed"},
    {LEAST, "power.default_watts=0",
     "--set power.default_watts=0: power.default_watts: found \"0\"; a number from 1 to 1000000 is needed"},
    {LEAST, "power.emulated_flops_per_second=fast",
     "--set power.emulated_flops_per_second=fast: power.emulated_flops_per_second: found \"fast\"; a number from 0 to "
     "1e+18 is needed"},
    {LEAST, "power.emulated_flops_per_second=2e12",
     "--set power.emulated_flops_per_second=2e12: power.emulated_flops_per_second: found 2e+12; 0, or power.backend: "
     "emulated, is needed"},
    {LEAST, "power.cap_watts=-1",
     "--set power.cap_watts=-1: power.cap_watts: found \"-1\"; a number from 0 to 1000000 is needed"},
    {LEAST, "power.domain_watts=all",
     "--set power.domain_watts=all: power.domain_watts: found \"all\"; a number from 0 to 1e+09 is needed"},
    {LEAST, "health.straggler_factor=101",
     "--set health.straggler_factor=101: health.straggler_factor: found \"101\"; a number from 0 to 100 is needed"},
    {LEAST, "health.straggler_steps=0",
     "--set health.straggler_steps=0: health.straggler_steps: found \"0\"; a whole number from 1 to 1000000000 is "
     "needed"},
    {LEAST, "health.straggler_fails=1",
     "--set health.straggler_fails=1: health.straggler_fails: found \"1\"; true or false is needed"},
    {LEAST, "recovery.respawn_seconds=-1",
     "--set recovery.respawn_seconds=-1: recovery.respawn_seconds: found \"-1\"; a number from 0 to 1000000 is needed"},
    {LEAST, "recovery.spares=1025",
     "--set recovery.spares=1025: recovery.spares: found \"1025\"; a whole number from 0 to 1024 is needed"},

    /* relations */
    {MODEL DATA "parallel: {dp: 256,\n  tp: 5}\n" BATCH TRAIN, NULL,
     "c.yaml:4: parallel.tp: 256 replicas of 5 are 1280 ranks; at most 1024 are allowed"},
    {LEAST, "parallel.min_tp=5",
     "--set parallel.min_tp=5: parallel.min_tp: found 5; at most parallel.tp, 4, is allowed"},
    {LEAST, "parallel.degrees=[4]",
     "--set parallel.degrees=[4]: parallel.degrees: found 1 in the list; one for each of the 2 replicas (parallel.dp) "
     "is needed"},
    {LEAST, "parallel.degrees=[]",
     "--set parallel.degrees=[]: parallel.degrees: found 0 in the list; one for each of the 2 replicas (parallel.dp) "
     "is needed"},
    {LEAST, "parallel.degrees=[4, 5]",
     "--set parallel.degrees=[4, 5]: parallel.degrees: found 5 for replica 1; 1 (parallel.min_tp) to 4 (parallel.tp) "
     "is allowed"},
    {MODEL DATA "parallel: {dp: 2, tp: 4, min_tp: 3}\n" BATCH TRAIN, "parallel.degrees=[2, 4]",
     "--set parallel.degrees=[2, 4]: parallel.degrees: found 2 for replica 0; 3 (parallel.min_tp) to 4 (parallel.tp) "
     "is allowed"},
    {LEAST, "batch.global=1",
     "--set batch.global=1: batch.global: found 1; at least 2 is needed, a sample for each replica (parallel.dp)"},
    {LEAST, "recovery.spares=1017",
     "--set recovery.spares=1017: recovery.spares: found 1017; beside 8 ranks with a role at most 1016 are allowed"},
    {LEAST, "health.straggler_factor=1",
     "--set health.straggler_factor=1: health.straggler_factor: found 1; 0, or a number above 1, is needed"},
    {LEAST, "health.straggler_factor=0.5",
     "--set health.straggler_factor=0.5: health.straggler_factor: found 0.5; 0, or a number above 1, is needed"},
    {LEAST, "parallel.mode=ep", "c.yaml: model.experts: found 0; expert parallelism (parallel.mode) needs experts"},
    {LEAST, "model.experts=1", "c.yaml: model.top_k: found 2; 1 to 1, model.experts, is allowed"},
    {LEAST, "model.experts=3",
     "--set model.experts=3: model.experts: 3 units of experts cannot be cut 4 ways (parallel.tp); at least one per "
     "role is needed"},
    {EXPERTS, "model.experts=0",
     "--set model.experts=0: model.experts: found 0; expert parallelism (parallel.mode) needs experts"},
    {EXPERTS, "model.top_k=13", "--set model.top_k=13: model.top_k: found 13; 1 to 12, model.experts, is allowed"},
    {EXPERTS, "model.top_k=0",
     "--set model.top_k=0: model.top_k: found \"0\"; a whole number from 1 to 65536 is needed"},
    {EXPERTS, "model.moe_every=3",
     "--set model.moe_every=3: model.moe_every: found 3; 1 to 2, model.layers, is allowed"},
    {EXPERTS, "model.aux_loss=-1",
     "--set model.aux_loss=-1: model.aux_loss: found \"-1\"; a number from 0 to 1000 is needed"},
    {EXPERTS, "parallel.tp=13",
     "c.yaml:1: model.experts: 12 units of experts cannot be cut 13 ways (parallel.tp); at least one per role is "
     "needed"},
    {EXPERTS, "parallel.mode=pp", "--set parallel.mode=pp: parallel.mode: found \"pp\"; tp or ep is needed"},
    {LEAST "optimizer: {lr: 1e-4,\n  min_lr: 1e-3}\n", NULL,
     "c.yaml:7: optimizer.min_lr: found 0.001; at most optimizer.lr, 0.0001, is allowed"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        ek_config *config = NULL;
        ek_status status = read_text(&config, refusals[i].file, &refusals[i].override, refusals[i].override ? 1 : 0);
        if (status != EK_INVALID || strcmp(ek_error(), refusals[i].error) != 0)
            print_error("case %zu: %s\n", i, refusals[i].override ? refusals[i].override : refusals[i].file);
        assert_string_equal(ek_error(), refusals[i].error);
        assert_int_equal(status, EK_INVALID);
        assert_null(config);
    }
}

/* In expert parallelism nothing but the experts has to be cut, so that other sizes need not allow it. */
static void test_experts(void **state)
{
    (void)state;
    ek_config *config = NULL;
    const char *overrides[] = {"parallel.tp=12", "model.moe_every=2", "model.shared_expert=true", "model.aux_loss=0"};
    assert_ok(read_text(&config, EXPERTS, overrides, 4));
    assert_int_equal(config->parallel.mode, EK_MODE_EP);
    assert_true(config->model.expert_parallel);
    assert_int_equal(config->model.experts, 12);
    assert_int_equal(config->model.top_k, 2);
    assert_int_equal(config->model.moe_every, 2);
    assert_int_equal(config->model.expert_ffn, 96); /* model.ffn */
    assert_true(config->model.shared_expert);
    assert_true(config->model.aux_loss == 0.0f);
    ek_config_destroy(config);
    overrides[0] = "model.expert_ffn=20";
    assert_ok(read_text(&config, EXPERTS, overrides, 1));
    assert_int_equal(config->model.expert_ffn, 20);
    assert_int_equal(config->model.moe_every, 1);
    assert_true(config->model.aux_loss == 0.01f);
    ek_config_destroy(config);
}

/* The model's own checks get the place of the key in front, whichever check it is. */
static void test_model_refusal_is_placed(void **state)
{
    (void)state;
    ek_config *config = NULL;
    const char *override = "model.kv_heads=3";
    assert_int_equal(read_text(&config, LEAST, &override, 1), EK_INVALID);
    const char *expected = "--set model.kv_heads=3: model.kv_heads: ";
    assert_memory_equal(ek_error(), expected, strlen(expected));
    assert_null(config);
}

static void test_unreadable_files(void **state)
{
    (void)state;
    ek_config *config = NULL;
    assert_int_equal(ek_config_read(&config, "missing.yaml", NULL, 0), EK_IO);
    assert_string_equal(ek_error(),
                        "missing.yaml: cannot be opened (No such file or directory); a YAML file is needed");
    assert_int_equal(ek_config_read(&config, "folder", NULL, 0), EK_IO);
    assert_string_equal(ek_error(), "folder: is a directory; a YAML file is needed");
    assert_int_equal(ek_config_read(&config, "/dev/zero", NULL, 0), EK_INVALID);
    assert_string_equal(ek_error(), "/dev/zero: larger than 1048576 bytes; that is no configuration");
    assert_null(config);
}

/* Any byte changed anywhere: the file is read or refused with one line, and nothing worse (the sanitizers watch). */
static void test_damaged_files(void **state)
{
    (void)state;
    const char *text = LEAST "optimizer: {lr: 1.0e-3, clip: 1}\nengine: {threads: false}\n";
    const unsigned char damage[] = {0, '\n', ' ', '"', '{', ']', ':', '&', '*', '!', '-', '9', 0xC3, 0xFF};
    size_t length = strlen(text);
    char *damaged = strdup(text);
    assert_non_null(damaged);
    for (size_t i = 0; i < length; i++) {
        damaged[i] = (char)damage[i % sizeof damage];
        write_file(damaged, length);
        damaged[i] = text[i];
        ek_config *config = NULL;
        ek_status status = ek_config_read(&config, "c.yaml", NULL, 0);
        assert_true(status == EK_OK || status == EK_INVALID);
        assert_true((status == EK_OK) == (config != NULL));
        assert_null(strchr(ek_error(), '\n'));
        ek_config_destroy(config);
    }
    free(damaged);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_least),
        cmocka_unit_test(test_everything),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_model_refusal_is_placed),
        cmocka_unit_test(test_unreadable_files),
        cmocka_unit_test(test_damaged_files),
    };
    return cmocka_run_group_tests(tests, enter_directory, remove_directory);
}
