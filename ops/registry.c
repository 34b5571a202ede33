#include "ops/ops.h"

const bk_op *const bk_ops[] = {
#define BK_OP(name) &bk_op_##name,
#include "ops/ops.def"
#undef BK_OP
};
const int bk_op_count = sizeof bk_ops / sizeof bk_ops[0];
