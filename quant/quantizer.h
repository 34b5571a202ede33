/* What a quantizer is. Adding one = one file in quant/ and one line in quantizers.def, or a plugin (quant/plugin.h).
 *
 * Life of an instance: setup (shapes checked, nothing allocated) -> params (learnables declared) -> the driver commits them ->
 * init (min-max values) -> factors (grid search) -> begin (soft values from the weight) -> apply (records fake-quant nodes, every forward),
 * penalty (every training step) -> harden (soft rounding becomes hard) -> codes (integers for export).
 * The driver owns updates, checkpoints, resume and search. */
#ifndef BK_QUANTIZER_H
#define BK_QUANTIZER_H

#include "autograd/optim.h"
#include "autograd/tensor.h"

#define BK_QUANTIZER_ABI 3
#define BK_QUANTIZER_STATE_MAX 256
#define BK_OPTIONS_MAX 8 /* of one quantizer */

/* Learning-rate groups of a block's parameters (autograd/optim.h). */
enum { BK_GROUP_QUANT = 0, BK_GROUP_WEIGHT = 1, BK_GROUP_ROUND = 2, BK_GROUP_CONSTANT = 3 };

typedef enum bk_granularity { BK_PER_TENSOR, BK_PER_CHANNEL, BK_PER_TOKEN, BK_PER_HEAD, BK_PER_GROUP, BK_GRANULARITY_COUNT } bk_granularity;
extern const char *const bk_granularity_name[BK_GRANULARITY_COUNT]; /* tensor channel token head group */

#define BK_GROUP_AUTO (-1)

/* How one tensor is quantized: the values of a config's quant.weight, quant.activation, quant.key, quant.value. */
typedef struct bk_qspec {
    char quantizer[16]; /* a name of quantizers.def */
    int bits;           /* 2 .. 8; 16 = not quantized */
    bool symmetric;
    bool restricted;    /* step: restricted, s = max / (2^(N-1) - 1), instead of full, 2 max / (2^N - 1) */
    bool clip;          /* dynamic: learnable gamma (and beta when asymmetric) */
    bk_granularity granularity;
    int64_t group;      /* for BK_PER_GROUP; BK_GROUP_AUTO: head_dim where there are heads, else bk_group_size of the columns */
    double option[BK_OPTIONS_MAX]; /* of that quantizer, in the order of its list */
} bk_qspec;

/* A number that a quantizer lets the user choose: key quant.<place>.<quantizer>.<name> of a config. */
typedef struct bk_option {
    const char *name, *about;
    enum { BK_OPTION_REAL, BK_OPTION_INT, BK_OPTION_BOOL } type;
    double initial, min, max; /* BOOL: 0 or 1 */
} bk_option;

/* What is quantized. Weights: [rows, cols] = [out, in]. Activations: rows = 0, any number of tokens of `cols` values; heads of head_dim at
 * K, V and the input of o (0 elsewhere). */
typedef struct bk_qshape {
    int64_t rows, cols, head_dim;
    const char *name; /* "q", "down_in": for messages and parameter names */
} bk_qshape;

/* Integers of a weight and what they stand for, (code - zero) step, in tensors of the caller; NULL = not wanted. Readers round zero to a whole
 * number and keep it in the code range: with another meaning a model is not written (blocks/quantized.h). */
typedef struct bk_codes {
    bk_tensor *codes;       /* i32 [rows, cols], between qmin and qmin + 2^bits - 1 */
    bk_tensor *step, *zero; /* [units]; zero only when asymmetric */
    int qmin;
} bk_codes;

