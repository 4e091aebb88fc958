/* An inventory from the output of `scontrol show node`, in lines or with -o, and a block topology: a block is a domain,
 * and a node's state is that of its GPUs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/rows.h"
#include "plan/topology.h"

#define GPUS_MOST 65536

typedef struct slurm_node {
    char *name;
    uint32_t gpus;
    unsigned line;
    ek_slot_state state;
    char reason[160];
    bool has_state, is_placed;
} slurm_node;

typedef struct slurm_nodes {
    const char *path;
    slurm_node *list;
    size_t count, room;
} slurm_nodes;

/* ------------------------------------------------------------------------------------------------ values */

/* The value that follows "Key=" where a word begins; NULL: not in the line. It goes on to the end of the line. */
static const char *value_of(const char *line, const char *key)
{
    size_t length = strlen(key);
    for (const char *at = line; (at = strstr(at, key)); at += length)
        if ((at == line || at[-1] == ' ') && at[length] == '=')
            return at + length + 1;
    return NULL;
}

/* "gpu:gb200:4(S:0-1),shard:8" has 4; "(null)" none. */
static bool count_gpus(const char *gres, uint32_t *gpus)
{
    *gpus = 0;
    for (const char *at = gres; *at && *at != ' ' && *at != '\n';) {
        size_t length = strcspn(at, ",( \n");
        if (strncmp(at, "gpu:", 4) == 0) {
            const char *digits = at + length;
            while (digits > at && digits[-1] >= '0' && digits[-1] <= '9')
                digits--;
            unsigned long count = strtoul(digits, NULL, 10);
            if (digits[-1] != ':' || digits == at + length || count > GPUS_MOST - *gpus)
                return false;
            *gpus += (uint32_t)count;
        }
        at += length;
        if (*at == '(') /* (S:0-1,3), (IDX:…), (null) */
            at += strcspn(at, ")") + (strchr(at, ')') != NULL);
        at += *at == ',';
    }
    return true;
}

/* Words of a state "IDLE+DRAIN", "DOWN*": which mean that a node does not work, and which that it is not to be used.
 * Those of power saving (POWERED_DOWN, ~) say neither: Slurm powers such a node up for a job. RESERVED says neither: it
 * may be reserved for this job. The marks are those that sinfo documents. */
static ek_slot_state state_of_word(const char *word, size_t length)
{
    static const char *const failed[] = {"DOWN",    "ERROR",  "FAIL",    "FAILING",     "NOT_RESPONDING", "NO_RESPOND",
                                         "UNKNOWN", "FUTURE", "INVALID", "INVALID_REG", "INVAL"};
    static const char *const drained[] = {"DRAIN",       "DRAINED",          "DRAINING",     "MAINT",
                                          "MAINTENANCE", "REBOOT_REQUESTED", "REBOOT_ISSUED"};
    size_t letters = strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
    letters = letters < length ? letters : length;
    for (size_t i = 0; i < sizeof failed / sizeof *failed; i++)
        if (strlen(failed[i]) == letters && strncmp(word, failed[i], letters) == 0)
            return EK_SLOT_FAILED;
    if (memchr(word, '*', length))
        return EK_SLOT_FAILED;
    for (size_t i = 0; i < sizeof drained / sizeof *drained; i++)
        if (strlen(drained[i]) == letters && strncmp(word, drained[i], letters) == 0)
            return EK_SLOT_DRAINED;
    if (memchr(word, '$', length) || memchr(word, '@', length) || memchr(word, '^', length))
        return EK_SLOT_DRAINED;
    return EK_SLOT_LIVE;
}

static void read_state(slurm_node *node, const char *value)
{
    size_t length = strcspn(value, " \n");
    node->has_state = length > 0;
    for (const char *word = value; word < value + length; word++) {
        size_t end = strcspn(word, "+ \n");
        ek_slot_state state = state_of_word(word, end);
        if (state != EK_SLOT_LIVE && node->state != EK_SLOT_FAILED)
            node->state = state;
        word += end;
    }
    if (node->state != EK_SLOT_LIVE)
        snprintf(node->reason, sizeof node->reason, "%.*s", (int)length, value);
}

