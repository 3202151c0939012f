/* Matrix products: NEON with dot products. */
#include "arm_vec_neon.h"
#include "kernels/vector/vec_matmul.h"
