/* All kernels, for those that compile them as C. The build joins the same files in the same order. */
#ifndef GPU_KERNELS_H
#define GPU_KERNELS_H

#include "gpu_begin.h"
#include "gpu_math.h"
#include "gpu_blocks.h"
#include "gpu_matmul.h"
#include "gpu_rows.h"
#include "gpu_attention.h"

#endif
