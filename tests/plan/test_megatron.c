/* Plans as Megatron-Core takes them, against a small model of what Megatron does with them: which ranks a configuration
 * leaves active, which groups their coordinates make, and how its mapping deals units. The model follows the public
 * description and implementation (megatron/core/distributed/README_NONUNIFORM_TP.md, nonuniform_tp.py); it builds
 * everything from the emitted configuration and knows nothing of the code under test. */
#include "plan/megatron.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "plan/placement.h"
#include "plan/slurm.h"
#include "plans.h"

/* ------------------------------------------------------------------------------------- reading what is written */

/* The text for a plan, to be freed; NULL: refused. */
static char *text_for(const ek_plan *plan, const ek_perf_model *model)
{
    char *text = NULL;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    ek_status status = ek_plan_write_megatron(plan, model, file);
    fclose(file);
    if (status == EK_OK)
        return text;
    assert_int_equal(status, EK_INVALID);
    assert_int_equal(bytes, 0);
    free(text);
    return NULL;
}

enum { RANKS_MOST = 64, GROUPS_MOST = 64 };
typedef struct group_list {
    int count, sizes[GROUPS_MOST], ranks[GROUPS_MOST][RANKS_MOST];
} group_list;

/* Numbers in brackets at *text, which moves behind them; returns how many. */
static int read_list(const char **text, int *numbers)
{
    int count = 0;
    const char *at = strchr(*text, '[') + 1;
    while (*at != ']') {
        char *end;
        numbers[count++] = (int)strtol(at, &end, 10);
        assert_true(end > at && (*end == ',' || *end == ']'));
        at = end + (*end == ',');
    }
    *text = at + 1;
    return count;
}

static void read_groups(const char *text, const char *name, group_list *groups)
{
    char begin[64];
    snprintf(begin, sizeof begin, "\n%s = [\n", name);
    const char *at = strstr(text, begin);
    assert_non_null(at);
    at += strlen(begin);
    for (groups->count = 0; *at != ']'; groups->count++) {
        groups->sizes[groups->count] = read_list(&at, groups->ranks[groups->count]);
        assert_memory_equal(at, ",\n", 2);
        at += 2;
    }
}

static int number_after(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    assert_non_null(at);
    return atoi(at + strlen(name));
}

typedef struct ntp_config {
    int tp_base, tp_spares, reduced; /* DP ranks */
    int listed;                      /* (DP, CP, PP) ranks that the map names */
} ntp_config;

static ntp_config read_config(const char *text)
{
    ntp_config config = {number_after(text, "tp_base="), number_after(text, "tp_spares="),
                         number_after(text, "num_reduced_tp_dp_ranks="), 0};
    for (const char *at = strstr(text, "non_active_ranks_per_dp={"); (at = strstr(at, "\n        (")); at++)
        config.listed++;
    return config;
}

/* The local TP slots that are not active; false: the map does not name (DP, 0, PP). */
static bool read_non_active(const char *text, int dp, int pp, int *slots, int *count)
{
    char key[48];
    snprintf(key, sizeof key, "\n        (%d, 0, %d): ", dp, pp);
    const char *at = strstr(text, key);
    if (at)
        *count = read_list(&at, slots);
    return at != NULL;
}

/* --------------------------------------------------------------------------------------- the model of Megatron */

typedef struct coordinates {
    int tp, dp, pp, slot; /* slot: in the nominal TP group */
} coordinates;

/* The active ranks in Megatron's default order, by the configuration alone. */
static int active_ranks(const char *text, int dp_size, int pp_size, coordinates *ranks)
{
    ntp_config config = read_config(text);
    int count = 0;
    for (int pp = 0; pp < pp_size; pp++)
        for (int dp = 0; dp < dp_size; dp++) {
            int non_active[RANKS_MOST], out = 0, tp = 0;
            bool listed = read_non_active(text, dp, pp, non_active, &out);
            assert_int_equal(listed, dp < config.reduced); /* the reduced ones are the first */
            assert_int_equal(out, listed ? config.tp_spares : 0);
            for (int slot = 0; slot < config.tp_base; slot++) {
                bool active = true;
                for (int i = 0; i < out; i++)
                    active = active && non_active[i] != slot;
                if (active)
                    ranks[count++] = (coordinates){tp++, dp, pp, slot};
            }
        }
    return count;
}

