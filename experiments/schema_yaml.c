/* YAML text to a small tree. What configs do not need is refused: anchors and aliases (no alias bombs), tags, several documents. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "experiments/schema_priv.h"

#define MAX_DEPTH 8     /* a config has 3 */
#define MAX_NODES 20000 /* many times the keys and list entries that there can be */

bk_status bk_place_fail(bk_error *err, bk_status code, const char *place, const char *text)
{
    const char *blank = strrchr(place, ' '), *key = blank ? blank + 1 : place;
    size_t n = strlen(key);
    if (strncmp(place, "--set ", 6) == 0 && strncmp(text, key, n) == 0 && strchr(": ", text[n])) return bk_fail(err, code, "--set %s", text);
    return bk_fail(err, code, "%.200s: %s", place, text);
}

bk_status bk_yaml_fail(const bk_yaml *y, const bk_yaml_node *at, bk_error *err, const char *fmt, ...)
{
    char text[768];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!y->lines) return bk_place_fail(err, BK_EINVAL, y->name, text);
    return bk_fail(err, BK_EINVAL, "%.200s:%d:%d: %s", y->name, at ? at->line : 1, at ? at->column : 1, text);
}

static bk_status append(bk_yaml *y, const bk_yaml_node *at, bk_error *err)
{
    if (y->n == MAX_NODES) return bk_yaml_fail(y, at, err, "more than %d values: no config is that long", MAX_NODES);
    if (y->n == y->room) {
        int room = y->room ? 2 * y->room : 64;
        bk_yaml_node *more = realloc(y->node, (size_t)room * sizeof *more);
        if (!more) return bk_fail(err, BK_ENOMEM, "%.200s: no memory for the config", y->name);
        y->node = more;
        y->room = room;
    }
    y->node[y->n++] = *at;
    return BK_OK;
}

static bk_status fill_scalar(bk_yaml *y, bk_yaml_node *n, const yaml_event_t *event, bk_error *err)
{
    const char *value = (const char *)event->data.scalar.value;
    size_t len = event->data.scalar.length;
    n->kind = BK_NODE_SCALAR;
    n->quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    if (memchr(value, 0, len)) return bk_yaml_fail(y, n, err, "a text with a NUL character");
    n->text = strndup(value, len);
    return n->text ? BK_OK : bk_fail(err, BK_ENOMEM, "%.200s: no memory for the config", y->name);
}

static bk_status refuse_extras(const bk_yaml *y, const bk_yaml_node *n, const yaml_event_t *event, bk_error *err)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (event->type == YAML_SCALAR_EVENT) anchor = event->data.scalar.anchor, tag = event->data.scalar.tag;
    if (event->type == YAML_SEQUENCE_START_EVENT) anchor = event->data.sequence_start.anchor, tag = event->data.sequence_start.tag;
    if (event->type == YAML_MAPPING_START_EVENT) anchor = event->data.mapping_start.anchor, tag = event->data.mapping_start.tag;
    if (anchor) return bk_yaml_fail(y, n, err, "anchors (&%.40s) are not used in configs: write the value out", (const char *)anchor);
    if (tag) return bk_yaml_fail(y, n, err, "tags (%.40s) are not used in configs", (const char *)tag);
    return BK_OK;
}

/* Where the next node is hung: the collections that are open, innermost last. */
typedef struct open_node {
    int node, last; /* last child so far, -1 = none */
} open_node;

static bk_status take_event(bk_yaml *y, const yaml_event_t *event, open_node *open, int *depth, int *documents, bk_error *err)
{
    bk_yaml_node here = {.child = -1, .next = -1, .line = (int)event->start_mark.line + 1, .column = (int)event->start_mark.column + 1};
    switch (event->type) {
    case YAML_ALIAS_EVENT: return bk_yaml_fail(y, &here, err, "aliases (*%.40s) are not used in configs: write the value out",
                                               (const char *)event->data.alias.anchor);
    case YAML_DOCUMENT_START_EVENT:
        if (++*documents > 1) return bk_yaml_fail(y, &here, err, "a second document ('---'): a config is one");
        return BK_OK;
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT: --*depth; return BK_OK;
    case YAML_SCALAR_EVENT:
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT: break;
    default: return BK_OK;
    }
    if (*depth == MAX_DEPTH) return bk_yaml_fail(y, &here, err, "nested deeper than %d levels", MAX_DEPTH);
    BK_TRY(append(y, &here, err));
    int index = y->n - 1;
    bk_yaml_node *n = &y->node[index];
    if (*depth > 0) {
        open_node *parent = &open[*depth - 1];
        if (parent->last < 0)
            y->node[parent->node].child = index;
        else
            y->node[parent->last].next = index;
        parent->last = index;
    }
    BK_TRY(refuse_extras(y, n, event, err));
    if (event->type == YAML_SCALAR_EVENT) return fill_scalar(y, n, event, err);
    n->kind = event->type == YAML_MAPPING_START_EVENT ? BK_NODE_MAP : BK_NODE_LIST;
    open[(*depth)++] = (open_node){index, -1};
    return BK_OK;
}

/* Whether the line's indentation, or the place itself, holds a tab. */
static bool tab_near(const char *text, size_t len, int line)
{
    const char *p = text, *end = text + len;
    for (int i = 1; i < line && p; i++) {
        p = memchr(p, '\n', (size_t)(end - p));
        if (p) p++;
    }
    for (; p && p < end && (*p == ' ' || *p == '\t'); p++)
        if (*p == '\t') return true;
    return false;
}

static bk_status parser_failed(const bk_yaml *y, const yaml_parser_t *p, const char *text, size_t len, bk_error *err)
{
    if (p->error == YAML_MEMORY_ERROR) return bk_fail(err, BK_ENOMEM, "%.200s: no memory for the config", y->name);
    bk_yaml_node at = {.line = (int)p->problem_mark.line + 1, .column = (int)p->problem_mark.column + 1};
    if (p->error == YAML_READER_ERROR) {
        at.line = at.column = 1;
        for (size_t i = 0; i < p->problem_offset && i < len; i++) {
            at.column++;
            if (text[i] == '\n') at.line++, at.column = 1;
        }
    }
    if (p->error != YAML_READER_ERROR && tab_near(text, len, at.line))
        return bk_yaml_fail(y, &at, err, "a tab in the indentation: indent with spaces");
    return bk_yaml_fail(y, &at, err, "not valid YAML: %s%s%s", p->problem ? p->problem : "unknown problem", p->context ? " " : "",
                        p->context ? p->context : "");
}

bk_status bk_yaml_read(const char *text, size_t len, const char *name, bool lines, bk_yaml *out, bk_error *err)
{
    *out = (bk_yaml){.lines = lines};
    snprintf(out->name, sizeof out->name, "%s", name);
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) return bk_fail(err, BK_ENOMEM, "%.200s: no memory for the config", name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    open_node open[MAX_DEPTH];
    int depth = 0, documents = 0;
    bool done = false;
    bk_status status = BK_OK;
    while (!status && !done) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            status = parser_failed(out, &parser, text, len, err);
            break;
        }
        status = take_event(out, &event, open, &depth, &documents, err);
        done = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    if (!status && out->n == 0) status = bk_yaml_fail(out, NULL, err, "empty");
    return status;
}

void bk_yaml_free(bk_yaml *y)
{
    for (int i = 0; i < y->n; i++) free(y->node[i].text);
    free(y->node);
    y->node = NULL;
    y->n = y->room = 0;
}
