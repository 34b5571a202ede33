/* The cpu backend: its memory, its table of kernels, and how much scratch each of them needs. */
#include <stdlib.h>
#include <sys/mman.h>

#include "autograd/backend.h"
#include <cblas.h>
#include <omp.h>

#include "backends/cpu/cpu.h"

/* Large arrays get huge pages: a training step walks over hundreds of megabytes, and page faults and TLB misses would show. */
static bk_status cpu_alloc(size_t bytes, void **out)
{
    enum { HUGE = 2 << 20 };
    if (bytes > SIZE_MAX - HUGE) return BK_ENOMEM;
    bool huge = bytes >= HUGE;
    size_t align = huge ? HUGE : 64, size = (bytes + align - 1) / align * align;
    void *p = aligned_alloc(align, size ? size : align);
    if (!p) return BK_ENOMEM;
    if (huge) (void)madvise(p, size, MADV_HUGEPAGE); /* a wish: without it everything works */
    memset(p, 0, size);
    *out = p;
    return BK_OK;
}

static void cpu_release(void *p, size_t bytes)
{
    (void)bytes;
    free(p);
}

static bk_status cpu_copy(void *dst, const void *src, size_t bytes)
{
    if (bytes) memcpy(dst, src, bytes);
    return BK_OK;
}

static size_t cpu_work(bk_slot slot, const void *args)
{
    switch (slot) {
    case BK_SLOT_bias_bwd: return bk_cpu_bias_bwd_work(args);
    case BK_SLOT_rmsnorm_bwd: return bk_cpu_rmsnorm_bwd_work(args);
    case BK_SLOT_attention_fwd: return bk_cpu_attention_fwd_work(args);
    case BK_SLOT_attention_bwd: return bk_cpu_attention_bwd_work(args);
    case BK_SLOT_score_err: return bk_cpu_score_err_work(args);
    case BK_SLOT_hadamard: return bk_cpu_hadamard_work(args);
    case BK_SLOT_loss_fwd: return bk_cpu_loss_fwd_work(args);
    case BK_SLOT_loss_bwd: return bk_cpu_loss_bwd_work(args);
    case BK_SLOT_fakequant_bwd: return bk_cpu_fakequant_bwd_work(args);
    case BK_SLOT_dynquant_bwd: return bk_cpu_dynquant_bwd_work(args);
    case BK_SLOT_round_penalty_fwd: return bk_cpu_round_penalty_fwd_work(args);
    case BK_SLOT_minmax: return bk_cpu_minmax_work(args);
    case BK_SLOT_sqerr: return bk_cpu_sqerr_work(args);
    case BK_SLOT_floor: return bk_cpu_floor_work(args);
    case BK_SLOT_sumsq: return bk_cpu_sumsq_work(args);
    case BK_SLOT_finite: return bk_cpu_finite_work(args);
    case BK_SLOT_fit_steps: return bk_cpu_fit_steps_work(args);
    case BK_SLOT_gptq: return bk_cpu_gptq_work(args);
    case BK_SLOT_gram: return bk_cpu_gram_work(args);
    case BK_SLOT_trtri: return bk_cpu_trtri_work(args);
    case BK_SLOT_eigh: return bk_cpu_eigh_work(args);
    default: return 0;
    }
}

static void cpu_set_threads(int n) { omp_set_num_threads(n > 0 ? n : omp_get_num_procs()); }

static int cpu_threads(void) { return omp_get_max_threads(); }

/* OpenBLAS's own pool of work memory. Its headers do not declare these, all its builds export them. */
void *blas_memory_alloc(int unused) __attribute__((weak));
void blas_memory_free(void *buffer) __attribute__((weak));

static bool room_for(size_t bytes, int how)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | how, -1, 0);
    return p != MAP_FAILED && munmap(p, bytes) == 0;
}

/* libgomp ends the program when it cannot start a thread. A thread that multiplies takes a buffer from OpenBLAS's pool, which maps
 * another one when it is empty, and (below version 0.3.30) tries for ever where the system refuses it. So threads are started and the
 * pool is filled here, where a refusal can be told. */
static bk_status cpu_start(void)
{
    enum { STACK = 16 << 20, BUFFER = (128 << 20) + (1 << 16), /* with what OpenBLAS adds for alignment */
           MOST = 64 };                                        /* a pool has places for twice as many or more */
    void *buffer[MOST];
    int n = omp_get_max_threads(), awake = 0, got = 0;
    if (!room_for((size_t)n * STACK, MAP_NORESERVE | MAP_STACK)) return BK_ENOMEM;
#pragma omp parallel reduction(+ : awake)
    awake++;
    if (!blas_memory_alloc || !blas_memory_free) return BK_OK;
    n = awake < MOST ? awake : MOST;
    while (got < n && room_for(BUFFER, 0)) buffer[got++] = blas_memory_alloc(0);
    for (int i = 0; i < got; i++) blas_memory_free(buffer[i]);
    return got == n ? BK_OK : BK_ENOMEM;
}

/* The kernels that OpenBLAS chose for this processor. */
static const char *cpu_flavour(void) { return openblas_get_corename(); }

const bk_backend *bk_backend_cpu(void)
{
    static const bk_backend cpu = {
        .name = "cpu",
        .dtype = BK_F32,
        .host_memory = true,
        .alloc = cpu_alloc,
        .release = cpu_release,
        .upload = cpu_copy,
        .download = cpu_copy,
        .copy = cpu_copy,
        .work = cpu_work,
        .set_threads = cpu_set_threads,
        .threads = cpu_threads,
        .start = cpu_start,
        .flavour = cpu_flavour,
        .k = {
#define BK_SLOT(name, args) .name = bk_cpu_##name,
            BK_SLOTS(BK_SLOT)
#undef BK_SLOT
        },
    };
    /* Its own threads, other than those of OpenMP, would not see that they are called from a parallel loop, and split sums by their number. */
    if (openblas_get_parallel() == OPENBLAS_THREAD) openblas_set_num_threads(1);
    return &cpu;
}
