/* Names of the operations, for profiles and error messages. */
#include "device.h"

const char *dev_op_name(dev_opcode code)
{
    static const char *const names[] = {
#define DEV_OP_NAME(op, name) [DEV_##op] = name,
        DEV_OP_MAP(DEV_OP_NAME)
#undef DEV_OP_NAME
    };
    if ((unsigned)code >= DEV_OP_COUNT) return "unknown operation";
    return names[code];
}
