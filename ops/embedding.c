/* y[n] = table[ids[n]];  dtable[ids[n]] += dy[n], in the order of n */
#include "ops/ops.h"

static bk_status infer(bk_node *n)
{
    const bk_tensor *table = n->in[0], *ids = n->in[1];
    char st[80];
    if (table->ndim != 2) return bk_op_fail(n, BK_ESHAPE, "the table is %s, want [vocabulary,channels]", bk_shape_str(table, st));
    if (ids->ndim < 1 || ids->ndim >= BK_MAX_DIM)
        return bk_op_fail(n, BK_ESHAPE, "ids are %s, want 1 to %d dimensions", bk_shape_str(ids, st), BK_MAX_DIM - 1);
    int64_t dim[BK_MAX_DIM];
    for (int i = 0; i < ids->ndim; i++) dim[i] = ids->dim[i];
    dim[ids->ndim] = table->dim[1];
    bk_op_out(n, 0, ids->ndim + 1, dim);
    return BK_OK;
}

static bk_status forward(bk_node *n)
{
    const bk_tensor *table = n->in[0], *ids = n->in[1];
    return bk_k_embedding_fwd(n->ctx, &(bk_embedding_fwd_args){.n = bk_numel(ids), .cols = table->dim[1], .vocab = table->dim[0],
                                                               .table = table->data, .ids = ids->data, .y = n->out[0]->data});
}

static bk_status backward(bk_node *n)
{
    const bk_tensor *table = n->in[0], *ids = n->in[1];
    return bk_k_embedding_bwd(n->ctx, &(bk_embedding_bwd_args){.n = bk_numel(ids), .cols = table->dim[1], .vocab = table->dim[0],
                                                               .ids = ids->data, .dy = bk_dout(n, 0), .dtable = bk_grad_data(n, 0)});
}

const bk_op bk_op_embedding = {.name = "embedding", .formula = "y = table[ids]", .n_in_min = 2, .n_in_max = 2, .n_out = 1, .diff_in = 1, .ids_in = 2,
                               .infer = infer, .forward = forward, .backward = backward};

bk_tensor *bk_embedding(bk_ctx *ctx, bk_tensor *table, bk_tensor *ids)
{
    return bk_apply(ctx, &bk_op_embedding, (bk_tensor *[]){table, ids}, 2, NULL);
}
