#include "worker/model/families/family.h"

/* One line per family. */
#define FAMILIES(X)                                                                                \
    X(apertus)                                                                                     \
    X(arcee)                                                                                       \
    X(bitnet)                                                                                      \
    X(bloom)                                                                                       \
    X(chatglm)                                                                                     \
    X(codegen)                                                                                     \
    X(cohere)                                                                                      \
    X(cohere2)                                                                                     \
    X(ernie4_5)                                                                                    \
    X(exaone4)                                                                                     \
    X(falcon)                                                                                      \
    X(gemma)                                                                                       \
    X(gemma2)                                                                                      \
    X(gemma3)                                                                                      \
    X(gemma3_text)                                                                                 \
    X(gemma4)                                                                                      \
    X(gemma4_text)                                                                                 \
    X(glm)                                                                                         \
    X(glm4)                                                                                        \
    X(gpt2)                                                                                        \
    X(gpt_bigcode)                                                                                 \
    X(gpt_neox)                                                                                    \
    X(gptj)                                                                                        \
    X(granite)                                                                                     \
    X(granitemoehybrid)                                                                            \
    X(helium)                                                                                      \
    X(hunyuan_v1_dense)                                                                            \
    X(llama)                                                                                       \
    X(mimo)                                                                                        \
    X(minicpm)                                                                                     \
    X(ministral)                                                                                   \
    X(ministral3)                                                                                  \
    X(mistral)                                                                                     \
    X(mixtral)                                                                                     \
    X(mpt)                                                                                         \
    X(nemotron)                                                                                    \
    X(nemotron_nas)                                                                                \
    X(olmo)                                                                                        \
    X(olmo2)                                                                                       \
    X(olmo3)                                                                                       \
    X(opt)                                                                                         \
    X(phi)                                                                                         \
    X(phi3)                                                                                        \
    X(qwen)                                                                                        \
    X(qwen2)                                                                                       \
    X(qwen2_moe)                                                                                   \
    X(qwen3)                                                                                       \
    X(qwen3_moe)                                                                                   \
    X(seed_oss)                                                                                    \
    X(smollm3)                                                                                     \
    X(stablelm)                                                                                    \
    X(starcoder2)                                                                                  \
    X(mistral3)                                                                                    \
    X(molmo)                                                                                       \
    X(mistral3_ministral3)                                                                         \
    X(qwen2_vl)                                                                                    \
    X(qwen2_5_vl)                                                                                  \
    X(qwen3_vl)

#define DECLARE(name) extern const struct ctw_family ctw_family_##name;
FAMILIES(DECLARE)

#define ROW(name) &ctw_family_##name,
const struct ctw_family *const ctw_families[] = {FAMILIES(ROW) NULL};
