/* The benchmarks behind `evenkeel bench`. Each prints what it measures, and how, to standard output. Absolute times
 * belong to one machine and one moment; ratios within one run are what to quote. */
#ifndef EK_BENCH_BENCH_H
#define EK_BENCH_BENCH_H

#include <evenkeel.h>

/* Shows on standard error, if that is a terminal, how far a benchmark is; done == of wipes it away. */
void ek_bench_progress(const char *name, int done, int of);

/* Tokens per second of one rank and of two ranks of DP, and the share of OpenBLAS's rate that one rank reaches.
 * bench/run holds them against PyTorch. */
ek_status ek_bench_speed(void);

/* Time from the kill of a rank to the next commit, less one ordinary step, for the model of examples/tiny.yaml. */
ek_status ek_bench_recovery(void);

/* What a rank that comes back costs the others, in ordinary steps, for the model of examples/tiny.yaml and a larger
 * one.
 */
ek_status ek_bench_return(void);

/* What a reduced peer costs a healthy replica: compute-thread CPU time per step of TP2 beside TP1 and beside TP2. */
ek_status ek_bench_overhead(void);

/* The same in expert parallelism. */
ek_status ek_bench_expert_overhead(void);

/* Bytes that tokens' way to experts and back takes in EP4 and in EP3, against the least possible. */
ek_status ek_bench_dispatch(void);

/* Sampled scenarios of the simulator by the second of a core. bench/run holds them against numpy. */
ek_status ek_bench_sim(void);

/* How fast a checkpoint is written in the working directory, against how fast the disk there takes as many bytes. */
ek_status ek_bench_checkpoint(void);

/* All-reduce and reshard of an engine against the machine's memory: "shm", or "mpi" where mpirun has started this. */
ek_status ek_bench_engines(void);

#endif
