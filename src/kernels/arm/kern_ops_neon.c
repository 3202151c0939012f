/* Quantizing, norm, rotation, elementwise functions, attention: NEON. */
#include "arm_vec_neon.h"
#include "kernels/vector/vec_attention.h"
#include "kernels/vector/vec_ops.h"
