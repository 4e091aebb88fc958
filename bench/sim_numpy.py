#!/usr/bin/python3
"""The steady-throughput study of the simulator in vectorised numpy: what `evenkeel bench --only sim` is held against.

Scenarios are sampled in batches: GPUs are drawn for all of a batch at once, rows with a GPU drawn twice are thrown away
(what is left is uniform over sets of distinct GPUs), failures are counted per domain, domains packed deepest first.
Prints scenarios per second of CPU time and the mean loss of DP-DROP, NTP and NTP-PW with 95 % intervals."""
import argparse
import os
import time

os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np  # noqa: E402


def sample(rng, rows, options):
    """Throughput of (dp-drop, ntp, ntp-pw) in so many scenarios, less those thrown away."""
    devices = options.domains * options.slots
    replicas = options.domains // options.stages
    gpus = rng.integers(0, devices, size=(rows, options.failures), dtype=np.int32)
    in_order = np.sort(gpus, axis=1)
    gpus = gpus[(in_order[:, 1:] != in_order[:, :-1]).all(axis=1)]
    rows = len(gpus)
    domain = gpus // options.slots + np.arange(rows, dtype=np.int32)[:, None] * options.domains
    failed = np.bincount(domain.ravel(), minlength=rows * options.domains).reshape(rows, options.domains)

    levels = len(options.samples) - 1
    hit = [-(-np.count_nonzero(failed >= level, axis=1) // options.stages) for level in range(1, levels + 2)]
    whole = replicas - hit[0]
    batch = replicas * options.samples[0]
    drop = whole * options.samples[0] / batch
    throughput = [drop]
    for table in (options.samples, options.boosted):
        samples, best = whole * table[0], drop.copy()
        for level in range(1, levels + 1):
            at_level = hit[level - 1] - hit[level]
            samples = samples + at_level * table[level]
            best = np.maximum(best, np.where(at_level > 0, samples / batch * options.pace[level], 0))
        throughput.append(best)
    return np.array(throughput)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("domains", "slots", "stages", "failures"):
        parser.add_argument("--" + name, type=int, required=True)
    parser.add_argument("--samples", type=int, nargs="+", required=True, help="of a replica at each level, NTP")
    parser.add_argument("--boosted", type=int, nargs="+", required=True, help="and NTP-PW")
    parser.add_argument("--pace", type=float, nargs="+", required=True, help="step with no failure over this step")
    parser.add_argument("--scenarios", type=int, default=100000)
    parser.add_argument("--batch", type=int, default=1000, help="rows at once; 1,000 is about the fastest")
    options = parser.parse_args()

    rng = np.random.Generator(np.random.PCG64(1))
    count, total, squares = 0, np.zeros(3), np.zeros(3)
    start = time.process_time()
    while count < options.scenarios:
        lost = 1 - sample(rng, options.batch, options)
        count += lost.shape[1]
        total += lost.sum(axis=1)
        squares += (lost * lost).sum(axis=1)
    seconds = time.process_time() - start
    mean = total / count
    half_width = 1.96 * np.sqrt(np.maximum(squares / count - mean * mean, 0) / count)
    print(f"numpy {np.__version__}: {1e-6 * count / seconds:.4f} million scenarios/s")
    for name, value, half in zip(("dp-drop", "ntp", "ntp-pw"), mean, half_width):
        print(f"  lost, packed: {name} {value:.6f} +- {half:.6f}")


main()
