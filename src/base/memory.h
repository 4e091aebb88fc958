/* Large memory of one process, in huge pages where the system has them: small ones cost more time to touch for the
 * first time than much of what is done with them, and a recovery touches new memory. */
#ifndef EK_BASE_MEMORY_H
#define EK_BASE_MEMORY_H

#include <stddef.h>

/* Aligned to a huge page, with any content. NULL if there is none. Released with free(). */
void *ek_large_alloc(size_t bytes);

#endif
