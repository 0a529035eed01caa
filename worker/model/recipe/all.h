/* Every kind's struct, for struct ctw_branch. */
#ifndef CTW_WORKER_RECIPE_ALL_H
#define CTW_WORKER_RECIPE_ALL_H

#include "worker/model/recipe/attention.h"
#include "worker/model/recipe/delta_rule.h"
#include "worker/model/recipe/dense.h"
#include "worker/model/recipe/latent.h"
#include "worker/model/recipe/lightning.h"
#include "worker/model/recipe/mixture.h"
#include "worker/model/recipe/ngram.h"
#include "worker/model/recipe/own_input.h"
#include "worker/model/recipe/pooled.h"
#include "worker/model/recipe/projection.h"
#include "worker/model/recipe/recurrence.h"
#include "worker/model/recipe/residual.h"
#include "worker/model/recipe/short_conv.h"
#include "worker/model/recipe/state_space.h"

#endif
