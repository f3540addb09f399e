"""
Generated pages of docs/: what is supported, the commands' options, and the environment variables.

readme_tables.py writes them; tests/commands/test_readme.py fails when one is stale.
"""
from __future__ import annotations
import argparse, ast, importlib, pathlib, re
from collections.abc import Iterable, Iterator
from tinygrad import helpers
from tinygrad_llm.files.hub import ALIASES, DEFAULT_MODEL
from tinygrad_llm.nn.archs import ARCHS
from tinygrad_llm.patches import pipeline, sentence
from tinygrad_llm.patches.schedule.gemv_gpu import MV_NAMES
from tinygrad_llm.quantize import FILE_TYPES
from tinygrad_llm.quants.table import QUANT_TYPES
from tinygrad_llm.text.pretokenizers import PRE_MODELS

ROOT = pathlib.Path(__file__).parents[2]

def codes(names: Iterable[str]) -> str: return ", ".join(f"`{name}`" for name in names)

def cell(text: str) -> str: return " ".join(text.split()).replace("|", "\\|")

# *** docs/models.md

# {architecture: models that people know it by}
MODELS = {
  "cohere2": "Command R7B, Command A",
  "command-r": "Command R, Command R+, Aya",
  "deepseek2": "DeepSeek V2, V2 Lite, V3, R1; Moonlight; GLM 4.7 Flash; Youtu-LLM",
  "deepseek32": "DeepSeek V3.2 (up to 2,048 positions)",
  "ernie4_5": "ERNIE 4.5 (dense)",
  "ernie4_5-moe": "ERNIE 4.5 (experts)",
  "exaone4": "EXAONE 4.0",
  "falcon-h1": "Falcon-H1",
  "gemma": "Gemma 1",
  "gemma2": "Gemma 2",
  "gemma3": "Gemma 3",
  "gemma4": "Gemma 4",
  "glm-dsa": "GLM 5, 5.1, 5.2 (up to 2,048 positions)",
  "glm4": "GLM 4 9B, 32B",
  "glm4moe": "GLM 4.5, GLM 4.5 Air, GLM 4.6, GLM 4.7",
  "gpt-oss": "gpt-oss 20B, 120B",
  "granite": "Granite 3 (dense)",
  "granitehybrid": "Granite 4.0 H, Bamba",
  "granitemoe": "Granite 3 (experts)",
  "hunyuan-dense": "Hunyuan (dense)",
  "kimi-linear": "Kimi Linear",
  "lfm2": "LFM2, LFM2.5 (dense)",
  "lfm2moe": "LFM2 (experts)",
  "llama": "Llama 1 to 3.x, Mistral, Mixtral, SmolLM2",
  "llama4": "Llama 4 Scout, Maverick",
  "minimax-m2": "MiniMax M2, M2.1, M2.5, M2.7",
  "mistral3": "Ministral 3, Mistral 3",
  "nemotron_h": "Nemotron-H, Nemotron Nano 2 (dense)",
  "nemotron_h_moe": "Nemotron 3 (experts)",
  "olmo2": "OLMo 2, OLMo 3",
  "olmoe": "OLMoE",
  "phi3": "Phi 3, Phi 3.5 mini, Phi 4",
  "qwen2": "Qwen 1.5, Qwen 2, Qwen 2.5",
  "qwen2moe": "Qwen 1.5, Qwen 2 (experts)",
  "qwen2vl": "Qwen 2 VL, Qwen 2.5 VL (text)",
  "qwen3": "Qwen 3 (dense)",
  "qwen35": "Qwen 3.5, 3.6, 3.8 (dense)",
  "qwen35moe": "Qwen 3.5, 3.6 (experts)",
  "qwen3moe": "Qwen 3 (experts)",
  "qwen3next": "Qwen3-Next, Qwen3-Coder-Next",
  "qwen3vl": "Qwen 3 VL (text, dense)",
  "qwen3vlmoe": "Qwen 3 VL (text, experts)",
  "seed_oss": "Seed-OSS",
  "smollm3": "SmolLM3",
}

RECURRENT = {"shortconv": "short convolution", "delta": "Gated DeltaNet", "grouped_delta": "Gated DeltaNet",
             "kda": "Kimi Delta Attention", "mamba2": "Mamba-2"}

