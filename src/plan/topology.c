/* Reads block topologies in Slurm's three forms. */
#include "plan/topology.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/error.h"

static ek_status add_block(ek_topology *topology, const char *path, unsigned line, const char *name, const char *nodes)
{
    if (topology->block_count == topology->block_room) {
        size_t room = topology->block_room ? 2 * topology->block_room : 64;
        ek_block *blocks = realloc(topology->blocks, room * sizeof *blocks);
        if (!blocks)
            return ek_fail(EK_NO_MEMORY, "out of memory");
        topology->blocks = blocks;
        topology->block_room = room;
    }
    size_t first = topology->nodes.count;
    ek_status status = ek_hostlist_expand(&topology->nodes, nodes);
    if (status != EK_OK)
        return ek_fail_prefix(status, "%s:%u: block %.60s: ", path, line, name);
    ek_block *block = &topology->blocks[topology->block_count];
    *block = (ek_block){strdup(name), first, topology->nodes.count - first, line};
    if (!block->name)
        return ek_fail(EK_NO_MEMORY, "out of memory");
    topology->block_count++;
    return EK_OK;
}

/* ---------------------------------------------------------------------------------------------- lines of words */

/* The value of "Key=value" in a line, cut off after it; keys are as in Slurm's files, in any case. NULL: not there. */
static char *value_of(char *line, const char *key)
{
    size_t length = strlen(key);
    for (char *word = line; *word; word += strcspn(word, " \t")) {
        word += strspn(word, " \t");
        if (strncasecmp(word, key, length) == 0 && word[length] == '=')
            return word + length + 1;
    }
    return NULL;
}

static ek_status read_line(ek_topology *topology, const char *path, unsigned number, char *line)
{
    line[strcspn(line, "#\r\n")] = '\0';
    if (value_of(line, "SwitchName"))
        return ek_fail(EK_INVALID,
                       "%s:%u: a switch, which says nothing of scale-up domains; lines BlockName=… Nodes=… are needed",
                       path, number);
    char *name = value_of(line, "BlockName"), *nodes = value_of(line, "Nodes");
    if (!name) /* BlockSizes, blocks of blocks, an empty line */
        return EK_OK;
    if (!nodes)
        return ek_fail(EK_INVALID, "%s:%u: a block without Nodes=…; the line may be torn", path, number);
    name[strcspn(name, " \t")] = '\0';
    nodes[strcspn(nodes, " \t")] = '\0';
    return add_block(topology, path, number, name, nodes);
}

static ek_status read_lines(ek_topology *topology, const char *path, FILE *file)
{
    char *line = NULL;
    size_t room = 0;
    ek_status status = EK_OK;
    for (unsigned number = 1; status == EK_OK && getline(&line, &room, file) >= 0; number++)
        status = read_line(topology, path, number, line);
    free(line);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- YAML */

static yaml_node_t *value_in(yaml_document_t *document, const yaml_node_t *mapping, const char *key)
{
    if (!mapping || mapping->type != YAML_MAPPING_NODE)
        return NULL;
    for (yaml_node_pair_t *pair = mapping->data.mapping.pairs.start; pair < mapping->data.mapping.pairs.top; pair++) {
        const yaml_node_t *name = yaml_document_get_node(document, pair->key);
        if (name->type == YAML_SCALAR_NODE && strcmp((const char *)name->data.scalar.value, key) == 0)
            return yaml_document_get_node(document, pair->value);
    }
    return NULL;
}

static ek_status read_yaml_block(ek_topology *topology, const char *path, yaml_document_t *document,
                                 const yaml_node_t *block)
{
    const yaml_node_t *name = value_in(document, block, "block"), *nodes = value_in(document, block, "nodes");
    unsigned line = (unsigned)block->start_mark.line + 1;
    if (!name || name->type != YAML_SCALAR_NODE || !nodes || nodes->type != YAML_SCALAR_NODE)
        return ek_fail(EK_INVALID, "%s:%u: a block needs its name, block: …, and its host list, nodes: …", path, line);
    return add_block(topology, path, line, (const char *)name->data.scalar.value,
                     (const char *)nodes->data.scalar.value);
}

static ek_status read_yaml_document(ek_topology *topology, const char *path, yaml_document_t *document)
{
    const yaml_node_t *root = yaml_document_get_root_node(document);
    if (!root || root->type != YAML_SEQUENCE_NODE)
        return EK_OK;
    for (yaml_node_item_t *item = root->data.sequence.items.start; item < root->data.sequence.items.top; item++) {
        const yaml_node_t *one = yaml_document_get_node(document, *item);
        const yaml_node_t *blocks = value_in(document, value_in(document, one, "block"), "blocks");
        if (!blocks || blocks->type != YAML_SEQUENCE_NODE)
            continue;
        for (yaml_node_item_t *block = blocks->data.sequence.items.start; block < blocks->data.sequence.items.top;
             block++)
            EK_TRY(read_yaml_block(topology, path, document, yaml_document_get_node(document, *block)));
        return EK_OK;
    }
    return EK_OK;
}

static ek_status read_yaml(ek_topology *topology, const char *path, FILE *file)
{
    yaml_parser_t parser;
    yaml_document_t document;
    if (!yaml_parser_initialize(&parser))
        return ek_fail(EK_NO_MEMORY, "out of memory");
    yaml_parser_set_input_file(&parser, file);
    ek_status status;
    if (yaml_parser_load(&parser, &document)) {
        status = read_yaml_document(topology, path, &document);
        yaml_document_delete(&document);
    } else
        status = ek_fail(EK_INVALID, "%s:%zu: %s; YAML is needed", path, parser.problem_mark.line + 1,
                         parser.problem ? parser.problem : "not readable");
    yaml_parser_delete(&parser);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- */

static bool is_yaml(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}

ek_status ek_topology_read(ek_topology *topology, const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return ek_fail(EK_IO, "%s: %s", path, strerror(errno));
    ek_status status = is_yaml(path) ? read_yaml(topology, path, file) : read_lines(topology, path, file);
    if (status == EK_OK && ferror(file))
        status = ek_fail(EK_IO, "%s: %s", path, strerror(errno));
    fclose(file);
    if (status == EK_OK && topology->block_count == 0)
        return ek_fail(EK_INVALID, "%s: no blocks; the block topology of Slurm is needed, with BlockName=… Nodes=…",
                       path);
    return status;
}

void ek_topology_free(ek_topology *topology)
{
    for (size_t i = 0; i < topology->block_count; i++)
        free(topology->blocks[i].name);
    free(topology->blocks);
    ek_hostlist_free(&topology->nodes);
    *topology = (ek_topology){0};
}
