PYTHON ?= python3
VENV ?= .venv
JOBS ?= auto
PROMPT ?= Tell me a story about a fox.
BIN := $(VENV)/bin
export DEV ?= CPU

.PHONY: help run chat bench peers plot gpu-check gpu-schedules gpu-numbers test lint readme fuzz golden accept vectors default-model clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

run: $(VENV)/run ## answer PROMPT with the bundled model, offline after the first install
	@$(BIN)/python -m tinygrad_llm.run --prompt "$(PROMPT)" $(ARGS)

chat: $(VENV)/run ## chat with the bundled model, or with MODEL=path.gguf
	@$(BIN)/python -m tinygrad_llm.run $(if $(MODEL),--model "$(MODEL)") $(ARGS)

test: $(VENV)/dev ## all tests in JOBS processes; no GPU, no downloads but Python packages
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

lint: $(VENV)/dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

vectors: $(VENV)/dev ## fetch llama.cpp's tokenizer vectors and chat templates into a cache; `make test` uses them when there
	$(BIN)/python tests/fetch_vectors.py

readme: $(VENV)/dev ## write the README's table of what is supported from the code's tables
	$(BIN)/python tests/readme_tables.py

fuzz: $(VENV)/dev ## 10,000 damaged files: each must load or end in one line
	$(BIN)/python tests/fuzz.py --count 10000 --seed 1

golden: $(VENV)/bench ## record llama.cpp's logits again (builds llama-cpp-python: some minutes)
	$(BIN)/python tests/record_golden.py
	$(BIN)/python tests/record_quantize_errors.py

accept: $(VENV)/dev ## record today's kernels as right: tests/kernels/*.json; prints what moved
	$(BIN)/python tests/kernel_cases.py

bench: $(VENV)/run ## tokens a second of MODEL=path.gguf (default: the bundled model), as llama-bench gives them
	@$(BIN)/python -m tinygrad_llm.bench $(if $(MODEL),-m "$(MODEL)") $(ARGS)

peers: $(VENV)/bench ## the figures: this project, stock tinygrad and llama.cpp on MODELS (default: 1B shape, 9 types)
	models="$(MODELS)"; [ -n "$$models" ] || \
	  models=$$($(BIN)/python bench/models.py $(if $(LAYERS),--layers $(LAYERS)) $(TYPES)) && \
	  $(BIN)/python bench/peers.py -m $$models $(ARGS)

plot: $(VENV)/bench ## the README's plot, from the latest figures
	$(BIN)/python bench/plot.py $(ARGS)

gpu-check: ## right numbers and speed on a GPU (DEV, default CUDA), from a bare checkout with python3, numpy and tinygrad
	$(if $(filter file,$(origin DEV)),DEV=CUDA) $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) \
	  bench/gpu_check.py $(ARGS)

gpu-schedules: $(VENV)/dev ## what products with quantised matrices compile to for NVIDIA's cards (about 20 minutes; TYPES)
	$(BIN)/python tests/gpu_schedules.py $(TYPES) $(ARGS)

gpu-numbers: $(VENV)/opencl ## the same products' numbers: kernels for GPUs run by numpy, and by OpenCL on the CPU
	$(BIN)/python tests/gpu_numbers.py $(TYPES) $(ARGS)

default-model: $(VENV)/train ## train the bundled model again (about an hour on 2 cores)
	$(BIN)/python training/train.py --out tinygrad_llm/models/stories.gguf

clean: ## remove the virtual environment and build files
	rm -rf $(VENV) build *.egg-info

$(VENV)/base: setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	command -v clang >/dev/null || test -n "$$CC" || $(BIN)/python -m pip install -q -e '.[zig]'
	@touch $@

$(VENV)/run: $(VENV)/base
	$(BIN)/python -m pip install -q -e .
	@touch $@

$(VENV)/dev: $(VENV)/base
	$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@ $(VENV)/run

$(VENV)/opencl: $(VENV)/dev
	$(BIN)/python -m pip install -q -e '.[opencl]'
	@touch $@

$(VENV)/bench: $(VENV)/dev
	$(BIN)/python -m pip install -q -e '.[bench]'
	@touch $@

$(VENV)/train: $(VENV)/base training/requirements.txt
	$(BIN)/python -m pip install -q -e . -r training/requirements.txt
	@touch $@
