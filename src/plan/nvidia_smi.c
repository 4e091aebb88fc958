/* An inventory from the output of `nvidia-smi -q -x` of each node. The names of elements are those that
 * drivers of the 575 and 580 series write (nvsmi_device_v12.dtd); an element that is not there says nothing. */
#include <dirent.h>
#include <errno.h>
#include <libxml/parser.h>
#include <libxml/tree.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/rows.h"

/* ---------------------------------------------------------------------------------------------- elements */

static const xmlNode *child(const xmlNode *element, const char *name, size_t length)
{
    for (const xmlNode *node = element->children; node; node = node->next)
        if (node->type == XML_ELEMENT_NODE && strlen((const char *)node->name) == length &&
            strncmp((const char *)node->name, name, length) == 0)
            return node;
    return NULL;
}

/* The text of the element at a path "fabric/state", without the white space around it; "" where there is none. */
#define TEXT_BYTES 128
static const char *text_at(const xmlNode *element, const char *path, char text[TEXT_BYTES])
{
    while (element && path) {
        size_t length = strcspn(path, "/");
        element = child(element, path, length);
        path = path[length] == '/' ? path + length + 1 : NULL;
    }
    const char *content = element && element->children && element->children->type == XML_TEXT_NODE
                              ? (const char *)element->children->content
                              : "";
    content += strspn(content, " \t\r\n");
    size_t length = strlen(content);
    while (length > 0 && strchr(" \t\r\n", content[length - 1]))
        length--;
    snprintf(text, TEXT_BYTES, "%.*s", (int)length, content);
    return text;
}

/* nvidia-smi says so of what a device or its driver does not have. */
static bool is_absent(const char *text)
{
    return text[0] == '\0' || strcmp(text, "N/A") == 0 || strcmp(text, "[N/A]") == 0 ||
           strcmp(text, "Not Supported") == 0 || strstr(text, "deprecated") != NULL;
}

/* ------------------------------------------------------------------------------------------------- health */

/* What makes a GPU unfit: an element that has this value (NULL: any but `good`). */
typedef struct symptom {
    const char *path, *value, *good;
    ek_slot_state state;
    const char *reason;
} symptom;

static const symptom symptoms[] = {
    /* a GPU that does not answer has such a text in every element */
    {"uuid", "GPU is lost", NULL, EK_SLOT_FAILED, "the GPU is lost"},
    {"uuid", "GPU requires reset", NULL, EK_SLOT_FAILED, "the GPU requires a reset"},
    {"uuid", "Unknown Error", NULL, EK_SLOT_FAILED, "the GPU does not answer"},
    {"uuid", "ERR!", NULL, EK_SLOT_FAILED, "the GPU does not answer"},
    {"gpu_reset_status/reset_required", "Yes", NULL, EK_SLOT_FAILED, "the GPU requires a reset"},
    {"gpu_recovery_action", NULL, "None", EK_SLOT_FAILED, "recovery action"},
    {"remapped_rows/remapped_row_failure", "Yes", NULL, EK_SLOT_FAILED, "a row of memory could not be remapped"},
    {"ecc_errors/aggregate/sram_threshold_exceeded", "Yes", NULL, EK_SLOT_FAILED, "too many uncorrectable SRAM errors"},
    {"fabric/state", NULL, "Completed", EK_SLOT_FAILED, "fabric state"},
    {"fabric/status", NULL, "Success", EK_SLOT_FAILED, "fabric status"},
    {"fabric/health/summary", "Unhealthy", NULL, EK_SLOT_FAILED, "the fabric is unhealthy"},
    {"fabric/health/route_unhealthy", "True", NULL, EK_SLOT_FAILED, "a fabric route is unhealthy"},
    {"remapped_rows/remapped_row_pending", "Yes", NULL, EK_SLOT_DRAINED, "a row remap waits for a reset"},
    {"retired_pages/pending_blacklist", "Yes", NULL, EK_SLOT_DRAINED, "a page retirement waits for a reset"},
    {"retired_pages/pending_retirement", "Yes", NULL, EK_SLOT_DRAINED, "a page retirement waits for a reset"},
    {"mig_mode/current_mig", "Enabled", NULL, EK_SLOT_DRAINED, "the GPU is in MIG mode"},
};

