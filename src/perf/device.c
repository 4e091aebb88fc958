/* What one operation costs on a device or a link: a matrix product, a pass over memory, a collective. */
#include "perf/parts.h"

#include <math.h>

#define VALUE_BYTES 2 /* of weights and activations: fp16 or bf16 */

perf_link perf_scale_up(const ek_perf_hardware *hardware)
{
    return (perf_link){hardware->scale_up_bytes_per_second * hardware->scale_up_efficiency, hardware->scale_up_seconds};
}

perf_link perf_scale_out(const ek_perf_hardware *hardware)
{
    return (perf_link){hardware->scale_out_bytes_per_second * hardware->scale_out_efficiency,
                       hardware->scale_out_seconds};
}

/* FLOP that the multiprocessors could have done until the last wave of tiles ends, per unit of depth. */
static double waves(const ek_perf_hardware *hardware, double batch, double rows, double columns, uint32_t tile_rows,
                    uint32_t tile_columns)
{
    double tiles = batch * ceil(rows / tile_rows) * ceil(columns / tile_columns);
    double slots = hardware->multiprocessors;
    return ceil(tiles / slots) * slots * tile_rows * tile_columns * 2;
}

double perf_product(const ek_perf_hardware *hardware, double batch, double rows, double columns, double depth,
                    bool free_units)
{
    uint32_t longer = hardware->tile_rows, shorter = hardware->tile_columns;
    double flop = 2 * batch * rows * columns;
    if (!free_units)
        flop = fmin(waves(hardware, batch, rows, columns, longer, shorter),
                    waves(hardware, batch, rows, columns, shorter, longer));
    double bytes = VALUE_BYTES * batch * (rows * depth + depth * columns + rows * columns);
    return fmax(flop * depth / (hardware->flops_per_second * hardware->matmul_efficiency),
                bytes / (hardware->memory_bytes_per_second * hardware->memory_efficiency)) +
           hardware->kernel_seconds;
}

double perf_traffic(const ek_perf_hardware *hardware, double bytes, uint32_t kernels)
{
    return bytes / (hardware->memory_bytes_per_second * hardware->memory_efficiency) +
           kernels * hardware->kernel_seconds;
}

double perf_ring(perf_link link, uint32_t members, double bytes)
{
    if (members < 2)
        return 0;
    return (members - 1) * (link.seconds + bytes / members / link.bytes_per_second);
}
