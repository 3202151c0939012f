/* Matrix products: AVX-512. */
#include "x86_vec_avx512.h"
#include "kernels/vector/vec_matmul.h"