/* The first symptom, in words; "" where there is none. */
static const char *examine(const xmlNode *gpu, ek_slot_state *state, char reason[2 * TEXT_BYTES])
{
    *state = EK_SLOT_LIVE;
    reason[0] = '\0';
    for (size_t i = 0; i < sizeof symptoms / sizeof *symptoms && *state == EK_SLOT_LIVE; i++) {
        const symptom *one = &symptoms[i];
        char found[TEXT_BYTES];
        if (is_absent(text_at(gpu, one->path, found)))
            continue;
        bool shows = one->value ? strcmp(found, one->value) == 0 : strcmp(found, one->good) != 0;
        if (!shows)
            continue;
        *state = one->state;
        snprintf(reason, 2 * TEXT_BYTES, one->value ? "%s" : "%s: %s", one->reason, found);
    }
    return reason;
}

/* The domain of a GPU whose fabric is up: cluster and clique. "" where there is no fabric beyond the node, as a cluster
 * id of zeros says on machines with NVSwitches of their own. */
#define DOMAIN_BYTES (2 * TEXT_BYTES)
static const char *clique_of(const xmlNode *gpu, char domain[DOMAIN_BYTES])
{
    char cluster[TEXT_BYTES], clique[TEXT_BYTES];
    domain[0] = '\0';
    text_at(gpu, "fabric/clusterUuid", cluster);
    text_at(gpu, "fabric/cliqueId", clique);
    if (!is_absent(cluster) && !is_absent(clique) && strspn(cluster, "0-") != strlen(cluster))
        snprintf(domain, DOMAIN_BYTES, "%s.%s", cluster, clique);
    return domain;
}

/* -------------------------------------------------------------------------------------------------- nodes */

typedef struct node_file {
    const char *path, *node; /* kept with the rows */
    uint32_t node_gpus;
} node_file;

static ek_status add_gpu(ek_rows *rows, const node_file *source, const xmlNode *gpu, const char *domain, uint32_t index)
{
    char pci[TEXT_BYTES], serial[TEXT_BYTES], reason[2 * TEXT_BYTES];
    ek_inventory_row row = {.domain = domain,
                            .node = source->node,
                            .gpu = index,
                            .file = source->path,
                            .line = (unsigned)xmlGetLineNo(gpu)};
    if (is_absent(text_at(gpu, "pci/pci_bus_id", pci)))
        return ek_fail(EK_INVALID, "%s:%u: a GPU without pci_bus_id: write the file again with nvidia-smi -q -x",
                       source->path, row.line);
    if (is_absent(text_at(gpu, "serial", serial)))
        serial[0] = '\0';
    examine(gpu, &row.state, reason);
    row.pci = ek_rows_keep(rows, pci);
    row.serial = ek_rows_keep(rows, serial);
    row.reason = ek_rows_keep(rows, reason);
    if (!row.pci || !row.serial || !row.reason)
        return ek_fail(EK_NO_MEMORY, "out of memory");
    return ek_rows_add(rows, &row);
}

/* GPUs that have vanished: which ones nobody can say, so the last ones of the node. */
static ek_status add_vanished(ek_rows *rows, const node_file *source, const char *domain, uint32_t found)
{
    char reason[80];
    snprintf(reason, sizeof reason, "vanished: the node has %u of its %u GPUs", found, source->node_gpus);
    const char *kept = ek_rows_keep(rows, reason);
    if (!kept)
        return ek_fail(EK_NO_MEMORY, "out of memory");
    for (uint32_t gpu = found; gpu < source->node_gpus; gpu++)
        EK_TRY(ek_rows_add(rows, &(ek_inventory_row){.domain = domain,
                                                     .node = source->node,
                                                     .gpu = gpu,
                                                     .state = EK_SLOT_FAILED,
                                                     .reason = kept,
                                                     .file = source->path}));
    return EK_OK;
}

/* The domain of the node's GPUs that have none of their own, because their fabric is not up: that of the others; or the
 * node is a domain. */
static const char *domain_of_node(ek_rows *rows, const xmlNode *root, const node_file *source)
{
    for (const xmlNode *gpu = root->children; gpu; gpu = gpu->next) {
        char domain[DOMAIN_BYTES];
        if (gpu->type == XML_ELEMENT_NODE && strcmp((const char *)gpu->name, "gpu") == 0 &&
            clique_of(gpu, domain)[0] != '\0')
            return ek_rows_keep(rows, domain);
    }
    return source->node;
}

