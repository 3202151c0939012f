/* libFuzzer: any bytes as a GGUF file. Two inputs in three start with the magic, so that the search begins
 * behind it. */
#include "fuzz_model.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t head[8] = {'G', 'G', 'U', 'F', 3, 0, 0, 0};
    if (size < 8 || size > 1u << 20) return -1;
    if (data[0] % 3 == 0 || memcmp(data, "GGUF", 4) == 0) {
        open_bytes(data, size);
        return 0;
    }
    uint8_t *copy = malloc(size);
    if (copy == NULL) return -1;
    memcpy(copy, data, size);
    memcpy(copy, head, sizeof head);
    open_bytes(copy, size);
    free(copy);
    return 0;
}
