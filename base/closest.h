/* The nearest known word, for messages. */
#ifndef CTW_BASE_CLOSEST_H
#define CTW_BASE_CLOSEST_H

/* The candidate nearest to a mistyped word; NULL if no candidate is near enough. */
const char *ctw_closest(const char *word, const char *const *candidates, int n);

#endif
