#define REAL double
#define BACKEND bk_ref_f64
#define NAME "ref_f64"
#include "backends/ref/kernels.inc.h"
