/* The NEON table. */
#include "kernels/vector/vec_internal.h"

VEC_TABLE(neon);
