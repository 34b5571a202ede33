# brick: `make` builds, `make demo` runs the main job, `make test` passes the tests. `make help` lists the rest.
# SAN=asan|ubsan|tsan and CC=clang build into folders of their own.

CC      ?= gcc
SAN     ?=
PREFIX  ?= /usr/local
BUILD   ?= build$(if $(SAN),-$(SAN))$(if $(findstring clang,$(CC)),-clang)
PC      := hdf5 openblas jansson yaml-0.1 libpcre2-8 libutf8proc libcrypto

CFLAGS  ?= -O3 -g
WARN    := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
SANFLAG := $(if $(filter asan,$(SAN)),-fsanitize=address -fno-omit-frame-pointer)$(if $(filter ubsan,$(SAN)),-fsanitize=undefined -fno-sanitize-recover=all)$(if $(filter tsan,$(SAN)),-fsanitize=thread)
PKGCF   := $(shell pkg-config --cflags $(PC) 2>/dev/null)
PKGLD   := $(shell pkg-config --libs $(PC) 2>/dev/null)
ALLCF    = -std=c11 -D_GNU_SOURCE -I. -fPIC -fopenmp -ffp-contract=off -fno-math-errno $(WARN) $(CFLAGS) $(SANFLAG) $(PKGCF)
LDLIBS   = $(SANFLAG) -fopenmp $(PKGLD) -lhdf5_hl -lm -lpthread

LIBDIRS := backends/ref backends/cpu backends/guard autograd ops io quant blocks
LIBSRC  := $(sort $(foreach d,$(LIBDIRS),$(wildcard $(d)/*.c)))
EXPSRC  := $(filter-out experiments/main.c,$(sort $(wildcard experiments/*.c)))
LIBOBJ  := $(LIBSRC:%.c=$(BUILD)/obj/%.o)
EXPOBJ  := $(EXPSRC:%.c=$(BUILD)/obj/%.o)
TESTSRC := $(sort $(wildcard tests/test_*.c))
TESTAUX := $(filter-out $(TESTSRC),$(sort $(wildcard tests/*.c)))
TESTBIN := $(TESTSRC:tests/%.c=$(BUILD)/tests/%)

.PHONY: all test-build demo model test check bench mutants install clean help setup
all: $(BUILD)/brick $(BUILD)/libbrick.a $(BUILD)/libbrick.so

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALLCF) -MMD -MP -c $< -o $@

$(BUILD)/libbrick.a: $(LIBOBJ)
	@rm -f $@; ar rcs $@ $^

$(BUILD)/libbrick.so: $(LIBOBJ)
	$(CC) -shared -o $@ $^ $(LDLIBS)

$(BUILD)/brick: $(BUILD)/obj/experiments/main.o $(EXPOBJ) $(BUILD)/libbrick.a
	$(CC) -o $@ $^ $(LDLIBS)

$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(TESTAUX:%.c=$(BUILD)/obj/%.o) $(EXPOBJ) $(BUILD)/libbrick.a
	@mkdir -p $(@D)
	$(CC) -o $@ $^ $$(pkg-config --libs check) $(LDLIBS)

test-build: $(TESTBIN)

clean:
	rm -rf build build-*

-include $(LIBOBJ:.o=.d) $(EXPOBJ:.o=.d) $(TESTSRC:%.c=$(BUILD)/obj/%.d) $(TESTAUX:%.c=$(BUILD)/obj/%.d) $(BUILD)/obj/experiments/main.d
.SECONDARY:
