/* The table of events that closes a run: what happened, when, what it cost. */
#ifndef EK_TRAIN_TABLE_H
#define EK_TRAIN_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct ek_table_row {
    uint64_t step;
    double seconds;     /* since launch */
    const char *event;  /* copied */
    const char *detail; /* copied; NULL: none */
    bool recovered;     /* the columns below apply */
    double recovery_seconds;
    uint64_t bytes;
    uint32_t redone_steps;
} ek_table_row;

/* All zero is an empty table. */
typedef struct ek_table {
    struct ek_table_line *lines;
    size_t count;
    uint64_t left_out;
} ek_table;

/* Rows beyond the first few hundred, or that find no memory, are counted and left out. */
void ek_table_add(ek_table *table, ek_table_row row);
void ek_table_print(const ek_table *table, FILE *out);
void ek_table_clear(ek_table *table);

#endif
