# The longer jobs, by name. `make help` lists them.
#
# CARGO_TARGET_DIR is honoured. Everything works from a fresh clone on Debian with Rust installed.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CARGO ?= cargo
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
# The models of the protocols between threads: every crate that has tests/loom_models.
LOOM_CRATES = $(patsubst crates/%/tests/loom_models/main.rs,%,$(wildcard crates/*/tests/loom_models/main.rs))
# How often `make test-crash` kills a daemon, how many rounds of power cuts it makes, and how large fio's
# files are.
CRASH_KILLS ?= 300
CRASH_ROUNDS ?= 100
CRASH_FIO_MIB ?= 48
# How often `make test-object-crash` kills a daemon, the server of a volume of objects, or both.
OBJECT_CRASH_ROUNDS ?= 300
ODD_STORE_ROUNDS ?= 1000
ODD_STORE_TEST = an_odd_store_loses_hides_and_makes_up_nothing
# How long each part of `make test-together` makes new rounds, and the seed of one round to repeat
# instead. CI takes 30 on each kind of mount and 120 for the engine; an hour by hand is `make test-together TOGETHER_SECONDS=1200`.
TOGETHER_SECONDS ?= 600
TOGETHER_SEED ?=
# The seed of the first new round; from the clock if it is not given. `make test` repeats the same
# rounds each time.
TOGETHER_FIRST ?=
# The cache that keeps file pages in the half on real mounts: own, kernel, or exclusive for the kernel's with --exclusive.
TOGETHER_PAGE_CACHE ?= own
# How many pods come and go under writes in `make test-csi`.
CSI_CYCLES ?= 500
# How long `make fuzz` makes new inputs, all targets together, and the seed of a run to repeat.
FUZZ_SECONDS ?= 60
FUZZ_SEED ?=
FUZZ_TARGETS ?= $(patsubst fuzz/fuzz_targets/%.rs,%,$(wildcard fuzz/fuzz_targets/*.rs))
# How long the POSIX suites and the benchmarks run; CI makes both short.
POSIX_SCALE ?= full
# The program that the POSIX suites use: that of the tests, or `release`.
PROFILE ?= debug
BENCH_SCALE ?= 1
# How often `make flaky` runs the whole suite, and each test program of less than ten seconds.
FLAKY_RUNS ?= 30
FLAKY_REPEATS ?= 300

# Every test, check and fuzz target is built of this selection: with another, libraries would have other features, and
# would be built again.
ALL = --locked --workspace --features umemcg-cli/csi,umemcg-cli/object
# Programs for the checks. With a test among what is built, libraries have the features that they have in tests: without one
# they would all be built again.
BUILD = $(CARGO) build $(ALL) --test locking_doc
# Each test is a process of its own (.config/nextest.toml).
NEXTEST = $(CARGO) nextest run $(ALL)
export PATH := $(abspath $(TARGET))/tools:$(PATH)
# The workspaces beside this one share the place of what they build.
BESIDE = CARGO_TARGET_DIR="$(abspath $(TARGET))/beside" $(CARGO)

.PHONY: help run test deps-test flaky test-c install-c test-python test-kernel-pages loom scale test-posix test-crash test-together test-together-engine test-together-mount test-together-objects test-metrics test-names test-object test-object-crash run-object test-csi fuzz test-embed test-rocksdb test-datafusion bench-datafusion test-cluster run-cluster bench bench-object experiments experiments-small results-age figures lint check-portable package check-packages deps build generated deb test-deb image test-image install nightly clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */\1\t/' | expand -t 14

deps: ## install what is missing (gcc, git, fuse3, sqlite3 …) from Debian's packages
	@scripts/deps.sh

# The program that runs the tests.
deps-test: deps
	@scripts/deps.sh --test

build: ## the optimised program, in target/release/umemcg; needs Rust and a C compiler, and installs nothing
	$(CARGO) build --release --locked -p umemcg-cli

run: deps build ## build, then show a real mount with two groups and real programs in them
	$(TARGET)/release/umemcg demo

# The development profile: it builds fast, and its assertions (lock ranks, accounting) are on.
test: deps-test ## unit, property and real-mount tests, and the examples of the documentation
	$(NEXTEST)
	$(CARGO) test $(ALL) --doc

flaky: deps-test ## repeat the suite FLAKY_RUNS times, every second time beside load, which is each short test program FLAKY_REPEATS times; names what failed once
	scripts/flaky.py $(FLAKY_RUNS) $(FLAKY_REPEATS) "$(TARGET)/flaky" $(NEXTEST)

test-kernel-pages: deps-test ## the real-mount tests again, with the kernel's page cache in place of the daemon's
	UMEMCG_TEST_PAGE_CACHE=kernel $(NEXTEST) -E 'package(umemcg-cli) & test(/^(real_mount|crash)::/)'

loom: ## every interleaving of the protocols between threads, on the shipped types
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$(TARGET)/loom" $(CARGO) test --profile loom --locked \
		$(addprefix -p ,$(LOOM_CRATES)) --test loom_models

scale: deps-test ## ten thousand volumes in one daemon, of directories and of objects, and a listing of ten million objects
	$(NEXTEST) --run-ignored only --no-capture -E 'test(/^real_mount::.*ten_(thousand|million)/)'

test-posix: deps ## pjdfstest and fsx on real mounts: a directory in a group that reclaims all the time, with either page cache, a tmpfs volume, and a volume of objects
	$(BUILD) $(if $(filter release,$(PROFILE)),--release) --bin umemcg
	TARGET="$(TARGET)" PROFILE="$(PROFILE)" POSIX_SCALE="$(POSIX_SCALE)" scripts/posix.sh

test-crash: deps-test ## hundreds of kills of a daemon under load, thousands of power cuts with new seeds; every file checked
	UMEMCG_CRASH_KILLS="$(CRASH_KILLS)" UMEMCG_CRASH_FIO_MIB="$(CRASH_FIO_MIB)" \
		$(NEXTEST) --no-capture -E 'package(umemcg-cli) & test(/^crash::/)'
	UMEMCG_CRASH_ROUNDS="$(CRASH_ROUNDS)" $(NEXTEST) --no-capture -E 'test(/^crash::.*cut/) | test(/^power_cut::/)'

test-together: test-together-engine test-together-mount test-together-objects ## everything at once against a sequential model, in three parts, TOGETHER_SECONDS each

# A build of its own: every lock, atomic and look at the clock is the scheduler's.
test-together-engine: deps ## the half in one process, under a scheduler that a seed repeats exactly
	RUSTFLAGS="--cfg schedule" CARGO_TARGET_DIR="$(TARGET)/schedule" \
		UMEMCG_TOGETHER_SECONDS="$(TOGETHER_SECONDS)" $(if $(TOGETHER_SEED),UMEMCG_TOGETHER_SEED="$(TOGETHER_SEED)") \
		$(if $(TOGETHER_FIRST),UMEMCG_TOGETHER_FIRST="$(TOGETHER_FIRST)") \
		$(CARGO) test --profile loom --locked -p umemcg --test together -- --nocapture

# The same against a real mount: processes, kernel and host are not the scheduler's, so a seed repeats what threads do, not when.
test-together-mount: deps-test ## the half on real mounts, with a daemon that is killed again and again
	UMEMCG_TEST_PAGE_CACHE="$(TOGETHER_PAGE_CACHE)" UMEMCG_TOGETHER_SECONDS="$(TOGETHER_SECONDS)" $(if $(TOGETHER_SEED),UMEMCG_TOGETHER_SEED="$(TOGETHER_SEED)") \
		$(if $(TOGETHER_FIRST),UMEMCG_TOGETHER_FIRST="$(TOGETHER_FIRST)") \
		$(NEXTEST) --no-capture -E 'package(umemcg-cli) & test(/^together::/)'

# Threads run as the system lets them: a seed repeats what they do, not when.
test-together-objects: deps-test ## the same for volumes of objects, above a bucket in memory that fails and that another program changes
	UMEMCG_TOGETHER_SECONDS="$(TOGETHER_SECONDS)" $(if $(TOGETHER_SEED),UMEMCG_TOGETHER_SEED="$(TOGETHER_SEED)") \
		$(if $(TOGETHER_FIRST),UMEMCG_TOGETHER_FIRST="$(TOGETHER_FIRST)") \
		$(NEXTEST) --no-capture -E 'test(/^object_together::/)'

test-metrics: deps-test ## a real Prometheus scrapes a mount, and answers queries
	@scripts/deps.sh --metrics
	$(NEXTEST) --run-ignored only -E 'package(umemcg-cli) & test(/^real_mount::metrics::/)'

# The key of the account that each Azurite has, from its documents.
AZURITE_KEY = Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==
# For the servers and the clients of the tests alike.
OBJECT_ENVIRONMENT = OBJECT_SERVERS="$(abspath $(TARGET))/object-servers" \
	AWS_ACCESS_KEY_ID=umemcg-test AWS_SECRET_ACCESS_KEY=umemcg-test-secret \
	AZURE_STORAGE_ACCOUNT_NAME=devstoreaccount1 AZURE_STORAGE_ACCOUNT_KEY=$(AZURITE_KEY)

# What needs a server, and is left out of `make test` for that.
OBJECT_TESTS = package(umemcg-object) | package(umemcg-cli) & test(/^(real_mount::(object|stag|synthetic|close_on_exec)|object_crash::)/) - test(/ten_(thousand|million)/)

test-object: deps-test ## volumes of objects, on real servers (moto, SeaweedFS, Azurite, fake-gcs-server) and through a real mount
	@scripts/deps.sh --object
	$(OBJECT_ENVIRONMENT) $(NEXTEST) --run-ignored only -E '$(OBJECT_TESTS)'

test-object-crash: deps-test ## hundreds of kills of a daemon under load, of the server of its volume of objects, and of both; every file checked
	@scripts/deps.sh --object
	$(OBJECT_ENVIRONMENT) UMEMCG_OBJECT_CRASH_ROUNDS="$(OBJECT_CRASH_ROUNDS)" \
		$(NEXTEST) --run-ignored all --no-capture -E 'test(/^object_crash::/)'

test-odd-store: deps-test ## a volume above a store whose answers are odd in every way, by chance, ODD_STORE_ROUNDS times (in `make test` a few)
	@failed=-; UMEMCG_ODD_STORE_ROUNDS="$(ODD_STORE_ROUNDS)" $(NEXTEST) -E 'test($(ODD_STORE_TEST))' || failed=$(ODD_STORE_TEST); \
	if [ -n "$${CI_RECORD:-}" ]; then \
		printf '%s\t%s\todd-store, seed %s\t%s\t%s\n' \
			"$$(git rev-parse --short HEAD)$$(git diff --quiet HEAD -- . ':!.ci' || echo +)" "$$(date +%F)" \
			"$${UMEMCG_ODD_STORE_SEED:-1}" "$(ODD_STORE_ROUNDS)" "$$failed" >>.ci/flaky.tsv; \
	fi; \
	[ "$$failed" = - ]

run-object: deps ## a bucket as a volume of two tenants: a server, a mount, who holds what; cleans up
	@scripts/deps.sh --object
	$(CARGO) build --release --locked -p umemcg-cli --features object
	scripts/run_object.sh "$(TARGET)/release/umemcg" "$(abspath $(TARGET))/object-servers"

test-csi: deps-test ## the CSI plugin beyond `make test`: CSI_CYCLES pods under writes, csi-sanity, the manifests (needs Go)
	@scripts/deps.sh --csi
	UMEMCG_CSI_CYCLES="$(CSI_CYCLES)" $(NEXTEST) -E 'package(umemcg-cli) & test(/^csi::cycles/)'
	@# The program that the tests above have built.
	scripts/csi.sh "$(TARGET)/debug/umemcg" "$(abspath $(TARGET))/csi-tools"

test-names: deps ## half a million names known at once, and walked from a group of 16 MiB; empties the caches of the host
	$(CARGO) test --release --locked -p umemcg-cli --test all -- --ignored --nocapture --test-threads=1 half_a_million

test-c: ## the C library as programs use it: installed, plain, with sanitizers, under valgrind
	@scripts/deps.sh --c
	cd bindings && $(CARGO) fmt --all --check
	cd bindings && $(BESIDE) clippy --locked --workspace --all-targets -- -D warnings
	cd bindings && $(BESIDE) test --locked --workspace
	cd bindings && $(BESIDE) build --locked --lib -p umemcg-c
	CARGO_TARGET_DIR="$(abspath $(TARGET))/beside" bindings/c/test.sh

install-c: ## install libumemcg.so, libumemcg.a, umemcg.h and umemcg.pc below PREFIX (default /usr/local)
	cd bindings && $(BESIDE) build --release --locked --lib -p umemcg-c
	DESTDIR="$(DESTDIR)" bindings/c/install.sh "$(abspath $(TARGET))/beside/release" $(or $(PREFIX),/usr/local)

test-python: ## the Python package in a clean virtual environment: its tests, and mypy on its hints
	@scripts/deps.sh --python
	cd python && $(CARGO) fmt --check
	cd python && $(BESIDE) clippy --locked --all-targets -- -D warnings
	CARGO_TARGET_DIR="$(abspath $(TARGET))/beside" python/test.sh "$(abspath $(TARGET))/python-venv"

fuzz: deps ## random requests, control writes, configurations, rules and /proc files (FUZZ_SECONDS in all)
	$(BUILD) $(FUZZ_TARGETS:%=--bin %)
	@status=0; for target in $(FUZZ_TARGETS); do \
		FUZZ_SECONDS=$$(( $(FUZZ_SECONDS) / $(words $(FUZZ_TARGETS)) )) FUZZ_SEED="$(FUZZ_SEED)" \
			"$(TARGET)/debug/$$target" || status=1; \
	done; exit $$status

# A workspace of its own, so that nothing else compiles its HTTP server.
test-embed: ## a tokio service of two tenants under load: the quiet one loses nothing to the one that scans
	cd adapters/service && $(BESIDE) test --locked -- --nocapture --test-threads=1

# A workspace of its own, so that nothing else compiles RocksDB's bindings. With Debian's library, which
# is where the linker looks; else RocksDB would be built from source, which takes half an hour of processor time.
test-rocksdb: ## RocksDB's block cache as a lease: two tenants' databases under limits
	@scripts/deps.sh --rocksdb
	cd adapters/rocksdb && $(BESIDE) fmt --check
	cd adapters/rocksdb && ROCKSDB_LIB_DIR="$$(dirname /usr/lib/*/librocksdb.so)" $(BESIDE) clippy --locked --all-targets -- -D warnings
	cd adapters/rocksdb && ROCKSDB_LIB_DIR="$$(dirname /usr/lib/*/librocksdb.so)" $(BESIDE) test --locked

# A workspace of its own, so that nothing else compiles DataFusion.
DATAFUSION = cd adapters/datafusion && $(BESIDE)

test-datafusion: ## the DataFusion adapter: unit tests, and tenants' queries over Parquet with limits
	$(DATAFUSION) test --locked

bench-datafusion: ## queries of a tenant beside FairSpillPool, and what is resident beside what is charged, part by part
	$(DATAFUSION) run --release --locked --example figures
	$(DATAFUSION) run --release --locked --example resident -- 64

# Ballista and DataFusion with all that it brings: neither target above compiles them.
CLUSTER = -p umemcg-ballista --locked

test-cluster: ## a Ballista cluster of processes with two tenants, one executor killed in the middle
	$(DATAFUSION) test $(CLUSTER) -- --test-threads=1

run-cluster: ## a scheduler and three executors on this machine, and which tenant holds what
	$(DATAFUSION) run $(CLUSTER) --bin umemcg-ballista -- run

bench: deps ## the benchmarks: hit, charge, metrics, fuse, tenants; account and object-cache if their rivals are built
	@scripts/deps.sh --bench
	$(CARGO) build --release --locked -p umemcg-cli -p umemcg-bench
	TARGET="$(TARGET)" BENCH_SCALE="$(BENCH_SCALE)" scripts/bench.sh

bench-object: deps ## a bucket as a mount beside JuiceFS, `weed mount`, rclone and s3fs on one server: seconds, requests, resident memory
	@scripts/deps.sh --object --object-peers
	$(CARGO) build --release --locked -p umemcg-cli --features object
	$(CARGO) build --release --locked -p umemcg-object --example counting_proxy
	scripts/bench_object.py "$(TARGET)/release/umemcg" "$(TARGET)/release/examples/counting_proxy" \
		"$(TARGET)/object-servers" "$(BENCH_SCALE)"

experiments: deps ## every benchmark and experiment at full size, written to docs/results.md with pictures
	@scripts/deps.sh --bench
	$(CARGO) build --release --locked -p umemcg-cli
	@# On its own: the mechanisms from before the mails must not get into the product.
	$(CARGO) build --release --locked -p umemcg-bench --features experiments
	TARGET="$(abspath $(TARGET))" bench-rivals/build.sh
	TARGET="$(TARGET)" EXPERIMENTS_SCALE="$(BENCH_SCALE)" scripts/experiments.sh $(ONLY)

results-age: ## how many commits each experiment of docs/results.md is behind HEAD
	@scripts/results_age.sh

figures: ## put the figures of docs/results.md into the documents that link to them
	UMEMCG_FIGURES=write $(CARGO) test --locked -p umemcg-tidy --test all -- --nocapture figures::quoted

# What `make experiments` measures, so small that it says whether the answers are right and nothing of costs.
experiments-small: deps ## every benchmark and experiment at a small scale: each checks its answer, and no target is judged
	@scripts/deps.sh --bench
	$(BUILD) --bin umemcg
	@# Apart, as in `make experiments`. With the assertions of the tests.
	$(BUILD) --features umemcg-bench/experiments --bin umemcg-bench
	@# Without the rivals, which take minutes to build.
	for program in account object-cache; do \
		(cd bench-rivals/$$program && $(CARGO) build --locked --no-default-features --target-dir "$(abspath $(TARGET))/ours") || exit; \
	done
	TARGET="$(TARGET)" scripts/experiments_small.sh $(ONLY)

check-portable: ## type-checks the crate for macOS and Windows, where engines keep no pages
	@scripts/check_portable.sh

lint: ## formatting, clippy with warnings refused, and a package of each crate
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(ALL) --all-targets -- -D warnings
	$(CARGO) clippy $(ALL),umemcg-bench/experiments --bin umemcg-bench -- -D warnings
	@# Without building them again: `make package` does that.
	$(CARGO) package --workspace --locked --allow-dirty --no-verify --quiet

package: ## a package of each crate, built from what is in it, as the registry would get it
	@# Cargo unpacks and builds a crate of one name, version and place once; an earlier run's must not be taken.
	rm -rf -- "$${CARGO_HOME:-$$HOME/.cargo}"/registry/src/-*/umemcg* "$(TARGET)/publish"
	@# Nothing of it runs.
	CARGO_TARGET_DIR="$(TARGET)/publish" CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=0 \
		$(CARGO) publish --workspace --locked --dry-run

check-packages: ## the same packages, type-checked together with all features: that nothing is missing in them
	TARGET="$(abspath $(TARGET))" scripts/check_packages.sh

# With stores of objects and the CSI plugin: their libraries are in the program, which needs libc alone.
DEB = $(abspath $(TARGET))/deb
deb: ## a Debian package of the program, in target/deb
	@scripts/deps.sh --deb
	$(CARGO) build --release --locked -p umemcg-cli --features object,csi
	$(MAKE) generated DIR="$(DEB)/generated"
	scripts/deb.sh "$(TARGET)/release/umemcg" "$(DEB)/generated" "$(DEB)"

test-deb: deb ## the package in a clean Debian with systemd: installed, used, upgraded under a busy mount, removed, purged
	DEB_VERSION=9.0.0-1 scripts/deb.sh "$(TARGET)/release/umemcg" "$(DEB)/generated" "$(DEB)/higher"
	scripts/test_deb.sh "$(DEB)"/umemcg_*.deb "$(DEB)/higher/umemcg_9.0.0-1_$$(dpkg --print-architecture).deb" "$(DEB)/test"

# The program that builds images, and what the image begins with.
CONTAINERS ?= $(firstword $(foreach program,podman buildah docker,$(if $(shell command -v $(program)),$(program))) podman)
BASE ?= debian:bookworm-slim
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml)
image: deb ## an image of the Debian package, named umemcg (deploy/container/Containerfile; BASE, CONTAINERS)
	$(CONTAINERS) build --file deploy/container/Containerfile --build-arg BASE="$(BASE)" --tag umemcg --tag "umemcg:$(VERSION)" "$(DEB)"

test-image: deb ## the image, built on a Debian that is made of packages, and a mount in it
	@scripts/deps.sh --image
	scripts/test_image.sh "$(DEB)"/umemcg_*.deb "$(abspath $(TARGET))/image"

# The profile of `make build`, whose libraries have the same features: `make install` builds them once.
generated: ## write man pages and shell completions to DIR/man and DIR/completions (default target/generated)
	$(CARGO) build --release --locked -p umemcg-generate
	"$(TARGET)/release/umemcg-generate" "$(or $(DIR),$(TARGET)/generated)"

# The pages and completions of an earlier version must not be installed.
install: build ## install the program, its man pages and completions below PREFIX (default /usr/local), and its helpers of mount(8) and umount(8) below /sbin
	rm -rf -- "$(TARGET)/generated"
	@$(MAKE) generated DIR="$(TARGET)/generated"
	install -D -m 755 $(TARGET)/release/umemcg $(DESTDIR)$(or $(PREFIX),/usr/local)/bin/umemcg
	install -D -m 644 -t $(DESTDIR)$(or $(PREFIX),/usr/local)/share/man/man1 $(TARGET)/generated/man/*.1
	install -D -m 644 -t $(DESTDIR)$(or $(PREFIX),/usr/local)/share/man/man5 $(TARGET)/generated/man/*.5
	install -D -m 644 -t $(DESTDIR)$(or $(PREFIX),/usr/local)/share/man/man8 $(TARGET)/generated/man/*.8
	install -D -m 644 $(TARGET)/generated/completions/umemcg.bash $(DESTDIR)$(or $(PREFIX),/usr/local)/share/bash-completion/completions/umemcg
	install -D -m 644 -t $(DESTDIR)$(or $(PREFIX),/usr/local)/share/zsh/site-functions $(TARGET)/generated/completions/_umemcg
	install -D -m 644 -t $(DESTDIR)$(or $(PREFIX),/usr/local)/share/fish/vendor_completions.d $(TARGET)/generated/completions/umemcg.fish
	install -d $(DESTDIR)/sbin
	ln -sf $(or $(PREFIX),/usr/local)/bin/umemcg $(DESTDIR)/sbin/mount.fuse.umemcg
	ln -sf $(or $(PREFIX),/usr/local)/bin/umemcg $(DESTDIR)/sbin/umount.fuse.umemcg

# What CI leaves out while its inputs are those of a run that passed, and everything at length.
nightly: ## all checks of CI, whatever has changed, and the long ones: hundreds of kills, full POSIX suites, packages, an hour of everything at once
	CI_EVERYTHING=1 .ci/run
	@# Links in comments lead somewhere.
	RUSTDOCFLAGS="-D warnings -A rustdoc::private_intra_doc_links" $(CARGO) doc $(ALL) --no-deps --document-private-items
	@$(MAKE) bench package test-crash test-object-crash test-odd-store test-names scale
	@$(MAKE) test-posix PROFILE=release
	@$(MAKE) test-together TOGETHER_SECONDS=1200
	@$(MAKE) test-csi

clean: ## remove what was built
	$(CARGO) clean
