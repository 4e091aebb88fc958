/* How fast one rank computes: tokens per second of forward and backward, and the share of OpenBLAS's own rate that
 * they reach.
 *
 *     bench_model [layers hidden heads kv_heads ffn vocab sequence batch [seconds]] */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "model/model.h"

static double now_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void check(ek_status status)
{
    if (status == EK_OK)
        return;
    fprintf(stderr, "bench_model: %s: %s\n", ek_status_text(status), ek_error());
    exit(1);
}

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (!memory)
        check(EK_NO_MEMORY);
    return memory;
}

/* Floating-point operations of the matrix products of a token, forward and backward: 6 per weight that is multiplied,
 * and causal attention over half of the sequence. */
static double operations_per_token(const ek_model_config *config)
{
    double C = config->hidden, D = C / config->heads;
    double layer = C * (config->heads + 2.0 * config->kv_heads) * D + C * C + 3.0 * C * config->ffn;
    double attention = 2.0 * C * (config->sequence / 2.0);
    return 6.0 * (config->layers * (layer + attention) + C * config->vocab);
}

/* The rate of the largest product of the model, N x C times C x 2F, in operations per second. */
static double measure_sgemm(const ek_model_config *config, uint32_t batch, double seconds)
{
    int N = (int)(batch * config->sequence), C = (int)config->hidden, O = (int)(2 * config->ffn);
    float *in = allocate((size_t)N * (size_t)C, sizeof *in);
    float *weight = allocate((size_t)O * (size_t)C, sizeof *weight);
    float *out = allocate((size_t)N * (size_t)O, sizeof *out);
    double start = now_seconds(), elapsed, operations = 0;
    do {
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, O, C, 1.0f, in, C, weight, C, 0.0f, out, O);
        operations += 2.0 * N * C * O;
        elapsed = now_seconds() - start;
    } while (elapsed < seconds);
    free(in);
    free(weight);
    free(out);
    return operations / elapsed;
}

typedef struct tensors {
    float **weights, **gradients;
    uint32_t *tokens;
    size_t tensors;
} tensors;

/* The whole model on one rank, with its initial weights, and random tokens. */
static tensors make_tensors(const ek_model_config *config, uint32_t batch)
{
    ek_unit_group groups[EK_MODEL_GROUPS];
    ek_model_groups(config, groups);
    ek_tensor *list;
    tensors made = {0};
    check(ek_model_tensors(config, &list, &made.tensors));
    made.weights = allocate(made.tensors, sizeof *made.weights);
    made.gradients = allocate(made.tensors, sizeof *made.gradients);
    for (size_t t = 0; t < made.tensors; t++) {
        uint32_t units = list[t].group == EK_REPLICATED ? 1 : groups[list[t].group].units;
        made.weights[t] = allocate(units * list[t].unit_elements, sizeof(float));
        made.gradients[t] = allocate(units * list[t].unit_elements, sizeof(float));
        for (uint32_t unit = 0; unit < units; unit++)
            ek_model_init(config, 1, t, unit, made.weights[t] + unit * list[t].unit_elements);
    }
    size_t count = (size_t)batch * (config->sequence + 1);
    made.tokens = allocate(count, sizeof *made.tokens);
    for (size_t i = 0; i < count; i++)
        made.tokens[i] = (uint32_t)rand() % config->vocab;
    ek_free(list);
    return made;
}

static void free_tensors(tensors *owned)
{
    for (size_t t = 0; t < owned->tensors; t++) {
        free(owned->weights[t]);
        free(owned->gradients[t]);
    }
    free(owned->weights);
    free(owned->gradients);
    free(owned->tokens);
}

static ek_model *make_model(const ek_model_config *config, uint32_t batch)
{
    ek_unit_group groups[EK_MODEL_GROUPS];
    ek_model_groups(config, groups);
    ek_model_options options = {.config = config, .micro_batch = batch};
    for (int group = 0; group < EK_MODEL_GROUPS; group++)
        options.units[group] = groups[group].units;
    uint32_t *vocab_units = allocate(groups[EK_GROUP_VOCAB].units, sizeof *vocab_units);
    for (uint32_t unit = 0; unit < groups[EK_GROUP_VOCAB].units; unit++)
        vocab_units[unit] = unit;
    options.vocab_units = vocab_units;
    ek_model *model;
    check(ek_model_create(&model, &options));
    free(vocab_units);
    return model;
}

int main(int argc, char **argv)
{
    uint32_t sizes[] = {6, 384, 6, 6, 1024, 256, 256, 8};
    size_t size_count = sizeof sizes / sizeof *sizes;
    for (size_t i = 0; i < size_count && i + 1 < (size_t)argc; i++)
        sizes[i] = (uint32_t)strtoul(argv[i + 1], NULL, 10);
    double seconds = (size_t)argc > size_count + 1 ? strtod(argv[size_count + 1], NULL) : 10.0;
    ek_model_config config = {.layers = sizes[0],
                              .hidden = sizes[1],
                              .heads = sizes[2],
                              .kv_heads = sizes[3],
                              .ffn = sizes[4],
                              .vocab = sizes[5],
                              .sequence = sizes[6],
                              .rope_theta = 10000.0f,
                              .norm_eps = 1e-5f};
    uint32_t batch = sizes[7];
    check(ek_model_config_finish(&config, 1));
    ek_model *model = make_model(&config, batch);
    tensors own = make_tensors(&config, batch);

    double loss, start = 0, elapsed = 0;
    int passes = -1; /* the first touches the memory and is not counted */
    do {
        check(ek_model_forward(model, own.weights, own.tokens, batch, &loss));
        check(ek_model_backward(model, own.weights, own.gradients, own.tokens, batch, 1.0f, true));
        if (passes < 0)
            start = now_seconds();
        passes++;
        elapsed = now_seconds() - start;
    } while (passes == 0 || elapsed < seconds);

    double tokens_per_second = passes * (double)(batch * config.sequence) / elapsed;
    double rate = tokens_per_second * operations_per_token(&config);
    double sgemm = measure_sgemm(&config, batch, 0.1 * seconds);
    printf("%.0f tokens/s, %.1f MFLOP a token, %.1f GFLOPS, %.1f %% of SGEMM's %.1f GFLOPS (%s), loss %.6f\n",
           tokens_per_second, operations_per_token(&config) * 1e-6, rate * 1e-9, 100.0 * rate / sgemm, sgemm * 1e-9,
           openblas_get_corename(), loss / (batch * config.sequence));
    free_tensors(&own);
    ek_model_destroy(model);
    return 0;
}
