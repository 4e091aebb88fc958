/* See input.h. */
#include "base/input.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

ek_status ek_input_open(const char *path, int *file)
{
    struct stat found;
    int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (opened < 0)
        return ek_fail(EK_IO, "%s: cannot be opened: %s", path, strerror(errno));
    if (fstat(opened, &found) == 0 && S_ISREG(found.st_mode)) {
        *file = opened;
        return EK_OK;
    }
    close(opened);
    return ek_fail(EK_IO, "%s: is %s, not a file", path, S_ISDIR(found.st_mode) ? "a folder" : "a pipe or a device");
}
