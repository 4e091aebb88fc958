/* Buckets of points, merged in pairs when they have become too many. */
#include "report/thin.h"

#include <math.h>

/* Takes in a bucket that is behind. */
static void merge(ek_thin_bucket *into, const ek_thin_bucket *next)
{
    into->points += next->points;
    into->last_x = next->last_x;
    into->last_y = next->last_y;
    into->sum += next->sum;
    into->least = fmin(into->least, next->least);
    into->most = fmax(into->most, next->most);
}

static void halve(ek_thin *thin)
{
    thin->count /= 2;
    for (uint32_t b = 0; b < thin->count; b++) {
        ek_thin_bucket pair = thin->buckets[2 * b];
        merge(&pair, &thin->buckets[2 * b + 1]);
        thin->buckets[b] = pair;
    }
    thin->width *= 2;
}

void ek_thin_add(ek_thin *thin, double x, double y)
{
    const ek_thin_bucket alone = {1, x, x, y, y, y, y, y};
    if (thin->width == 0)
        thin->width = 1;
    if (thin->count > 0 && thin->buckets[thin->count - 1].points < thin->width) {
        merge(&thin->buckets[thin->count - 1], &alone);
        return;
    }
    if (thin->count == EK_THIN_BUCKETS)
        halve(thin);
    thin->buckets[thin->count++] = alone;
}

/* Where a bucket stands: in its middle; the first and the last one at the ends of the series. */
static double place(const ek_thin *thin, uint32_t b)
{
    const ek_thin_bucket *bucket = &thin->buckets[b];
    if (b == 0)
        return bucket->first_x;
    if (b + 1 == thin->count)
        return bucket->last_x;
    return bucket->first_x + floor(0.5 * (bucket->last_x - bucket->first_x)); /* steps are whole numbers */
}

json_t *ek_thin_means(const ek_thin *thin, bool steps)
{
    json_t *points = json_array();
    const ek_thin_bucket *buckets = thin->buckets;
    for (uint32_t b = 0; b < thin->count; b++) {
        bool inside = steps && thin->width == 1 && b > 0 && b + 1 < thin->count;
        if (inside && buckets[b].sum == buckets[b - 1].sum)
            continue;
        json_array_append_new(points, json_pack("[f, f]", place(thin, b), buckets[b].sum / (double)buckets[b].points));
    }
    return points;
}

json_t *ek_thin_band(const ek_thin *thin)
{
    json_t *band = json_array();
    for (uint32_t b = 0; b < thin->count; b++) {
        const ek_thin_bucket *bucket = &thin->buckets[b];
        json_array_append_new(band, json_pack("[f, f, f]", place(thin, b), bucket->least, bucket->most));
    }
    return band;
}

json_t *ek_thin_ends(const ek_thin *thin)
{
    json_t *points = json_array();
    for (uint32_t b = 0; b < thin->count; b++) {
        const ek_thin_bucket *bucket = &thin->buckets[b];
        json_array_append_new(points, json_pack("[f, f]", bucket->first_x, bucket->first_y));
        if (bucket->points > 1)
            json_array_append_new(points, json_pack("[f, f]", bucket->last_x, bucket->last_y));
    }
    return points;
}
