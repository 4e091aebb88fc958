/* What a run leaves in writing as it goes: metrics (JSON lines), lines for who watches, and the table of events that
 * closes it. */
#ifndef EK_TRAIN_JOURNAL_H
#define EK_TRAIN_JOURNAL_H

#include <jansson.h>

#include "train/display.h"
#include "train/metrics.h"
#include "train/table.h"
#include "train/train.h"

typedef struct ek_journal {
    uint32_t tp, roles; /* ranks from `roles` on are spares */
    double launched;    /* monotonic seconds, which "at" counts from */
    ek_metrics metrics;
    ek_display display;
    ek_table table;
} ek_journal;

/* Opens (and empties) options->metrics_path. EK_IO if that cannot be done. */
ek_status ek_journal_open(ek_journal *journal, const ek_train_options *options);
void ek_journal_close(ek_journal *journal);

/* "replica 1 slot 2", or "spare 0": where a rank's device is, whatever role it serves. */
#define EK_PLACE_BYTES 40
const char *ek_journal_place(const ek_journal *journal, uint32_t rank, char text[EK_PLACE_BYTES]);

/* An event about a rank, or EK_NONE: its place stands in it as "replica" and "slot", or as "spare". */
json_t *ek_journal_event(const ek_journal *journal, const char *event, uint64_t step, uint32_t rank);

/* Tells of something to who watches and in the table, and writes `event`, which it takes over (NULL: none). */
ek_status ek_journal_tell(ek_journal *journal, ek_table_row row, json_t *event);

#endif
