# Weir. `make` builds the library and the program; `make demo` and `make test` do everything on a fresh Debian machine.
CC ?= gcc
BUILD ?= build
OPT ?= -O2
SAN ?=
WARN = -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Werror
CFLAGS += -std=gnu11 $(OPT) -g $(WARN) -ffp-contract=off -fPIC -fvisibility=hidden -Isrc -Iinclude -pthread $(SAN)
LDFLAGS += -pthread $(SAN) -Wl,--gc-sections
CFLAGS += -ffunction-sections -fdata-sections
LDLIBS = -luring -lpcre2-8 -lutf8proc -ljansson -lm

# The layers in their order (docs/architecture.md). Each is an archive; a test of a layer links it and those before it.
LAYERS = base formats kernels devices memory graph engines runtime
ARCH := $(shell uname -m)

layer_sources = $(sort $(shell find src/$(1) -name '*.c' 2>/dev/null))
ifneq ($(ARCH),x86_64)
skip_arch += src/kernels/x86/%
endif
ifneq ($(ARCH),aarch64)
skip_arch += src/kernels/arm/%
endif
objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out $(skip_arch),$(call layer_sources,$(1)))) $(if $(filter kernels,$(1)),$(BUILD)/gen/kern_gpu_text.o)

all: $(BUILD)/weir $(BUILD)/libweir.a $(BUILD)/libweir.so

# Instruction sets beyond the base line are confined to files named *_avx2.c, *_avx512.c and *_neon.c, entered after a check.
# Without -fno-schedule-insns gcc spills the registers of the NEON tiles.
%_avx2.o: ISA = -mavx2 -mfma -mf16c
%_avx512.o: ISA = -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512vbmi
%_neon.o: ISA = -march=armv8.2-a+dotprod $(if $(findstring clang,$(CC)),,-fno-schedule-insns)

# V=1 shows whole command lines.
Q = $(if $(V),,@)
say = $(if $(V),,@echo "  $(1)")

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(dir $@)
	$(call say,CC $<)
	$(Q)$(CC) $(CFLAGS) $(ISA) -MMD -MP -c $< -o $@

# The device kernels of src/kernels/gpu as strings (kernels.h), in an order in which everything is declared before its use.
GPU_BEGIN = $(addprefix src/kernels/gpu/,gpu_begin.h gpu_math.h)
GPU_SOURCE = $(addprefix src/kernels/gpu/,gpu_blocks.h gpu_matmul.h gpu_rows.h gpu_attention.h)
text_of = sed -e '/^\#include "/d' -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/^/"/' -e 's/$$/\\n"/' $(1)
$(BUILD)/gen/kern_gpu_text.c: $(GPU_BEGIN) $(GPU_SOURCE) Makefile
	@mkdir -p $(dir $@)
	@{ echo '#include "kernels/kernels.h"'; echo 'const char kern_gpu_begin[] ='; $(call text_of,$(GPU_BEGIN)); echo ';'; \
	   echo 'const char kern_gpu_source[] ='; $(call text_of,$(GPU_SOURCE)); echo ';'; } >$@.new && mv $@.new $@
$(BUILD)/gen/kern_gpu_text.o: $(BUILD)/gen/kern_gpu_text.c
	$(Q)$(CC) $(CFLAGS) -MMD -MP -c $< -o $@

define layer_rule
$(BUILD)/lib/$(1).a: $(call objects,$(1))
	@mkdir -p $$(dir $$@)
	@rm -f $$@
	$$(Q)$$(AR) rcs $$@ $$^
endef
$(foreach l,$(LAYERS),$(eval $(call layer_rule,$(l))))

archives_upto = $(if $(filter $(1),$(firstword $(2))),$(3) $(1),$(call archives_upto,$(1),$(wordlist 2,99,$(2)),$(3) $(firstword $(2))))
reverse = $(if $(1),$(call reverse,$(wordlist 2,99,$(1))) $(firstword $(1)))
archives = $(patsubst %,$(BUILD)/lib/%.a,$(call reverse,$(call archives_upto,$(1),$(LAYERS))))
ALL_OBJECTS = $(foreach l,$(LAYERS),$(call objects,$(l)))