typedef bool together(const coordinates *a, const coordinates *b, int pp_size);

static bool same_tensor(const coordinates *a, const coordinates *b, int pp_size)
{
    (void)pp_size;
    return a->dp == b->dp && a->pp == b->pp;
}

static bool same_data(const coordinates *a, const coordinates *b, int pp_size)
{
    (void)pp_size;
    return a->tp == b->tp && a->pp == b->pp;
}

static bool same_pipeline(const coordinates *a, const coordinates *b, int pp_size)
{
    (void)pp_size;
    return a->tp == b->tp && a->dp == b->dp;
}

static bool same_model(const coordinates *a, const coordinates *b, int pp_size)
{
    (void)pp_size;
    return a->dp == b->dp;
}

static bool same_embedding(const coordinates *a, const coordinates *b, int pp_size)
{
    bool ends = (a->pp == 0 || a->pp == pp_size - 1) && (b->pp == 0 || b->pp == pp_size - 1);
    return ends && same_pipeline(a, b, pp_size);
}

static bool same_position_embedding(const coordinates *a, const coordinates *b, int pp_size)
{
    return a->pp == 0 && b->pp == 0 && same_pipeline(a, b, pp_size);
}

static const struct {
    const char *name;
    together *together;
} kinds[] = {
    {"tensor_parallel_groups", same_tensor},     {"data_parallel_groups", same_data},
    {"pipeline_parallel_groups", same_pipeline}, {"model_parallel_groups", same_model},
    {"embedding_groups", same_embedding},        {"position_embedding_groups", same_position_embedding},
};

/* Whether the groups are the classes of a relation over the ranks, each in ascending order. */
static void check_groups(const group_list *groups, const coordinates *ranks, int count, int pp_size,
                         together *are_together)
{
    int grouped = 0, expected = 0;
    for (int i = 0; i < groups->count; i++) {
        const int *group = groups->ranks[i];
        grouped += groups->sizes[i];
        for (int j = 0; j < groups->sizes[i]; j++) {
            assert_in_range(group[j], j > 0 ? group[j - 1] + 1 : 0, count - 1);
            assert_true(are_together(&ranks[group[0]], &ranks[group[j]], pp_size));
        }
        int members = 0;
        for (int rank = 0; rank < count; rank++)
            members += are_together(&ranks[group[0]], &ranks[rank], pp_size);
        assert_int_equal(members, groups->sizes[i]);
        for (int other = 0; other < i; other++)
            assert_false(are_together(&ranks[groups->ranks[other][0]], &ranks[group[0]], pp_size));
    }
    for (int rank = 0; rank < count; rank++)
        expected += are_together(&ranks[rank], &ranks[rank], pp_size);
    assert_int_equal(grouped, expected);
}

/* In a domain that is one cell: the slots that Megatron's own padding makes non-active, which are the failed ones and
 * then the last healthy ones until there are `spares`. */
static void check_padding(const char *text, const ek_plan *plan, int dp, int pp, int spares)
{
    const ek_domain *domain = &plan->inventory->domains[ek_plan_cell_at(plan, (uint32_t)dp, (uint32_t)pp)->domain];
    int base = (int)plan->base_degree, missing = spares, count = 0, given[RANKS_MOST];
    bool out[RANKS_MOST];
    for (int slot = 0; slot < base; slot++) {
        out[slot] = plan->inventory->slots[domain->first_slot + (uint32_t)slot].state != EK_SLOT_LIVE;
        missing -= out[slot];
    }
    for (int slot = base - 1; missing > 0; slot--) {
        missing -= !out[slot];
        out[slot] = true;
    }
    assert_true(read_non_active(text, dp, pp, given, &count));
    for (int i = 0; i < count; i++) {
        assert_in_range(given[i], i > 0 ? given[i - 1] + 1 : 0, base - 1);
        assert_true(out[given[i]]);
        out[given[i]] = false;
    }
    for (int slot = 0; slot < base; slot++)
        assert_false(out[slot]);
}

