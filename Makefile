# brick: `make` builds, `make demo` runs the main job, `make test` passes the tests. `make help` lists the rest.
# SAN=asan|ubsan|tsan and CC=clang build into folders of their own; V=1 shows the commands.

VERSION := 0.1.0

SAN     ?=
ifeq ($(origin CC),default)
CC      := $(if $(filter tsan,$(SAN)),clang,gcc)# the thread sanitizer understands the OpenMP of clang, not that of gcc
endif
V       ?=
PREFIX  ?= /usr/local
BUILD   ?= build$(if $(SAN),-$(SAN))$(if $(findstring clang,$(CC)),-clang)
JOBS    ?= $(shell nproc)
PC      := hdf5 openblas jansson yaml-0.1 libpcre2-8 libutf8proc libcrypto

CFLAGS  ?= -O3 -g
# Warnings are errors with the compilers that brick is developed with; others warn about other things.
WERROR  ?= $(if $(filter gcc-12 clang-14,$(if $(findstring clang,$(CC)),clang,gcc)-$(shell $(CC) -dumpversion 2>/dev/null | cut -d. -f1)),-Werror)
WERROR  := $(WERROR)
WARN    := -Wall -Wextra $(WERROR) -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
SANFLAG.asan  := -fsanitize=address -fno-omit-frame-pointer
SANFLAG.ubsan := -fsanitize=undefined -fno-sanitize-recover=all
SANFLAG.tsan  := -fsanitize=thread -D__SANITIZE_THREAD__=1# which gcc defines itself
SANFLAG.fuzz  := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all -fprofile-instr-generate -fcoverage-mapping
SANFLAG := $(SANFLAG.$(SAN))
$(if $(SAN),$(if $(SANFLAG),,$(error SAN=$(SAN) is none of asan ubsan tsan)))
PKGCF   := $(shell pkg-config --cflags $(PC) 2>/dev/null)
PKGLD   := $(shell pkg-config --libs $(PC) 2>/dev/null)
ALLCF    = -std=c11 -D_GNU_SOURCE -DBK_IN_TREE -I. -fPIC -fopenmp -ffp-contract=off -fno-math-errno $(WARN) $(CFLAGS) $(SANFLAG) $(PKGCF)
LDLIBS   = $(SANFLAG) -fopenmp $(PKGLD) -lhdf5_hl -lm -lpthread -ldl
# For programs that load plugins: these find every function of the library in them.
PLUGGABLE = -rdynamic -Wl,--whole-archive $(BUILD)/libbrick.a -Wl,--no-whole-archive

