/*
 * Models that read images beside text, and take any text model. Without an image, their classes in
 * transformers, or in the makers' own code (internvl_chat, kimi_vl), pass the embedding's rows to
 * it, and multiply its output by a head of their own. So a text model whose own class does more
 * with the head's output (a factor, a soft cap, a bias) would compute something else here, and is
 * not in the list.
 */
#include "worker/model/families/family.h"

const struct ctw_family *const ctw_hosted[] = {
    &ctw_family_deepseek_v3,  &ctw_family_llama,     &ctw_family_mistral,
    &ctw_family_phi3,         &ctw_family_qwen2,     &ctw_family_qwen3,
    &ctw_family_qwen3_5_text, &ctw_family_qwen3_moe, NULL};

static const struct ctw_spelling text_model[] = {{"model.text_model.", "lm_head"}, {NULL, NULL}};

const struct ctw_host ctw_hosts[] = {
    {"idefics2", "Idefics2ForConditionalGeneration", NULL, "mistral", {0}, text_model},
    {"idefics3", "Idefics3ForConditionalGeneration", NULL, "llama", {0}, text_model},
    {"internvl",
     "InternVLForConditionalGeneration",
     NULL,
     "qwen2",
     {.tied = true},
     ctw_wrapped_spellings},
    {"internvl_chat", "InternVLChatModel", "llm_config", "qwen2", {0}, ctw_wrapped_spellings},
    {"kimi_vl", "KimiVLForConditionalGeneration", NULL, "deepseek_v3", {0}, ctw_wrapped_spellings},
    {"llava", "LlavaForConditionalGeneration", NULL, "llama", {0}, ctw_wrapped_spellings},
    {"llava_next", "LlavaNextForConditionalGeneration", NULL, "llama", {0}, ctw_wrapped_spellings},
    {"llava_onevision",
     "LlavaOnevisionForConditionalGeneration",
     NULL,
     "qwen2",
     {0},
     ctw_wrapped_spellings},
    {"minicpmv4_6",
     "MiniCPMV4_6ForConditionalGeneration",
     NULL,
     "qwen3_5_text",
     {0},
     ctw_wrapped_spellings},
    {"smolvlm", "SmolVLMForConditionalGeneration", NULL, "llama", {0}, text_model},
    {"vipllava", "VipLlavaForConditionalGeneration", NULL, "llama", {0}, ctw_wrapped_spellings},
    {NULL, NULL, NULL, NULL, {0}, NULL},
};
