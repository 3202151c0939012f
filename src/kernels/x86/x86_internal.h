/* The functions of the two x86 tables, by file of origin. */
#ifndef WEIR_X86_INTERNAL_H
#define WEIR_X86_INTERNAL_H

#include "kernels/kern_tables.h"

void kern_matmul_avx512(const kern_matmul *m, size_t row_begin, size_t row_end, void *scratch);

#endif
