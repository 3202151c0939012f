/* The one public header of formats: bytes of files to descriptors. Includes base only.
 *
 * A model file of any format becomes an fmt_model: metadata under GGUF's key names and tensors under GGUF's
 * tensor names, so that engines know one vocabulary. Weights are never read here. */
#ifndef WEIR_FORMATS_H
#define WEIR_FORMATS_H

#include "fmt_model.h"
#include "fmt_writer.h"
#include "fmt_tokenizer.h"
#include "fmt_chat.h"
#include "fmt_caches.h"

#endif
