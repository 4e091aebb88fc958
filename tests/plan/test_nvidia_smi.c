/* Inventories from the output of nvidia-smi -q -x: what makes a domain, what makes a GPU unfit, what is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "folder.h"
#include "plan/inventory.h"

#define RACK "3f2d9c4e-8a61-4b7f-9d05-6c1e7a2b8f90"

/* A GPU as a driver of the 580 series describes it, without what the reader does not look at. */
static const char gpu_format[] = "\t<gpu id=\"%s\">\n"
                                 "\t\t<product_name>NVIDIA GB200</product_name>\n"
                                 "\t\t<mig_mode>\n\t\t\t<current_mig>Disabled</current_mig>\n\t\t</mig_mode>\n"
                                 "\t\t<serial>%s</serial>\n"
                                 "\t\t<uuid>GPU-%s</uuid>\n"
                                 "\t\t<gpu_reset_status>\n\t\t\t<reset_required>No</reset_required>\n"
                                 "\t\t</gpu_reset_status>\n"
                                 "\t\t<gpu_recovery_action>None</gpu_recovery_action>\n"
                                 "\t\t<pci>\n\t\t\t<pci_bus_id>%s</pci_bus_id>\n\t\t</pci>\n"
                                 "\t\t<ecc_errors>\n\t\t\t<aggregate>\n"
                                 "\t\t\t\t<sram_threshold_exceeded>No</sram_threshold_exceeded>\n"
                                 "\t\t\t</aggregate>\n\t\t</ecc_errors>\n"
                                 "\t\t<retired_pages>\n\t\t\t<pending_blacklist>No</pending_blacklist>\n"
                                 "\t\t\t<pending_retirement>No</pending_retirement>\n\t\t</retired_pages>\n"
                                 "\t\t<remapped_rows>\n\t\t\t<remapped_row_pending>No</remapped_row_pending>\n"
                                 "\t\t\t<remapped_row_failure>No</remapped_row_failure>\n\t\t</remapped_rows>\n"
                                 "\t\t<fabric>\n\t\t\t<state>Completed</state>\n\t\t\t<status>Success</status>\n"
                                 "\t\t\t<cliqueId>%s</cliqueId>\n\t\t\t<clusterUuid>%s</clusterUuid>\n"
                                 "\t\t\t<health>\n\t\t\t\t<summary>Healthy</summary>\n"
                                 "\t\t\t\t<route_unhealthy>False</route_unhealthy>\n\t\t\t</health>\n"
                                 "\t\t</fabric>\n"
                                 "\t</gpu>\n";

#define TEXT_BYTES 20000

/* The output on a node: serials begin with the node's number. */
static void describe(char text[TEXT_BYTES], unsigned node, unsigned gpus, const char *clique, const char *cluster)
{
    size_t used = (size_t)snprintf(text, TEXT_BYTES,
                                   "<?xml version=\"1.0\" ?>\n"
                                   "<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n"
                                   "<nvidia_smi_log>\n"
                                   "\t<driver_version>580.95.05</driver_version>\n"
                                   "\t<attached_gpus>%u</attached_gpus>\n",
                                   gpus);
    for (unsigned gpu = 0; gpu < gpus; gpu++) {
        char serial[40], pci[40];
        snprintf(serial, sizeof serial, "16521230%03u%02u", node, gpu);
        snprintf(pci, sizeof pci, "%08X:%02X:00.0", gpu + 8, gpu + 1);
        used += (size_t)snprintf(text + used, TEXT_BYTES - used, gpu_format, pci, serial, serial, pci, clique, cluster);
    }
    snprintf(text + used, TEXT_BYTES - used, "</nvidia_smi_log>\n");
}

static void write_node(const char *folder, unsigned node, const char *text)
{
    char name[40], path[PATH_BYTES];
    snprintf(name, sizeof name, "node%03u.xml", node);
    folder_write(folder, name, text, strlen(text), path);
}

/* Puts `after` in the place of the first `before`. */
static void replace(char text[TEXT_BYTES], const char *before, const char *after)
{
    char *at = strstr(text, before);
    assert_non_null(at);
    size_t length = strlen(after), rest = strlen(at + strlen(before)) + 1;
    assert_true((size_t)(at - text) + length + rest <= TEXT_BYTES);
    memmove(at + length, at + strlen(before), rest);
    for (size_t i = 0; i < length; i++)
        at[i] = after[i];
}

