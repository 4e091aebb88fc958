/* Inventories from scontrol show node, in lines and in one, with a block topology in its three forms. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "folder.h"
#include "plan/inventory.h"

#define TEXT_BYTES 40000

/* A node as Slurm 22.05 and later show it. */
static size_t describe(char *text, bool one_line, unsigned node, const char *gres, const char *state,
                       const char *reason)
{
    const char *next = one_line ? " " : "\n   ";
    int length = snprintf(text, TEXT_BYTES,
                          "NodeName=node%03u Arch=aarch64 CoresPerSocket=72 %sCPUAlloc=0 CPUEfctv=144 CPUTot=144 "
                          "CPULoad=0.41%sGres=%s%sNodeAddr=node%03u NodeHostName=node%03u Version=24.11.5%s"
                          "OS=Linux 6.8.0 State machine #1 SMP %sRealMemory=900000 AllocMem=0 FreeMem=800000%s"
                          "State=%s ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A%sPartitions=batch %s"
                          "CfgTRES=cpu=144,mem=900000M,billing=144,gres/gpu=4%sAllocTRES=",
                          node, next, next, gres, next, node, node, next, next, next, state, next, next, next);
    if (reason)
        length += snprintf(text + length, TEXT_BYTES - (size_t)length, "%sReason=%s [root@2026-03-01T10:00:00]", next,
                           reason);
    length += snprintf(text + length, TEXT_BYTES - (size_t)length, one_line ? "\n" : "\n\n");
    return (size_t)length;
}

static const char *const topologies[][2] = {
    {"topology.conf", "# two racks\n"
                      "blockname=rack1 Nodes=node[001-018]\n"
                      "BlockName=rack2 Nodes=node[019-036] # the second\n"
                      "BlockSizes=18,36\n"},
    {"shown", "BlockName=rack1 BlockIndex=0 Nodes=node[001-018] BlockSize=18\n"
              "BlockName=rack2 BlockIndex=1 Nodes=node[019-036] BlockSize=18\n"
              "AggregatedBlock=rack[1-2] BlockIndex=2 Nodes=node[001-036] BlockSize=36\n"},
    {"topology.yaml", "- topology: ethernet\n"
                      "  cluster_default: false\n"
                      "  flat: true\n"
                      "- topology: nvlink\n"
                      "  cluster_default: true\n"
                      "  block:\n"
                      "    block_sizes: [18, 36]\n"
                      "    blocks:\n"
                      "      - block: rack1\n"
                      "        nodes: node[001-018]\n"
                      "      - {block: rack2, nodes: \"node[019-036]\"}\n"},
};

static ek_status read_texts(ek_inventory **inventory, const char *nodes, const char *topology_name,
                            const char *topology, uint32_t node_gpus)
{
    char folder[FOLDER_BYTES], nodes_path[PATH_BYTES], topology_path[PATH_BYTES];
    folder_create(folder);
    folder_write(folder, "nodes", nodes, strlen(nodes), nodes_path);
    folder_write(folder, topology_name, topology, strlen(topology), topology_path);
    ek_status status = ek_inventory_read_scontrol(inventory, nodes_path, topology_path, node_gpus);
    folder_remove(folder);
    return status;
}

static void test_racks(void **state)
{
    (void)state;
    static char nodes[TEXT_BYTES];
    for (int one_line = 0; one_line < 2; one_line++)
        for (size_t form = 0; form < sizeof topologies / sizeof *topologies; form++) {
            size_t used = 0;
            for (unsigned node = 1; node <= 36; node++) /* and a node outside the blocks */
                used += describe(nodes + used, one_line, node, "gpu:gb200:4(S:0-1)",
                                 node == 3    ? "DOWN*+DRAIN"
                                 : node == 20 ? "IDLE+DRAIN"
                                              : "MIXED+CLOUD",
                                 node == 3    ? "Not responding"
                                 : node == 20 ? "GPU 2 [bad] State=FAIL"
                                              : NULL);
            describe(nodes + used, one_line, 99, "(null)", "IDLE", NULL);
            ek_inventory *inventory;
            assert_ok(read_texts(&inventory, nodes, topologies[form][0], topologies[form][1], one_line ? 4 : 0));
            assert_int_equal(inventory->domain_count, 2);
            assert_int_equal(inventory->node_count, 36);
            for (uint32_t domain = 0; domain < 2; domain++) {
                assert_string_equal(inventory->domains[domain].name, domain == 0 ? "rack1" : "rack2");
                assert_int_equal(inventory->domains[domain].slots, 72);
                assert_int_equal(inventory->domains[domain].live, 68);
            }
            for (uint32_t slot = 0; slot < inventory->slot_count; slot++) {
                uint32_t node = slot / 4 + 1;
                assert_int_equal(inventory->slots[slot].state, node == 3    ? EK_SLOT_FAILED
                                                               : node == 20 ? EK_SLOT_DRAINED
                                                                            : EK_SLOT_LIVE);
                assert_string_equal(inventory->slots[slot].reason, node == 3    ? "DOWN*+DRAIN: Not responding"
                                                                   : node == 20 ? "IDLE+DRAIN: GPU 2 [bad] State=FAIL"
                                                                                : "");
            }
            ek_inventory_destroy(inventory);
        }
}

