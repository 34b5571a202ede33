/* A tiny model that is quantized, written and read again, for tests of what comes back. Failures end the Check test. */
#ifndef BK_TESTS_WRITTEN_MODEL_H
#define BK_TESTS_WRITTEN_MODEL_H

#include "blocks/quantized.h"
#include "tests/tiny_model.h"

enum { WRITTEN_SAMPLES = 2, WRITTEN_TOKENS = 6, WRITTEN_LAYERS = 2 };

/* One way to quantize a model. */
typedef struct written_way {
    const char *name, *quantizer;
    int w_bits, a_bits;
    bool symmetric, rotated, bias;
    int64_t group, prefix;
    unsigned skip_sites, skip_weights; /* of block 1 */
    bool fitted;                       /* R1, R2 and R3 (with `rotated`), order and signs of down's input; R4 in groups */
    const char *weights;               /* their quantizer; NULL: affine */
    bool norms;                        /* trained gains */
    bool search;                       /* steps are searched */
} written_way;

/* What a hardened layer is. */
typedef struct written_layer {
    float *w[BK_W_COUNT], *b[BK_W_COUNT], *norm[BK_NORM_COUNT], *r3, *out;
    char *name[64]; /* parameters of the sites */
    float *param[64];
    int params;
} written_layer;

typedef struct written_model {
    const written_way *v;
    const bk_backend *be;
    bk_error err;
    char dir[BK_TINY_PATH], to[BK_TINY_PATH]; /* the model; what was written */
    bk_model *m;
    bk_fitted *fitted;
    bk_source *src;
    bk_prefix prefix;
    bk_block_quant quant;
    bk_stream *x;
    written_layer layer[WRITTEN_LAYERS];
} written_model;

/* Initialises, moves as training would, writes and hardens every layer; each sees the same inputs. quant: other quantizers than the way's, or NULL. */
void written_open(written_model *e, const written_way *v, const bk_block_quant *quant, const bk_backend *be);
void written_close(written_model *e);
/* An empty block for its layers. */
bk_block *written_block(written_model *e, const bk_block_quant *quant, const bk_hadamard_plan *r3, const bk_hadamard_plan *r4);

/* Demands that what is read is what was hardened, to the bit. */
void written_check(written_model *e);
void written_check_layer(written_model *e, bk_block *b, const written_layer *l);

#endif