static void assert_refused(const char *folder, uint32_t node_gpus, ek_status status, const char *first,
                           const char *second)
{
    ek_inventory *inventory = NULL;
    assert_int_equal(ek_inventory_read_nvidia_smi(&inventory, folder, node_gpus), status);
    assert_null(inventory);
    if (!strstr(ek_error(), first) || !strstr(ek_error(), second))
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", ek_error(), first, second);
}

static void test_a_rack_is_a_domain(void **state)
{
    (void)state;
    char folder[FOLDER_BYTES], text[TEXT_BYTES];
    folder_create(folder);
    for (unsigned node = 0; node < 36; node++) {
        describe(text, node, 4, node < 18 ? "1" : "2", RACK);
        write_node(folder, node, text);
    }
    ek_inventory *inventory;
    assert_ok(ek_inventory_read_nvidia_smi(&inventory, folder, 4));
    assert_int_equal(inventory->domain_count, 2);
    assert_int_equal(inventory->node_count, 36);
    for (uint32_t domain = 0; domain < 2; domain++) {
        assert_string_equal(inventory->domains[domain].name, domain == 0 ? RACK ".1" : RACK ".2");
        assert_int_equal(inventory->domains[domain].slots, 72);
        assert_int_equal(inventory->domains[domain].live, 72);
    }
    for (uint32_t slot = 0; slot < inventory->slot_count; slot++) {
        char name[40];
        snprintf(name, sizeof name, "node%03u", slot / 4);
        assert_string_equal(inventory->nodes[inventory->slots[slot].node].name, name);
        assert_int_equal(inventory->slots[slot].gpu, slot % 4);
    }
    assert_string_equal(inventory->slots[5].pci, "00000009:02:00.0");
    assert_string_equal(inventory->slots[5].serial, "1652123000101");
    ek_inventory_destroy(inventory);
    folder_remove(folder);
}

static void test_without_a_fabric_a_node_is_a_domain(void **state)
{
    (void)state;
    char folder[FOLDER_BYTES], text[TEXT_BYTES];
    folder_create(folder);
    describe(text, 0, 8, "N/A", "N/A");
    for (unsigned gpu = 0; gpu < 8; gpu++) {
        replace(text, "<state>Completed", "<state>N/A");
        replace(text, "<status>Success", "<status>N/A");
    }
    write_node(folder, 0, text);
    describe(text, 1, 8, "0", "00000000-0000-0000-0000-000000000000"); /* NVSwitches of its own */
    write_node(folder, 1, text);
    describe(text, 2, 8, "N/A", "N/A");
    char *fabric; /* drivers before 535 say nothing of a fabric */
    while ((fabric = strstr(text, "\t\t<fabric>")))
        memmove(fabric, strstr(fabric, "</fabric>\n") + 10, strlen(strstr(fabric, "</fabric>\n") + 10) + 1);
    write_node(folder, 2, text);
    ek_inventory *inventory;
    assert_ok(ek_inventory_read_nvidia_smi(&inventory, folder, 8));
    assert_int_equal(inventory->domain_count, 3);
    for (uint32_t domain = 0; domain < 3; domain++) {
        assert_string_equal(inventory->domains[domain].name, inventory->nodes[domain].name);
        assert_int_equal(inventory->domains[domain].live, 8);
    }
    ek_inventory_destroy(inventory);
    folder_remove(folder);
}

static void test_a_vanished_gpu_is_a_failed_slot(void **state)
{
    (void)state;
    char folder[FOLDER_BYTES], text[TEXT_BYTES];
    folder_create(folder);
    for (unsigned node = 0; node < 2; node++) {
        describe(text, node, 3 + node, "1", RACK);
        write_node(folder, node, text);
    }
    ek_inventory *inventory;
    assert_ok(ek_inventory_read_nvidia_smi(&inventory, folder, 4));
    assert_int_equal(inventory->domain_count, 1);
    assert_int_equal(inventory->domains[0].slots, 8);
    assert_int_equal(inventory->domains[0].live, 7);
    assert_int_equal(inventory->slots[3].state, EK_SLOT_FAILED);
    assert_string_equal(inventory->slots[3].reason, "vanished: the node has 3 of its 4 GPUs");
    ek_inventory_destroy(inventory);
    folder_remove(folder);
}

