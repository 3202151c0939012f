/* Matrix products: AVX2. */
#include "x86_vec_avx2.h"
#include "kernels/vector/vec_matmul.h"
