/* Quantizing, norm, rotation, elementwise functions, attention: AVX2. */
#include "x86_vec_avx2.h"
#include "kernels/vector/vec_attention.h"
#include "kernels/vector/vec_ops.h"
