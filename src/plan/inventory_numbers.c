/* An inventory generated from numbers, with the names of its nodes by a pattern. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "plan/inventory_parts.h"

#define GPUS_MOST (1u << 24)
#define WIDTH_MOST 9
#define HOST_BYTES 256

/* Where "{what}" or "{what:WIDTH}" stands in the pattern and how long it is; NULL: it does not. */
static const char *find_number(const char *pattern, const char *what, size_t *length, int *width)
{
    size_t letters = strlen(what);
    for (const char *at = pattern; (at = strchr(at, '{')); at++) {
        if (strncmp(at + 1, what, letters) != 0)
            continue;
        const char *end = at + 1 + letters;
        *width = 0;
        if (end[0] == ':' && end[1] >= '1' && end[1] <= '0' + WIDTH_MOST) {
            *width = end[1] - '0';
            end += 2;
        }
        *length = (size_t)(end + 1 - at);
        if (*end == '}')
            return at;
    }
    return NULL;
}

/* The name of a node by the pattern. */
static void write_host(char host[HOST_BYTES], const char *pattern, uint32_t domain, uint32_t node)
{
    size_t used = 0;
    while (*pattern && used + 1 < HOST_BYTES) {
        size_t length = 0;
        int width = 0;
        bool is_domain = find_number(pattern, "domain", &length, &width) == pattern;
        if (!is_domain && find_number(pattern, "node", &length, &width) != pattern) {
            host[used++] = *pattern++;
            continue;
        }
        int written = snprintf(host + used, HOST_BYTES - used, "%0*u", width, is_domain ? domain : node);
        used = used + (size_t)written < HOST_BYTES ? used + (size_t)written : HOST_BYTES - 1;
        pattern += length;
    }
    host[used] = '\0';
}

static ek_status check_host(const ek_inventory_numbers *numbers)
{
    const char *pattern = numbers->host;
    size_t domain_length = 0, node_length = 0;
    int width;
    const char *domain = find_number(pattern, "domain", &domain_length, &width);
    const char *node = find_number(pattern, "node", &node_length, &width);
    bool many_nodes = numbers->domain_slots > numbers->node_gpus;
    if ((!domain && numbers->domains > 1) || (!node && many_nodes))
        return ek_fail(EK_INVALID,
                       "cluster.host: found \"%.60s\"; {domain} and {node} are needed in it, as in d{domain}-n{node}",
                       pattern);
    if (domain && node) {
        const char *from = domain < node ? domain + domain_length : node + node_length;
        const char *to = domain < node ? node : domain;
        while (from < to && isdigit((unsigned char)*from))
            from++;
        if (from == to)
            return ek_fail(
                EK_INVALID,
                "cluster.host: found \"%.60s\"; a letter or dash is needed between {domain} and {node}, or two nodes "
                "could have one name",
                pattern);
    }
    char host[HOST_BYTES];
    write_host(host, pattern, 0, 0);
    if (!inventory_is_name(host) || strlen(host) > 200)
        return ek_fail(EK_INVALID, "cluster.host: found \"%.60s\"; letters, digits and any of . _ - : / are needed",
                       pattern);
    return EK_OK;
}

static ek_status check_numbers(const ek_inventory_numbers *numbers)
{
    uint64_t slots = (uint64_t)numbers->domains * numbers->domain_slots;
    if (slots > GPUS_MOST)
        return ek_fail(EK_INVALID, "cluster.domains: %u domains of %u slots are %llu GPUs; at most %u are allowed",
                       numbers->domains, numbers->domain_slots, (unsigned long long)slots, GPUS_MOST);
    if (numbers->domain_slots % numbers->node_gpus != 0)
        return ek_fail(EK_INVALID, "cluster.node_gpus: found %u; it must divide cluster.domain_slots, %u",
                       numbers->node_gpus, numbers->domain_slots);
    return check_host(numbers);
}

/* Fills a domain and its nodes and slots; names go to `end`. */
static void generate_domain(ek_inventory *inventory, const ek_inventory_numbers *numbers, uint32_t domain, char **end)
{
    char *name = *end;
    *end += sprintf(name, "%u", domain) + 1;
    inventory->domains[domain] =
        (ek_domain){name, domain * numbers->domain_slots, numbers->domain_slots, numbers->domain_slots};
    for (uint32_t i = 0; i < numbers->domain_slots; i++) {
        if (i % numbers->node_gpus == 0) {
            char host[HOST_BYTES];
            write_host(host, numbers->host, domain, i / numbers->node_gpus);
            inventory->nodes[inventory->node_count++] = (ek_node){.name = inventory_text(end, host),
                                                                  .domain = domain,
                                                                  .gpus = numbers->node_gpus,
                                                                  .slots = numbers->node_gpus,
                                                                  .first_slot = inventory->slot_count};
        }
        inventory->slots[inventory->slot_count++] = (ek_slot){.domain = domain,
                                                              .node = inventory->node_count - 1,
                                                              .gpu = i % numbers->node_gpus,
                                                              .pci = "",
                                                              .serial = "",
                                                              .reason = ""};
    }
}

ek_status ek_inventory_generate(ek_inventory **inventory, const ek_inventory_numbers *numbers)
{
    EK_TRY(check_numbers(numbers));
    size_t nodes = (size_t)numbers->domains * (numbers->domain_slots / numbers->node_gpus);
    ek_inventory *created;
    EK_TRY(inventory_allocate(&created, numbers->domains, nodes, (size_t)numbers->domains * numbers->domain_slots));
    size_t host_bytes =
        strlen(numbers->host) + 2 * sizeof "4294967295" + 1; /* a number may be longer than its {name} */
    char *end = inventory_memory(created, nodes * host_bytes + numbers->domains * sizeof "4294967295");
    if (!end) {
        ek_inventory_destroy(created);
        return ek_fail(EK_NO_MEMORY, "no memory for the names of %zu nodes", nodes);
    }
    created->domain_count = numbers->domains;
    for (uint32_t domain = 0; domain < numbers->domains; domain++)
        generate_domain(created, numbers, domain, &end);
    *inventory = created;
    return EK_OK;
}