/* The slot of a GPU. */
static uint32_t find_slot(const ek_inventory *inventory, const char *host, unsigned gpu)
{
    for (uint32_t slot = 0; slot < inventory->slot_count; slot++)
        if (inventory->slots[slot].gpu == gpu && strcmp(inventory->nodes[inventory->slots[slot].node].name, host) == 0)
            return slot;
    fail_msg("no GPU %u on %s", gpu, host);
    return EK_NONE;
}

/* Each rank's GPU is one of its cell's, in ascending order; in a domain that is one cell it is the slot of the
 * coordinates. */
static void check_map(const char *text, const ek_plan *plan, const coordinates *ranks, int count)
{
    const char *at = strstr(text, "\nrank_to_gpu = [\n");
    assert_non_null(at);
    at = strchr(at + 1, '\n') + 1;
    uint32_t last = EK_NONE;
    for (int rank = 0; rank < count; rank++) {
        char host[64];
        unsigned gpu;
        assert_int_equal(sscanf(at, " (\"%63[^\"]\", %u),", host, &gpu), 2);
        at = strchr(at, '\n') + 1;
        const ek_plan_cell *cell = ek_plan_cell_at(plan, (uint32_t)ranks[rank].dp, (uint32_t)ranks[rank].pp);
        const ek_domain *domain = &plan->inventory->domains[cell->domain];
        uint32_t slot = find_slot(plan->inventory, host, gpu), found = 0;
        for (uint32_t i = 0; i < cell->degree; i++)
            found += cell->slots[i] == slot;
        assert_int_equal(found, 1);
        assert_true(ranks[rank].tp == 0 || slot > last);
        if (domain->slots == plan->base_degree)
            assert_int_equal(slot, domain->first_slot + (uint32_t)ranks[rank].slot);
        last = slot;
    }
    assert_int_equal(*at, ']');
}

static void check_conformance(const test_plan *planned)
{
    const ek_plan *plan = planned->plan;
    char *text = text_for(plan, &planned->model);
    assert_non_null(text);
    ntp_config config = read_config(text);
    assert_int_equal(config.tp_base, plan->base_degree);
    assert_int_equal(config.tp_base - config.tp_spares, plan->replica[0].least_degree);
    assert_int_equal(config.listed, config.reduced * (int)plan->stages);
    coordinates ranks[RANKS_MOST];
    int count = active_ranks(text, (int)plan->replicas, (int)plan->stages, ranks);
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        group_list groups;
        read_groups(text, kinds[kind].name, &groups);
        check_groups(&groups, ranks, count, (int)plan->stages, kinds[kind].together);
    }
    for (int dp = 0; dp < config.reduced; dp++)
        for (int pp = 0; plan->inventory->domains[0].slots == plan->base_degree && pp < (int)plan->stages; pp++)
            check_padding(text, plan, dp, pp, config.tp_spares);
    check_map(text, plan, ranks, count);
    free(text);
}

/* ------------------------------------------------------------------------------------------------------ tests */

static void test_the_published_example(void **state)
{
    (void)state;
    test_plan planned;
    planned_create(&planned, &(test_cluster){2, 4, 4, "#####.#."}, 2, 1, 4, NULL);
    char *text = text_for(planned.plan, &planned.model);
    assert_non_null(text);
    assert_non_null(strstr(text, "ntp_config = NonuniformTPConfig(\n"
                                 "    tp_base=4,\n"
                                 "    tp_spares=2,\n"
                                 "    num_reduced_tp_dp_ranks=1,\n"));
    assert_non_null(strstr(text, "        (0, 0, 0): [1, 3],\n    },\n)\n"));
    assert_non_null(strstr(text, "tensor_parallel_groups = [\n    [0, 1],\n    [2, 3, 4, 5],\n]\n"));
    assert_non_null(strstr(text, "data_parallel_groups = [\n    [0, 2],\n    [1, 3],\n    [4],\n    [5],\n]\n"));
    assert_non_null(strstr(text, "rank_to_gpu = [\n    (\"node001\", 0),\n    (\"node001\", 2),\n"
                                 "    (\"node000\", 0),\n"));
    free(text);
    planned_destroy(&planned);
}