static void test_symptoms(void **state)
{
    (void)state;
    static const struct {
        const char *before, *after;
        ek_slot_state state;
        const char *reason;
    } cases[] = {
        {"<uuid>GPU-1652123000000</uuid>", "<uuid>GPU is lost</uuid>", EK_SLOT_FAILED, "the GPU is lost"},
        {"<uuid>GPU-1652123000000</uuid>", "<uuid>Unknown Error</uuid>", EK_SLOT_FAILED, "the GPU does not answer"},
        {"<reset_required>No", "<reset_required>Yes", EK_SLOT_FAILED, "the GPU requires a reset"},
        {"<reset_required>No", "<reset_required>Requested functionality has been deprecated", EK_SLOT_LIVE, ""},
        {"<gpu_recovery_action>None", "<gpu_recovery_action>Reset", EK_SLOT_FAILED, "recovery action: Reset"},
        {"<remapped_row_failure>No", "<remapped_row_failure>Yes", EK_SLOT_FAILED,
         "a row of memory could not be remapped"},
        {"<sram_threshold_exceeded>No", "<sram_threshold_exceeded>Yes", EK_SLOT_FAILED,
         "too many uncorrectable SRAM errors"},
        {"<state>Completed", "<state>In Progress", EK_SLOT_FAILED, "fabric state: In Progress"},
        {"<state>Completed", "<state>Not Started", EK_SLOT_FAILED, "fabric state: Not Started"},
        {"<status>Success", "<status>\n\t\t\t\tUnknown Error\n\t\t\t", EK_SLOT_FAILED, "fabric status: Unknown Error"},
        {"<summary>Healthy", "<summary>Unhealthy", EK_SLOT_FAILED, "the fabric is unhealthy"},
        {"<route_unhealthy>False", "<route_unhealthy>True", EK_SLOT_FAILED, "a fabric route is unhealthy"},
        {"<remapped_row_pending>No", "<remapped_row_pending>Yes", EK_SLOT_DRAINED, "a row remap waits for a reset"},
        {"<pending_blacklist>No", "<pending_blacklist>Yes", EK_SLOT_DRAINED, "a page retirement waits for a reset"},
        {"<pending_retirement>No", "<pending_retirement>Yes", EK_SLOT_DRAINED, "a page retirement waits for a reset"},
        {"<current_mig>Disabled", "<current_mig>Enabled", EK_SLOT_DRAINED, "the GPU is in MIG mode"},
        {"<serial>1652123000000", "<serial>N/A", EK_SLOT_LIVE, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[FOLDER_BYTES], text[TEXT_BYTES];
        folder_create(folder);
        describe(text, 0, 4, "1", RACK);
        replace(text, cases[i].before, cases[i].after);
        write_node(folder, 0, text);
        ek_inventory *inventory;
        assert_ok(ek_inventory_read_nvidia_smi(&inventory, folder, 4));
        assert_int_equal(inventory->domain_count, 1);
        assert_int_equal(inventory->slots[0].state, cases[i].state);
        assert_string_equal(inventory->slots[0].reason, cases[i].reason);
        assert_int_equal(inventory->domains[0].live, cases[i].state == EK_SLOT_LIVE ? 4 : 3);
        ek_inventory_destroy(inventory);
        folder_remove(folder);
    }
}

/* A GPU that has not joined the fabric has no clique; its slot is still one of the rack. */
static void test_a_gpu_without_its_clique_stays_in_the_domain(void **state)
{
    (void)state;
    char folder[FOLDER_BYTES], text[TEXT_BYTES];
    folder_create(folder);
    describe(text, 0, 4, "1", RACK);
    replace(text, "<state>Completed", "<state>Not Started");
    replace(text, "<cliqueId>1", "<cliqueId>N/A");
    replace(text, "<clusterUuid>" RACK, "<clusterUuid>N/A");
    write_node(folder, 0, text);
    ek_inventory *inventory;
    assert_ok(ek_inventory_read_nvidia_smi(&inventory, folder, 4));
    assert_int_equal(inventory->domain_count, 1);
    assert_string_equal(inventory->domains[0].name, RACK ".1");
    assert_int_equal(inventory->slots[0].state, EK_SLOT_FAILED);
    ek_inventory_destroy(inventory);
    folder_remove(folder);
}

/* Cut off anywhere, a file is refused with its name and a line of it. */
static void test_torn_files(void **state)
{
    (void)state;
    char folder[FOLDER_BYTES], text[TEXT_BYTES], path[PATH_BYTES];
    folder_create(folder);
    describe(text, 0, 1, "1", RACK);
    size_t complete = (size_t)(strstr(text, "</nvidia_smi_log>") - text) + strlen("</nvidia_smi_log>");
    unsigned lines = 1;
    for (size_t bytes = 0; bytes < complete; bytes++) {
        folder_write(folder, "node000.xml", text, bytes, path);
        ek_inventory *inventory;
        assert_int_equal(ek_inventory_read_nvidia_smi(&inventory, folder, 1), EK_INVALID);
        size_t length = strlen(path);
        assert_memory_equal(ek_error(), path, length);
        unsigned line = 0;
        assert_int_equal(sscanf(ek_error() + length, ":%u: ", &line), 1);
        assert_in_range(line, 1, lines + 1);
        lines += text[bytes] == '\n';
    }
    folder_write(folder, "node000.xml", text, complete, path);
    ek_inventory *inventory;
    assert_ok(ek_inventory_read_nvidia_smi(&inventory, folder, 1));
    ek_inventory_destroy(inventory);
    folder_remove(folder);
}

static void test_refusals(void **state)
{
    (void)state;
    char folder[FOLDER_BYTES], text[TEXT_BYTES], path[PATH_BYTES];
    folder_create(folder);
    assert_refused(folder, 4, EK_INVALID, folder, "empty folder");
    folder_write(folder, ".hidden", "", 0, path);
    assert_refused(folder, 4, EK_INVALID, folder, "empty folder");

    describe(text, 0, 4, "1", RACK);
    write_node(folder, 0, text);
    assert_refused(folder, 3, EK_INVALID, "node000.xml:", "cluster.node_gpus");

    replace(text, "<serial>1652123000001", "<serial>1652123000000");
    write_node(folder, 0, text);
    assert_refused(folder, 4, EK_INVALID, "node000.xml:", "1652123000000");

    describe(text, 0, 4, "1", RACK);
    replace(text, "<pci_bus_id>00000009:02:00.0", "<pci_bus_id>00000008:01:00.0");
    write_node(folder, 0, text);
    assert_refused(folder, 4, EK_INVALID, "node000.xml:", "00000008:01:00.0");

    describe(text, 0, 4, "1", RACK);
    replace(text, "<pci_bus_id>00000009:02:00.0</pci_bus_id>", "");
    write_node(folder, 0, text);
    assert_refused(folder, 4, EK_INVALID, "node000.xml:", "pci_bus_id");

    describe(text, 0, 4, "1", RACK);
    replace(text, "<cliqueId>1", "<cliqueId>2");
    write_node(folder, 0, text);
    assert_refused(folder, 4, EK_INVALID, "node000.xml:", "node000");

    static const char html[] = "<html>\n<body/>\n</html>\n";
    write_node(folder, 0, html);
    assert_refused(folder, 4, EK_INVALID, "node000.xml:1", "<html>");

    describe(text, 1, 4, "1", RACK); /* the same node under two names */
    write_node(folder, 0, text);
    write_node(folder, 1, text);
    assert_refused(folder, 4, EK_INVALID, "node001.xml:", "1652123000100");
    folder_remove(folder);
    assert_refused(folder, 4, EK_IO, folder, "No such file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rack_is_a_domain),
        cmocka_unit_test(test_without_a_fabric_a_node_is_a_domain),
        cmocka_unit_test(test_a_vanished_gpu_is_a_failed_slot),
        cmocka_unit_test(test_symptoms),
        cmocka_unit_test(test_a_gpu_without_its_clique_stays_in_the_domain),
        cmocka_unit_test(test_torn_files),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
