/* The config of a run: one typed struct, and one table of keys from which the loader, the help, the writer of the resolved config, the
 * comparison of two configs and the suggestions all come. Adding a key is a field here and a line in schema_keys.c. */
#ifndef BK_SCHEMA_H
#define BK_SCHEMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "autograd/error.h"
#include "blocks/gptq.h"
#include "blocks/norm_rotation.h"
#include "blocks/offq.h"
#include "blocks/prefix_search.h"
#include "blocks/spin.h"
#include "quant/quantizer.h"

#define BK_PATH_SIZE 4096   /* of a path with its NUL */
#define BK_WORD_SIZE 64     /* of a scheme, site or joining string with its NUL */
#define BK_NAME_SIZE 16     /* of a name from a list with its NUL */
#define BK_PREFIX_IDS BK_PREFIX_MAX   /* token ids that a config can name as prefix */
#define BK_SKIP_ENTRIES 512 /* entries of quant.skip */
#define BK_KEY_LIMIT 512    /* keys of the table, options of quantizers included */

typedef enum { BK_BOS_AUTO, BK_BOS_NONE } bk_bos_policy;
typedef enum { BK_PREFIX_AUTO, BK_PREFIX_NONE, BK_PREFIX_SEARCH, BK_PREFIX_GIVEN } bk_prefix_mode;
typedef enum { BK_PREFIX_BOS_LAST, BK_PREFIX_BOS_NONE } bk_prefix_bos;
typedef enum { BK_INIT_MINMAX, BK_INIT_GPTQ } bk_init_from;
/* What R1 is, and what is fitted for it. */
typedef enum { BK_BASIS_HADAMARD, BK_BASIS_OFFQ, BK_BASIS_SPINQUANT, BK_BASIS_DFROT, BK_BASIS_DARTQUANT, BK_BASIS_KURTAIL, BK_BASIS_COUNT } bk_basis;
typedef enum { BK_SPIN_WEIGHTS_AUTO, BK_SPIN_WEIGHTS_FULL, BK_SPIN_WEIGHTS_ROUNDED } bk_spin_weights;
typedef enum { BK_SCALES_NONE, BK_SCALES_SMOOTHQUANT, BK_SCALES_AWQ } bk_scales;
typedef enum { BK_RANGE_MAX, BK_RANGE_EMA } bk_range_rule;
typedef enum { BK_TARGET_FP, BK_TARGET_QUANT, BK_TARGET_BOTH } bk_target_kind;
typedef enum { BK_KEEP_BEST, BK_KEEP_LAST } bk_epoch_kept;
typedef enum { BK_TARGETS_ROLLING, BK_TARGETS_ALL, BK_TARGETS_SHARED } bk_targets_kept;
enum { BK_EVALUATE_PPL = 1, BK_EVALUATE_ABLATION = 2 }; /* flags of `evaluate`; the model of the file and the result are always evaluated */

/* A text and the windows taken from it. An empty text: detection and calibration use the training text (calibration then its first
 * windows), statistics that of calibration. evaluation.samples = the key `windows`, -1 = all. */
typedef struct bk_data_config {
    char text[BK_PATH_SIZE];
    int64_t samples, seqlen;
} bk_data_config;

/* One entry of quant.skip: what stays in full precision. */
typedef struct bk_skip_entry {
    int64_t block;           /* -1 = every block */
    char site[BK_WORD_SIZE]; /* a quantized site or a linear of blocks/names.h; empty = all of the block */
} bk_skip_entry;

/* Where a value came from, for messages. */
typedef enum { BK_FROM_DEFAULT, BK_FROM_METHOD, BK_FROM_SCHEME, BK_FROM_FILE, BK_FROM_ENV, BK_FROM_SET } bk_key_source;
typedef struct bk_key_place {
    bk_key_source source;
    int32_t line, column; /* 1-based, of the value in the file */
} bk_key_place;

