/* A layer's own input (Gemma 4): out_norm(projection(act(gate(x)) * input)). */
#ifndef CTW_WORKER_RECIPE_OWN_INPUT_H
#define CTW_WORKER_RECIPE_OWN_INPUT_H

#include "worker/model/recipe/parts.h"

enum { CTW_M_INPUT_GATE, CTW_M_INPUT_PROJ };
enum { CTW_P_INPUT_GATE, CTW_P_INPUT_PROJ };

struct ctw_own_input {
    enum ctw_activation act;
};

#endif
