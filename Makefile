# The two main commands are `make demo` and `make test`; `make help` lists the others. Each installs the
# packages that it needs (./setup) and may be run repeatedly.

CARGO ?= cargo
# The DPDK port, Parquet and TLS are features, with which the tests are built. The lints run twice: with all
# features, and for weir itself with none (and without labs and benchmarks). No code is specific to another
# combination.
ALL := --workspace --all-targets --locked
FEATURES := --features dpdk,parquet,tls
# Incremental compilation makes a clean build slower, so it is disabled here, unless its files show that
# someone develops in this folder with cargo directly: there, it pays.
ifeq ($(wildcard $(or $(CARGO_TARGET_DIR),target)/debug/incremental/*),)
export CARGO_INCREMENTAL ?= 0
endif
TEST := $(CARGO) test --workspace --locked --no-fail-fast $(FEATURES)
# The seed of the property tests. `make test` gives the same result for the same tree; `make explore` uses a
# new seed each time and finds bugs that this seed does not.
SEED ?= 1
FUZZ_SECONDS ?= 300
SOAK_SECONDS ?= 600
# cargo-fuzz and cargo-deny are installed in target/, so that the user's own tools stay as they are. The
# inputs that fuzzers find are also there, so that the corpora in the repository stay small.
TOOLS := $(CURDIR)/target/tools
STAGE = @printf '\n== %s\n'

.DEFAULT_GOAL := help
.PHONY: help demo test setup-test test-kernels test-arm64 test-kube manifests lint fmt clippy lock check \
    waiting others deny explore test-long soak fuzz deb dist dist-check test-package cargo-deb bench site

help: ## lists the commands
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/make \1: \2/p' Makefile

# Built without benchmarks and simulations, which the demo does not need. KEEP=1 keeps it running until
# Ctrl-C, and prints the addresses of its web pages.
demo: ## balances real DNS queries over three name servers, in network namespaces (root)
	@./setup --for demo
	$(CARGO) build --profile demo --locked --package weir --no-default-features --features lab
	@target="$${CARGO_TARGET_DIR:-target}" && "$$target/demo/weir" lab dns $(if $(KEEP),--keep)
	@[ -n '$(KEEP)' ] || printf '%s\n' 'Its daemons have ended, so there is no page to open.' \
	    '`make demo KEEP=1` keeps them running, and prints the addresses of their web pages.'

# The lints run in a lane of `check`, because tests that wait leave a processor idle.
test: BESIDE = clippy
test: setup-test fmt lock check ## builds everything and runs every test (as root, also the labs)
	$(STAGE) 'all tests have passed'

setup-test:
	$(STAGE) setup
	@./setup --for test

lint: fmt clippy lock ## checks formatting and lints

fmt:
	$(STAGE) formatting
	$(CARGO) fmt --all --check

clippy:
	$(STAGE) lints
	$(CARGO) clippy $(ALL) $(FEATURES) -- -D warnings
	$(CARGO) clippy --package weir --no-default-features --locked -- -D warnings

# The fuzzers have their own workspace, and so a lock file that no other command checks.
lock:
	$(STAGE) 'lock file of the fuzzers'
	$(CARGO) metadata --manifest-path fuzz/Cargo.toml --locked --format-version 1 >/dev/null

# Tests of daemons and labs mostly wait, so the others run beside them, then the test of the package and the
# targets that BESIDE names. Without root, labs are skipped, except in CI, where they fail.
check: export PROPTEST_RNG_SEED = $(SEED)
check:
	$(STAGE) 'building the tests'
	$(TEST) --tests --no-run
	$(STAGE) 'examples in documentation'
	$(TEST) --doc
	@[ "$$(id -u)" = 0 ] || echo 'labs are skipped: they need root'
	$(STAGE) 'two lanes of tests, each of which prints when it ends'
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync waiting others \
	    test-package $(BESIDE)

waiting:
	$(STAGE) 'daemons and labs'
	$(TEST) --test cli --test 'lab_*'

# All tests that `waiting` does not run. A test in tidy checks that the patterns together match every test.
others:
	$(STAGE) 'unit and property tests, golden walks, corpora'
	$(TEST) --lib --bins --test '[!cl]*' --test 'c[!l]*' --test 'l[!a]*'

# The built page is checked in, so that building weir needs no Node.js. A test compares it with its sources.
.PHONY: page
page: ## builds the web page from crates/page/web (Node.js 20 or newer, and npm)
	cd crates/page/web && npm ci --ignore-scripts --no-audit --no-fund && npx tsc -p . && npm run build

# The program is the same as that of `make dist`. `weir --version` prints the commit. An empty DBGSYM leaves
# out the package with the debug symbols.
deb: export CARGO := $(CARGO)
deb: cargo-deb ## builds target/debian/weir_VERSION_ARCHITECTURE.deb, and its debug symbols
	@./setup --for deb
	@target="$${CARGO_TARGET_DIR:-target}"; export PATH="$(TOOLS)/bin:$$PATH" DBGSYM="$${DBGSYM-1}"; \
	    ONLY=weir packaging/dist/compile "$$target/deb-programs" && \
	    packaging/deb/build "$$target/deb-programs/weir" "$$target/debian"

# Run this on Debian 12: a program needs the C library of the system on which it was compiled, or a newer one.
# ARCH=arm64 cross-compiles the packages and the archive, into target/dist-arm64.
ifeq ($(ARCH),arm64)
DIST := dist-arm64
dist: export RUNNER := qemu-aarch64-static -L /usr/aarch64-linux-gnu
DIST_TARGET := aarch64-unknown-linux-gnu
else
DIST := dist
endif
dist: export CARGO := $(CARGO)
dist: cargo-deb ## builds the release in target/dist: packages, archive, image, SBOM; the last line is JSON
	@case '$(ARCH)' in ''|arm64) ;; *) echo 'ARCH is arm64, or empty for this machine'; exit 2 ;; esac
	@./setup --for $(DIST)
	@PATH=$(TOOLS)/bin:$$PATH && packaging/dist/compile target/$(DIST)-programs $(DIST_TARGET) && \
	    packaging/dist/package target/$(DIST)-programs target/$(DIST) $(DIST_TARGET)

# Compiles everything twice, so it takes twice as long as `make dist`.
dist-check: cargo-deb ## builds the release of this commit in two folders, and compares both byte for byte
	@./setup --for dist
	@PATH=$(TOOLS)/bin:$$PATH CARGO='$(CARGO)' packaging/dist/check

# The version is fixed, because another one may make other bytes from the same files.
CARGO_DEB := 3.8.0
cargo-deb:
	@[ "$$($(TOOLS)/bin/cargo-deb --version 2>/dev/null)" = 'cargo-deb $(CARGO_DEB)' ] || \
	    $(CARGO) install --locked --root $(TOOLS) --version '=$(CARGO_DEB)' cargo-deb

# Packages the binary that the tests use, so that nothing more is compiled, or WEIR if it is set. With
# STRICT=1, the test also fails if the installation takes more than three minutes.
test-package: cargo-deb ## installs, upgrades and purges the package in a new root file system (root)
	$(STAGE) 'the package in a new root file system'
	$(TEST) --test '*' --no-run
	@$(CARGO) fetch --locked --quiet
	@PATH=$(TOOLS)/bin:$$PATH CARGO='$(CARGO)' tests/package/dist
	@PATH=$(TOOLS)/bin:$$PATH CARGO='$(CARGO)' STRICT='$(STRICT)' \
	    tests/package/run "$${WEIR:-$${CARGO_TARGET_DIR:-target}/debug/weir}" $(UPGRADES)

# LONG=1 runs the long form; ONLY='lab bond' runs only the parts whose names begin with this
# (tests/kernels/parts). `--no-run` prints the path of each test program in brackets. The programs are those
# of `make test`, so nothing more is compiled. Of the unit tests, only those of weir-bpf and weir-kernel run.
KERNEL_TESTS := acl decap equality flow impair kernel kernel_peers overlay path paths samples tunnels \
    two_ports xdp_generate xdp_take
test-kernels: ## runs a short form of every lab, and comparisons, under Debian's own kernel, emulated (root)
	@./setup --for kernels
	@target="$${CARGO_TARGET_DIR:-$(CURDIR)/target}"; mkdir -p "$$target/kernels"; \
	    $(TEST) --no-run --lib $(KERNEL_TESTS:%=--test %) 2>"$$target/kernels/tests" || \
	        { cat "$$target/kernels/tests"; exit 1; }; \
	    tests=$$(sed -n -e '/ unittests /{/weir_bpf-\|weir_kernel-/!d}' \
	        -e 's|^ *Executable .*(\(.*\))$$|\1|p' "$$target/kernels/tests" | tr '\n' ' '); \
	    FOLDER="$$target/kernels" LIMIT=$${LIMIT:-$${LONG:+43200}} tests/kernels/boot "cd '$(CURDIR)' && \
	        LONG='$(LONG)' ONLY='$(ONLY)' tests/kernels/parts '$$target/debug/weir' $$tests"

# The unit tests alone: others load programs into the kernel or create network namespaces, which QEMU's
# emulation of Linux cannot.
test-arm64: ARM64 = CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU
test-arm64: ## compiles weir for arm64 and runs its unit tests, emulated
	@./setup --for dist-arm64
	$(ARM64)_LINKER=aarch64-linux-gnu-gcc $(ARM64)_RUNNER='qemu-aarch64-static -L /usr/aarch64-linux-gnu' \
	    $(CARGO) test --target aarch64-unknown-linux-gnu --workspace --locked --no-fail-fast \
	    --features parquet,tls --lib --bins

# KUBE_SERVICES=10000 sets the number of services in the last part of the test. The programs are optimised,
# because the test also prints how soon packets follow a change.
test-kube: ## runs weir-kube with a real API server of Kubernetes, which is built once, from Go (root)
	@./setup --for kube
	$(CARGO) build --release --locked --package weir --no-default-features
	$(CARGO) test --release --locked --package weir-kube --test api_server --no-run
	@target="$${CARGO_TARGET_DIR:-$(CURDIR)/target}"; mkdir -p "$$target/kube"; export FOLDER="$$target/kube"; \
	    tests/kube/manifests check && WEIR="$$target/release/weir" tests/kube/serve $(CARGO) test --release \
	    --manifest-path '$(CURDIR)/Cargo.toml' --locked --package weir-kube --test api_server \
	    -- --ignored --nocapture

# `make test` checks the result as far as that needs neither Helm nor a cluster; `make test-kube` checks the
# rest.
manifests: ## renders the kustomize manifests from the Helm chart; run it after changing the chart (needs Go)
	@FOLDER="$${CARGO_TARGET_DIR:-$(CURDIR)/target}/kube" tests/kube/manifests write

# The build checks links; `make test` runs it without mdBook, and runs the commands of the tutorials.
site: ## builds the documentation site, target/site/html/VERSION, with search and generated references
	@[ -x $(TOOLS)/bin/mdbook ] || $(CARGO) install --locked --root $(TOOLS) --version '^0.5' \
	    --no-default-features --features search mdbook
	$(CARGO) build --locked --package weir
	@target="$${CARGO_TARGET_DIR:-target}"; \
	    packaging/site/build "$$target/debug/weir" $(TOOLS)/bin/mdbook "$$target/site/html"

deny: ## checks advisories, licences, duplicates and sources of dependencies (deny.toml; needs the network)
	@PATH=$(TOOLS)/bin:$$PATH; command -v cargo-deny >/dev/null || \
	    $(CARGO) install --locked --root $(TOOLS) cargo-deny
	PATH=$(TOOLS)/bin:$$PATH cargo-deny check

# `make check SEED=N` repeats a run. With CASES, only the program in the kernel is compared with the
# interpreter, on this number of packets; KERNEL_FIRST is the first seed to repeat.
explore: setup-test ## runs the tests with a new seed; CASES=100000000 only compares packets in the kernel
	@seed=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '); printf '\n== seed %s\n' "$$seed"; \
	    if [ -z "$(CASES)" ]; then $(MAKE) --no-print-directory check SEED="$$seed"; else \
	    PROPTEST_RNG_SEED="$$seed" KERNEL_CASES="$(CASES)" $(CARGO) test --package weir-kernel --locked \
	        --test equality -- --nocapture the_kernel_does_what_the_interpreter_says; fi

# On two cores with a load of 10, each run of `weir lab fleet` takes two to six minutes.
FLEET = $(CARGO) run --release --locked --package weir -- lab fleet
test-long: setup-test ## reloads and takeovers under load, upgrades, a fleet, programs, Debian's kernel (root)
	$(MAKE) --no-print-directory test-package UPGRADES=20 STRICT=1
	$(CARGO) run --release --locked --package weir -- bench executors reloads takeovers --reloads 1000 \
	    --takeovers 100 --strict
	$(CARGO) test --package weir --locked --test cli -- --ignored --nocapture a_hundred_takeovers
	$(CARGO) test --package weir --locked --test cli -- --ignored --nocapture twenty_upgrades
	$(FLEET) --connections 2000
	$(FLEET) --mode ipip --connections 2000 --ecmp resilient
	$(FLEET) --mode full_nat --connections 1000 --ecmp plain
	$(FLEET) --nodes 8
	$(FLEET) --router frr
	$(FLEET) --family 6
	$(FLEET) --mode l2 --rate 1000 --requests 100000
	OPENFLOW_PROGRAMS=5000 $(CARGO) test --package weir-openflow --locked --test equality -- --nocapture
	KERNEL_PROGRAMS=10000 KERNEL_MUTATED=1500 $(CARGO) test --package weir-kernel --locked --test equality -- \
	    --nocapture
	$(MAKE) --no-print-directory test-kernels LONG=1

# With several arenas, memory grows by about 9 MB whenever the allocator gives a thread another one, which
# would look like a leak, or hide one.
soak: setup-test ## runs a daemon for SOAK_SECONDS (600) of reloads, changes and links that come and go (root)
	MALLOC_ARENA_MAX=1 SOAK_SECONDS=$(SOAK_SECONDS) $(CARGO) test --package weir --locked --test cli -- \
	    --ignored --nocapture soak

# The summary has a line for each fuzzer: executions, edges, and after how many executions the last new edge
# was found. FUZZERS names the fuzzers to run (default: all).
fuzz: setup-test ## runs every fuzzer for FUZZ_SECONDS (300) on the nightly toolchain
	@$(CARGO) +nightly --version >/dev/null 2>&1 || \
	    { echo "the fuzzers need a nightly toolchain: 'rustup toolchain install nightly'"; exit 1; }
	@[ -x $(TOOLS)/bin/cargo-fuzz ] || $(CARGO) install --locked --root $(TOOLS) cargo-fuzz
	@mkdir -p target/fuzz; : >target/fuzz/summary
	@fuzzers=$${FUZZERS:-$$(PATH=$(TOOLS)/bin:$$PATH $(CARGO) +nightly fuzz list)} || exit 1; \
	for fuzzer in $$fuzzers; do \
	    printf '\n== fuzzer %s\n' "$$fuzzer"; \
	    found="target/fuzz/$$fuzzer"; mkdir -p "$$found"; log="target/fuzz/$$fuzzer.log"; \
	    PATH=$(TOOLS)/bin:$$PATH $(CARGO) +nightly fuzz run "$$fuzzer" "$$found" "fuzz/corpus/$$fuzzer" \
	        -- -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 >"$$log" 2>&1 \
	        || { tail -n 60 "$$log"; exit 1; }; \
	    awk -v name="$$fuzzer" -f fuzz/summary.awk "$$log" | tee -a target/fuzz/summary; \
	done

bench: setup-test ## measures the engine, ports against dpdk-testpmd, and a bond against Open vSwitch
	$(CARGO) run --release --locked --features dpdk --package weir -- bench engine
	$(CARGO) run --release --locked --features dpdk --package weir -- bench xdp
	$(CARGO) run --release --locked --features dpdk --package weir -- bench bond
