/* The AVX-512 table. */
#include "kernels/vector/vec_internal.h"

VEC_TABLE(avx512);
