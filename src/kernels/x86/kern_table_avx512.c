/* The AVX-512 table. */
#include "x86_internal.h"

X86_TABLE(avx512);