/* "gres/gpu count reported lower than configured (3 < 4) [root@2026-01-31T10:00:00]", after the state. */
static void read_reason(slurm_node *node, const char *value)
{
    size_t length = strcspn(value, "\n");
    const char *by = NULL;
    for (const char *at = value; (at = strstr(at, " [")) && at < value + length; at++)
        by = at;
    if (by)
        length = (size_t)(by - value);
    size_t used = strlen(node->reason);
    if (node->state != EK_SLOT_LIVE)
        snprintf(node->reason + used, sizeof node->reason - used, ": %.*s", (int)length, value);
}

/* ------------------------------------------------------------------------------------------------- nodes */

static ek_status begin_node(slurm_nodes *nodes, const char *value, unsigned line)
{
    if (nodes->count == nodes->room) {
        size_t room = nodes->room ? 2 * nodes->room : 64;
        slurm_node *list = realloc(nodes->list, room * sizeof *list);
        if (!list)
            return ek_fail(EK_NO_MEMORY, "out of memory");
        nodes->list = list;
        nodes->room = room;
    }
    char *name = strndup(value, strcspn(value, " \n"));
    if (!name)
        return ek_fail(EK_NO_MEMORY, "out of memory");
    nodes->list[nodes->count++] = (slurm_node){.name = name, .line = line};
    return EK_OK;
}

static ek_status read_line(slurm_nodes *nodes, const char *line, unsigned number)
{
    const char *name = value_of(line, "NodeName");
    if (name)
        EK_TRY(begin_node(nodes, name, number));
    if (nodes->count == 0)
        return line[strspn(line, " \t\r\n")] == '\0'
                   ? EK_OK
                   : ek_fail(EK_INVALID, "%s:%u: found \"%.40s\"; NodeName=…, as scontrol show node writes, is needed",
                             nodes->path, number, line);
    slurm_node *node = &nodes->list[nodes->count - 1];
    const char *gres = value_of(line, "Gres"), *state = value_of(line, "State"), *reason = value_of(line, "Reason");
    if (gres && !count_gpus(gres, &node->gpus))
        return ek_fail(EK_INVALID, "%s:%u: found Gres=%.*s; gpu:TYPE:COUNT is needed", nodes->path, number,
                       (int)strcspn(gres, " \n"), gres);
    if (state && !node->has_state)
        read_state(node, state);
    if (reason)
        read_reason(node, reason);
    return EK_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const slurm_node *)a)->name, ((const slurm_node *)b)->name);
}

/* Sorts and checks what has been read. */
static ek_status finish_nodes(slurm_nodes *nodes)
{
    if (nodes->count == 0)
        return ek_fail(EK_INVALID, "%s: no nodes; the output of scontrol show node is needed", nodes->path);
    for (size_t i = 0; i < nodes->count; i++)
        if (!nodes->list[i].has_state)
            return ek_fail(EK_INVALID, "%s:%u: node %.60s has no State=…; its lines may be torn", nodes->path,
                           nodes->list[i].line, nodes->list[i].name);
    qsort(nodes->list, nodes->count, sizeof *nodes->list, by_name);
    for (size_t i = 1; i < nodes->count; i++)
        if (strcmp(nodes->list[i].name, nodes->list[i - 1].name) == 0)
            return ek_fail(EK_INVALID, "%s:%u: node %.60s stands in line %u already; leave one out", nodes->path,
                           nodes->list[i].line, nodes->list[i].name, nodes->list[i - 1].line);
    return EK_OK;
}

