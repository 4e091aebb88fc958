/* State whose every number says where it belongs. */
#include "states.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"

ek_model_config states_model(size_t index, uint32_t blocks)
{
    ek_model_config config = {.layers = 3,
                              .hidden = 16,
                              .heads = 8,
                              .kv_heads = 4,
                              .ffn = 24,
                              .vocab = 32,
                              .sequence = 8,
                              .ffn_block = blocks,
                              .vocab_block = blocks,
                              .rope_theta = 10000.0f,
                              .norm_eps = 1e-5f};
    if (index == 1) {
        config.tied_embeddings = true;
        config.kv_heads = 8;
    }
    if (index >= 2) {
        config.experts = 6;
        config.top_k = 2;
        config.moe_every = index == 3 ? 2 : 1;
        config.expert_ffn = 10;
        config.shared_expert = index == 4;
        config.expert_parallel = index == 5;
    }
    assert_true(index < STATES_MODELS);
    assert_ok(ek_model_config_finish(&config, 4));
    return config;
}

ek_membership *states_membership(const ek_model_config *config, uint32_t replicas, uint32_t base_degree,
                                 uint32_t spares)
{
    ek_unit_group groups[EK_MODEL_GROUPS];
    ek_job job = {.replicas = replicas, .base_degree = base_degree, .spares = spares, .groups = groups};
    job.group_count = ek_model_groups(config, groups);
    ek_membership *membership;
    assert_ok(ek_membership_create(&membership, &job));
    return membership;
}

float states_number(uint32_t plane, size_t tensor, uint64_t element)
{
    return (float)(1 + element) + 1000.0f * (float)(1 + tensor) * (plane == 1 ? -1.0f : 1.0f) +
           (plane == 2 ? 0.5f : 0.0f);
}

void states_make(states *of, const ek_membership *membership, uint32_t rank, const ek_model_config *config)
{
    *of = (states){.share = {.membership = membership, .rank = rank, .config = config}};
    assert_ok(ek_model_tensors(config, &of->tensors, &of->share.tensor_count));
    of->share.tensors = of->tensors;
    for (uint32_t plane = 0; plane < EK_CHECKPOINT_PLANES; plane++) {
        of->planes[plane] = calloc(of->share.tensor_count, sizeof(float *));
        assert_non_null(of->planes[plane]);
        for (size_t t = 0; t < of->share.tensor_count; t++) {
            size_t elements;
            uint32_t held;
            ek_model_tensor_units(config, t, &elements);
            ek_share_units(&of->share, t, &held);
            of->planes[plane][t] = calloc(held * elements + 1, sizeof(float));
            assert_non_null(of->planes[plane][t]);
        }
    }
}

void states_free(states *of)
{
    for (uint32_t plane = 0; plane < EK_CHECKPOINT_PLANES; plane++) {
        for (size_t t = 0; t < of->share.tensor_count; t++)
            free(of->planes[plane][t]);
        free(of->planes[plane]);
    }
    ek_free(of->tensors);
}

/* Calls `visit` for every number of the share with what it should be. */
static void each_number(const states *of, uint32_t plane, void (*visit)(float *value, float wanted, double tolerance),
                        double tolerance)
{
    ek_hf_tensor *hf;
    size_t hf_count;
    assert_ok(ek_hf_tensors(of->share.config, &hf, &hf_count));
    for (size_t t = 0; t < of->share.tensor_count; t++) {
        size_t elements;
        uint32_t held;
        ek_model_tensor_units(of->share.config, t, &elements);
        const uint32_t *units = ek_share_units(&of->share, t, &held);
        for (uint32_t i = 0; i < held; i++) {
            ek_hf_place places[EK_HF_PLACES_MOST];
            uint32_t count = ek_hf_places(of->share.config, t, units ? units[i] : i, places);
            for (uint32_t p = 0; p < count; p++)
                for (size_t row = 0; row < places[p].rows; row++)
                    for (size_t column = 0; column < places[p].columns; column++) {
                        size_t at =
                            places[p].transposed ? column * places[p].rows + row : row * places[p].columns + column;
                        uint64_t element =
                            (places[p].row + row) * hf[places[p].tensor].columns + places[p].column + column;
                        visit(&of->planes[plane][t][i * elements + places[p].first + at],
                              states_number(plane, places[p].tensor, element), tolerance);
                    }
        }
    }
    free(hf);
}

static void set(float *value, float wanted, double tolerance)
{
    (void)tolerance;
    *value = wanted;
}

static void compare(float *value, float wanted, double tolerance)
{
    if (!(fabs((double)*value - (double)wanted) <= tolerance * fabs((double)wanted)))
        fail_msg("%.9g where %.9g belongs", (double)*value, (double)wanted);
}

void states_fill(states *of)
{
    for (uint32_t plane = 0; plane < EK_CHECKPOINT_PLANES; plane++)
        each_number(of, plane, set, 0.0);
}

void states_check(const states *of, uint32_t first, uint32_t end, double tolerance)
{
    for (uint32_t plane = first; plane < end; plane++)
        each_number(of, plane, compare, tolerance);
}

ek_status states_complete(const ek_checkpoint_dir *dir, uint64_t step, uint32_t keep)
{
    EK_TRY(ek_checkpoint_complete(dir, step));
    return ek_checkpoint_tidy(dir, step, keep);
}

void states_write(const char *path, const ek_checkpoint_dir *dir, uint64_t step, const ek_membership *membership,
                  const ek_model_config *config, uint64_t *bytes)
{
    char folder[EK_CHECKPOINT_PATH_BYTES];
    ek_checkpoint_partial(path, ek_checkpoint_identity(dir), step, folder);
    for (uint32_t rank = 0; rank < ek_membership_ranks(membership); rank++) {
        if (bytes)
            bytes[rank] = 0;
        if (!ek_membership_place(membership, rank, NULL, NULL))
            continue;
        states of;
        ek_snapshot *snapshot;
        states_make(&of, membership, rank, config);
        states_fill(&of);
        assert_ok(ek_snapshot_create(&snapshot, &of.share, of.planes));
        states_free(&of); /* training goes on: the snapshot is a copy */
        assert_ok(ek_snapshot_write(snapshot, folder, step));
        if (bytes)
            bytes[rank] = ek_snapshot_bytes(snapshot);
        ek_snapshot_destroy(snapshot);
    }
}

static void progress(void *user)
{
    (void)user;
}

void states_load(const char *path, const ek_membership *membership, const ek_model_config *config)
{
    for (uint32_t rank = 0; rank < ek_membership_ranks(membership); rank++) {
        if (!ek_membership_place(membership, rank, NULL, NULL))
            continue;
        states of;
        states_make(&of, membership, rank, config);
        assert_ok(ek_checkpoint_load(path, &of.share, of.planes, progress, NULL));
        states_check(&of, 0, EK_CHECKPOINT_PLANES, 0.0);
        states_free(&of);
    }
}

char states_refused[512];

static void refuse(void *user, const char *line)
{
    (void)user;
    snprintf(states_refused, sizeof states_refused, "%s", line);
}

ek_status states_find(const ek_checkpoint_dir *dir, uint64_t *step, char path[EK_CHECKPOINT_PATH_BYTES])
{
    states_refused[0] = '\0';
    return ek_checkpoint_find(dir, UINT64_MAX, step, path, refuse, NULL);
}

static char folder[] = "/tmp/evenkeel-checkpoint-XXXXXX";

int states_enter(void **state)
{
    (void)state;
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

int states_leave(void **state)
{
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return chdir("/") | system(command);
}