LIBDIRS := backends/ref backends/cpu backends/guard autograd ops io quant blocks
LIBSRC  := $(sort $(foreach d,$(LIBDIRS),$(wildcard $(d)/*.c)))
EXPSRC  := $(filter-out experiments/main.c,$(sort $(wildcard experiments/*.c)))
LIBOBJ  := $(LIBSRC:%.c=$(BUILD)/obj/%.o)
EXPOBJ  := $(EXPSRC:%.c=$(BUILD)/obj/%.o)
# What is installed: headers that do not bring a library of one folder along.
HEADERS  = brick.h $(shell grep -L '^.include <\(hdf5\|jansson\|pcre2\|utf8proc\|openssl\|cblas\|omp\)' \
               $(wildcard backends/*.h backends/scalar/*.h $(foreach d,autograd ops io quant blocks,$(d)/*.h $(d)/*.def)))
# What the program prints of itself, and where under share/ it is looked for.
SHARED_TEXTS := man:man/man1/brick.1 bash:bash-completion/completions/brick zsh:zsh/site-functions/_brick
TESTSRC := $(sort $(wildcard tests/test_*.c))
TESTAUX := $(filter-out $(TESTSRC),$(sort $(wildcard tests/*.c)))
TESTBIN := $(TESTSRC:tests/%.c=$(BUILD)/tests/%)
TESTRUN := $(if $(BK_TEST),$(foreach t,$(TESTBIN),$(if $(findstring $(BK_TEST),$(notdir $(t))),$(t))),$(TESTBIN))
FUZZSRC := $(sort $(filter-out $(FUZZ_SKIP:%=tests/fuzz/%.c),$(wildcard tests/fuzz/fuzz_*.c)))
FUZZBIN := $(FUZZSRC:tests/fuzz/%.c=$(BUILD)/fuzz/%)

Q       := $(if $(V),,@)
say      = $(if $(V),,@printf '  %-5s %s\n' $(1) $(2))

export CC
ifeq ($(SAN),tsan)
export TSAN_OPTIONS ?= ignore_noninstrumented_modules=1
export CK_FORK      ?= no# clang's OpenMP tool for the sanitizer does not live through a fork
endif

# The variables above are read before a target can install anything, so targets that install call make once more.
PARALLEL = $(MAKE) --no-print-directory $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(JOBS))

.PHONY: no-libraries all test-build run-tests fuzz-build demo model test check bench comparison mutants fuzz install clean help setup
all: $(BUILD)/brick $(BUILD)/libbrick.a $(BUILD)/libbrick.so
	@:

no-libraries:
	@echo "brick needs pkg-config and $(PC): \`make setup\` installs what is missing" >&2; exit 1

$(BUILD)/obj/%.o: %.c $(if $(PKGLD),,| no-libraries)
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(ALLCF) -MMD -MP -c $< -o $@

$(BUILD)/libbrick.a: $(LIBOBJ)
	$(call say,AR,$@)
	$(Q)rm -f $@; ar rcs $@ $^

$(BUILD)/libbrick.so: $(LIBOBJ)
	$(call say,LINK,$@)
	$(Q)$(CC) -shared -o $@ $^ $(LDLIBS)

$(BUILD)/brick: $(BUILD)/obj/experiments/main.o $(EXPOBJ) $(BUILD)/libbrick.a
	$(call say,LINK,$@)
	$(Q)$(CC) -o $@ $(filter %.o,$^) $(PLUGGABLE) $(LDLIBS)

$(BUILD)/tests/%: $(BUILD)/obj/tests/%.o $(TESTAUX:%.c=$(BUILD)/obj/%.o) $(EXPOBJ) $(BUILD)/libbrick.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -o $@ $(filter %.o,$^) $(or $(LINK_ALL),$(BUILD)/libbrick.a) $$(pkg-config --libs check) $(LDLIBS)
$(BUILD)/tests/test_quantizer%: LINK_ALL = $(PLUGGABLE)

# Preloaded into the program by tests; without sanitizer, which must come first in a process.
$(BUILD)/tests/%.so: tests/preload/%.c
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -shared -fPIC $(WARN) -O1 $< -o $@

# Plugins, as docs/adding-a-quantizer.md has a user build them.
PLUGIN = $(CC) -shared -fPIC -O2 -ffp-contract=off -I . $(WARN) -MMD -MP -MF $(BUILD)/obj/plugin_$*.d $< -o $@
$(BUILD)/tests/plugin_%.so: examples/quantizer_%.c
	@mkdir -p $(@D) $(BUILD)/obj
	$(call say,LINK,$@)
	$(Q)$(PLUGIN)
$(BUILD)/tests/plugin_%.so: tests/plugins/%.c
	@mkdir -p $(@D) $(BUILD)/obj
	$(call say,LINK,$@)
	$(Q)$(PLUGIN)

$(BUILD)/fuzz/%: $(BUILD)/obj/tests/fuzz/%.o $(EXPOBJ) $(BUILD)/libbrick.a
	@mkdir -p $(@D)
	$(call say,LINK,$@)
	$(Q)$(CC) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)

TESTAIDS := $(BUILD)/brick $(patsubst tests/preload/%.c,$(BUILD)/tests/%.so,$(wildcard tests/preload/*.c)) \
            $(patsubst examples/quantizer_%.c,$(BUILD)/tests/plugin_%.so,$(wildcard examples/quantizer_*.c)) \
            $(BUILD)/tests/plugin_pow2.so $(BUILD)/tests/plugin_widen.so

test-build: $(TESTRUN) $(TESTAIDS)
fuzz-build: $(FUZZBIN)
run-tests: $(TESTRUN) $(TESTAIDS)
	@scripts/test.sh $(TESTRUN)

## make               the program build/brick and the libraries build/libbrick.a, .so; installs nothing
## make demo          all that is missing, then the main job on a real model (goes on where it was stopped)
demo:
	@scripts/setup.sh build
	@$(PARALLEL) all
	@exec scripts/demo.sh $(BUILD)/brick

## make test          all that is missing, then every test; BK_TEST=part-of-a-name picks programs, SAN=asan|ubsan|tsan, CC=clang
test:
	@scripts/setup.sh build test
	@$(PARALLEL) run-tests

## make setup         installs what building and testing need (Debian, Ubuntu: apt), and says what
setup:
	@scripts/setup.sh build test

## make model         the real model, once: models/SmolLM2-135M-Instruct.Q4_1.gguf
model:
	@scripts/setup.sh model
	@scripts/model.sh

## make check         layers, texts, scripts, an installed copy, a build by clang
check:
	@scripts/setup.sh build test
	@$(PARALLEL) all
	@MAKE="$(MAKE) --no-print-directory" JOBS=$(JOBS) tools/check.sh

## make bench         speed of a training step, and of GPTQ of a linear, against the machine's matrix products
bench: all
	$(BUILD)/brick bench --gptq 4096x14336

## make comparison    the tables of docs/comparison.md, hours: TEXTS=FOLDER with c4.jsonl and wiki.test.raw; goes on where it was stopped
comparison: all model
	@test -f "$(TEXTS)/c4.jsonl" -a -f "$(TEXTS)/wiki.test.raw" || { \
	    echo "make comparison TEXTS=FOLDER: a folder with c4.jsonl and wiki.test.raw (docs/comparison.md)" >&2; exit 2; }
	@test -L texts -o ! -e texts || { echo "texts is there and no link to a folder of texts: move it away" >&2; exit 2; }
	ln -sfn "$(abspath $(TEXTS))" texts
	$(BUILD)/brick sweep configs/comparison/full.yaml --out runs/comparison
	$(BUILD)/brick sweep configs/comparison/whole.yaml --out runs/comparison-whole
	$(BUILD)/brick sweep configs/comparison/causes.yaml --out runs/comparison-causes
	$(BUILD)/brick sweep configs/comparison/gptq.yaml --out runs/comparison-gptq

## make mutants       flips signs in backward code, one at a time, and demands red tests; MUTANTS=n SEED=s for a sample
mutants:
	@scripts/setup.sh build test
	@tools/mutate.sh

## make fuzz          fuzzes the readers with clang's libFuzzer, FUZZ_SECONDS=60 each, and prints their line coverage; FUZZ_SKIP="fuzz_x"
fuzz:
	@scripts/setup.sh build test
	@$(PARALLEL) CC=clang SAN=fuzz CFLAGS="-O1 -g" fuzz-build
	@scripts/fuzz.sh build-fuzz-clang $(notdir $(FUZZBIN))

## make install       program, manual page, completion, libraries, headers and brick.pc under PREFIX=/usr/local (DESTDIR too)
install: all
	install -D -m 755 $(BUILD)/brick $(DESTDIR)$(PREFIX)/bin/brick
	@for f in $(SHARED_TEXTS); do \
	    echo "$(BUILD)/brick completion $${f%%:*} >$(DESTDIR)$(PREFIX)/share/$${f#*:}"; \
	    mkdir -p "$$(dirname $(DESTDIR)$(PREFIX)/share/$${f#*:})" && \
	    $(BUILD)/brick completion $${f%%:*} >$(DESTDIR)$(PREFIX)/share/$${f#*:} || exit 1; done
	install -D -m 644 $(BUILD)/libbrick.a $(DESTDIR)$(PREFIX)/lib/libbrick.a
	install -D -m 755 $(BUILD)/libbrick.so $(DESTDIR)$(PREFIX)/lib/libbrick.so
	@for h in $(HEADERS); do install -D -m 644 $$h $(DESTDIR)$(PREFIX)/include/brick/$$h || exit 1; done
	@mkdir -p $(DESTDIR)$(PREFIX)/lib/pkgconfig
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@REQUIRES@|$(PC)|' scripts/brick.pc.in \
	    >$(DESTDIR)$(PREFIX)/lib/pkgconfig/brick.pc

## make clean         removes build/ and build-*/; models/, runs/ and cache/ stay
clean:
	rm -rf build build-*

help:
	@sed -n 's/^## //p' Makefile

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
.SECONDARY:
