/* Matrix products, AVX-512. */
#include "x86_vec_avx512.h"
#include "x86_matmul.h"
#include "x86_internal.h"

void kern_matmul_avx512(const kern_matmul *m, size_t row_begin, size_t row_end, void *scratch)
{
    matmul_any(m, row_begin, row_end, scratch);
}
