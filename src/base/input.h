/* Opening files that are read whole: files proper, which end. */
#ifndef EK_BASE_INPUT_H
#define EK_BASE_INPUT_H

#include <evenkeel.h>

/* EK_IO: it cannot be opened, or is a folder, a pipe or a device; a pipe is not waited for. */
ek_status ek_input_open(const char *path, int *file);

#endif
