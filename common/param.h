/*
 * Parameter and option tables. "Parameters are data": one table of rows drives parsing of YAML and --set,
 * range checks, help, tune's search space and the docs. A row names a field of a plain struct by offset.
 */
#ifndef LVR_COMMON_PARAM_H
#define LVR_COMMON_PARAM_H

#include "common/error.h"
#include "common/yaml.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum lvr_param_type {
    LVR_PARAM_U32,    /* uint32_t */
    LVR_PARAM_U64,    /* uint64_t */
    LVR_PARAM_SIZE,   /* uint64_t bytes; accepts KiB/MiB/GiB, KB/MB/GB */
    LVR_PARAM_DOUBLE, /* double */
    LVR_PARAM_BOOL,   /* bool */
    LVR_PARAM_ENUM,   /* int: index into `choices` */
    LVR_PARAM_STR,    /* const char *: borrowed from argv or the document; default may be NULL */
} lvr_param_type;

typedef struct lvr_param {
    const char *name;  /* YAML key and --set key; for a command option, the long name without dashes */
    char short_name;   /* command options only, 0 if none */
    const char *alias; /* command options only: e.g. "md" for -md; NULL if none */
    lvr_param_type type;
    size_t offset;
    double min, max, def; /* numeric kinds (bool: 0/1; enum: index). def NaN: LVR_PARAM_STR, or 0 that is no
                             default to speak of */
    const char *def_str;
    const char *const *choices; /* NULL-terminated, for ENUM */
    const char *zero_word;      /* whole numbers: a word for 0, which may be below min; NULL: none */
    const char *unit;           /* "ns", "tokens", "1", ... or NULL */
    const char *help;
    bool tunable;    /* tune may search it in [min, max] */
    bool positional; /* command options only: filled by the next bare argument */
    bool multi;      /* command options only, STR: field is lvr_strlist, may repeat */
} lvr_param;

typedef struct lvr_strlist {
    const char **items; /* borrowed strings; array owned by the parser's caller, free with lvr_strlist_free */
    size_t n;
} lvr_strlist;
void lvr_strlist_free(lvr_strlist *list);

void lvr_params_default(const lvr_param *table, size_t n, void *obj);
/* One `key=value`; unknown key: LVR_ERR_CONFIG with "did you mean". `where` prefixes messages ("--set",
 * file:1:2). A bad value is LVR_ERR_CONFIG. */
lvr_status lvr_params_set(const lvr_param *table, size_t n, void *obj, const char *where, const char *key,
                          const char *value, lvr_error *err);
/* All keys of a mapping; keys absent keep their value. Unknown keys are errors. */
lvr_status lvr_params_from_yaml(const lvr_param *table, size_t n, void *obj, const lvr_yaml_node *map,
                                lvr_error *err);
void lvr_params_to_yaml(const lvr_param *table, size_t n, const void *obj, lvr_yaml_out *y);
/* Numeric access by row, for tune. */
double lvr_param_get_number(const lvr_param *p, const void *obj);
/* Clamps to [min, max], rounds integers. */
void lvr_param_set_number(const lvr_param *p, void *obj, double value);

/* Command line: --name value, --name=value, -x value, -md value, bare positionals, flags for BOOL, `--` ends
 * options. ret_help is set when --help/-h was met (parsing stops). argv[0] is not an option. An option given
 * twice (unless `multi`) is an error. Failures are LVR_ERR_USAGE. */
lvr_status lvr_options_parse(const lvr_param *table, size_t n, void *obj, int argc, char *const *argv,
                             bool *ret_help, lvr_error *err);
/* Whether the option was given by name (a positional filled by a bare argument does not count). */
bool lvr_option_given(int argc, char *const *argv, const lvr_param *p);
void lvr_options_help(const lvr_param *table, size_t n, lvr_buf *out);

/* The name in names[] closest to `got` by edit distance, or NULL if none is near. */
const char *lvr_closest_name(const char *got, const char *const *names, size_t n);

/* Whole texts only; failures are LVR_ERR_CONFIG. Whole numbers and numbers accept 1_000; numbers are finite;
 * sizes are bytes with an optional KiB, MiB, GiB, TiB (powers of 1024), KB, MB, GB, TB (powers of 1000) or B.
 */
lvr_status lvr_parse_u64(const char *text, uint64_t *ret, lvr_error *err);
lvr_status lvr_parse_size(const char *text, uint64_t *ret_bytes, lvr_error *err);
lvr_status lvr_parse_double(const char *text, double *ret, lvr_error *err);
lvr_status lvr_parse_bool(const char *text, bool *ret, lvr_error *err);
/* "a size from 1 to 64", for messages; an infinite or beyond-range bound is left out. */
void lvr_describe_range(char *buf, size_t n, const char *noun, double min, double max);

#endif
