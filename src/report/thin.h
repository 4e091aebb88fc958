/* A series of any length in bounded memory: points are put into buckets of equally many, and of each bucket the first,
 * the least, the greatest and the last are kept. When there are too many buckets, neighbours are merged. So no peak is
 * lost, and a series of up to EK_THIN_BUCKETS points is kept whole. */
#ifndef EK_REPORT_THIN_H
#define EK_REPORT_THIN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { EK_THIN_BUCKETS = 500 }; /* even */

typedef struct ek_thin_point {
    double x, y;
} ek_thin_point;

typedef struct ek_thin_bucket {
    ek_thin_point first, least, most, last;
} ek_thin_bucket;

/* All zero is an empty series. */
typedef struct ek_thin {
    uint32_t count; /* of buckets that have points */
    uint64_t width; /* points of a whole bucket */
    uint64_t last_points;
    ek_thin_bucket buckets[EK_THIN_BUCKETS];
} ek_thin;

/* x must not fall. */
void ek_thin_add(ek_thin *thin, double x, double y);

/* [[x, y], …], at most 4 a bucket. `steps`: without points that say what those around them say, if a value is taken to
 * hold until the next one. */
json_t *ek_thin_points(const ek_thin *thin, bool steps);

#endif
