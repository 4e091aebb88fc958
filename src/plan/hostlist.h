/* Slurm's host lists: "login,node[001-018,020]" for many host names, both ways. */
#ifndef EK_PLAN_HOSTLIST_H
#define EK_PLAN_HOSTLIST_H

#include <stdio.h>

#include <evenkeel.h>

typedef struct ek_hostlist {
    char **names;
    size_t count, room;
} ek_hostlist;

/* Appends the names that `text` stands for, in its order; a list begins zeroed. A number is as wide as the first of its
 * range; a name may have several brackets. EK_INVALID says what is wrong with the text, without a place. */
#define EK_HOSTLIST_MOST ((size_t)1 << 20)
ek_status ek_hostlist_expand(ek_hostlist *list, const char *text);
void ek_hostlist_free(ek_hostlist *list);

/* Writes names[count] as a list that expands to them: numbers that follow one another become ranges. */
void ek_hostlist_write(const char *const *names, size_t count, FILE *file);

#endif
