/* libFuzzer: any bytes as a safetensors file. The first byte says where the header ends, so that the length
 * field is no obstacle to the search. */
#include "fuzz_model.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 4 || size > 1u << 20) return -1;
    uint64_t header = data[0] == 0 ? size - 1 : (size - 1) * data[0] / 255;
    uint8_t *copy = malloc(8 + size - 1);
    if (copy == NULL) return -1;
    for (int i = 0; i < 8; i++) copy[i] = (uint8_t)(header >> 8 * i);
    memcpy(copy + 8, data + 1, size - 1);
    open_bytes(copy, 8 + size - 1);
    free(copy);
    return 0;
}
