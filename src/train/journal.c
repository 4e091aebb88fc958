/* Metrics, lines for who watches and the table of events, all told at once. */
#include "train/journal.h"

#include <stdio.h>

#include "train/clock.h"

ek_status ek_journal_open(ek_journal *journal, const ek_train_options *options)
{
    const ek_config *config = options->config;
    *journal = (ek_journal){.tp = config->parallel.tp,
                            .roles = config->parallel.tp * config->parallel.dp,
                            .launched = ek_wall_seconds(),
                            .display = ek_display_open(options->quiet, ek_config_parallelism(config))};
    return ek_metrics_open(&journal->metrics, options->metrics_path, options->resume);
}

void ek_journal_close(ek_journal *journal)
{
    ek_metrics_close(&journal->metrics);
    ek_table_clear(&journal->table);
}

const char *ek_journal_place(const ek_journal *journal, uint32_t rank, char text[EK_PLACE_BYTES])
{
    if (rank < journal->roles)
        snprintf(text, EK_PLACE_BYTES, "replica %u slot %u", rank / journal->tp, rank % journal->tp);
    else
        snprintf(text, EK_PLACE_BYTES, "spare %u", rank - journal->roles);
    return text;
}

json_t *ek_journal_event(const ek_journal *journal, const char *event, uint64_t step, uint32_t rank)
{
    json_t *line = json_pack("{s:s, s:I}", "event", event, "step", (json_int_t)step);
    if (rank < journal->roles) {
        json_object_set_new(line, "replica", json_integer(rank / journal->tp));
        json_object_set_new(line, "slot", json_integer(rank % journal->tp));
    } else if (rank != EK_NONE) {
        json_object_set_new(line, "spare", json_integer(rank - journal->roles));
    }
    return line;
}

ek_status ek_journal_tell(ek_journal *journal, ek_table_row row, json_t *event)
{
    ek_table_add(&journal->table, row);
    char line[512];
    int length = snprintf(line, sizeof line, "step %llu: %s%s%s", (unsigned long long)row.step, row.event,
                          row.detail ? " in " : "", row.detail ? row.detail : "");
    if (row.recovered && length < (int)sizeof line)
        snprintf(line + length, sizeof line - (size_t)length, " after %.1f ms, %.2f MB moved, %u %s redone",
                 1e3 * row.recovery_seconds, 1e-6 * (double)row.bytes, row.redone_steps,
                 row.redone_steps == 1 ? "step" : "steps");
    ek_display_event(&journal->display, line);
    return event ? ek_metrics_write(&journal->metrics, event) : EK_OK;
}
