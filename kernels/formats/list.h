/*
 * The weight formats, in the order in which their owns() functions are called. A new format is one
 * folder, one line here and one #include in all.h. X(name): the format is `ctw_format_name`, its
 * decoder `ctw_name_decode` in name/decode.h, its id CTW_FORMAT_name.
 */
#ifndef CTW_KERNELS_FORMATS_LIST_H
#define CTW_KERNELS_FORMATS_LIST_H

#define CTW_FORMATS(X)                                                                             \
    X(bnb_4bit)                                                                                    \
    X(ggml_heads)                                                                                  \
    X(dense)                                                                                       \
    X(dense_transposed)                                                                            \
    X(dense_paired)                                                                                \
    X(pack_quantized)                                                                              \
    X(quark_int)                                                                                   \
    X(modelopt_awq)                                                                                \
    X(nvfp4_mlx)                                                                                   \
    X(nvfp4)                                                                                       \
    X(nvfp4_modelopt)                                                                              \
    X(float_quantized)                                                                             \
    X(int_quantized)                                                                               \
    X(mxfp8)                                                                                       \
    X(mxfp6)                                                                                       \
    X(mxfp4)                                                                                       \
    X(gptq)                                                                                        \
    X(awq)                                                                                         \
    X(mlx_affine)                                                                                  \
    X(bnb_int8)                                                                                    \
    X(hqq)                                                                                         \
    X(gemma_int)                                                                                   \
    X(ggml)                                                                                        \
    X(exl3_table)                                                                                  \
    X(exl3)

#endif
