#include "quant/search.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const int candidates_of_round[BK_GRID_ROUNDS + 1] = {7, 2, 2, 0};
static const float half_width[BK_GRID_ROUNDS] = {0, 0.05f, 0.025f};

bk_status bk_grid_create(bk_grid *g, int64_t units, bk_error *err)
{
    size_t n = (size_t)units;
    *g = (bk_grid){.units = units};
    g->best = malloc(n * sizeof *g->best);
    g->best_error = malloc(n * sizeof *g->best_error);
    g->error = calloc(n * BK_GRID_CANDIDATES, sizeof *g->error);
    if (!g->best || !g->best_error || !g->error) {
        bk_grid_free(g);
        return bk_fail(err, BK_ENOMEM, "no memory to search %lld steps", (long long)units);
    }
    for (int64_t i = 0; i < units; i++) {
        g->best[i] = 1;
        g->best_error[i] = INFINITY;
    }
    return BK_OK;
}

void bk_grid_free(bk_grid *g)
{
    free(g->best);
    free(g->best_error);
    free(g->error);
    *g = (bk_grid){0};
}

int bk_grid_candidates(const bk_grid *g)
{
    return candidates_of_round[g->round];
}

static float factor_of(const bk_grid *g, int candidate, int64_t unit)
{
    if (g->round == 0) return 1.0f - 0.1f * (float)candidate;
    return g->best[unit] + (candidate ? -1 : 1) * half_width[g->round];
}

void bk_grid_factors(const bk_grid *g, int candidate, float *factor)
{
    for (int64_t i = 0; i < g->units; i++) factor[i] = factor_of(g, candidate, i);
}

double *bk_grid_error(bk_grid *g, int candidate)
{
    return g->error + candidate * g->units;
}

void bk_grid_next_round(bk_grid *g)
{
    int n = bk_grid_candidates(g);
    for (int64_t i = 0; i < g->units; i++) {
        float best = g->best[i];
        for (int c = 0; c < n; c++) {
            double e = bk_grid_error(g, c)[i];
            float f = factor_of(g, c, i);
            if (!isfinite(e)) e = INFINITY;
            bool tie = e == g->best_error[i] && e > 0 && isfinite(e); /* without error there is nothing to gain: zeros keep their step */
            if (e < g->best_error[i] || (tie && f > best)) {
                g->best_error[i] = e;
                best = f;
            }
        }
        g->best[i] = best;
    }
    g->round++;
    memset(g->error, 0, (size_t)g->units * BK_GRID_CANDIDATES * sizeof *g->error);
}