static void test_states(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        ek_slot_state state;
    } cases[] = {
        {"IDLE", EK_SLOT_LIVE},
        {"ALLOCATED", EK_SLOT_LIVE},
        {"MIXED+COMPLETING", EK_SLOT_LIVE},
        {"IDLE+RESERVED", EK_SLOT_LIVE},
        {"IDLE+PLANNED", EK_SLOT_LIVE},
        {"IDLE~", EK_SLOT_LIVE},
        {"IDLE+CLOUD+POWERED_DOWN", EK_SLOT_LIVE},
        {"IDLE+DRAIN", EK_SLOT_DRAINED},
        {"ALLOCATED+DRAIN", EK_SLOT_DRAINED},
        {"DRAINED", EK_SLOT_DRAINED},
        {"DRAINING", EK_SLOT_DRAINED},
        {"IDLE+MAINT", EK_SLOT_DRAINED},
        {"IDLE+MAINTENANCE", EK_SLOT_DRAINED},
        {"MAINT", EK_SLOT_DRAINED},
        {"IDLE$", EK_SLOT_DRAINED},
        {"IDLE@", EK_SLOT_DRAINED},
        {"IDLE+REBOOT_REQUESTED", EK_SLOT_DRAINED},
        {"IDLE+REBOOT_ISSUED", EK_SLOT_DRAINED},
        {"DOWN", EK_SLOT_FAILED},
        {"DOWN*", EK_SLOT_FAILED},
        {"IDLE*", EK_SLOT_FAILED},
        {"IDLE+NOT_RESPONDING", EK_SLOT_FAILED},
        {"IDLE+DRAIN+NOT_RESPONDING", EK_SLOT_FAILED},
        {"DOWN+DRAIN", EK_SLOT_FAILED},
        {"MIXED+FAIL", EK_SLOT_FAILED},
        {"ALLOCATED+FAILING", EK_SLOT_FAILED},
        {"ERROR", EK_SLOT_FAILED},
        {"UNKNOWN", EK_SLOT_FAILED},
        {"FUTURE", EK_SLOT_FAILED},
        {"IDLE+DRAIN+INVALID_REG", EK_SLOT_FAILED},
    };
    static char nodes[TEXT_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        describe(nodes, i % 2, 1, "gpu:4", cases[i].text, NULL);
        ek_inventory *inventory;
        assert_ok(read_texts(&inventory, nodes, "t", "BlockName=b Nodes=node001\n", 0));
        for (uint32_t slot = 0; slot < 4; slot++) {
            if (inventory->slots[slot].state != cases[i].state)
                fail_msg("%s is taken for %s", cases[i].text, ek_slot_state_text(inventory->slots[slot].state));
            assert_string_equal(inventory->slots[slot].reason, cases[i].state == EK_SLOT_LIVE ? "" : cases[i].text);
        }
        ek_inventory_destroy(inventory);
    }
}

static void test_generic_resources(void **state)
{
    (void)state;
    static const struct {
        const char *gres;
        unsigned gpus; /* 0: refused */
    } cases[] = {
        {"gpu:4", 4},
        {"gpu:gb200:4", 4},
        {"gpu:gb200:4(S:0-1)", 4},
        {"gpu:h100:8(S:0,1)", 8},
        {"shard:h100:64(S:0-1),gpu:h100:8(S:0-1)", 8},
        {"gpu:h100:6(S:0),gpu:a100:2(S:1),nic:2", 8},
        {"craynetwork:4,gpu:2", 2},
        {"gpu_mem:80G,gpu:1", 1},
        {"(null)", 0},
        {"nic:4", 0},
        {"gpu:h100:", 0},
        {"gpu:h100", 0},
        {"gpu:99999999", 0},
    };
    static char nodes[TEXT_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        describe(nodes, i % 2, 1, cases[i].gres, "IDLE", NULL);
        ek_inventory *inventory;
        ek_status status = read_texts(&inventory, nodes, "t", "BlockName=b Nodes=node001\n", 0);
        assert_int_equal(status, cases[i].gpus > 0 ? EK_OK : EK_INVALID);
        if (status != EK_OK)
            continue;
        assert_int_equal(inventory->slot_count, cases[i].gpus);
        ek_inventory_destroy(inventory);
    }
}

static void test_vanished_gpus(void **state)
{
    (void)state;
    static char nodes[TEXT_BYTES];
    size_t used = describe(nodes, false, 1, "gpu:gb200:3", "IDLE", NULL);
    describe(nodes + used, false, 2, "(null)", "DOWN", NULL);
    ek_inventory *inventory;
    assert_ok(read_texts(&inventory, nodes, "t", "BlockName=b Nodes=node[001-002]\n", 4));
    assert_int_equal(inventory->slot_count, 8);
    assert_int_equal(inventory->domains[0].live, 3);
    for (uint32_t slot = 3; slot < 8; slot++) {
        assert_int_equal(inventory->slots[slot].state, EK_SLOT_FAILED);
        assert_string_equal(inventory->slots[slot].reason, slot == 3 ? "vanished: the node has 3 of its 4 GPUs"
                                                                     : "vanished: the node has 0 of its 4 GPUs");
    }
    ek_inventory_destroy(inventory);
    assert_int_equal(read_texts(&inventory, nodes, "t", "BlockName=b Nodes=node001\n", 2), EK_INVALID);
    assert_non_null(strstr(ek_error(), "/nodes:1: node node001 has 3 GPUs; at most cluster.node_gpus, 2"));
}