static ek_status add_node(ek_rows *rows, const xmlNode *root, const node_file *source)
{
    if (strcmp((const char *)root->name, "nvidia_smi_log") != 0)
        return ek_fail(EK_INVALID, "%s:%u: found <%.60s>; <nvidia_smi_log>, as nvidia-smi -q -x writes, is needed",
                       source->path, (unsigned)xmlGetLineNo(root), (const char *)root->name);
    const char *node_domain = domain_of_node(rows, root, source);
    if (!node_domain)
        return ek_fail(EK_NO_MEMORY, "out of memory");
    uint32_t found = 0;
    for (const xmlNode *gpu = root->children; gpu; gpu = gpu->next) {
        if (gpu->type != XML_ELEMENT_NODE || strcmp((const char *)gpu->name, "gpu") != 0)
            continue;
        if (found == source->node_gpus)
            return ek_fail(EK_INVALID, "%s:%u: a GPU more than the %u that a node has: correct cluster.node_gpus",
                           source->path, (unsigned)xmlGetLineNo(gpu), source->node_gpus);
        char own[DOMAIN_BYTES];
        const char *domain = node_domain;
        if (clique_of(gpu, own)[0] != '\0' && strcmp(own, node_domain) != 0)
            domain = ek_rows_keep(rows, own);
        if (!domain)
            return ek_fail(EK_NO_MEMORY, "out of memory");
        EK_TRY(add_gpu(rows, source, gpu, domain, found));
        found++;
    }
    return add_vanished(rows, source, node_domain, found);
}

static ek_status read_node(ek_rows *rows, const node_file *source)
{
    xmlResetLastError();
    xmlDoc *document = xmlReadFile(source->path, NULL,
                                   XML_PARSE_NONET | XML_PARSE_NOERROR | XML_PARSE_NOWARNING | XML_PARSE_BIG_LINES);
    if (!document) {
        const xmlError *error = xmlGetLastError();
        if (error && error->domain == XML_FROM_IO)
            return ek_fail(EK_IO, "%s: cannot be read", source->path);
        const char *message = error && error->message ? error->message : "no XML";
        return ek_fail(EK_INVALID, "%s:%d: %.*s: torn or no XML; write the file again with nvidia-smi -q -x",
                       source->path, error ? error->line : 1, (int)strcspn(message, "\n"), message);
    }
    ek_status status = add_node(rows, xmlDocGetRootElement(document), source);
    xmlFreeDoc(document);
    return status;
}

/* ------------------------------------------------------------------------------------------------- folder */

/* Files in order of their names; not those that begin with a dot. */
static int is_output(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static ek_status read_file(ek_rows *rows, const char *folder, const char *name, uint32_t node_gpus)
{
    char path[4096], node[256];
    size_t length = strlen(name);
    if (length > 4 && strcmp(name + length - 4, ".xml") == 0)
        length -= 4;
    snprintf(node, sizeof node, "%.*s", (int)length, name);
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return ek_fail(EK_INVALID, "%.60s…: the path is too long", folder);
    node_file source = {ek_rows_keep(rows, path), ek_rows_keep(rows, node), node_gpus};
    if (!source.path || !source.node)
        return ek_fail(EK_NO_MEMORY, "out of memory");
    return read_node(rows, &source);
}

ek_status ek_inventory_read_nvidia_smi(ek_inventory **inventory, const char *folder, uint32_t node_gpus)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, is_output, alphasort);
    if (count < 0)
        return ek_fail(EK_IO, "%s: %s", folder, strerror(errno));
    ek_rows rows = {0};
    ek_status status = count > 0 ? EK_OK
                                 : ek_fail(EK_INVALID,
                                           "%s: an empty folder: put in the output of nvidia-smi -q -x of each node, "
                                           "as NODE.xml",
                                           folder);
    for (int i = 0; i < count; i++) {
        if (status == EK_OK)
            status = read_file(&rows, folder, entries[i]->d_name, node_gpus);
        free(entries[i]);
    }
    free(entries);
    if (status == EK_OK)
        status = ek_inventory_create(inventory, rows.list, rows.count);
    ek_rows_free(&rows);
    return status;
}