/* All failures of a small cluster, of domains with `cells` cells of `tp` slots, that leave each cell a slot. */
static void check_all(uint32_t dp, uint32_t pp, uint32_t tp, uint32_t cells)
{
    uint32_t slots = dp * pp * tp, domains = dp * pp / cells;
    for (uint32_t mask = 0; mask < 1U << slots; mask++) {
        char live[32] = {0};
        bool possible = true;
        for (uint32_t slot = 0; slot < slots; slot++)
            live[slot] = mask >> slot & 1 ? '.' : '#';
        for (uint32_t domain = 0; domain < domains; domain++) {
            uint32_t count = 0;
            for (uint32_t slot = 0; slot < cells * tp; slot++)
                count += live[domain * cells * tp + slot] == '#';
            possible = possible && count >= cells;
        }
        if (!possible)
            continue;
        test_plan planned;
        planned_create(&planned, &(test_cluster){domains, cells * tp, 2, live}, dp, pp, tp, NULL);
        assert_int_equal(planned.plan->replicas, dp);
        check_conformance(&planned);
        planned_destroy(&planned);
    }
}

static void test_all_small_jobs(void **state)
{
    (void)state;
    check_all(1, 1, 4, 1);
    check_all(2, 1, 4, 1);
    check_all(3, 1, 3, 1);
    check_all(4, 1, 2, 1);
    check_all(2, 2, 2, 1);
    check_all(1, 3, 3, 1);
    check_all(2, 2, 3, 1);
    check_all(2, 3, 2, 1);
    check_all(2, 1, 4, 2);
    check_all(2, 2, 2, 2);
    check_all(3, 1, 3, 3);
}

/* Plans that follow from an earlier one, whose replicas and roles stay where they can. */
static void test_replans(void **state)
{
    (void)state;
    static const char whole[] = "################################";
    uint64_t draw = 0;
    int replans = 0;
    for (int trial = 0; trial < 300; trial++) {
        test_plan planned;
        planned_create(&planned, &(test_cluster){8, 4, 2, whole}, 3, 2, 4, NULL);
        for (int change = 0; change < 3; change++) {
            uint32_t slot = (uint32_t)(ek_random_u64(5, 0, draw++) % 32);
            assert_ok(ek_inventory_mark(planned.inventory, slot, 1, EK_SLOT_FAILED, "test"));
            ek_plan_placement *from;
            assert_ok(ek_plan_placement_of(&from, planned.plan, planned.inventory));
            planned.options.from = from;
            planned.options.in_place = ek_random_u64(5, 1, draw) % 2;
            ek_plan *next = NULL;
            assert_ok(ek_plan_create(&next, &planned.options));
            ek_plan_placement_destroy(from);
            ek_plan_destroy(planned.plan);
            planned.plan = next;
            check_conformance(&planned);
            replans += next->replica[0].least_degree < 4;
        }
        planned_destroy(&planned);
    }
    assert_true(replans > 0);
}

/* Megatron's mapping of `units` between a whole replica and a reduced one: whether it comes to an end and leaves every
 * rank of the whole replica as much as its layers hold. */
static bool mapping_works(int units, int base, int reduced)
{
    int sizes[600] = {0}, entries = 0, chunk = (units + reduced - 1) / reduced, turn = 0;
    for (int left = units; left > 0; left -= chunk)
        sizes[entries++] = left < chunk ? left : chunk;
    for (int extra = reduced; extra < base; extra++)
        sizes[entries++] = units / base;
    for (int extra = reduced; extra < base; extra++) {
        if (extra >= entries)
            return false; /* IndexError */
        for (int unit = 0; unit < sizes[extra]; unit++) {
            if (sizes[turn]-- == 0)
                return false; /* IndexError */
            turn = (turn + 1) % reduced;
        }
    }
    bool equal = units % base == 0;
    for (int rank = 0; rank < base; rank++)
        equal = equal && sizes[rank] == units / base;
    return equal;
}

