/* What a training job that runs somewhere else tells by its metrics file: how far it is, and how it ended. */
#ifndef EK_LAUNCH_RECORD_H
#define EK_LAUNCH_RECORD_H

#include <sys/types.h>

#include <evenkeel.h>

typedef struct ek_record {
    const char *path; /* the caller's */
    off_t offset;     /* read so far: whole lines */
    uint64_t step;    /* the highest that was ever committed */
    bool any;         /* something has been written in this run */
    bool ended;       /* with this: */
    bool done;
    char reason[512];
} ek_record;

/* A run is about to begin: it goes on behind what is there, or empties the file. `step` is kept. */
void ek_record_begin(ek_record *record);
/* Reads what is new. What cannot be read says nothing. */
void ek_record_read(ek_record *record);

#endif
