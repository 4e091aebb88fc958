/* One source compiled for several instruction sets; the loader picks the best clone of a function. Not under the
 * sanitizers, which are not ready when its resolvers run, nor with Clang, which (14) gives the clones a name that other
 * files do not find. */
#ifndef EK_BASE_CLONES_H
#define EK_BASE_CLONES_H

#if defined(__x86_64__) && !defined(__clang__) && !defined(EK_SANITIZE)
#define EK_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EK_CLONES
#endif

#endif
