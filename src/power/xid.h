/* NVIDIA's Xid codes: what an error that the driver reports means for the rank on that device. */
#ifndef EK_POWER_XID_H
#define EK_POWER_XID_H

#include <stdint.h>

typedef enum ek_xid_meaning {
    EK_XID_REPORTED,    /* worth a line in the metrics; the rank goes on */
    EK_XID_APPLICATION, /* what the program on the device did, or a consequence of it; the device is well */
    EK_XID_LOST,        /* the rank cannot go on: the device, or memory that the rank held, is gone until a reset */
} ek_xid_meaning;

typedef struct ek_xid {
    ek_xid_meaning meaning;
    const char *text; /* a few words, never NULL */
} ek_xid;

/* Codes that are not in the table are EK_XID_REPORTED. */
ek_xid ek_xid_find(uint64_t code);

#endif