def _parts(name: str) -> str:
  arch = ARCHS[name]
  parts = ["latent attention"] * arch.mla
  if arch.window_pattern or arch.lists_windows: parts.append("chunked window" if arch.chunked else "sliding window")
  if arch.recurrent: parts.append(f"recurrent layers ({RECURRENT.get(arch.recurrent, arch.recurrent)})")
  parts += ["per-layer embeddings"] * arch.per_layer + ["shared KV"] * arch.shares_kv
  parts += ["parallel layers"] * arch.parallel
  parts += ["sinks"] * ("attn_sinks.weight" in arch.needs) + ["q and k norms"] * ("attn_q_norm.weight" in arch.needs)
  parts += ["experts"] * bool(arch.gating)
  return ", ".join(parts)

def models() -> str:
  text = """# Models

`make readme` writes this page from the code's tables. A model runs if its architecture, its weight types and its
tokenizer are all listed here, and if it fits the memory. Anything else ends in one line that names the file, the field
and the fix.

Files are GGUF v2 or v3, little-endian, whole or split. Rope scaling may be none, linear, YaRN, LongRoPE or
`rope_freqs`.

## Memory

A model takes its file's size, a few per cent more for repacked weights, and the KV cache: layers * context * KV heads *
head size * 4 bytes. A 7B Mistral has 32 layers and 8 KV heads of 128 elements, so 4,096 positions take 0.5 GB. A chunk
of a prompt needs some working memory beside that. `--max-context` bounds the cache.

This formula counts too much for models whose layers differ. Recurrent layers have no cache, and layers that read the
keys of an earlier one have none of their own (Gemma 4 E). Latent attention holds one vector of 2-byte elements for each
position, not one for each head. Layers with a sliding window have
[a pool of their own](streams.md#how-it-works), for windows alone. In Gemma 3 4B a sequence of 32,768 positions takes
0.8 GiB, where all positions of all layers would take 4.3; eight sequences take 7.1 GiB instead of 34.

Recurrent layers keep states of fixed size instead. Copies of older states, at most four and 1 GiB, save a later prompt
from being read from its start ([recurrent layers](recurrent.md)). `run --json` prints the bytes of each part.

## Architectures

| `general.architecture` | models | parts beyond a plain transformer |
|---|---|---|
"""
  for name in ARCHS: text += f"| `{name}` | {MODELS[name]} | {_parts(name)} |\n"
  text += """
Only the text part of models with images runs, such as Gemma 3 4B; their `mmproj` files are not read. Mixtral files have
the architecture `llama`; older ones, with a tensor for each expert, run, too. Layers for multi-token prediction are not
loaded. A key that changes numbers and is not supported is refused by name.

Layers of multi-token prediction are skipped with a warning. A file that holds nothing else is refused, and so are other
draft models (`dflash`, `eagle3`, `gemma4-assistant`). Decoders for embeddings or reranking load; `run` warns that their
answers are not meaningful, and `llm.config.purpose` says so.

## Weight types

Names of files such as Q4_K_M mean a mixture of types, here mostly Q4_K with some Q6_K; all types of a file must be
listed. "Repacked" types are stored in row tiles for CPUs and in planes for GPUs ([memory layout](memory-layout.md)).
The other types stay as in the file, and their kernels are slower.

| type | bits per weight | block | repacked | `quantize` writes it |
|---|---:|---:|---|---|
"""
  written = {name.removesuffix("_M") for name in FILE_TYPES}
  for qt in QUANT_TYPES.values():
    bits, repacked = qt.nbytes * 8 / qt.block, "yes" if qt.fields else ""
    text += f"| {qt.name} | {bits:.4g} | {qt.block} | {repacked} | {'yes' if qt.name in written else ''} |\n"
  text += """
## Tokenizers

`tokenizer.ggml.model` may be `llama` (SentencePiece), `gemma4`, or `gpt2` (byte pair encoding) with one of these values
of `tokenizer.ggml.pre`. A tokenizer in this table does not mean that the architecture runs.

| `pre` | models |
|---|---|
"""
  for pre, known in PRE_MODELS.items(): text += f"| `{pre}` | {known} |\n"
  text += f"""
## Aliases

`--model` takes these names, too, and `python -m tinygrad_llm.run --list` prints them. A header is read before a model
is fetched, so an unsupported one costs 64 KB. Without `--model`, `{DEFAULT_MODEL.name}` of the package answers.

| alias | repository: file |
|---|---|
"""
  for alias, where in ALIASES.items():
    text += f"| `{alias}` | {where.replace(':', ': ', 1)} |\n"
  return text

# *** docs/cli.md