typedef struct bk_run_config {
    char model[BK_PATH_SIZE];
    char method[BK_NAME_SIZE], scheme[BK_WORD_SIZE];
    int64_t seed;
    int64_t threads; /* 0 = all */
    char backend[BK_NAME_SIZE];
    bool strict;                  /* every fallback is an error */
    double equivalence_tolerance; /* of the logits, relative to their range */
    struct {
        bk_data_config detection, calibration, statistics, training, evaluation;
        int64_t validation; /* samples after the training ones */
        int bos;            /* bk_bos_policy */
        bool strip_bos, parse_special;
        char join[BK_WORD_SIZE]; /* empty: the bytes as they are */
    } data;
    struct {
        bool r1, r2, r3, r4, fold_v_bias, r2_per_head;
        int basis;        /* bk_basis */
        int64_t r4_group; /* 0: one Hadamard for all of inter; BK_GROUP_AUTO */
    } rotation;
    struct {
        int from; /* bk_scales */
        double alpha;
    } scales;
    /* What fits a basis; pointers and seeds in them are not keys. */
    bk_offq_options offq;
    bk_spin_options spin;
    int64_t spin_seqlen; /* 0: that of data.statistics */
    int spin_weights;    /* bk_spin_weights; in place of spin.weight_bits */
    struct {
        int64_t rows; /* of each norm */
        bk_dfrot_options dfrot;
        bk_spread_options spread; /* dartquant, kurtail */
    } norm_rotation;
    struct {
        int mode; /* bk_prefix_mode */
        int64_t n_ids;
        int32_t ids[BK_PREFIX_IDS]; /* of BK_PREFIX_GIVEN, in order, BOS included */
        double threshold, lower_threshold;
        bool overlap; /* text starts at position 0 again */
        int bos;      /* bk_prefix_bos */
        struct {
            int objective; /* bk_search_objective */
            int64_t candidates, max_tokens, samples; /* samples: of the detection windows */
            double tau;
        } search; /* of BK_PREFIX_SEARCH */
    } prefix;
    struct {
        bk_qspec weight, activation, key, value;
        int64_t n_skip;
        bk_skip_entry skip[BK_SKIP_ENTRIES];
    } quant;
    struct {
        int from; /* bk_init_from */
        bool search, refresh;
        int range; /* bk_range_rule */
    } init;
    bk_block_gptq_options gptq;
    struct {
        int64_t epochs, batch;
        double lr_quant, lr_weight, lr_round, lr_min_factor; /* lr_round 0: the rule's own */
        double beta1, beta2, eps, weight_decay;
        double clip_grad; /* 0 = off */
        bool shuffle, norms;
        int loss, target, keep; /* bk_loss_kind of backends/kernels.h, bk_target_kind, bk_epoch_kept */
    } train;
    struct {
        int keep;     /* bk_targets_kept */
        int dtype;    /* BK_STORE_F16 or BK_STORE_F32 of io/store.h */
        int overflow; /* BK_OVERFLOW_* of io/store.h */
        int compression; /* 0 none, 1 gzip */
    } store;
    unsigned evaluate; /* BK_EVALUATE_* */

    /* Not keys: where they were read. */
    char source[BK_PATH_SIZE];
    bk_key_place place[BK_KEY_LIMIT]; /* by index in bk_keys */
    char replaced[256];               /* keys of the file that a later method or scheme replaced, for a message; cut to fit */
} bk_run_config;

typedef enum {
    BK_KEY_BOOL,   /* bool: true | false */
    BK_KEY_EITHER, /* bool: the second of two choices */
    BK_KEY_INT,    /* int64_t in min..max */
    BK_KEY_BITS,   /* int: one of the choices, which are numbers in min..max */
    BK_KEY_REAL,   /* double in min..max */
    BK_KEY_ENUM,   /* int: index into choices */
    BK_KEY_NAME,   /* char[BK_NAME_SIZE]: one of the choices */
    BK_KEY_WORD,   /* char[BK_WORD_SIZE]: any text */
    BK_KEY_PATH,   /* char[BK_PATH_SIZE] */
    BK_KEY_INT_OR, /* int64_t in min..max, or the one choice = -1 */
    BK_KEY_FLAGS,  /* unsigned: list of choices, bit i = choice i */
    BK_KEY_PREFIX, /* prefix.mode, n_ids and ids: auto | none | search | list of ids */
    BK_KEY_SKIP,   /* quant.n_skip and skip: list of {block, site} */
    BK_KEY_OPTION_INT, /* double, whole, in min..max; as the next one an option of a quantizer (real ones are BK_KEY_REAL) */
    BK_KEY_OPTION_BOOL /* double, 0 or 1: true | false */
} bk_key_type;

typedef struct bk_key {
    const char *path; /* "train.epochs" */
    bk_key_type type;
    size_t offset;
    const char *initial; /* the default, as it would be written in a config; NULL: the scheme's. What a method sets goes over it */
    double min, max;
    const char *choices; /* "a|b|c" or NULL */
    const char *about;   /* one line: meaning and unit */
} bk_key;

/* The keys of schema_keys.c and, behind those of quant.weight, quant.activation, quant.key and quant.value, the options of the quantizers that
 * can stand there: quant.<place>.<quantizer>.<option>. They share the memory of bk_qspec.option: only those of the chosen quantizer count. */
extern const bk_key *const bk_keys;
extern int bk_key_count;
/* Makes the table from the registry of quantizers; the program starts with it made. Again after plugins were loaded, before any config is read.
 * BK_EFORMAT: a quantizer whose name is a key, or more options than fit. */
