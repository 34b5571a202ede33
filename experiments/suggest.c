#include "experiments/suggest.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define LONGEST 48 /* longer words are not compared */

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Edits that turn a into b, a swap of neighbours being one (optimal string alignment). */
static int distance(const char *a, size_t la, const char *b, size_t lb)
{
    int row[3][LONGEST + 1]; /* the two rows before this one, and this one */
    int *before = row[0], *last = row[1], *now = row[2];
    for (size_t j = 0; j <= lb; j++) last[j] = (int)j;
    for (size_t i = 1; i <= la; i++) {
        now[0] = (int)i;
        for (size_t j = 1; j <= lb; j++) {
            int ca = tolower((unsigned char)a[i - 1]), cb = tolower((unsigned char)b[j - 1]);
            now[j] = least(least(last[j], now[j - 1]) + 1, last[j - 1] + (ca != cb));
            if (i > 1 && j > 1 && ca == tolower((unsigned char)b[j - 2]) && cb == tolower((unsigned char)a[i - 2]))
                now[j] = least(now[j], before[j - 2] + 1);
        }
        int *free_row = before;
        before = last;
        last = now;
        now = free_row;
    }
    return last[lb];
}

const char *bk_suggest(const char *typed, const char *const *words, size_t n)
{
    size_t lt = strlen(typed);
    if (lt == 0 || lt > LONGEST) return NULL;
    const char *best = NULL;
    int best_distance = 1 + (lt > 2) + (int)lt / 4; /* one above what counts as near */
    for (size_t i = 0; i < n; i++) {
        size_t lw = strlen(words[i]);
        if (lw > LONGEST) continue;
        int d = distance(typed, lt, words[i], lw);
        if (d < best_distance && d < (int)lw) best_distance = d, best = words[i];
    }
    for (size_t i = 0; i < n && !best && lt >= 2; i++)
        if (strncasecmp(words[i], typed, lt) == 0) best = words[i];
    return best;
}

char *bk_suggest_text(const char *typed, const char *const *words, size_t n, char *to, size_t size)
{
    const char *word = bk_suggest(typed, words, n);
    if (word)
        snprintf(to, size, ", did you mean '%s'?", word);
    else
        to[0] = 0;
    return to;
}
