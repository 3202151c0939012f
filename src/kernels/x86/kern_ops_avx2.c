/* Quantizing, norm, rotation, elementwise functions, attention: AVX2. */
#include "x86_vec_avx2.h"
#include "x86_attention.h"
#include "x86_ops.h"
