#include "base/closest.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

static int min3(int a, int b, int c)
{
    int m = a < b ? a : b;
    return m < c ? m : c;
}

/* Number of insertions, deletions, replacements and swaps of neighbours that turn a into b
 * (restricted Damerau-Levenshtein); MAX for words of more than 31 letters. */
static int edit_distance(const char *a, const char *b)
{
    enum { MAX = 32 };
    int rows[3][MAX];
    int n = (int)strlen(a), m = (int)strlen(b);
    if (n >= MAX || m >= MAX)
        return MAX;
    for (int j = 0; j <= m; j++)
        rows[0][j] = j;
    for (int i = 1; i <= n; i++) {
        int *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        now[0] = i;
        for (int j = 1; j <= m; j++) {
            now[j] = min3(last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && before[j - 2] + 1 < now[j])
                now[j] = before[j - 2] + 1;
        }
    }
    return rows[n % 3][m];
}

const char *ctw_closest(const char *word, const char *const *candidates, int n)
{
    const char *best = NULL;
    int best_distance =
        (int)strlen(word) / 3 + 2; /* a word at this distance or farther does not match */
    for (int i = 0; i < n; i++) {
        int distance = edit_distance(word, candidates[i]);
        if (distance < best_distance) {
            best = candidates[i];
            best_distance = distance;
        }
    }
    return best;
}
