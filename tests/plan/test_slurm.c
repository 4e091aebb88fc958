/* The batch script: its table against what is written for Megatron, its node list, and what a task does, run by bash
 * with the variables that Slurm would set. tests/plan/slurm.sh starts it in Slurm. */
#include "plan/slurm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "folder.h"
#include "plan/hostlist.h"
#include "plan/megatron.h"
#include "plans.h"

static void write_script(const ek_plan *plan, char **text)
{
    size_t bytes;
    FILE *file = open_memstream(text, &bytes);
    assert_ok(ek_plan_write_slurm(plan, file));
    fclose(file);
}

typedef struct table_row {
    int rank;
    char node[64], pci[64];
    unsigned gpu;
} table_row;

/* The rows of the table; *at moves from row to row, and begins NULL. */
static bool next_row(const char *script, const char **at, table_row *row)
{
    if (!*at) {
        *at = strstr(script, "cat <<'END'\n");
        assert_non_null(*at);
        *at = strchr(*at, '\n') + 1;
    }
    if (strncmp(*at, "END\n", 4) == 0)
        return false;
    assert_int_equal(sscanf(*at, "%d %63s %u %63s\n", &row->rank, row->node, &row->gpu, row->pci), 4);
    *at = strchr(*at, '\n') + 1;
    return true;
}

/* Ranks are where Megatron's text says, PCI ids as nvidia-smi writes them, and the allocation has their nodes. */
static void check_script(const test_plan *planned)
{
    char *script = NULL, *python = NULL, list[4096];
    write_script(planned->plan, &script);
    size_t bytes;
    FILE *file = open_memstream(&python, &bytes);
    assert_ok(ek_plan_write_megatron(planned->plan, &planned->model, file));
    fclose(file);

    const char *begin = strstr(script, "#SBATCH --nodelist="), *map = strstr(python, "\nrank_to_gpu = [\n") + 16;
    assert_int_equal(sscanf(begin, "#SBATCH --nodelist=%4095s\n", list), 1);
    ek_hostlist hosts = {0};
    assert_ok(ek_hostlist_expand(&hosts, list));
    assert_int_equal(atoi(strstr(script, "#SBATCH --nodes=") + 16), hosts.count);

    bool used[64] = {false};
    const char *at = NULL;
    table_row row;
    int ranks = 0;
    while (next_row(script, &at, &row)) {
        char expected[128], pci[64];
        assert_int_equal(row.rank, ranks++);
        snprintf(expected, sizeof expected, "\n    (\"%s\", %u),", row.node, row.gpu);
        assert_memory_equal(map, expected, strlen(expected));
        map = strchr(map + 1, '\n');
        snprintf(pci, sizeof pci, "00000000:%02X:00.0", row.gpu + 16);
        assert_string_equal(row.pci, pci);
        size_t host = 0;
        while (host < hosts.count && strcmp(hosts.names[host], row.node) != 0)
            host++;
        assert_true(host < hosts.count);
        used[host] = true;
    }
    assert_memory_equal(map, "\n]\n", 3);
    assert_int_equal(atoi(strstr(script, "\nranks=") + 7), ranks);
    for (size_t host = 0; host < hosts.count; host++)
        assert_true(used[host]);
    ek_hostlist_free(&hosts);
    free(script);
    free(python);
}

static void test_ranks_are_where_megatron_has_them(void **state)
{
    (void)state;
    uint64_t draw = 0;
    for (int trial = 0; trial < 300; trial++) {
        char live[64] = {0};
        uint32_t cells = 1 + (uint32_t)(ek_random_u64(1, 0, draw++) % 2);
        for (uint32_t slot = 0; slot < 48; slot++)
            live[slot] = ek_random_u64(1, 0, draw++) % 8 == 0 ? '.' : '#';
        test_plan planned;
        planned_create(&planned, &(test_cluster){12 / cells, 4 * cells, 3, live}, 3, 2, 4, NULL);
        check_script(&planned);
        planned_destroy(&planned);
    }
}

