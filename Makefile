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
objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out $(skip_arch),$(call layer_sources,$(1))))

all: $(BUILD)/weir $(BUILD)/libweir.a $(BUILD)/libweir.so

# Instruction sets beyond the base line are confined to files named *_avx2.c and *_avx512.c, entered after a check.
%_avx2.o: ISA = -mavx2 -mfma -mf16c
%_avx512.o: ISA = -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512vbmi

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(dir $@)
	$(CC) $(CFLAGS) $(ISA) -MMD -MP -c $< -o $@

define layer_rule
$(BUILD)/lib/$(1).a: $(call objects,$(1))
	@mkdir -p $$(dir $$@)
	@rm -f $$@
	ar rcs $$@ $$^
endef
$(foreach l,$(LAYERS),$(eval $(call layer_rule,$(l))))

archives_upto = $(if $(filter $(1),$(firstword $(2))),$(3) $(1),$(call archives_upto,$(1),$(wordlist 2,99,$(2)),$(3) $(firstword $(2))))
reverse = $(if $(1),$(call reverse,$(wordlist 2,99,$(1))) $(firstword $(1)))
archives = $(patsubst %,$(BUILD)/lib/%.a,$(call reverse,$(call archives_upto,$(1),$(LAYERS))))
ALL_OBJECTS = $(foreach l,$(LAYERS),$(call objects,$(l)))

$(BUILD)/libweir.a: $(ALL_OBJECTS)
	@rm -f $@
	ar rcs $@ $^
$(BUILD)/libweir.so: $(ALL_OBJECTS)
	$(CC) -shared $(LDFLAGS) -Wl,-soname,libweir.so.0 -o $@ $^ $(LDLIBS)
$(BUILD)/weir: $(call objects,cli) $(BUILD)/libweir.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS) -ledit

# Tests: tests/<folder>/test_x.c links the archives of its layer and those before it.
test_layer = $(if $(filter lm,$(1)),engines,$(if $(filter cli,$(1)),runtime,$(1)))
define test_rule
$(BUILD)/tests/$(1): $(BUILD)/obj/tests/$(1).o $(call archives,$(call test_layer,$(word 1,$(subst /, ,$(1)))))
	@mkdir -p $$(dir $$@)
	$$(CC) $$(LDFLAGS) -o $$@ $$^ $$(LDLIBS) -lcmocka
endef
TESTS := $(patsubst tests/%.c,%,$(sort $(shell find tests -name 'test_*.c')))
$(foreach t,$(TESTS),$(eval $(call test_rule,$(t))))
tests: $(addprefix $(BUILD)/tests/,$(TESTS))

clean:
	rm -rf $(BUILD)

.PHONY: all tests clean
.SECONDARY:
-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
