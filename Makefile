# Thin names for what cargo and the scripts do. `make install PREFIX=/usr/local DESTDIR=`.
PREFIX ?= /usr/local
# What is installed names these places, to whoever looks from any folder.
override PREFIX := $(abspath $(PREFIX))
DESTDIR ?=
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
BINDIR ?= $(PREFIX)/bin
RELATIVE := $(filter-out /%,$(LIBDIR) $(INCLUDEDIR) $(BINDIR))
ifneq ($(RELATIVE),)
$(error LIBDIR, INCLUDEDIR and BINDIR are absolute paths; $(RELATIVE) is not)
endif
CARGO ?= cargo
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# The major number of the C interface, in the SONAME that build.rs sets.
ABI := 1
RELEASE := $(or $(CARGO_TARGET_DIR),target)/release
# From where the CMake package lies, so that a tree can be moved.
TO_INCLUDEDIR = $$(realpath -ms --relative-to=$(LIBDIR)/cmake/Ringcomm $(INCLUDEDIR))
FILL = sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' \
	-e 's|@INCLUDEDIR@|$(INCLUDEDIR)|g' -e "s|@TO_INCLUDEDIR@|$(TO_INCLUDEDIR)|g" -e 's|@VERSION@|$(VERSION)|g' -e 's|@ABI@|$(ABI)|g'

.PHONY: all build test check header docs bench perf install uninstall clean
all: build

build:
	$(CARGO) build --release
	$(CARGO) build --release -p ringcomm-nccl

test:
	scripts/test

# What a commit is soonest refused for, in a minute.
check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	$(CARGO) clippy --quiet --test cuda --test kernels --test namespaces -- -D warnings
	$(CARGO) test --quiet --test tidy --test configuration
	$(CARGO) test --quiet -p ringcomm-abi --test header

# Write include/ringcomm.h anew from src/ffi.
header:
	$(CARGO) run --quiet -p ringcomm-abi

# Write docs/configuration.md anew from src/config.rs.
docs:
	WRITE_DOCS=1 $(CARGO) test --quiet --test configuration

bench:
	$(CARGO) bench -p ringcomm-benches

perf:
	$(CARGO) build --release
	$(RELEASE)/ring-perf

# What has NCCL's name is in a folder of its own, where no linker finds it unasked.
install: build
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(LIBDIR)/cmake/Ringcomm \
		$(DESTDIR)$(LIBDIR)/ringcomm $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(BINDIR)
	install -m 755 $(RELEASE)/libringcomm.so $(DESTDIR)$(LIBDIR)/libringcomm.so.$(ABI).$(VERSION)
	ln -sf libringcomm.so.$(ABI).$(VERSION) $(DESTDIR)$(LIBDIR)/libringcomm.so.$(ABI)
	ln -sf libringcomm.so.$(ABI) $(DESTDIR)$(LIBDIR)/libringcomm.so
	install -m 755 $(RELEASE)/libringcomm_nccl.so $(DESTDIR)$(LIBDIR)/ringcomm/libnccl.so.2
	install -m 644 include/ringcomm.h include/ringcomm.hpp $(DESTDIR)$(INCLUDEDIR)
	$(FILL) cbindings/ringcomm.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/ringcomm.pc
	$(FILL) cbindings/RingcommConfig.cmake.in \
		> $(DESTDIR)$(LIBDIR)/cmake/Ringcomm/RingcommConfig.cmake
	$(FILL) cbindings/RingcommConfigVersion.cmake.in \
		> $(DESTDIR)$(LIBDIR)/cmake/Ringcomm/RingcommConfigVersion.cmake
	install -m 755 $(RELEASE)/ring-perf $(RELEASE)/ringrun $(DESTDIR)$(BINDIR)

uninstall:
	rm -f $(DESTDIR)$(LIBDIR)/libringcomm.so $(DESTDIR)$(LIBDIR)/libringcomm.so.$(ABI)* \
		$(DESTDIR)$(INCLUDEDIR)/ringcomm.h $(DESTDIR)$(INCLUDEDIR)/ringcomm.hpp \
		$(DESTDIR)$(LIBDIR)/pkgconfig/ringcomm.pc \
		$(DESTDIR)$(BINDIR)/ring-perf $(DESTDIR)$(BINDIR)/ringrun \
		$(DESTDIR)$(LIBDIR)/ringcomm/libnccl.so.2
	rm -rf $(DESTDIR)$(LIBDIR)/cmake/Ringcomm
	test ! -d $(DESTDIR)$(LIBDIR)/ringcomm || rmdir --ignore-fail-on-non-empty $(DESTDIR)$(LIBDIR)/ringcomm

clean:
	$(CARGO) clean