typedef struct bk_quantizer {
    size_t struct_size; /* sizeof(bk_quantizer) of the build it was compiled in */
    int abi;            /* BK_QUANTIZER_ABI of that build */
    const char *name, *about;
    bool for_weights, for_activations;
    size_t state_size; /* <= BK_QUANTIZER_STATE_MAX */
    const bk_option *options; /* NULL: none */
    int n_options;
    bk_update_rule rule; /* for weights: of its learnables in BK_GROUP_ROUND; those of the other groups always AdamW */
    /* BK_EINVAL / BK_ESHAPE with a message for specs and shapes that it cannot do. */
    bk_status (*setup)(void *st, const bk_qspec *spec, const bk_qshape *shape, bk_error *err);
    /* Declares parameters through bk_params_add, "<prefix>.step" etc.: BK_GROUP_QUANT for what moves with the steps, BK_GROUP_ROUND for what a
     * rule or a learning rate of its own moves (weights only), BK_GROUP_CONSTANT for what `apply` needs and nothing moves. */
    bk_status (*params)(void *st, bk_params *p, const char *prefix);
    /* Number of independent units, neighbours each; asked as soon as it is set up. Weights: rows x n, where n divides cols. Activations: a number that
     * divides cols, or 0 where needs_range is false. */
    int64_t (*units)(const void *st);
    bool (*needs_range)(const void *st);
    /* Min-max initialisation from lo, hi [units] (NULL when needs_range is false). */
    bk_status (*init)(bk_ctx *ctx, void *st, const float *lo, const float *hi);
    /* One point of the search grid: unit i gets factor[i] times the step (or the clipping factors) that init gave it. */
    bk_status (*factors)(bk_ctx *ctx, void *st, const float *factor);
    /* Optional: values that the weight w decides (soft rounding, a step from its mean), after init and search. Weights only. */
    bk_status (*begin)(bk_ctx *ctx, void *st, const bk_tensor *w);
    /* Fake-quantized x; records nodes when the context records. */
    bk_tensor *(*apply)(bk_ctx *ctx, void *st, bk_tensor *x);
    /* Optional: [1], added to the loss of a training step in units of the squared error summed over the channels of a token (the driver divides it by
     * their number, since its loss is their mean); progress 0 .. 1 through the training of the block. NULL: none at this time. */
    bk_tensor *(*penalty)(bk_ctx *ctx, void *st, double progress);
    /* Optional: soft rounding becomes hard, in its parameters; from here on `apply` gives what `codes` gives. */
    bk_status (*harden)(bk_ctx *ctx, void *st);
    /* Integer codes of a weight, of soft ones when they are hard: what a model's file holds. NULL for quantizers of activations alone. */
    bk_status (*codes)(bk_ctx *ctx, void *st, const bk_tensor *x, bk_codes *out);
    /* Its steps are its own choice (powers of two, a table), not proportional to the range that init gets: laws about scales, constants and outer
     * codes are not asked of it (docs/adding-a-quantizer.md, Laws). Changes nothing else. */
    bool free_steps;
} bk_quantizer;

/* The registry: those of quantizers.def, behind them those of plugins (quant/plugin.h). */
#define BK_QUANTIZERS_MAX 64
extern const bk_quantizer *bk_quantizers[BK_QUANTIZERS_MAX];
extern int bk_quantizer_count;
const bk_quantizer *bk_quantizer_find(const char *name); /* NULL if there is none */
/* Options of the spec's quantizer at their defaults, the other places of the array 0. */
void bk_qspec_defaults(bk_qspec *spec);
/* Whether this build can use the table: its version, names, options, functions. BK_EFORMAT says what is wrong. */
bk_status bk_quantizer_check(const bk_quantizer *q, bk_error *err) BK_MUST_USE;

/* Whether a quantizer may have so many units there (`units` above). BK_EFORMAT says how many there may be; the caller, whose they are. */
bk_status bk_units_check(int64_t units, const bk_qshape *shape, bool needs_range, bk_error *err) BK_MUST_USE;

/* Columns that share a step: `group`, or what BK_GROUP_AUTO stands for. */
int64_t bk_qspec_group(const bk_qspec *spec, const bk_qshape *shape);

/* Bits that one value takes with its share of steps and zero points, 16 bits each as papers count them; those of a tensor, or of
 * all tokens together, take none. */
double bk_qspec_bits(const bk_qspec *spec, const bk_qshape *shape);

/* One quantizer at one place. */
typedef struct bk_qinst {
    const bk_quantizer *q; /* NULL: not quantized */
    bk_qspec spec;
    bk_qshape shape;
    bool on;               /* switched off while others are searched, or after the weight was hardened */
    union {
        char bytes[BK_QUANTIZER_STATE_MAX];
        max_align_t align;
    } state;
} bk_qinst;

/* Finds the quantizer of spec and sets the instance up, switched on, an automatic group size found; bits >= 16 leaves q NULL.
 * Unknown names are BK_EINVAL with the known ones; units that do not fit the shape, the quantizer's own fault, BK_EFORMAT. */
bk_status bk_qinst_setup(bk_qinst *i, const bk_qspec *spec, const bk_qshape *shape, bk_error *err) BK_MUST_USE;
/* Whether a quantizer of activations wants their ranges measured beforehand: its steps are stored. */
bool bk_qspec_needs_range(const bk_qspec *spec);
/* x itself when there is no quantizer or it is off. */
bk_tensor *bk_qinst_apply(bk_ctx *ctx, bk_qinst *i, bk_tensor *x);

#endif
