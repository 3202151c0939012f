/* Quantizing, norm, rotation, elementwise functions, attention: AVX-512. */
#include "x86_vec_avx512.h"
#include "x86_attention.h"
#include "x86_ops.h"
