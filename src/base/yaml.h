/* Settings from a YAML file and from overrides: a table of fields says what each key may be and where its value goes.
 *
 * A file is a mapping of sections, a section a mapping of keys; nothing is nested deeper. Scalars are read by the core
 * schema of YAML 1.2, and strictly, so that no value means one thing to a reader of YAML 1.1 and another here:
 *   whole number   decimal digits without sign or leading zero (1.1 takes 010 for eight); no hexadecimal, no 1_000
 *   real number    an optional sign, decimal digits with or without a point, an optional exponent (1e-3 too, which 1.1
 *                  takes for a string); never .inf or .nan
 *   boolean        true or false (1.1's yes, no, on and off are refused)
 *   string         any scalar but an empty one or null
 * What is quoted is a string: tp: "4" is refused. So are tags, and a second document.
 *
 * Every refusal is EK_INVALID (EK_IO for a file that cannot be read) with one line: place, key, what was found, what is
 * allowed. */
#ifndef EK_BASE_YAML_H
#define EK_BASE_YAML_H

#include <evenkeel.h>

typedef enum ek_field_kind {
    EK_FIELD_WHOLE,   /* uint32_t or uint64_t */
    EK_FIELD_REAL,    /* float or double */
    EK_FIELD_BOOLEAN, /* bool */
    EK_FIELD_STRING,  /* char *, one of choices[] if there are any */
    EK_FIELD_CHOICE,  /* an enum: the index in choices[] */
    EK_FIELD_WHOLES,  /* uint32_t *, with a size_t at count_offset */
    EK_FIELD_STRINGS, /* char **, with a size_t at count_offset; one block of memory */
    EK_FIELD_PAIRS,   /* double *, two numbers a pair, with a size_t at count_offset: the number of pairs */
} ek_field_kind;

typedef struct ek_field {
    const char *key; /* "section.name" */
    ek_field_kind kind;
    size_t offset;       /* of the value in the target */
    size_t bytes;        /* of the value: 4 or 8, for numbers */
    size_t count_offset; /* EK_FIELD_WHOLES, EK_FIELD_STRINGS, EK_FIELD_PAIRS */
    uint64_t least, most;
    double least_real, most_real;
    const char *const *choices; /* ends with NULL */
    /* At most one of these: the default, in YAML; or what the caller puts in when the key is absent, in words. With
     * neither the key is required. */
    const char *otherwise;
    const char *derived;
    const char *help;
} ek_field;

/* Where a value came from: a line of the file, or an override (line 0). Text NULL: it is the default. */
typedef struct ek_origin {
    const char *text;
    unsigned line;
} ek_origin;

typedef struct ek_settings {
    const ek_field *fields; /* fields of a section stand together */
    size_t count;
    void *target;       /* zeroed before ek_settings_read */
    const char *path;   /* the file */
    ek_origin *origins; /* [count], zeroed likewise; refers to path and overrides */
} ek_settings;

/* Defaults, then the file, then overrides[] ("section.name=value", the value in YAML; the last of a key wins). On
 * failure too the target is to be released with ek_settings_free. */
ek_status ek_settings_read(const ek_settings *settings, const char *const *overrides, size_t override_count);

/* Frees the strings and lists in the target. */
void ek_settings_free(const ek_field *fields, size_t count, void *target);

/* True if the file or an override gives the key. */
bool ek_settings_given(const ek_settings *settings, const char *key);

/* Refuses the value of `key`: "PLACE: key: …". */
ek_status ek_settings_refuse(const ek_settings *settings, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* True if the current error text begins with one of the keys: "model.heads: …". */
bool ek_settings_blamed(const ek_settings *settings);

/* Puts the place of the key that the current error text begins with ("model.heads: …") in front of it. */
ek_status ek_settings_locate(const ek_settings *settings, ek_status status);

/* What a field may be: "a whole number from 1 to 8". */
#define EK_ALLOWED_BYTES 200
void ek_field_allowed(const ek_field *field, char text[EK_ALLOWED_BYTES]);

#endif