bk_status bk_keys_complete(bk_error *err) BK_MUST_USE;
/* Whose option a key of bk_keys is; NULL: of none. */
const bk_quantizer *bk_key_owner(const bk_key *k);
/* False for an option of a quantizer that c does not use at that place. */
bool bk_key_counts(const bk_run_config *c, const bk_key *k);

/* Reads a config file, then `--set key=value` strings over it, then checks what can be checked without opening other files
 * (bk_run_config_check). Order: default < method < scheme < file < OMP_NUM_THREADS (threads) < sets; a method or scheme named by
 * a later layer overrides what an earlier one says about the same keys. Paths stay as typed: relative to the working directory.
 * BK_EIO: the file cannot be read. BK_EINVAL: anything wrong in it, the message begins file:line:column or "--set key=value". */
bk_status bk_run_config_load(const char *path, const char *const *sets, int n_sets, bk_run_config *out,
                             bk_error *err) BK_MUST_USE;
/* The same from memory and without the final check; text NULL = an empty config (defaults and sets only). `name` stands in
 * messages. */
bk_status bk_run_config_parse(const char *text, size_t len, const char *name, const char *const *sets, int n_sets,
                              bk_run_config *out, bk_error *err) BK_MUST_USE;
/* What must hold between keys: a model, texts for what will run, granularities that fit their quantizers, groups, betas ... */
bk_status bk_run_config_check(const bk_run_config *c, bk_error *err) BK_MUST_USE;

/* Whether something is fitted to the samples of data.statistics: transforms (the stage `fit`), or weights too. */
bool bk_run_fits(const bk_run_config *c);
bool bk_run_needs_statistics(const bk_run_config *c);
/* Whether the samples of data.calibration are looked at. */
bool bk_run_needs_calibration(const bk_run_config *c);
/* Bits of weights while SpinQuant learns (spin.weights). */
int bk_run_spin_weight_bits(const bk_run_config *c);
/* Channels of down's input [channels] that one R4 mixes: rotation.r4_group or what `auto` stands for; 0 = all of them, also where no Hadamard matrix is known
 * for an automatic size. */
int64_t bk_run_r4_group(const bk_run_config *c, int64_t channels);
/* Files that the config names and this run would read, in key order: i counts from 0, false at the end. */
bool bk_run_config_file(const bk_run_config *c, int i, const char **key, const char **path);
/* The first of them that is not there is BK_EIO, with the place that names it. */
bk_status bk_run_config_check_files(const bk_run_config *c, bk_error *err) BK_MUST_USE;
/* What must hold between a config and its model: ids of the prefix are in the vocabulary, sequences behind a prefix of so many tokens
 * fit the positions. */
bk_status bk_run_config_check_model(const bk_run_config *c, const bk_config *model, int64_t prefix, bk_error *err) BK_MUST_USE;
/* The text that a sample set is read from: its own, or the training text. */
const char *bk_run_config_text(const bk_run_config *c, const bk_data_config *set);
/* Whether this run looks for outlier tokens. */
bool bk_run_config_detects(const bk_run_config *c);
/* Whether quant.skip leaves `name` (a site or linear) of `block` in full precision. */
bool bk_run_config_skips(const bk_run_config *c, int64_t block, const char *name);

/* The resolved config as YAML, every key that counts; parsing it gives the same config. malloc'd; NULL when memory is out. */
char *bk_run_config_write(const bk_run_config *c) BK_MUST_USE;
/* Lists of prefixes choose keys, here and below: NULL-terminated; "train." takes a section, "seed" one key, "!store." leaves keys out,
 * and a list of such ones alone (or NULL) takes all others. */
/* The keys that results depend on: two configs that agree in them are the same run. */
extern const char *const bk_run_result_keys[];
/* First key whose value differs, or NULL; its two values as written (cut to fit, each `size` bytes). */
const char *bk_run_config_diff(const bk_run_config *a, const bk_run_config *b, const char *const *prefixes, char *in_a, char *in_b,
                               size_t size);
/* "key: value\n" for every key taken that counts, in table order: what the hash of a stage is made of. The quantizer of a plugin has the hash of
 * that file behind it. malloc'd. BK_EINVAL if a prefix names no key. */
bk_status bk_config_digest_keys(const bk_run_config *c, const char *const *prefixes, char **text, bk_error *err) BK_MUST_USE;
/* Every key with type, default and meaning; and one. */
void bk_run_config_help(FILE *to);
void bk_key_help(FILE *to, int indent, const bk_key *k);
/* "default 64", "default: the scheme's", "default: the method's; prefixquant 20", or "" where there is none. */
void bk_key_default(const bk_key *k, char *to, size_t size);
/* "file:line:column", "--set", "OMP_NUM_THREADS" or "method rtn": where the value of a key came from. */
void bk_run_config_place(const bk_run_config *c, const char *key, char *to, size_t size);

/* Index of a key in bk_keys, -1 if there is none. */
int bk_key_find(const char *path);

#endif