static void test_refusals(void **state)
{
    (void)state;
    static char good[TEXT_BYTES], twice[2 * TEXT_BYTES], stateless[TEXT_BYTES];
    describe(good, false, 1, "gpu:4", "IDLE", NULL);
    snprintf(twice, sizeof twice, "%s%s", good, good);
    snprintf(stateless, sizeof stateless, "%.*s", (int)(strstr(good, "State=IDLE") - good), good);
    const struct {
        const char *nodes, *name, *topology, *first, *second;
    } cases[] = {
        {good, "t", "", "/t: no blocks", "BlockName"},
        {good, "t", "SwitchName=s1 Nodes=node001\n", "/t:1: ", "switch"},
        {good, "t", "\nBlockName=b\n", "/t:2: ", "torn"},
        {good, "t", "BlockName=b Nodes=node[001\n", "/t:1: block b", "without its ]"},
        {good, "t", "BlockName=b Nodes=node[001-002]\n", "/t:1: node node002 of block b", "/nodes"},
        {good, "t", "BlockName=b Nodes=node001\nBlockName=c Nodes=node001\n", "/t:2: node node001", "already"},
        {good, "t.yaml", "- topology: [\n", "/t.yaml:", "YAML"},
        {good, "t.yaml", "- topology: a\n  block:\n    blocks:\n    - block: b\n", "/t.yaml:4: ", "nodes"},
        {good, "t.yaml", "- topology: a\n  tree: {}\n", "/t.yaml: no blocks", "BlockName"},
        {good, "t.yml", "block: b\n", "/t.yml: no blocks", "BlockName"},
        {"", "t", "BlockName=b Nodes=node001\n", "/nodes: no nodes", "scontrol show node"},
        {"\n\nslurm_load_node error\n", "t", "BlockName=b Nodes=node001\n", "/nodes:3: ", "NodeName"},
        {twice, "t", "BlockName=b Nodes=node001\n", "/nodes:12: node node001", "line 1 already"},
        {stateless, "t", "BlockName=b Nodes=node001\n", "/nodes:1: node node001", "State"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ek_inventory *inventory = NULL;
        assert_int_equal(read_texts(&inventory, cases[i].nodes, cases[i].name, cases[i].topology, 0), EK_INVALID);
        assert_null(inventory);
        if (!strstr(ek_error(), cases[i].first) || !strstr(ek_error(), cases[i].second))
            fail_msg("%zu: \"%s\" lacks \"%s\" or \"%s\"", i, ek_error(), cases[i].first, cases[i].second);
    }
    ek_inventory *inventory;
    assert_int_equal(ek_inventory_read_scontrol(&inventory, "/nowhere", "/nowhere", 0), EK_IO);
}

/* Damaged input is read or refused with its place, whatever the damage. */
static void test_damage(void **state)
{
    (void)state;
    static const char bytes[] = "[]-,=:()+ \n19ag*#";
    static char nodes[TEXT_BYTES];
    char topology[1000];
    uint64_t draw = 0;
    int taken = 0;
    for (int trial = 0; trial < 1500; trial++) {
        size_t form = (size_t)trial % 3, used = 0;
        for (unsigned node = 1; node <= 36; node++)
            used += describe(nodes + used, trial % 2, node, "gpu:gb200:4(S:0-1),nic:2", "IDLE+DRAIN", "a [b] c");
        snprintf(topology, sizeof topology, "%s", topologies[form][1]);
        for (unsigned damage = 0; damage <= ek_random_u64(3, 1, draw) % 3; damage++) {
            char *text = ek_random_u64(3, 2, draw) % 2 ? nodes : topology;
            size_t length = strlen(text);
            if (length > 0)
                text[ek_random_u64(3, 3, draw) % length] = bytes[ek_random_u64(3, 4, draw) % sizeof bytes];
            draw++;
        }
        ek_inventory *inventory;
        ek_status status = read_texts(&inventory, nodes, topologies[form][0], topology, 4);
        if (status == EK_OK) {
            ek_inventory_destroy(inventory);
            taken++;
            continue;
        }
        assert_int_equal(status, EK_INVALID);
        assert_memory_equal(ek_error(), "/tmp/evenkeel-plan-test-", 24);
    }
    assert_in_range(taken, 100, 1400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_racks),         cmocka_unit_test(test_states),   cmocka_unit_test(test_generic_resources),
        cmocka_unit_test(test_vanished_gpus), cmocka_unit_test(test_refusals), cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
