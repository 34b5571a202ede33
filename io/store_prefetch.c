#include "io/store.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef enum { IDLE, ASKED, READY, QUIT } state;

struct bk_prefetch {
    pthread_t thread;
    pthread_mutex_t mutex; /* guards now; the rest belongs to whose turn it is */
    pthread_cond_t changed;
    state now;
    int n_dset;
    bk_dset *dset[BK_PREFETCH_MAX];
    int64_t batch, n;
    int64_t *samples;
    float *room[2][BK_PREFETCH_MAX]; /* the thread fills room[side], the caller has the other */
    int side;
    bk_status status;
    bk_error err;
};

static bk_status read_batch(bk_prefetch *p)
{
    for (int k = 0; k < p->n_dset; k++) {
        float *to = p->room[p->side][k];
        int64_t len = bk_dset_info_of(p->dset[k])->sample_len;
        for (int64_t i = 0; i < p->n; i++) BK_TRY(bk_dset_read(p->dset[k], p->samples[i], 1, to + i * len, &p->err));
    }
    return BK_OK;
}

static void *reader(void *arg)
{
    bk_prefetch *p = arg;
    pthread_mutex_lock(&p->mutex);
    for (;;) {
        while (p->now == IDLE || p->now == READY) pthread_cond_wait(&p->changed, &p->mutex);
        if (p->now == QUIT) break;
        pthread_mutex_unlock(&p->mutex);
        p->status = read_batch(p);
        pthread_mutex_lock(&p->mutex);
        if (p->now == ASKED) p->now = READY;
        pthread_cond_signal(&p->changed);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

static void free_rooms(bk_prefetch *p)
{
    for (int side = 0; side < 2; side++)
        for (int k = 0; k < p->n_dset; k++) free(p->room[side][k]);
    free(p->samples);
    free(p);
}

static bk_status make_rooms(bk_prefetch *p, bk_error *err)
{
    p->samples = calloc((size_t)p->batch, sizeof *p->samples);
    bool ok = p->samples;
    for (int k = 0; k < p->n_dset; k++) {
        size_t bytes;
        if (__builtin_mul_overflow((size_t)p->batch, (size_t)bk_dset_info_of(p->dset[k])->sample_len * sizeof(float), &bytes)) ok = false;
        for (int side = 0; side < 2 && ok; side++) ok = (p->room[side][k] = malloc(bytes)) != NULL;
    }
    return ok ? BK_OK : bk_fail(err, BK_ENOMEM, "no memory to read ahead batches of %" PRId64 " samples: lower the batch", p->batch);
}

bk_status bk_prefetch_new(bk_prefetch **out, bk_dset *const *dset, int n_dset, int64_t batch, bk_error *err)
{
    *out = NULL;
    if (n_dset < 1 || n_dset > BK_PREFETCH_MAX || batch < 1)
        return bk_fail(err, BK_EINVAL, "cannot read ahead %" PRId64 " samples of %d datasets", batch, n_dset);
    for (int k = 1; k < n_dset; k++)
        if (bk_dset_info_of(dset[k])->dim[0] != bk_dset_info_of(dset[0])->dim[0])
            return bk_fail(err, BK_ESHAPE, "datasets to be read together have %" PRId64 " and %" PRId64 " samples",
                           bk_dset_info_of(dset[0])->dim[0], bk_dset_info_of(dset[k])->dim[0]);
    bk_prefetch *p = calloc(1, sizeof *p);
    if (!p) return bk_fail(err, BK_ENOMEM, "out of memory");
    p->n_dset = n_dset;
    p->batch = batch;
    memcpy(p->dset, dset, (size_t)n_dset * sizeof *dset);
    bk_status status = make_rooms(p, err);
    if (status != BK_OK) {
        free_rooms(p);
        return status;
    }
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->changed, NULL);
    if (pthread_create(&p->thread, NULL, reader, p) != 0) {
        pthread_cond_destroy(&p->changed);
        pthread_mutex_destroy(&p->mutex);
        free_rooms(p);
        return bk_fail(err, BK_ENOMEM, "cannot start a thread to read ahead");
    }
    *out = p;
    return BK_OK;
}

static void become(bk_prefetch *p, state next)
{
    pthread_mutex_lock(&p->mutex);
    p->now = next;
    pthread_cond_signal(&p->changed);
    pthread_mutex_unlock(&p->mutex);
}

static state await_answer(bk_prefetch *p)
{
    pthread_mutex_lock(&p->mutex);
    while (p->now == ASKED) pthread_cond_wait(&p->changed, &p->mutex);
    state s = p->now;
    pthread_mutex_unlock(&p->mutex);
    return s;
}

bk_status bk_prefetch_begin(bk_prefetch *p, const int64_t *samples, int64_t n, bk_error *err)
{
    pthread_mutex_lock(&p->mutex);
    bool idle = p->now == IDLE;
    pthread_mutex_unlock(&p->mutex);
    if (!idle) return bk_fail(err, BK_EINVAL, "a batch is being read ahead already: wait for it first");
    if (n < 1 || n > p->batch) return bk_fail(err, BK_EINVAL, "cannot read ahead %" PRId64 " samples, the batch is %" PRId64, n, p->batch);
    memcpy(p->samples, samples, (size_t)n * sizeof *samples);
    p->n = n;
    bk_error_clear(&p->err);
    become(p, ASKED);
    return BK_OK;
}

bk_status bk_prefetch_wait(bk_prefetch *p, const float **data, bk_error *err)
{
    if (await_answer(p) != READY) return bk_fail(err, BK_EINVAL, "no batch was asked for");
    become(p, IDLE);
    if (p->status != BK_OK) return bk_fail(err, p->status, "%s", p->err.msg);
    for (int k = 0; k < p->n_dset; k++) data[k] = p->room[p->side][k];
    p->side = !p->side;
    return BK_OK;
}

void bk_prefetch_free(bk_prefetch *p)
{
    if (!p) return;
    await_answer(p);
    become(p, QUIT);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->mutex);
    free_rooms(p);
}
