#include "worker/model/families/family.h"

/* One line per family. */
#define FAMILIES(X)                                                                                \
    X(apertus)                                                                                     \
    X(arcee)                                                                                       \
    X(baichuan)                                                                                    \
    X(bitnet)                                                                                      \
    X(bloom)                                                                                       \
    X(chatglm)                                                                                     \
    X(codegen)                                                                                     \
    X(cohere)                                                                                      \
    X(deepseek_v2)                                                                                 \
    X(deepseek_v3)                                                                                 \
    X(deepseek_v32)                                                                                \
    X(kimi_k2)                                                                                     \
    X(cohere2)                                                                                     \
    X(dots1)                                                                                       \
    X(ernie4_5)                                                                                    \
    X(ernie4_5_moe)                                                                                \
    X(exaone4)                                                                                     \
    X(falcon)                                                                                      \
    X(gemma)                                                                                       \
    X(gemma2)                                                                                      \
    X(gemma3)                                                                                      \
    X(gemma3_text)                                                                                 \
    X(gemma4)                                                                                      \
    X(gemma4_text)                                                                                 \
    X(glm)                                                                                         \
    X(glm4_moe_lite)                                                                               \
    X(glm_moe_dsa)                                                                                 \
    X(glm4)                                                                                        \
    X(glm4_moe)                                                                                    \
    X(gpt2)                                                                                        \
    X(gpt_bigcode)                                                                                 \
    X(gpt_neox)                                                                                    \
    X(gpt_oss)                                                                                     \
    X(gptj)                                                                                        \
    X(granite)                                                                                     \
    X(granitemoehybrid)                                                                            \
    X(granitemoe)                                                                                  \
    X(helium)                                                                                      \
    X(hunyuan_v1_dense)                                                                            \
    X(hunyuan_v1_moe)                                                                              \
    X(hy_v3)                                                                                       \
    X(laguna)                                                                                      \
    X(lfm2)                                                                                        \
    X(llama)                                                                                       \
    X(llama4)                                                                                      \
    X(llama4_text)                                                                                 \
    X(mimo)                                                                                        \
    X(mimo_v2_flash)                                                                               \
    X(minicpm)                                                                                     \
    X(minimax_m2)                                                                                  \
    X(ministral)                                                                                   \
    X(ministral3)                                                                                  \
    X(mistral4)                                                                                    \
    X(mistral)                                                                                     \
    X(mixtral)                                                                                     \
    X(mpt)                                                                                         \
    X(nemotron)                                                                                    \
    X(nemotron_nas)                                                                                \
    X(olmo)                                                                                        \
    X(olmo2)                                                                                       \
    X(olmo3)                                                                                       \
    X(olmoe)                                                                                       \
    X(opt)                                                                                         \
    X(phi)                                                                                         \
    X(phi3)                                                                                        \
    X(phimoe)                                                                                      \
    X(qwen)                                                                                        \
    X(qwen2)                                                                                       \
    X(qwen2_moe)                                                                                   \
    X(qwen3)                                                                                       \
    X(qwen3_5)                                                                                     \
    X(qwen3_5_moe)                                                                                 \
    X(qwen3_5_moe_text)                                                                            \
    X(qwen3_5_text)                                                                                \
    X(qwen3_moe)                                                                                   \
    X(seed_oss)                                                                                    \
    X(smollm3)                                                                                     \
    X(solar_open)                                                                                  \
    X(stablelm)                                                                                    \
    X(step3p5)                                                                                     \
    X(step3p7)                                                                                     \
    X(starcoder2)                                                                                  \
    X(mistral3)                                                                                    \
    X(molmo)                                                                                       \
    X(mistral3_ministral3)                                                                         \
    X(mistral3_mistral4)                                                                           \
    X(glm4v)                                                                                       \
    X(glm4v_moe)                                                                                   \
    X(kimi_k25)                                                                                    \
    X(qwen2_vl)                                                                                    \
    X(qwen2_5_vl)                                                                                  \
    X(qwen3_next)                                                                                  \
    X(qwen3_vl)                                                                                    \
    X(qwen3_vl_moe)

#define DECLARE(name) extern const struct ctw_family ctw_family_##name;
FAMILIES(DECLARE)

#define ROW(name) &ctw_family_##name,
const struct ctw_family *const ctw_families[] = {FAMILIES(ROW) NULL};
