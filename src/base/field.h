/* One field of a settings table and the YAML node that gives its value: what yaml.c is made of. */
#ifndef EK_BASE_FIELD_H
#define EK_BASE_FIELD_H

#include <yaml.h>

#include "base/yaml.h"

/* Checks the node against the field and stores it in the target. */
ek_status ek_field_set(const ek_settings *settings, size_t index, ek_origin origin, yaml_document_t *document,
                       const yaml_node_t *node);

/* A scalar without a tag that is a C string ("a\0b" is not). */
bool ek_is_scalar(const yaml_node_t *node);
const char *ek_scalar_text(const yaml_node_t *node);
/* An empty scalar or null. */
bool ek_is_nothing(const yaml_node_t *node);

/* EK_INVALID with "FILE:LINE: " or "--set a.b=c: " in front of the text. */
ek_status ek_fail_at(ek_origin origin, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* User's text as it may stand in a one-line message: control characters replaced, cut to fit. Returns out. */
#define EK_EXCERPT_BYTES 64
const char *ek_excerpt(const char *text, size_t length, char out[EK_EXCERPT_BYTES]);

/* What the user wrote, for a message: '"four"', '"4" in quotes', 'a list', 'nothing'. May use `text` for it. */
#define EK_FOUND_BYTES (EK_EXCERPT_BYTES + 20)
const char *ek_found(const yaml_node_t *node, char text[EK_FOUND_BYTES]);

/* Appends to a text in a buffer, cutting what does not fit. */
void ek_append(char *text, size_t bytes, const char *more);

#endif
