/* Status codes and the error record that every fallible call of Weir fills.
 *
 * Each code has its cause and remedy in docs/errors.md; a test compares the two lists. */
#ifndef WEIR_STATUS_H
#define WEIR_STATUS_H

#define WEIR_STATUS_MAP(X)                                                                                   \
    X(OK, "success")                                                                                         \
    X(INVALID_ARGUMENT, "an argument is out of range or does not fit the others")                            \
    X(OUT_OF_MEMORY, "the system refused an allocation")                                                     \
    X(BUDGET, "the memory budget does not suffice")                                                          \
    X(NOT_FOUND, "the file does not exist")                                                                  \
    X(PERMISSION, "the file may not be read or written")                                                     \
    X(IO, "reading or writing failed")                                                                       \
    X(TRUNCATED, "the file ends before the data it promises")                                                \
    X(FORMAT, "the file is not valid")                                                                       \
    X(UNSUPPORTED, "the architecture, type or feature is not supported")                                     \
    X(MISSING_TENSOR, "a tensor that the architecture needs is missing or has the wrong shape")              \
    X(FILE_CHANGED, "the file was replaced or changed while in use")                                         \
    X(CONTEXT_FULL, "the sequence is longer than the context")                                               \
    X(CANCELLED, "the caller cancelled the work")                                                            \
    X(TOKENIZER, "the tokenizer is missing or inconsistent")                                                 \
    X(TEMPLATE, "the chat template is not one that Weir knows")                                              \
    X(DEVICE, "the device refused or failed")                                                                \
    X(DEVICE_MEMORY, "the device has not enough memory")                                                     \
    X(THREAD, "a thread could not be started")                                                               \
    X(INTERNAL, "an internal invariant does not hold; please report it")

typedef enum weir_status {
#define WEIR_STATUS_ENUM(name, text) WEIR_ERR_##name,
    WEIR_STATUS_MAP(WEIR_STATUS_ENUM)
#undef WEIR_STATUS_ENUM
        WEIR_STATUS_COUNT
} weir_status;

#define WEIR_OK                  WEIR_ERR_OK
#define WEIR_ERROR_MESSAGE_BYTES 1024

/* Filled by a call that fails; untouched by one that succeeds. `message` is a NUL-terminated sentence
 * that names the file and offset, the component, what was wanted, what was there, and what to do. */
typedef struct weir_error {
    weir_status code;
    char message[WEIR_ERROR_MESSAGE_BYTES];
} weir_error;

/* The constant's name without prefix ("OUT_OF_MEMORY"), and its one-line text. Never NULL. */
const char *weir_status_name(weir_status code);
const char *weir_status_text(weir_status code);

#endif
