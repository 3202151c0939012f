/* The AVX2 table. */
#include "x86_internal.h"

X86_TABLE(avx2);
