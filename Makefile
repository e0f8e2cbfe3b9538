# The two commands are `make demo` and `make test`; `make help` lists the others. All of them install what they need
# (./setup) and may be run again at any time.

CARGO ?= cargo
# The DPDK port is a feature, and built on the way to the tests so that it never rots; a weir without labs and benches is
# linted for the same reason.
ALL := --workspace --all-targets --locked
FUZZ_SECONDS ?= 300
# cargo-fuzz lives in target/, not among the user's own tools; so does what it finds interesting, corpora are kept small.
FUZZ_TOOLS := $(CURDIR)/target/tools
STAGE = @printf '\n== %s\n'

.DEFAULT_GOAL := help
.PHONY: help demo test setup-test lint fmt clippy check fuzz bench

help: ## says this
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1: \2/p' Makefile

demo: ## real DNS queries through weir to three name servers, in network namespaces (root)
	@./setup --for demo
	$(CARGO) build --release --locked --package weir
	@target="$${CARGO_TARGET_DIR:-target}" && "$$target/release/weir" lab dns

test: setup-test lint check ## builds everything and runs every test (as root: the labs too)
	$(STAGE) 'all tests have passed'

setup-test:
	$(STAGE) setup
	@./setup --for test

lint: fmt clippy ## formatting and lints

fmt:
	$(STAGE) formatting
	$(CARGO) fmt --all --check

clippy:
	$(STAGE) lints
	$(CARGO) clippy $(ALL) -- -D warnings
	$(CARGO) clippy $(ALL) --features dpdk -- -D warnings
	$(CARGO) clippy --package weir --all-targets --no-default-features --locked -- -D warnings

# Fast ones first. The tests in tests/ include the labs, which skip themselves without root, and fail then in CI.
check:
	$(STAGE) 'unit and property tests'
	$(CARGO) test --workspace --locked --features dpdk --lib --bins
	$(CARGO) test --workspace --locked --features dpdk --doc
	$(STAGE) 'golden walks, corpora, labs'
	@[ "$$(id -u)" = 0 ] || echo 'labs are skipped: they need root'
	$(CARGO) test --workspace --locked --features dpdk --test '*'

fuzz: setup-test ## runs every fuzzer for FUZZ_SECONDS (300) on the nightly toolchain
	@$(CARGO) +nightly --version >/dev/null 2>&1 || \
	    { echo "the fuzzers need a nightly toolchain: 'rustup toolchain install nightly'"; exit 1; }
	@[ -x $(FUZZ_TOOLS)/bin/cargo-fuzz ] || $(CARGO) install --locked --root $(FUZZ_TOOLS) cargo-fuzz
	@for fuzzer in $$(PATH=$(FUZZ_TOOLS)/bin:$$PATH $(CARGO) +nightly fuzz list); do \
	    printf '\n== fuzzer %s\n' "$$fuzzer"; \
	    found="target/fuzz/$$fuzzer"; mkdir -p "$$found"; \
	    PATH=$(FUZZ_TOOLS)/bin:$$PATH $(CARGO) +nightly fuzz run "$$fuzzer" "$$found" "fuzz/corpus/$$fuzzer" \
	        -- -max_total_time=$(FUZZ_SECONDS) || exit 1; \
	done

bench: setup-test ## the engine's numbers on this machine, DPDK and AF_XDP ports beside dpdk-testpmd's, a bond beside Open vSwitch's
	$(CARGO) run --release --locked --features dpdk --package weir -- bench engine
	$(CARGO) run --release --locked --features dpdk --package weir -- bench xdp
	$(CARGO) run --release --locked --features dpdk --package weir -- bench bond