# {module: (what it is for, an example)}
COMMANDS = {
  "run": ("Answers one prompt, or chats.", '--model model.gguf --prompt "Why is the sky blue?" --count 100'),
  "serve": ("Answers many clients by OpenAI's API ([the server](serve.md)).", "-m model.gguf --parallel 8"),
  "replicas": ("Runs the server several times, on one machine or many, by Ray Serve ([replicas](ray.md)).",
               "-m model.gguf --replicas 2"),
  "bench": ("Times prompts and decode, in llama-bench's terms.", "-m model.gguf -p 512 -n 128 -d 0,2048"),
  "kernels": ("Lists the kernels of a step, for this device or another.", "-m model.gguf --target CUDA:sm_90"),
  "tune": ("Searches faster schedules and keeps them.", "-m model.gguf --budget 10m"),
  "quantize": ("Writes a smaller file.", "model-F16.gguf model-Q4_K_M.gguf Q4_K_M"),
  "perplexity": ("Measures a model on a text.", "-m model.gguf -f text.txt -c 512"),
}

def _options(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
  """(Names and argument, help) of each option but --help."""
  for action in parser._actions:
    if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS: continue
    value = "" if action.nargs == 0 else str(action.metavar or "")
    if action.nargs != 0 and not value:
      value = f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper()
    names = ", ".join(f"`{name}`" for name in action.option_strings)
    shown = f"{names} {value}".strip() if names else f"`{value}`"
    yield shown.replace("|", "\\|"), cell((action.help or "").replace("%(default)s", str(action.default)))

def cli() -> str:
  text = """# Commands

`make readme` writes this page from the commands' own options. Each command is `python -m tinygrad_llm.NAME`. The
package also installs `tinygrad-llm` (for `run`) and `tinygrad-llm-NAME`, for all but `patches`. Bad input ends with one
line on stderr and exit code 2.
"""
  for name, (purpose, example) in COMMANDS.items():
    parser = importlib.import_module(f"tinygrad_llm.{name}")._parser()
    text += f"\n## {name}\n\n{purpose}\n\n```\n.venv/bin/python -m tinygrad_llm.{name} {example}\n```\n\n"
    text += "| option | meaning |\n|---|---|\n"
    for option, meaning in _options(parser): text += f"| {option} | {meaning} |\n"
  return text + """
## patches

Lists the compiler passes in the order in which a kernel meets them, and shows a kernel's way through them.

```
.venv/bin/python -m tinygrad_llm.patches
.venv/bin/python -m tinygrad_llm.patches --explain 'blk.*.ffn_down' -m model.gguf
```

| option | meaning |
|---|---|
| `--seams` | also list the functions of tinygrad that each pass relies on, with their fingerprints |
| `--explain` ROLE | show a kernel before and after each pass that changes it; takes the options of `kernels`, too |
"""

# *** docs/env.md

# {group: {variable: meaning}}. A test compares the names with the code that reads them.
VARIABLES: dict[str, dict[str, str]] = {
  "Device and compiler": {
    "DEV": "the device, as everywhere in tinygrad: `CPU`, `METAL`, `CUDA`, `NV`, `AMD`, `CL`, .. Default: the first "
           "that opens, the CPU last",
    "CC": "the C compiler of the CPU device. Default: `clang` of the PATH, else the clang in the `ziglang` wheel",
    "CUDA_PATH": "folder of NVIDIA's toolkit, for NVRTC and its headers",
    "NVRTC_PATH": "NVRTC's library itself", "NVJITLINK_PATH": "nvJitLink's library, which assembles PTX",
    "REMOTE": "tinygrad's remote devices; no local card is looked for then",
    "HCQ2": "tinygrad's second queue implementation; captured steps are not stored then"},
  "Numbers": {
    "NO_Q8_ACTIVATIONS": "1: activations stay float32 on a CPU (default: int8 in groups of 16)",
    "Q8_ACTIVATIONS": "1: integer products in decode steps on NVIDIA cards, with activations of two bytes",
    "NO_MMA_TILES": "1: prefill stays float32 on a GPU ([all roundings](accuracy.md))"},
  "Threads": {
    "NUM_CPU_THREADS": "threads of a kernel on the CPU; `--threads` sets it. In Python, set it before the import. "
                       "Default: the cores that may be used, or fewer if a container's CPU quota pays for fewer",
    "PARALLEL": "compile workers; 0: none. Default: as many as threads"},
  "Caches and files": {
    "CACHEDB": "file of tinygrad's kernel cache; captured steps and programs lie beside it",
    "CCACHE": "0: no kernels, captured steps or found schedules are read or written", "CACHELEVEL": "0: likewise",
    "IGNORE_BEAM_CACHE": "1: BEAM searches again, and stored schedules are not read",
    "XDG_CACHE_HOME": "folder of caches, in place of `~/.cache`",
    "XDG_STATE_HOME": "folder of the chat's history, in place of `~/.local/state`",
    "HOME": "the user's folder, for the two above",
    "HF_HOME": "folder of models that huggingface_hub fetches", "HF_TOKEN": "huggingface_hub's key for private models",
    "HF_HUB_OFFLINE": "1: huggingface_hub fetches nothing"},
  "Schedules": {
    "BEAM": "N: search schedules with a beam of N while a model loads ([tuning](tuning.md))",
    "JITBEAM": "the same for captured steps only",
    "MV": "0: matrix-vector products get tinygrad's own schedule",
    "MV_THREADS_PER_ROW": "GPU: threads that share a row of a matrix-vector product",
    "MV_BLOCKSIZE": "GPU: warps of a block",
    "MV_ROWS_PER_THREAD": "rows of a thread; on a CPU, only for rows that are not interleaved"},
  "Looking inside": {
    "DEBUG": "tinygrad's verbosity. 1 shows the traceback of an error, 2 each kernel's time, 3 the chosen schedules",
    "VIZ": "tinygrad's viewer of graphs",
    "SPEC": "1 and more: tinygrad checks its graphs while it compiles",
    "VALIDATE_WITH_CPU": "tinygrad's comparison of each kernel with the CPU; captured steps are not stored then",
    "NOOPT": "1: kernels get no optimisation at all", "TUPLE_ORDER": "0: tinygrad's other order of instructions",
    "NO_COLOR": "no dim text in a chat", "TERM": "`dumb`: likewise",
    "PROFILE": "1: tinygrad records each kernel's time",
    "JIT": "0: steps are not captured", "JIT_BATCH_SIZE": "kernels of the first graph of a captured step",
    "PYTHONINSPECT": "the interpreter stays after a command, as with `python -i`"},
}

ELSEWHERE = {"HF_HOME", "HF_TOKEN", "HF_HUB_OFFLINE"}  # huggingface_hub reads them, not our code
# read, but no settings of a user: a shell, Python or tinygrad itself sets them
INTERNAL = {"PATH", "PYTHONPATH", "PYTHON_CPU_COUNT", "ALLOW_DEVICE_USAGE", "NULL_ALLOW_COPYOUT"}

def read_variables() -> set[str]:
  """Every environment variable that the code reads by name, NO_<PASS> aside."""
  found = {*MV_NAMES}
  for folder in ("tinygrad_llm", "patches"):
    for path in (ROOT / folder).rglob("*.py"):
      if "patches" in path.relative_to(ROOT).parts[1:2]: continue  # the link
      for node in ast.walk(ast.parse(path.read_text())): found |= set(_names(node))
  return found

def _names(node: ast.AST) -> Iterator[str]:
  """Names in os.environ.get("X"), os.environ["X"], getenv("X"), "X" in os.environ, and tinygrad's imported settings."""
  if isinstance(node, ast.ImportFrom) and node.module == "tinygrad.helpers":
    settings = (getattr(helpers, alias.name) for alias in node.names)
    yield from (setting.key for setting in settings if isinstance(setting, helpers.ContextVar))
  keys = list[ast.expr]()
  if isinstance(node, ast.Call) and node.args:
    if re.fullmatch(r"os\.environ\.(get|pop|setdefault)|(os\.)?_?getenv", ast.unparse(node.func)): keys = node.args[:1]
  elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ": keys = [node.slice]
  elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "os.environ": keys = [node.left]
  yield from (key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str))

def env() -> str:
  text = """# Environment variables

`make readme` writes this page; a test fails if the code reads a variable that is not listed. Variables of tinygrad that
this project only passes on are in tinygrad's own documentation.
"""
  for group, rows in VARIABLES.items():
    text += f"\n## {group}\n\n| variable | meaning |\n|---|---|\n"
    for name, meaning in rows.items(): text += f"| `{name}` | {cell(meaning)} |\n"
  text += """
## Passes

`NO_<NAME>=1` switches one compiler pass off, `NO_PATCHES=1` all of them: tinygrad as it is. A misspelt name is an error
that names close ones. [The table of passes](compiler/passes.md) has what each needs and provides.

| variable | the pass that it switches off |
|---|---|
"""
  for p in pipeline.PASSES: text += f"| `NO_{p.name.upper()}` | {cell(sentence(p.name))} |\n"
  return text

PAGES = {"docs/models.md": models, "docs/cli.md": cli, "docs/env.md": env}
