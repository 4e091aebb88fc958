/* Whole JSON lines into a file, or none. */
#include "train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"

/* To the end of the last whole line: the end of a run that was killed may have torn the last one. */
static bool go_to_end(ek_metrics *metrics)
{
    char last;
    struct stat information;
    if (fstat(metrics->file, &information) == 0 && !S_ISREG(information.st_mode)) /* a pipe, a terminal */
        return true;
    off_t end = lseek(metrics->file, 0, SEEK_END);
    while (end > 0 && (pread(metrics->file, &last, 1, end - 1) != 1 || last != '\n'))
        end--;
    metrics->bytes = end;
    return ftruncate(metrics->file, end) == 0 && lseek(metrics->file, end, SEEK_SET) == end;
}

ek_status ek_metrics_open(ek_metrics *metrics, const char *path, bool append)
{
    *metrics = (ek_metrics){.path = path, .file = -1};
    if (!path)
        return EK_OK;
    metrics->file = open(path, (append ? O_RDWR : O_WRONLY | O_TRUNC) | O_CREAT | O_CLOEXEC, 0666);
    if (metrics->file < 0 || (append && !go_to_end(metrics)))
        return ek_fail(EK_IO, "--metrics %s: %s; name a file that can be written", path, strerror(errno));
    return EK_OK;
}

void ek_metrics_close(ek_metrics *metrics)
{
    if (metrics->file >= 0)
        close(metrics->file);
    metrics->file = -1;
}

static bool write_all(int file, const char *text, size_t bytes)
{
    while (bytes) {
        ssize_t written = write(file, text, bytes);
        if (written < 0 && errno != EINTR)
            return false;
        text += written > 0 ? written : 0;
        bytes -= written > 0 ? (size_t)written : 0;
    }
    return true;
}

ek_status ek_metrics_write(ek_metrics *metrics, json_t *line)
{
    char *text = metrics->file >= 0 && line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
    json_decref(line);
    if (metrics->file < 0)
        return EK_OK;
    if (!text)
        return ek_fail(EK_NO_MEMORY, "out of memory for a line of metrics");
    size_t bytes = strlen(text);
    text[bytes++] = '\n'; /* in place of the end of the string */
    bool written = write_all(metrics->file, text, bytes);
    free(text);
    if (written) {
        metrics->bytes += (off_t)bytes;
        return EK_OK;
    }
    ek_fail(EK_IO, "cannot write metrics to %s: %s; make room, or name another file with --metrics", metrics->path,
            strerror(errno));
    if (ftruncate(metrics->file, metrics->bytes) != 0) /* no regular file: nothing can be taken back */
        return EK_IO;
    return EK_IO;
}
