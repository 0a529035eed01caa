/* Tiles of pairs of products: each is dealt once, and no cluster waits for long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kernels/pair_tiles.h"

enum { MOST = 1000, CLUSTERS = 66 };

/* Random numbers of tiles and steps; few, or many. */
static struct ctw_pair_side random_side(bool many)
{
    return (struct ctw_pair_side){rand() % (many ? MOST : 40), 1 + rand() % 120};
}

static void each_tile_is_dealt_once(void **state)
{
    (void)state;
    static bool seen[2][MOST];
    int n_even = 0, n_uneven = 0;
    srand(1);
    for (int round = 0; round < 20000; round++) {
        const struct ctw_pair_side g = random_side(round % 2), s = random_side(round % 3 == 0);
        int n = g.n_tiles + s.n_tiles, clusters = 1 + rand() % 80, dealt = 0, at;
        if (n == 0)
            continue;
        clusters = clusters < n ? clusters : n;
        const struct ctw_pair_shares a = ctw_pair_shares_of(&g, &s, clusters);
        memset(seen, 0, sizeof(seen));
        for (int c = 0; c < clusters; c++) {
            struct ctw_pair_walk w = ctw_pair_walk_of(&a, c, clusters);
            for (int i = 0; i < w.n; i++, dealt++) {
                bool gathered = ctw_pair_next(&a, &w, &at);
                assert_in_range(at, 0, (gathered ? g.n_tiles : s.n_tiles) - 1);
                assert_false(seen[gathered][at]);
                seen[gathered][at] = true;
            }
        }
        assert_int_equal(dealt, n);
        n_even += a.even;
        n_uneven += !a.even;
    }
    assert_true(n_even > 1000);
    assert_true(n_uneven > 1000);
}

/* Experts of Qwen3-30B-A3B, DeepSeek-V3 and gpt-oss-20b with 31 to 35 (60 to 68) tiles of rows: the
 * last cluster ends at most so much after the mean. */
static void clusters_end_together(void **state)
{
    (void)state;
    static const struct {
        int cols[2], steps[2], rows;
        double most;
    } shapes[] = {{{6, 8}, {35, 18}, 31, 1.12},
                  {{16, 28}, {115, 38}, 15, 1.08},
                  {{23, 12}, {48, 51}, 60, 1.04}};
    for (size_t i = 0; i < CTW_COUNT(shapes); i++)
        for (int rows = shapes[i].rows; rows < shapes[i].rows + 9; rows++) {
            const struct ctw_pair_side g = {rows * shapes[i].cols[0], shapes[i].steps[0]};
            const struct ctw_pair_side s = {rows * shapes[i].cols[1], shapes[i].steps[1]};
            const struct ctw_pair_shares a = ctw_pair_shares_of(&g, &s, CLUSTERS);
            double mean = (double)(g.n_tiles * g.steps + s.n_tiles * s.steps) / CLUSTERS;
            assert_true(ctw_pair_end(&a, &g, &s, CLUSTERS) <= shapes[i].most * mean);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_tile_is_dealt_once),
        cmocka_unit_test(clusters_end_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
