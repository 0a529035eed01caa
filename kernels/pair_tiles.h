/*
 * How the tiles of two products that one kernel computes (kernels/cuda/gemm/gemm_hopper_pair.h) are
 * dealt to the clusters of multiprocessors: plain arithmetic, which tests check without a GPU. One
 * product gathers its rows, the other scatters them. No bit of a result depends on it.
 */
#ifndef CTW_KERNELS_PAIR_TILES_H
#define CTW_KERNELS_PAIR_TILES_H

#include <stdbool.h>

#include "kernels/dtype.h"

/* One of the products; steps: the time of a tile, in steps of k. Without tiles, there is no
 * product. */
struct ctw_pair_side {
    int n_tiles, steps;
};

/*
 * `even`: in turn, the two kinds spread evenly, but with a scattered one, which takes less time, as
 * each cluster's last. Neighbouring tiles then run at the same time, and share rows in L2. Where
 * some clusters would have much more to do, all are to finish together: the gathered product's
 * tiles are dealt in turn, so that the first `longer` clusters have one more; then the scattered
 * one's to where less is left to do: clusters 0 .. longer - 1                 few of the scattered
 * tiles the next `plus`                          many + 1 the others many
 */
struct ctw_pair_shares {
    bool even;
    int n_gathered, n_scattered; /* tiles */
    int gathered, longer, few, plus, many;
};

CTW_HD int ctw_pair_less(int a, int b)
{
    return a < b ? a : b;
}

/* ---- a cluster's way through its tiles ---------------------------------------------------- */

/* Unless tiles are in turn, the two kinds alternate as evenly as their numbers allow, and clusters
 * are out of step: at any time some compute while others add. */
struct ctw_pair_walk {
    int cluster, clusters;
    int n, n_gathered; /* tiles: all, and of the gathered product */
    int due, gathered, scattered;
};

CTW_HD struct ctw_pair_walk ctw_pair_walk_of(const struct ctw_pair_shares *a, int cluster,
                                             int clusters)
{
    bool longer = cluster < a->longer;
    struct ctw_pair_walk w = {cluster, clusters, 0, 0, 0, 0, 0};
    if (a->even) {
        w.n = (a->n_gathered + a->n_scattered - cluster + clusters - 1) / clusters;
        return w;
    }
    w.n_gathered = a->gathered + longer;
    w.n = w.n_gathered + (longer ? a->few : a->many + (cluster < a->longer + a->plus));
    w.due = cluster * w.n / clusters;
    return w;
}

/* Of tiles in turn, is tile i the gathered product's (*at), or the scattered one's? */
CTW_HD bool ctw_pair_in_turn(const struct ctw_pair_shares *a, int i, int clusters, int *at)
{
    int64_t n = a->n_gathered, s = a->n_scattered, mixed = n + (s > clusters ? s - clusters : 0);
    int before = (int)(i < mixed ? i * n / mixed : n);
    bool gathered = i < mixed && (int)((i + 1) * n / mixed) > before;
    *at = gathered ? before : i - before;
    return gathered;
}

/* The cluster's next tile: *at of the gathered product, or (false) of the scattered one. Clusters
 * that are at their k-th tile of a product have neighbouring ones. */
CTW_HD bool ctw_pair_next(const struct ctw_pair_shares *a, struct ctw_pair_walk *w, int *at)
{
    if (a->even)
        return ctw_pair_in_turn(a, w->gathered++ * w->clusters + w->cluster, w->clusters, at);
    w->due += w->n_gathered;
    if (w->due >= w->n) {
        w->due -= w->n;
        *at = w->gathered++ * w->clusters + w->cluster;
        return true;
    }
    int k = w->scattered++, others = w->clusters - a->longer - a->plus;
    int before = a->longer * ctw_pair_less(k, a->few) + a->plus * ctw_pair_less(k, a->many + 1) +
                 others * ctw_pair_less(k, a->many);
    int rank = w->cluster; /* among the clusters that have a k-th tile */
    if (rank >= a->longer && k >= a->few)
        rank -= a->longer;
    *at = before + rank;
    return false;
}

/* ---- sharing out -------------------------------------------------------------------------- */

/* When the last cluster ends, in steps. */
static inline int ctw_pair_end(const struct ctw_pair_shares *a, const struct ctw_pair_side *g,
                               const struct ctw_pair_side *s, int clusters)
{
    int last = 0, at;
    for (int c = 0; c < clusters; c++) {
        struct ctw_pair_walk w = ctw_pair_walk_of(a, c, clusters);
        int end = 0;
        for (int i = 0; i < w.n; i++)
            end += ctw_pair_next(a, &w, &at) ? g->steps : s->steps;
        last = end > last ? end : last;
    }
    return last;
}

/* With `few` scattered tiles for the clusters that have one more of the others. */
static inline struct ctw_pair_shares ctw_pair_share_out(const struct ctw_pair_side *g,
                                                        const struct ctw_pair_side *s, int clusters,
                                                        int few)
{
    int longer = g->n_tiles % clusters, left = s->n_tiles - longer * few;
    struct ctw_pair_shares a = {false,
                                g->n_tiles,
                                s->n_tiles,
                                g->n_tiles / clusters,
                                longer,
                                few,
                                left % (clusters - longer),
                                left / (clusters - longer)};
    return a;
}

/* The load of the two kinds of clusters, in steps: clusters with one more gathered tile, and the
 * fullest of the others. */
static inline int ctw_pair_fullest(const struct ctw_pair_shares *a, const struct ctw_pair_side *g,
                                   const struct ctw_pair_side *s)
{
    int more = a->longer > 0 ? (a->gathered + 1) * g->steps + a->few * s->steps : 0;
    int less = a->gathered * g->steps + (a->many + (a->plus > 0)) * s->steps;
    return more > less ? more : less;
}

static inline struct ctw_pair_shares ctw_pair_shares_of(const struct ctw_pair_side *g,
                                                        const struct ctw_pair_side *s, int clusters)
{
    int longer = g->n_tiles % clusters, most = longer > 0 ? s->n_tiles / longer : 0;
    struct ctw_pair_shares best = ctw_pair_share_out(g, s, clusters, 0), even = best;
    int last = ctw_pair_fullest(&best, g, s);
    for (int few = 1; few <= most; few++) {
        struct ctw_pair_shares a = ctw_pair_share_out(g, s, clusters, few);
        int end = ctw_pair_fullest(&a, g, s);
        if (end > last)
            break; /* the longer ones now end last */
        best = end < last ? a : best;
        last = end;
    }
    even.even = true;
    return ctw_pair_end(&even, g, s, clusters) <= last + last / 32 ? even : best;
}

#endif
