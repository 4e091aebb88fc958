/* Buckets of points, merged in pairs when they have become too many. */
#include "report/thin.h"

static void merge(ek_thin_bucket *into, const ek_thin_bucket *next)
{
    if (next->least.y < into->least.y)
        into->least = next->least;
    if (next->most.y > into->most.y)
        into->most = next->most;
    into->last = next->last;
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
    thin->last_points = thin->width;
}

void ek_thin_add(ek_thin *thin, double x, double y)
{
    ek_thin_point point = {x, y};
    ek_thin_bucket alone = {point, point, point, point};
    if (thin->width == 0)
        thin->width = thin->last_points = 1;
    bool full = thin->count == 0 || thin->last_points == thin->width;
    if (full && thin->count == EK_THIN_BUCKETS)
        halve(thin);
    if (full) {
        thin->buckets[thin->count++] = alone;
        thin->last_points = 1;
    } else {
        merge(&thin->buckets[thin->count - 1], &alone);
        thin->last_points++;
    }
}

/* Appends a point that is behind the last one. In stairs a point in the middle of three equal ones says nothing. */
static void append(json_t *points, ek_thin_point point, bool steps)
{
    size_t count = json_array_size(points);
    json_t *last = json_array_get(points, count - 1), *before = count > 1 ? json_array_get(points, count - 2) : NULL;
    if (last && json_number_value(json_array_get(last, 0)) >= point.x)
        return;
    if (steps && before && json_number_value(json_array_get(last, 1)) == point.y &&
        json_number_value(json_array_get(before, 1)) == point.y)
        json_array_remove(points, count - 1);
    json_array_append_new(points, json_pack("[f, f]", point.x, point.y));
}

json_t *ek_thin_points(const ek_thin *thin, bool steps)
{
    json_t *points = json_array();
    for (uint32_t b = 0; points && b < thin->count; b++) {
        const ek_thin_bucket *bucket = &thin->buckets[b];
        bool rises = bucket->least.x < bucket->most.x;
        append(points, bucket->first, steps);
        append(points, rises ? bucket->least : bucket->most, steps);
        append(points, rises ? bucket->most : bucket->least, steps);
        append(points, bucket->last, steps);
    }
    return points;
}