static ek_status read_nodes(slurm_nodes *nodes)
{
    FILE *file = fopen(nodes->path, "r");
    if (!file)
        return ek_fail(EK_IO, "%s: %s", nodes->path, strerror(errno));
    char *line = NULL;
    size_t room = 0;
    ek_status status = EK_OK;
    for (unsigned number = 1; status == EK_OK && getline(&line, &room, file) >= 0; number++)
        status = read_line(nodes, line, number);
    free(line);
    if (status == EK_OK && ferror(file))
        status = ek_fail(EK_IO, "%s: %s", nodes->path, strerror(errno));
    fclose(file);
    return status == EK_OK ? finish_nodes(nodes) : status;
}

/* ------------------------------------------------------------------------------------------------ blocks */

/* A row for each GPU that the node should have; which of them are missing nobody can say, so the last ones. */
static ek_status add_gpus(ek_rows *rows, const slurm_nodes *nodes, const slurm_node *node, const char *domain,
                          uint32_t node_gpus)
{
    char reason[80];
    snprintf(reason, sizeof reason, "vanished: the node has %u of its %u GPUs", node->gpus, node_gpus);
    const char *vanished = ek_rows_keep(rows, reason);
    if (!vanished)
        return ek_fail(EK_NO_MEMORY, "out of memory");
    for (uint32_t gpu = 0; gpu < node->gpus || gpu < node_gpus; gpu++) {
        bool is_there = gpu < node->gpus;
        EK_TRY(ek_rows_add(rows, &(ek_inventory_row){.domain = domain,
                                                     .node = node->name,
                                                     .gpu = gpu,
                                                     .state = is_there ? node->state : EK_SLOT_FAILED,
                                                     .reason = is_there ? node->reason : vanished,
                                                     .file = nodes->path,
                                                     .line = node->line}));
    }
    return EK_OK;
}

static ek_status place_node(ek_rows *rows, slurm_nodes *nodes, const ek_block *block, const char *name,
                            const char *topology, uint32_t node_gpus)
{
    slurm_node *node =
        bsearch(&(slurm_node){.name = (char *)name}, nodes->list, nodes->count, sizeof *nodes->list, by_name);
    if (!node)
        return ek_fail(EK_INVALID, "%s:%u: node %.60s of block %.60s is not in %s: write that again for all nodes",
                       topology, block->line, name, block->name, nodes->path);
    if (node->is_placed)
        return ek_fail(EK_INVALID, "%s:%u: node %.60s of block %.60s is in a block already", topology, block->line,
                       name, block->name);
    if (node->gpus == 0 && node_gpus == 0)
        return ek_fail(EK_INVALID,
                       "%s:%u: node %.60s of block %.60s has no GPUs; Gres=gpu:…, or cluster.node_gpus, is needed",
                       nodes->path, node->line, name, block->name);
    if (node_gpus > 0 && node->gpus > node_gpus)
        return ek_fail(EK_INVALID, "%s:%u: node %.60s has %u GPUs; at most cluster.node_gpus, %u, is allowed",
                       nodes->path, node->line, name, node->gpus, node_gpus);
    node->is_placed = true;
    return add_gpus(rows, nodes, node, block->name, node_gpus);
}

ek_status ek_inventory_read_scontrol(ek_inventory **inventory, const char *nodes_path, const char *topology_path,
                                     uint32_t node_gpus)
{
    ek_topology topology = {0};
    ek_rows rows = {0};
    slurm_nodes nodes = {.path = nodes_path};
    ek_status status = ek_topology_read(&topology, topology_path);
    if (status == EK_OK)
        status = read_nodes(&nodes);
    for (size_t i = 0; i < topology.block_count; i++) {
        const ek_block *block = &topology.blocks[i];
        for (size_t j = 0; status == EK_OK && j < block->count; j++)
            status = place_node(&rows, &nodes, block, topology.nodes.names[block->first + j], topology_path, node_gpus);
    }
    if (status == EK_OK)
        status = ek_inventory_create(inventory, rows.list, rows.count);
    ek_rows_free(&rows);
    for (size_t i = 0; i < nodes.count; i++)
        free(nodes.list[i].name);
    free(nodes.list);
    ek_topology_free(&topology);
    return status;
}
