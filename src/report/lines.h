/* A file of JSON lines, one object a line. */
#ifndef EK_REPORT_LINES_H
#define EK_REPORT_LINES_H

#include <jansson.h>

#include <evenkeel.h>

/* Gets each object in turn. A failure ends the reading; its text gets "FILE:LINE: " in front. */
typedef ek_status (*ek_line_visit)(void *user, const json_t *object);

/* EK_IO: the file cannot be read. EK_INVALID: a line is no JSON object. The last line may be torn, as a crash leaves
 * it: without its newline and cut short. It is left out, and *torn is set. */
ek_status ek_lines_read(const char *path, ek_line_visit visit, void *user, bool *torn);

#endif
