#define REAL float
#define BACKEND bk_ref_f32
#define NAME "ref_f32"
#include "backends/ref/kernels.inc.h"
