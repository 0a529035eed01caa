/* Every format's decoder, for a file that compiles the decoders with its own instruction set. */
#ifndef CTW_KERNELS_FORMATS_ALL_H
#define CTW_KERNELS_FORMATS_ALL_H

#include "kernels/formats/awq/decode.h"
#include "kernels/formats/bnb_4bit/decode.h"
#include "kernels/formats/bnb_int8/decode.h"
#include "kernels/formats/dense/decode.h"
#include "kernels/formats/dense_paired/decode.h"
#include "kernels/formats/dense_transposed/decode.h"
#include "kernels/formats/exl3/decode.h"
#include "kernels/formats/exl3_table/decode.h"
#include "kernels/formats/float_quantized/decode.h"
#include "kernels/formats/gemma_int/decode.h"
#include "kernels/formats/ggml/decode.h"
#include "kernels/formats/ggml_heads/decode.h"
#include "kernels/formats/gptq/decode.h"
#include "kernels/formats/hqq/decode.h"
#include "kernels/formats/int_quantized/decode.h"
#include "kernels/formats/mlx_affine/decode.h"
#include "kernels/formats/modelopt_awq/decode.h"
#include "kernels/formats/mxfp4/decode.h"
#include "kernels/formats/mxfp6/decode.h"
#include "kernels/formats/mxfp8/decode.h"
#include "kernels/formats/nvfp4/decode.h"
#include "kernels/formats/nvfp4_mlx/decode.h"
#include "kernels/formats/nvfp4_modelopt/decode.h"
#include "kernels/formats/pack_quantized/decode.h"
#include "kernels/formats/quark_int/decode.h"

#endif