$(BUILD)/libweir.a: $(ALL_OBJECTS)
	@rm -f $@
	$(call say,AR $@)
	$(Q)$(AR) rcs $@ $^
$(BUILD)/libweir.so: $(ALL_OBJECTS)
	$(call say,LD $@)
	$(Q)$(CC) -shared $(LDFLAGS) -Wl,-soname,libweir.so.0 -o $@ $^ $(LDLIBS)
$(BUILD)/weir: $(call objects,cli) $(BUILD)/libweir.a
	$(call say,LD $@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -ledit

# Tests: tests/<folder>/test_x.c links the archives of its layer and those before it.
test_layer = $(if $(filter lm,$(1)),engines,$(if $(filter cli,$(1)),runtime,$(1)))
define test_rule
$(BUILD)/tests/$(1): $(BUILD)/obj/tests/$(1).o $(call archives,$(call test_layer,$(word 1,$(subst /, ,$(1)))))
	@mkdir -p $$(dir $$@)
	$$(call say,LD $$@)
	$$(Q)$$(CC) $$(LDFLAGS) -o $$@ $$^ $$(LDLIBS) -lcmocka
endef
TESTS := $(patsubst tests/%.c,%,$(sort $(shell find tests -name 'test_*.c')))
$(foreach t,$(TESTS),$(eval $(call test_rule,$(t))))
tests: $(addprefix $(BUILD)/tests/,$(TESTS))

# ---- what a newcomer types
MODELS ?= $(or $(WEIR_MODELS),$(HOME)/.cache/weir/models)
SMOL = $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf

# Installs what is missing, builds, fetches a 98 MB model and runs it in about 60 % of that, program and cache included.
demo:
	@tools/install_deps.sh build
	@$(MAKE) --no-print-directory -j$$(nproc) $(BUILD)/weir
	@tools/get_models.sh smollm2
	$(BUILD)/weir run -m $(SMOL) --mem 60MB --ctx 512 -n 96 -p "Why is the sky blue? Answer in two sentences."

SCRIPTS = $(sort $(wildcard tests/cli/*.sh))
TEST_ENV = WEIR_SOURCE_DIR=. WEIR_BUILD=$(BUILD)
RUN_TESTS = $(TEST_ENV) tests/run.sh $(addprefix $(BUILD)/tests/,$(TESTS)) $(SCRIPTS) $(if $(WEIR_TEST_FULL),tools/test_neon.sh)

# Everything that fits a quarter of an hour: unit tests, real models, limits, the house rules.
test:
	@tools/install_deps.sh build test check $(if $(WEIR_TEST_FULL),cross)
	@$(MAKE) --no-print-directory -j$$(nproc) all tests examples
	@tools/get_models.sh smollm2 gemma3
	@$(MAKE) --no-print-directory check
	@$(RUN_TESTS)

# The same with the long sweeps.
test-full:
	@WEIR_TEST_FULL=1 WEIR_TEST_TIMEOUT=3600 $(MAKE) --no-print-directory test

check:
	@tools/check.sh

# The tests again under sanitizers, each in its own build folder.
asan:
	@tools/install_deps.sh build test
	@$(MAKE) --no-print-directory -j$$(nproc) BUILD=build/asan OPT=-O1 SAN="-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer" all tests
	@tools/get_models.sh smollm2
	@WEIR_SANITIZED=1 $(TEST_ENV) WEIR_BUILD=build/asan tests/run.sh $(addprefix build/asan/tests/,$(TESTS))
tsan:
	@tools/install_deps.sh build test
	@$(MAKE) --no-print-directory -j$$(nproc) BUILD=build/tsan OPT=-O1 SAN="-fsanitize=thread -fno-omit-frame-pointer" all tests
	@tools/get_models.sh smollm2
	@WEIR_SANITIZED=1 $(TEST_ENV) WEIR_BUILD=build/tsan tests/run.sh $(addprefix build/tsan/tests/,$(filter base/% memory/% graph/% lm/% runtime/%,$(TESTS)))

# Coverage-guided fuzzing of what reads hostile bytes (clang): FUZZ_SECONDS for each target.
FUZZ_SECONDS ?= 60
FUZZERS := $(patsubst tests/fuzz/%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
FUZZ_SOURCES := $(shell find src/base src/formats -name '*.c')
$(BUILD)/fuzz/%: tests/fuzz/%.c $(FUZZ_SOURCES)
	@mkdir -p $(dir $@)
	$(call say,FUZZ $@)
	$(Q)clang -std=gnu11 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Isrc -Iinclude -o $@ $^ -luring -lpcre2-8 -lutf8proc -ljansson -lm -lpthread
fuzz:
	@tools/install_deps.sh build fuzz
	@$(MAKE) --no-print-directory $(addprefix $(BUILD)/fuzz/,$(FUZZERS))
	@for f in $(FUZZERS); do \
	    corpus=$(BUILD)/fuzz/corpus_$$f log=$(BUILD)/fuzz/$$f.log; mkdir -p $$corpus; echo "== $$f"; \
	    $(BUILD)/fuzz/$$f -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -timeout=20 -artifact_prefix=$(BUILD)/fuzz/ $$corpus >$$log 2>&1 || { tail -n 30 $$log; exit 1; }; \
	    tail -n 1 $$log; \
	done

# ---- benchmarks and examples
BENCHES := $(patsubst bench/%.c,%,$(sort $(wildcard bench/bench_*.c)))
$(BUILD)/bench/%: $(BUILD)/obj/bench/%.o $(BUILD)/libweir.a
	@mkdir -p $(dir $@)
	$(call say,LD $@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
bench: $(addprefix $(BUILD)/bench/,$(BENCHES) worker_weir) $(BUILD)/weir
	@for b in $(BENCHES); do echo "== $$b"; $(BUILD)/bench/$$b; done
	@tools/bench_peers.sh $(BUILD)
	@$(MAKE) --no-print-directory bench-speculation
# Guessing against plain decoding with the small models, all in memory and streamed, and with one of them as the other's draft.
bench-speculation: $(BUILD)/weir
	@tools/get_models.sh smollm2 gemma3
	@bench/bench_speculation.py --weir $(BUILD)/weir $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf,mem=60MiB $(MODELS)/gemma3-270m-q4_k_m.gguf $(MODELS)/gemma3-270m-q4_k_m.gguf,mem=200MiB $(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf,draft=$(MODELS)/SmolLM2-135M-Instruct.Q4_1.gguf,name=itself
# The planner against what runs, over 64 combinations; the table goes into docs/capacity.md. PART=I/N does every N-th.
bench-plan: $(BUILD)/weir
	@tools/get_models.sh smollm2 gemma3
	@tools/bench_plan.py $(BUILD) $(MODELS) $(BUILD)/bench-plan $(if $(PART),--part $(PART)) --write docs/capacity.md
EXAMPLES := $(patsubst examples/%.c,%,$(sort $(wildcard examples/*.c)))
$(BUILD)/examples/%: $(BUILD)/obj/examples/%.o $(BUILD)/libweir.a
	@mkdir -p $(dir $@)
	$(call say,LD $@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/examples/pipeline: $(BUILD)/obj/examples/pipeline/pipeline.o $(BUILD)/libweir.a
	@mkdir -p $(dir $@)
	$(call say,LD $@)
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)
examples: $(addprefix $(BUILD)/examples/,$(EXAMPLES)) $(BUILD)/examples/pipeline

# ---- installing
PREFIX ?= /usr/local
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include/weir $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 755 $(BUILD)/weir $(DESTDIR)$(PREFIX)/bin/
	install -m 644 $(BUILD)/libweir.a $(DESTDIR)$(PREFIX)/lib/
	install -m 755 $(BUILD)/libweir.so $(DESTDIR)$(PREFIX)/lib/libweir.so.0
	ln -sf libweir.so.0 $(DESTDIR)$(PREFIX)/lib/libweir.so
	install -m 644 include/weir/*.h $(DESTDIR)$(PREFIX)/include/weir/
	install -m 644 docs/weir.1 $(DESTDIR)$(PREFIX)/share/man/man1/
	sed 's|@PREFIX@|$(PREFIX)|' docs/weir.pc.in > $(DESTDIR)$(PREFIX)/lib/pkgconfig/weir.pc

clean:
	rm -rf $(BUILD)

.PHONY: all tests clean demo test test-full check asan tsan fuzz bench bench-plan bench-speculation examples install
.SECONDARY:
-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