static void test_what_can_be_split(void **state)
{
    (void)state;
    assert_false(mapping_works(128, 32, 30));
    assert_false(mapping_works(24, 8, 7));
    assert_false(mapping_works(128, 8, 7));
    assert_true(mapping_works(128, 8, 4));
    int stricter = 0;
    for (int base = 2; base <= 16; base++)
        for (int reduced = 1; reduced < base; reduced++)
            for (int units = base; units <= 500; units++) {
                bool works = mapping_works(units, base, reduced), can = ek_megatron_can_split(units, base, reduced);
                assert_true(works || !can);
                assert_int_equal(can, works && units % reduced == 0); /* what its layers ask of the reduced replica */
                stricter += works && !can;
            }
    assert_true(stricter > 0); /* 48 units at 8 -> 7: the mapping could, the layers cannot */
}

static void assert_refused(uint32_t base, uint32_t failed, ek_perf_model model, const char *first, const char *second)
{
    char live[200];
    memset(live, '#', sizeof live);
    memset(live, '.', failed);
    test_plan planned;
    model.layers = 1;
    model.sequence = 128;
    planned_create(&planned, &(test_cluster){2, base, 8, live}, 2, 1, base, &model);
    assert_null(text_for(planned.plan, &model));
    if (strncmp(ek_error(), first, strlen(first)) != 0 || !strstr(ek_error(), second))
        fail_msg("\"%s\" does not begin with \"%s\" or lacks \"%s\"", ek_error(), first, second);
    planned_destroy(&planned);
}

static void test_refusals(void **state)
{
    (void)state;
    ek_perf_model model = {.hidden = 16384, .heads = 128, .kv_heads = 128, .ffn = 53760, .vocab = 30720};
    assert_refused(32, 2, model, "model.heads: Megatron cannot cut 128 attention heads for TP30 beside TP32: ",
                   "its chunks of 5 make 26 shards; drain slots down to TP16, the next degree that fits; "
                   "parallel.min_tp: 32 leaves reduced replicas out");
    assert_refused(8, 1, model, "model.heads: Megatron cannot cut 128 attention heads for TP7 beside TP8: ",
                   "its chunks of 19 leave 14 for the last shard; drain slots down to TP4, ");
    model.heads = model.kv_heads = 24;
    model.hidden = 3072;
    assert_refused(8, 1, model, "model.heads: Megatron cannot cut 24 attention heads for TP7 beside TP8: ",
                   "its chunks of 4 make 6 shards; drain slots down to TP6, ");
    model.kv_heads = 8;
    assert_refused(8, 2, model, "model.kv_heads: Megatron cannot cut 8 KV heads for TP6 beside TP8: ", "down to TP4, ");
    model.kv_heads = 24;
    model.ffn = 8192;
    assert_refused(8, 2, model,
                   "model.ffn: Megatron cannot cut 8192 FFN columns for TP6 beside TP8: ", "down to TP4, ");
    model.ffn = 12288;
    model.vocab = 50264;
    assert_refused(8, 2, model,
                   "model.vocab: Megatron cannot cut 50264 vocabulary rows for TP6 beside TP8: ", "down to TP4, ");
    model.vocab = 50257;
    assert_refused(8, 0, model,
                   "model.vocab: Megatron cannot cut 50257 vocabulary rows for TP8: ", "a multiple of 8 is needed");
    model.vocab = 49152;
    model.experts = 8;
    model.expert_ffn = 1024;
    assert_refused(8, 4, model, "model.experts: ", "TP4");
    assert_refused(8, 2, model, "model.experts: ", "TP6"); /* whatever else could be cut */
    model.experts = 0;
    model.heads = 40;
    model.kv_heads = 8;
    model.hidden = 40 * 26; /* 26 rows a head, 5 query heads to a KV head: 2 x 26 / 5 is not whole */
    assert_refused(8, 4, model, "model.kv_heads: Megatron cannot cut the QKV weight for TP4 beside TP8: ",
                   "5 query heads share a KV head, which must divide 2 x 26 rows");
}

