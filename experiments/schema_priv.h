/* Between the schema*.c files only. */
#ifndef BK_SCHEMA_PRIV_H
#define BK_SCHEMA_PRIV_H

#include "experiments/schema.h"

/* A YAML document as a tree of nodes in one array; node 0 is the root. */
typedef enum { BK_NODE_SCALAR, BK_NODE_LIST, BK_NODE_MAP } bk_yaml_kind;
typedef struct bk_yaml_node {
    bk_yaml_kind kind;
    bool quoted;      /* a scalar in quotes or block style: text, never a number */
    int line, column; /* 1-based */
    char *text;       /* of a scalar; without NUL inside */
    int child, next;  /* first child and next sibling, -1 = none; children of a map: key, value, key, value ... */
} bk_yaml_node;

typedef struct bk_yaml {
    char name[BK_PATH_SIZE]; /* stands in messages in front of line:column */
    bool lines;              /* line:column are told: a file, not an option */
    bk_yaml_node *node;
    int n, room;
} bk_yaml;

/* One document without anchors, aliases and tags. BK_EINVAL with file:line:column otherwise; bk_yaml_free is legal after it. */
bk_status bk_yaml_read(const char *text, size_t len, const char *name, bool lines, bk_yaml *out, bk_error *err) BK_MUST_USE;
void bk_yaml_free(bk_yaml *y);
/* Records "place: text"; where the place is "--set key" and the text begins with the key, it stands there once. Returns `code`. */
bk_status bk_place_fail(bk_error *err, bk_status code, const char *place, const char *text);
/* Records "name:line:column: message" and returns BK_EINVAL. */
bk_status bk_yaml_fail(const bk_yaml *y, const bk_yaml_node *at, bk_error *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Reads one value into its field. */
bk_status bk_key_set(bk_run_config *c, const bk_key *key, const bk_yaml *y, const bk_yaml_node *v, bk_error *err) BK_MUST_USE;
/* The same for a field that is no key of a config: a number or text. */
bk_status bk_field_set(void *field, const bk_key *key, const bk_yaml *y, const bk_yaml_node *v, bk_error *err) BK_MUST_USE;
/* "train", "quant.weight": a word that keys begin with. */
bool bk_key_is_section(const char *path);
/* ", did you mean 'train.epochs'?", a word about plugins, or "" for a path that is no key; `to` is returned. */
const char *bk_key_nearest(const char *path, char *to, size_t size);
/* Text as a YAML scalar on one line: as it is where that is safe, else in double quotes. */
void bk_yaml_print_text(FILE *to, const char *text);
/* The fewest digits that read back as the same number. */
void bk_real_text(double x, char *to, size_t size);
/* Prints a value as YAML on one line. */
void bk_key_print(FILE *to, const bk_run_config *c, const bk_key *key);

/* The key that chooses the quantizer of an option's place. */
const bk_key *bk_key_chooser(const bk_key *option);
/* The choices of quant.<place>.quantizer, for comparison of pointers. */
extern const char *const bk_quantizer_choices;

/* Choices "a|b|c": number of them, and copies of the words (BK_CHOICES_MAX at most) into `room`. */
#define BK_CHOICES_MAX BK_QUANTIZERS_MAX
typedef struct bk_choices {
    char room[BK_CHOICES_MAX * BK_NAME_SIZE + 1];
    const char *word[BK_CHOICES_MAX];
    int n;
} bk_choices;
void bk_choices_of(const char *choices, bk_choices *out);
int bk_choices_find(const bk_choices *c, const char *word); /* -1 if there is none */

#endif