static void test_pci_ids(void **state)
{
    (void)state;
    test_plan planned;
    planned_create(&planned, &(test_cluster){1, 2, 2, "##"}, 1, 1, 2, NULL);
    static const struct {
        const char *pci, *written; /* NULL: refused */
    } cases[] = {
        {"", "-"},
        {"0000:3b:00.0", "00000000:3B:00.0"},
        {"00000008:01:00.0", "00000008:01:00.0"},
        {"0002:AF:1F.7", "00000002:AF:1F.7"},
        {"3b:00.0", NULL},
        {"0000:3b:00.0x", NULL},
        {"GPU-0", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        planned.inventory->slots[1].pci = cases[i].pci;
        char *text = NULL;
        size_t bytes;
        FILE *file = open_memstream(&text, &bytes);
        ek_status status = ek_plan_write_slurm(planned.plan, file);
        fclose(file);
        char line[100];
        snprintf(line, sizeof line, "\n1 node000 1 %s\n", cases[i].written ? cases[i].written : "");
        assert_int_equal(status, cases[i].written ? EK_OK : EK_INVALID);
        if (cases[i].written)
            assert_non_null(strstr(text, line));
        else
            assert_int_equal(bytes, 0);
        free(text);
    }
    planned_destroy(&planned);
}

/* ------------------------------------------------------------------------------------------------ run by bash */

typedef struct stage_set {
    char folder[FOLDER_BYTES], script[PATH_BYTES], output[2000];
    test_plan planned;
} stage_set;

/* A reduced replica of 3 on node001, GPU 2 having failed, and a whole one of 4 on node000. */
static int begin(void **state)
{
    stage_set *scene = calloc(1, sizeof *scene);
    folder_create(scene->folder);
    planned_create(&scene->planned, &(test_cluster){2, 4, 4, "######.#"}, 2, 1, 4, NULL);
    char *text = NULL;
    write_script(scene->planned.plan, &text);
    folder_write(scene->folder, "job.sh", text, strlen(text), scene->script);
    free(text);
    *state = scene;
    return 0;
}

static int end(void **state)
{
    stage_set *scene = *state;
    planned_destroy(&scene->planned);
    folder_remove(scene->folder);
    free(scene);
    return 0;
}

/* nvidia-smi for a node whose GPU 0 is at PCI bus id `first`, GPU 1 one further and so on, and that has no GPU 3. */
static void put_nvidia_smi(stage_set *scene, unsigned first)
{
    char text[500], path[PATH_BYTES];
    snprintf(text, sizeof text,
             "#!/bin/bash\n"
             "[[ $* == '--id='[0-3]' --query-gpu=pci.bus_id --format=csv,noheader' ]] || exit 2\n"
             "id=${1#--id=}\n"
             "[[ $id -lt 3 ]] || { echo 'No devices were found'; exit 6; }\n"
             "printf '00000000:%%02X:00.0\\n' $((%u + id))\n",
             first);
    folder_write(scene->folder, "nvidia-smi", text, strlen(text), path);
    assert_int_equal(chmod(path, 0755), 0);
}

/* Runs the script with `arguments` and the variables in front of it; returns its exit status. */
static int run(stage_set *scene, const char *variables, const char *arguments)
{
    char command[1000];
    snprintf(command, sizeof command, "PATH=%s:$PATH %s bash %s %s 2>&1", scene->folder, variables, scene->script,
             arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    scene->output[fread(scene->output, 1, sizeof scene->output - 1, pipe)] = '\0';
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

#define SHOW "--rank sh -c 'echo \"$RANK of $WORLD_SIZE, $LOCAL_RANK, GPU $CUDA_VISIBLE_DEVICES, $1\"' sh 'two  words'"

static void test_a_task(void **state)
{
    stage_set *scene = *state;
    static const unsigned gpus[] = {0, 1, 3, 0, 1, 2, 3}; /* by rank */
    for (unsigned with_nvidia_smi = 0; with_nvidia_smi < 2; with_nvidia_smi++) {
        if (with_nvidia_smi)
            put_nvidia_smi(scene, 16);
        for (unsigned rank = 0; rank < 7; rank++) {
            if (with_nvidia_smi && gpus[rank] == 3)
                continue;
            const char *node = rank < 3 ? "node001" : "node000";
            char variables[100], expected[200], seen[40] = "";
            snprintf(variables, sizeof variables, "SLURM_PROCID=%u SLURMD_NODENAME=%s", rank, node);
            if (with_nvidia_smi)
                snprintf(seen, sizeof seen, " (00000000:%02X:00.0)", gpus[rank] + 16);
            snprintf(expected, sizeof expected, "rank %u: %s, GPU %u%s\n%u of 7, 0, GPU %u, two  words\n", rank, node,
                     gpus[rank], seen, rank, gpus[rank]);
            assert_int_equal(run(scene, variables, SHOW), 0);
            assert_string_equal(scene->output, expected);
        }
    }
}

static void test_mismatches(void **state)
{
    stage_set *scene = *state;
    assert_int_equal(run(scene, "SLURM_PROCID=0 SLURMD_NODENAME=node000", SHOW), 1);
    assert_string_equal(scene->output, "evenkeel: rank 0 is on node000, its place is node001: Slurm did not follow "
                                       "SLURM_HOSTFILE\n");
    assert_int_equal(run(scene, "SLURM_PROCID=7 SLURMD_NODENAME=node000", SHOW), 1);
    assert_string_equal(scene->output, "evenkeel: rank 7 is not in the plan, which has 7 ranks\n");
    put_nvidia_smi(scene, 17);
    assert_int_equal(run(scene, "SLURM_PROCID=4 SLURMD_NODENAME=node000", SHOW), 1);
    assert_string_equal(scene->output, "evenkeel: rank 4: GPU 1 of node000 is 00000000:12:00.0, its place is "
                                       "00000000:11:00.0: plan again from what is there\n");
    assert_int_equal(run(scene, "SLURM_PROCID=6 SLURMD_NODENAME=node000", SHOW), 1);
    assert_string_equal(scene->output, "evenkeel: rank 6: node000 has no GPU 3: plan again from what is there\n");
}

static void test_outside_slurm(void **state)
{
    stage_set *scene = *state;
    assert_int_equal(run(scene, "", "true"), 1);
    assert_string_equal(scene->output, "evenkeel: not in a Slurm job: start this with sbatch\n");
    assert_int_equal(run(scene, "SLURM_JOB_ID=1", ""), 1);
    assert_string_equal(scene->output, "evenkeel: no training command: sbatch SCRIPT COMMAND [ARGUMENT...]\n");
}

static void test_shellcheck_finds_nothing(void **state)
{
    stage_set *scene = *state;
    if (system("command -v shellcheck >/dev/null") != 0)
        skip();
    char command[300];
    snprintf(command, sizeof command, "shellcheck --severity=style %s", scene->script);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_are_where_megatron_has_them),
        cmocka_unit_test(test_pci_ids),
        cmocka_unit_test_setup_teardown(test_a_task, begin, end),
        cmocka_unit_test_setup_teardown(test_mismatches, begin, end),
        cmocka_unit_test_setup_teardown(test_outside_slurm, begin, end),
        cmocka_unit_test_setup_teardown(test_shellcheck_finds_nothing, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
