/* Training data: a file of tokens, mapped read-only and cut into windows of T+1 tokens that overlap by one.
 *
 * Formats: bytes (any file, a byte is a token), llm.c (.bin: 256 int32 of header, magic 20240520, version 1, token
 * count; then uint16 tokens), Megatron (PATH.idx and PATH.bin, magic "MMIDIDX\0\0", version 1: documents joined end to
 * end). Which sample is the i-th of step s depends on (seed, s, i) alone: every epoch is a permutation of all windows
 * of its own. */
#ifndef EK_TRAIN_DATA_H
#define EK_TRAIN_DATA_H

#include "train/config.h"

typedef struct ek_data ek_data;

/* Opens and checks the file: it must hold at least one window, and (scanned once, here) no token >= vocab. EK_IO or
 * EK_INVALID, naming the file, the token and its position. */
ek_status ek_data_open(ek_data **data, const char *path, ek_data_format format, uint32_t sequence, uint32_t vocab);
void ek_data_close(ek_data *data);

uint64_t ek_data_windows(const ek_data *data);

/* Tokens (T+1) of sample number `index` of the run: (step - 1) * global batch + place in the batch. */
void ek_data_sample(const ek_data *data, uint64_t seed, uint64_t index, uint32_t *tokens);

#endif
