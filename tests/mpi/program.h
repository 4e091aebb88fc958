/* A random program of operations, the same on every engine: see program.c. */
#ifndef TESTS_MPI_PROGRAM_H
#define TESTS_MPI_PROGRAM_H

#include "comm/jobs.h"

/* For ek_launch; `user` is a const uint64_t, the seed. Reports a uint64_t: the hash of all that the rank has got. */
ek_status run_program(ek_engine *engine, void *user);

#endif
