/* The one public header of base: what every other folder may lean on.
 *
 *   error, alloc (ledger), fault points, files, queued reads, threads, clock, log, settings, RNG, types.
 *
 * Nothing here knows of models. All state hangs off a base_env; there are no mutable globals but what the
 * signal handlers of base_map.c and base_protect.c must find, and the process's peak in base_system.c, which
 * the kernel keeps once for all. */
#ifndef WEIR_BASE_H
#define WEIR_BASE_H

#include "base_error.h"
#include "base_env.h"
#include "base_alloc.h"
#include "base_buf.h"
#include "base_cpus.h"
#include "base_dtype.h"
#include "base_fault.h"
#include "base_file.h"
#include "base_aio.h"
#include "base_hash.h"
#include "base_lane.h"
#include "base_library.h"
#include "base_lock.h"
#include "base_map.h"
#include "base_pool.h"
#include "base_probe.h"
#include "base_protect.h"
#include "base_rng.h"
#include "base_settings.h"
#include "base_sha256.h"
#include "base_system.h"
#include "base_usage.h"

#endif