static void test_host_names(void **state)
{
    (void)state;
    test_plan planned;
    planned_create(&planned, &(test_cluster){1, 2, 2, "##"}, 1, 1, 2, NULL);
    static const char *const bad[] = {"", "a b", "a\"", "$(reboot)", "-x", "a\nb", "x'"};
    const char *good = planned.inventory->nodes[0].name;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        planned.inventory->nodes[0].name = bad[i];
        assert_null(text_for(planned.plan, &planned.model));
        char *text = NULL;
        size_t bytes;
        FILE *file = open_memstream(&text, &bytes);
        assert_int_equal(ek_plan_write_slurm(planned.plan, file), EK_INVALID);
        fclose(file);
        assert_int_equal(bytes, 0);
        free(text);
    }
    planned.inventory->nodes[0].name = good;
    planned_destroy(&planned);
}

static void test_a_full_disk(void **state)
{
    (void)state;
    test_plan planned;
    planned_create(&planned, &(test_cluster){2, 4, 4, "#######."}, 2, 1, 4, NULL);
    FILE *full = fopen("/dev/full", "w");
    assert_non_null(full);
    setvbuf(full, NULL, _IONBF, 0);
    assert_int_equal(ek_plan_write_megatron(planned.plan, &planned.model, full), EK_IO);
    clearerr(full);
    assert_int_equal(ek_plan_write_slurm(planned.plan, full), EK_IO);
    fclose(full);
    planned_destroy(&planned);
}

/* Python takes the text; NonuniformTPConfig is a stand-in with Megatron's field names. */
static void test_python_takes_it(void **state)
{
    (void)state;
    static const char script[] =
        "import ast, sys, types\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class NonuniformTPConfig:\n"
        "    tp_base: int\n"
        "    tp_spares: int\n"
        "    num_reduced_tp_dp_ranks: int\n"
        "    non_active_ranks_per_dp: dict\n"
        "for name in ('megatron', 'megatron.core', 'megatron.core.distributed'):\n"
        "    sys.modules[name] = types.ModuleType(name)\n"
        "name = 'megatron.core.distributed.nonuniform_tp'\n"
        "sys.modules[name] = types.ModuleType(name)\n"
        "sys.modules[name].NonuniformTPConfig = NonuniformTPConfig\n"
        "text = sys.stdin.read()\n"
        "lists = {a.targets[0].id: ast.literal_eval(a.value) for a in ast.parse(text).body\n"
        "         if isinstance(a, ast.Assign) and isinstance(a.value, ast.List)}\n"
        "values = {}\n"
        "exec(text, values)\n"
        "config = values['ntp_config']\n"
        "assert config.non_active_ranks_per_dp == {(0, 0, 0): [0, 3], (0, 0, 1): [2, 3]}, config\n"
        "assert (config.tp_base, config.tp_spares, config.num_reduced_tp_dp_ranks) == (4, 2, 1), config\n"
        "assert len(lists) == 7 and all(values[name] == lists[name] for name in lists), lists\n"
        "for name in ('tensor', 'data', 'pipeline', 'model'):\n"
        "    ranks = sorted(sum(lists[name + '_parallel_groups'], []))\n"
        "    assert ranks == list(range(12)), (name, ranks)\n"
        "assert len(set(lists['rank_to_gpu'])) == 12\n";
    if (system("python3 -c '' 2>/dev/null") != 0)
        skip();
    test_plan planned;
    planned_create(&planned, &(test_cluster){4, 4, 4, "##.#.##.########"}, 2, 2, 4, NULL);
    char *text = text_for(planned.plan, &planned.model), path[] = "/tmp/evenkeel-megatron-test-XXXXXX", command[100];
    assert_non_null(text);
    assert_non_null(strstr(text, "switched off, so that all reduced replicas have that degree: 1.\n"));
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_int_equal(write(descriptor, script, sizeof script - 1), sizeof script - 1);
    close(descriptor);
    snprintf(command, sizeof command, "python3 %s", path);
    FILE *python = popen(command, "w");
    assert_non_null(python);
    fputs(text, python);
    assert_int_equal(pclose(python), 0);
    unlink(path);
    free(text);
    planned_destroy(&planned);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_published_example),
        cmocka_unit_test(test_all_small_jobs),
        cmocka_unit_test(test_replans),
        cmocka_unit_test(test_what_can_be_split),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_host_names),
        cmocka_unit_test(test_a_full_disk),
        cmocka_unit_test(test_python_takes_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
