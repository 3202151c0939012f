/* Quantizing, norm, rotation, elementwise functions, attention: AVX-512. */
#include "x86_vec_avx512.h"
#include "kernels/vector/vec_attention.h"
#include "kernels/vector/vec_ops.h"
