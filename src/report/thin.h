/* A series of any length in bounded memory. Points are put into buckets of equally many, one each at first; when there
 * are too many buckets, neighbours are merged. A bucket knows its mean and its extremes, so no peak is lost, and a
 * series of up to EK_THIN_BUCKETS points is kept whole. */
#ifndef EK_REPORT_THIN_H
#define EK_REPORT_THIN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { EK_THIN_BUCKETS = 500 }; /* even */

typedef struct ek_thin_bucket {
    uint64_t points;
    double first_x, last_x, first_y, last_y;
    double sum, least, most; /* of y */
} ek_thin_bucket;

/* All zero is an empty series. */
typedef struct ek_thin {
    uint64_t width; /* points of a full bucket; 1: the series is whole */
    uint32_t count; /* of buckets; all but the last are full */
    ek_thin_bucket buckets[EK_THIN_BUCKETS];
} ek_thin;

/* x must rise. */
void ek_thin_add(ek_thin *thin, double x, double y);

/* [[x, y], …]: the mean of each bucket at its middle, of the first and the last one at the ends of the series; in a
 * whole series the points. `steps`: of a whole series without
 * the points that say what those around them say, if a value is taken to hold until the next one. */
json_t *ek_thin_means(const ek_thin *thin, bool steps);

/* [[x, least, most], …] with the x of ek_thin_means. */
json_t *ek_thin_band(const ek_thin *thin);

/* [[x, y], …]: the first and the last point of each bucket. */
json_t *ek_thin_ends(const ek_thin *thin);

#endif
