/* Small models, and the training state of a whole job whose every number says where it belongs in a checkpoint,
 * whatever the layout. */
#ifndef TESTS_CHECKPOINT_STATES_H
#define TESTS_CHECKPOINT_STATES_H

#include "checkpoint/checkpoint.h"
#include "testing.h"

/* Dense and tied, grouped queries, experts of every kind, in expert parallelism too. All can be cut 4 ways. */
#define STATES_MODELS 6
/* blocks: ffn_block and vocab_block. */
ek_model_config states_model(size_t index, uint32_t blocks);

ek_membership *states_membership(const ek_model_config *config, uint32_t replicas, uint32_t base_degree,
                                 uint32_t spares);

/* A rank's share. */
typedef struct states {
    ek_share share;
    ek_tensor *tensors;
    float **planes[EK_CHECKPOINT_PLANES]; /* [tensors] */
} states;

/* All zero; NULL planes on a rank without a role. */
void states_make(states *of, const ek_membership *membership, uint32_t rank, const ek_model_config *config);
void states_fill(states *of);
/* Fails unless planes first … end-1 are as filled, up to `tolerance`, relative. */
void states_check(const states *of, uint32_t first, uint32_t end, double tolerance);
void states_free(states *of);

/* The number at an element of a tensor of the checkpoint (ek_hf_tensors). Different everywhere, and a bfloat16 nearly.
 */
float states_number(uint32_t plane, size_t tensor, uint64_t element);

/* Every rank with a role writes its filled share of the checkpoint of `step` in `dir`, which lies at `path`. bytes:
 * [ranks] of each, or NULL. */
void states_write(const char *path, const ek_checkpoint_dir *dir, uint64_t step, const ek_membership *membership,
                  const ek_model_config *config, uint64_t *bytes);
/* Makes it complete, and tidies up. */
ek_status states_complete(const ek_checkpoint_dir *dir, uint64_t step, uint32_t keep);
/* Every rank with a role loads it; all of it must be as filled. */
void states_load(const char *path, const ek_membership *membership, const ek_model_config *config);

/* ek_checkpoint_find, all steps; what is refused is kept in `states_refused`, the last line. */
extern char states_refused[512];
ek_status states_find(const ek_checkpoint_dir *dir, uint64_t *step, char path[EK_CHECKPOINT_PATH_BYTES]);

/* An empty folder to be in, for the fixtures of cmocka. */
int states_enter(void **state);
int states_leave(void **state);

#endif
