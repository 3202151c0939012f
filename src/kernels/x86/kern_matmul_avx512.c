/* Matrix products: AVX-512. */
#include "x86_vec_avx512.h"
#include "x86_matmul.h"
