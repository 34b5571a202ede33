#include "blocks/names.h"

#define NAME(E, name, ...) name,
const char *const bk_linear_name[BK_W_COUNT] = {BK_LINEARS(NAME)};
const char *const bk_norm_name[BK_NORM_COUNT] = {BK_NORMS(NAME)};
const char *const bk_site_name[BK_SITE_COUNT] = {BK_SITES(NAME)};
#define HF(E, name, hf, ...) hf,
const char *const bk_linear_hf[BK_W_COUNT] = {BK_LINEARS(HF)};
const char *const bk_norm_hf[BK_NORM_COUNT] = {BK_NORMS(HF)};
#define ABOUT(E, name, quantized, about) about,
const char *const bk_site_about[BK_SITE_COUNT] = {BK_SITES(ABOUT)};
#define QUANTIZED(E, name, quantized, about) quantized,
const int bk_site_quantized[BK_SITE_COUNT] = {BK_SITES(QUANTIZED)};
