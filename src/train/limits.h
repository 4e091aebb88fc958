/* The power limits of a run's devices, in the launching process: opened with the backend of the configuration, set as
 * the ranks' governors decide, and put back at the end, whatever it is (power/guardian.h). Rank r drives device r. */
#ifndef EK_TRAIN_LIMITS_H
#define EK_TRAIN_LIMITS_H

#include "train/config.h"

typedef struct ek_limits ek_limits;

/* Call it before the program starts threads or ranks. A backend that cannot be used is no failure: then *limits is
 * NULL, and `complaint` says why in one line: the job goes on with samples alone. */
#define EK_COMPLAINT_BYTES 640
ek_status ek_limits_create(ek_limits **limits, const ek_config *config, uint32_t ranks,
                           char complaint[EK_COMPLAINT_BYTES]);

double ek_limits_default_watts(const ek_limits *limits); /* of the first device */

/* Does nothing where the limit is that already, or limits is NULL. */
ek_status ek_limits_set(ek_limits *limits, uint32_t rank, double watts);
/* Back to the default, as for a rank that was lost. */
ek_status ek_limits_reset(ek_limits *limits, uint32_t rank);

/* The next error that a driver reported, as its code (power/xid.h) and the rank (EK_NONE: the driver did not say which
 * device). *any is false if there is none now, and from the first failure on. */
ek_status ek_limits_event(ek_limits *limits, bool *any, uint32_t *rank, uint64_t *xid);

/* Puts back all limits; accepts NULL. On failure the state file stays, and the text names it. */
ek_status ek_limits_end(ek_limits *limits);

#endif
