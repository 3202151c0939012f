/* The AVX2 table. */
#include "kernels/vector/vec_internal.h"

VEC_TABLE(avx2);
