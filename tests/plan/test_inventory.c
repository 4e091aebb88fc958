/* Inventories from numbers and from CSV files, every refusal with its place, look-ups and marks. */
#include <stdio.h>
#include <string.h>

#include "folder.h"
#include "plan/inventory.h"

static char folder[FOLDER_BYTES];

static int create_folder(void **state)
{
    (void)state;
    folder_create(folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    folder_remove(folder);
    return 0;
}

/* --------------------------------------------------------------------------------------------- generated */

static void test_generated(void **state)
{
    (void)state;
    ek_inventory *inventory;
    const ek_inventory_numbers numbers = {12, 6, 2, "rack{domain:3}-{node}.example"};
    assert_ok(ek_inventory_generate(&inventory, &numbers));
    assert_int_equal(inventory->domain_count, 12);
    assert_int_equal(inventory->node_count, 36);
    assert_int_equal(inventory->slot_count, 72);
    assert_string_equal(inventory->domains[11].name, "11");
    assert_int_equal(inventory->domains[11].first_slot, 66);
    assert_int_equal(inventory->domains[11].live, 6);
    assert_string_equal(inventory->nodes[35].name, "rack011-2.example");
    assert_int_equal(inventory->nodes[35].domain, 11);
    assert_int_equal(inventory->nodes[35].first_slot, 70);
    assert_int_equal(inventory->slots[71].node, 35);
    assert_int_equal(inventory->slots[71].gpu, 1);
    assert_int_equal(inventory->slots[71].state, EK_SLOT_LIVE);

    uint32_t first, slots;
    assert_true(ek_inventory_find(inventory, "10", &first, &slots));
    assert_int_equal(first, 60);
    assert_int_equal(slots, 6);
    assert_true(ek_inventory_find(inventory, "2.5", &first, &slots));
    assert_int_equal(first, 17);
    assert_int_equal(slots, 1);
    assert_true(ek_inventory_find(inventory, "rack010-1.example", &first, &slots));
    assert_int_equal(first, 62);
    assert_int_equal(slots, 2);
    static const char *const absent[] = {"", ".", "12", "2.6", "2.", ".5", "2.-1", "2.5x", "02", "rack10-1.example"};
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        assert_false(ek_inventory_find(inventory, absent[i], &first, &slots));

    assert_ok(ek_inventory_mark(inventory, 60, 2, EK_SLOT_FAILED, "burnt"));
    ek_inventory *copy;
    assert_ok(ek_inventory_copy(&copy, inventory));
    assert_ok(ek_inventory_mark(copy, 60, 6, EK_SLOT_DRAINED, "cooling"));
    assert_int_equal(inventory->domains[10].live, 4);
    assert_int_equal(copy->domains[10].live, 0);
    assert_int_equal(copy->slots[60].state, EK_SLOT_FAILED); /* what is not live stays what it is */
    assert_string_equal(copy->slots[60].reason, "burnt");
    assert_int_equal(copy->slots[62].state, EK_SLOT_DRAINED);
    assert_string_equal(copy->slots[62].reason, "cooling");
    ek_inventory_destroy(copy);
    ek_inventory_destroy(inventory);
}

static void test_refused_numbers(void **state)
{
    (void)state;
    static const struct {
        ek_inventory_numbers numbers;
        const char *error;
    } refused[] = {
        {{4, 6, 4, "d{domain}-n{node}"}, "cluster.node_gpus: found 4; it must divide cluster.domain_slots, 6"},
        {{1 << 20, 1 << 16, 1, "d{domain}-n{node}"},
         "cluster.domains: 1048576 domains of 65536 slots are 68719476736 GPUs; at most 16777216 are allowed"},
        {{4, 8, 4, "d{domain}"},
         "cluster.host: found \"d{domain}\"; {domain} and {node} are needed in it, as in d{domain}-n{node}"},
        {{4, 8, 8, "n{node}"},
         "cluster.host: found \"n{node}\"; {domain} and {node} are needed in it, as in d{domain}-n{node}"},
        {{4, 8, 4, "d{domain:0}-n{node}"},
         "cluster.host: found \"d{domain:0}-n{node}\"; {domain} and {node} are needed in it, as in d{domain}-n{node}"},
        {{4, 8, 4, "d{domain}{node}"},
         "cluster.host: found \"d{domain}{node}\"; a letter or dash is needed between {domain} and {node}, or two "
         "nodes "
         "could have one name"},
        {{4, 8, 4, "d{node}5{domain}"},
         "cluster.host: found \"d{node}5{domain}\"; a letter or dash is needed between {domain} and {node}, or two "
         "nodes "
         "could have one name"},
        {{4, 8, 4, "d{domain} n{node}"},
         "cluster.host: found \"d{domain} n{node}\"; letters, digits and any of . _ - : / are needed"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ek_inventory *inventory = NULL;
        assert_int_equal(ek_inventory_generate(&inventory, &refused[i].numbers), EK_INVALID);
        assert_string_equal(ek_error(), refused[i].error);
        assert_null(inventory);
    }
}

/* --------------------------------------------------------------------------------------------------- CSV */

static ek_status read_csv(const char *text, ek_inventory **inventory)
{
    static char path[PATH_BYTES];
    folder_write(folder, "i.csv", text, strlen(text), path);
    return ek_inventory_read_csv(inventory, path);
}

/* Lines in any order, columns too; GPUs of a domain stand together, names in natural order. */
static void test_csv(void **state)
{
    (void)state;
    ek_inventory *inventory;
    assert_ok(read_csv("node,gpu,domain,state,serial\r\n"
                       "n10,1,d2,live,s5\r\n"
                       "n9,0,d2,failed,s3\r\n"
                       "n1,0,d10,drained,s1\r\n"
                       "n10,0,d2,live,s4\r\n"
                       "n9,3,d2,live,\r\n",
                       &inventory));
    assert_int_equal(inventory->domain_count, 2);
    assert_int_equal(inventory->node_count, 3);
    assert_int_equal(inventory->slot_count, 5);
    assert_string_equal(inventory->domains[0].name, "d2");
    assert_int_equal(inventory->domains[0].live, 3);
    assert_string_equal(inventory->domains[1].name, "d10");
    assert_int_equal(inventory->domains[1].live, 0);
    static const struct {
        const char *node;
        uint32_t gpu;
        ek_slot_state slot_state;
        const char *serial, *reason;
    } slots[] = {{"n9", 0, EK_SLOT_FAILED, "s3", "as listed"},
                 {"n9", 3, EK_SLOT_LIVE, "", ""},
                 {"n10", 0, EK_SLOT_LIVE, "s4", ""},
                 {"n10", 1, EK_SLOT_LIVE, "s5", ""},
                 {"n1", 0, EK_SLOT_DRAINED, "s1", "as listed"}};
    for (uint32_t i = 0; i < 5; i++) {
        const ek_slot *slot = &inventory->slots[i];
        assert_string_equal(inventory->nodes[slot->node].name, slots[i].node);
        assert_int_equal(slot->gpu, slots[i].gpu);
        assert_int_equal(slot->state, slots[i].slot_state);
        assert_string_equal(slot->serial, slots[i].serial);
        assert_string_equal(slot->reason, slots[i].reason);
        assert_string_equal(slot->pci, "");
    }
    ek_inventory_destroy(inventory);
}

#define HEADER "domain,node,gpu,state,pci,serial\n"

static void test_refused_csv(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } refused[] = {
        {"", ": the file is empty; the first line must name the columns"},
        {HEADER, ":1: no GPUs follow; a line for each is needed"},
        {"domain,node,gpu\n", ":1: column state is missing; the first line must name domain, node, gpu, state"},
        {"domain,node,gpu,state,color\n", ":1: unknown column \"color\"; the first line names the columns: domain, "
                                          "node, gpu, state, pci, serial"},
        {"domain,node,gpu,gpu,state\n", ":1: column gpu is named twice"},
        {HEADER "d0,n0,0,live,,\nd0,n0,1,li",
         ":3: the last line has no line end: the file may have been cut short; if it is complete, add one"},
        {HEADER "d0,n0,0,live,,\nd0,n0,1,live\n",
         ":3: found 4 fields where the first line names 6 columns; the line may be torn"},
        {HEADER "d0,n0,0,live,,\nd0,n0,1,live,,,\n",
         ":3: found 7 fields where the first line names 6 columns; the line may be torn"},
        {HEADER "\n", ":2: found 1 field where the first line names 6 columns; the line may be torn"},
        {HEADER "d0,,0,live,,\n", ":2: node is empty; the line may be torn"},
        {HEADER "d0,n0,-1,live,,\n",
         ":2: gpu: found \"-1\"; its index in the node, a whole number from 0 to 65535, is needed"},
        {HEADER "d0,n0,0x1,live,,\n",
         ":2: gpu: found \"0x1\"; its index in the node, a whole number from 0 to 65535, is needed"},
        {HEADER "d0,n0,0,up,,\n", ":2: state: found \"up\"; live, failed or drained is needed"},
        {HEADER "d0,\"n0\",0,live,,\n", ":2: found a quote; fields without quotes and commas are needed"},
        {HEADER "d0,n 0,0,live,,\n",
         ":2: node \"n 0\" is no host name; letters, digits and any of . _ - : / are needed"},
        {HEADER "d$0,n0,0,live,,\n", ":2: domain \"d$0\" is no name; letters, digits and any of . _ - : / are needed"},
        {HEADER "d0,n0,0,live,,\nd0,n1,0,live,,\nd0,n0,0,failed,,\n",
         ":4: GPU 0 of node n0 is listed twice (first on line 2); remove one of the two"},
        {HEADER "d0,n0,0,live,p0,\nd0,n0,1,live,p0,\n",
         ":3: PCI id p0 of node n0 is listed twice (first on line 2); remove one of the two"},
        {HEADER "d0,n0,0,live,p0,s1\nd0,n1,0,live,p0,s2\nd0,n1,1,live,p1,s1\n",
         ":4: serial number s1 is listed twice (first on line 2); remove one of the two"},
        {HEADER "d0,n0,0,live,,\nd1,n0,1,live,,\n",
         ":3: node n0 is in domain d1 and in domain d0 (first on line 2); a node has one domain"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        ek_inventory *inventory = NULL;
        char expected[400];
        assert_int_equal(read_csv(refused[i].text, &inventory), EK_INVALID);
        snprintf(expected, sizeof expected, "%s/i.csv%s", folder, refused[i].error);
        assert_string_equal(ek_error(), expected);
        assert_null(inventory);
    }
    ek_inventory *inventory = NULL;
    assert_int_equal(ek_inventory_read_csv(&inventory, "missing.csv"), EK_IO);
    assert_string_equal(ek_error(), "missing.csv: cannot be opened (No such file or directory); a CSV file is needed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generated),
        cmocka_unit_test(test_refused_numbers),
        cmocka_unit_test(test_csv),
        cmocka_unit_test(test_refused_csv),
    };
    return cmocka_run_group_tests(tests, create_folder, remove_folder);
}
