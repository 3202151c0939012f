/* Matrix products: AVX2. */
#include "x86_vec_avx2.h"
#include "x86_matmul.h"
