#include "experiments/inspect_view.h"

#include <string.h>

bool bk_is_float(const bk_store_object *o)
{
    return o->type_text[0] == 'f';
}

const char *bk_axis_label(const bk_store_object *o, int axis, char text[BK_LABEL])
{
    const char *label = axis < BK_STORE_RANK ? o->label[axis] : "";
    return bk_visible(label, strlen(label), text, BK_LABEL);
}

const char *bk_axis_name(const bk_store_object *o, int axis, char text[BK_LABEL])
{
    if (!*bk_axis_label(o, axis, text)) snprintf(text, BK_LABEL, "axis %d", axis);
    return text;
}

void bk_unflatten(const bk_store_object *o, int rank, int64_t flat, int64_t index[BK_STORE_ANY_RANK])
{
    for (int k = rank - 1; k >= 0; k--) {
        index[k] = flat % o->dim[k];
        flat /= o->dim[k];
    }
}

void bk_dims_text(const bk_store_object *o, char *text, size_t cap)
{
    size_t at = (size_t)snprintf(text, cap, "[");
    for (int k = 0; k < o->rank && at < cap; k++)
        at += (size_t)snprintf(text + at, cap - at, "%s%lld", k ? ", " : "", (long long)o->dim[k]);
    if (at < cap) snprintf(text + at, cap - at, "]");
}

bool bk_under(const char *path, const char *top)
{
    size_t n = strlen(top);
    return strcmp(top, "/") == 0 || (strncmp(path, top, n) == 0 && (path[n] == 0 || path[n] == '/'));
}

bk_status bk_view_id(bk_view *v, int64_t row, int64_t *id, bk_error *err)
{
    *id = -1;
    if (!v->tokens.store) return BK_OK;
    int64_t index[BK_STORE_ANY_RANK];
    bk_unflatten(v->top, v->top->rank - 1, row, index);
    return bk_row_token_id(&v->tokens, index[0], index[1], id, err);
}
