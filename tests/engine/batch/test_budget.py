"""engine/batch/budget.py and its users: the forecast against what a model takes, contexts that fit, the pool's size."""
import re
from dataclasses import replace

import pytest
from tests.support import child
from tests.support.model_cases import MODELS, VOCAB
from tests.support.synthetic import SHAPES, write_model
from tinygrad import Device
from tinygrad_llm.device.free_memory import FreeMemory
from tinygrad_llm.engine.batch import memory_check, pool_size
from tinygrad_llm.engine.batch.budget import Budget, budget, held_weights
from tinygrad_llm.nn.cache.place import BLOCK
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.nn.reader import read_config

MIB, GIB = 1 << 20, 1 << 30
TOLD = Budget(weights=700 * MIB, staging=0, block=2 * MIB, tables=0, state=0, snapshots=0, logits=0, work=0,
              process=100 * MIB, context=8192)

def header(folder, **shape):
  file = open_gguf(write_model(folder / "m.gguf", **{"vocab": VOCAB, "header": True} | shape))
  return file, read_config(file)

def told(file, config, dequantize=False): return budget(file, config, Device["CPU"].renderer, True, 256, dequantize)

FEW = ["llama", "llama-untied", "deepseek2", "qwen3moe", "qwen35-nextn", "kimi-linear", "nemotron_h_moe-latent"]

@pytest.mark.parametrize(("name", "types"), [(name, "F32") for name in FEW] + [(name, "Q4_K_M") for name in FEW[1:5]])
def test_weights_are_those_of_the_model(tmp_path, name, types):
  """Beside the model itself, built without memory. Matrices that share a weight are padded once there."""
  widths = {"dim": 512, "ffn": 768} if types == "Q4_K_M" else {}
  file, config = header(tmp_path, **MODELS[name] | widths, types=types, header=False, blocks=types != "F32")
  exact, found = memory_check.exact_weights(file, config), held_weights(file, Device["CPU"].renderer)[0]
  assert exact <= found * 1.001 and found <= exact * 1.02 + 2048

def test_layers_that_are_not_run_are_not_counted(tmp_path):
  file, _ = header(tmp_path, **MODELS["qwen35-nextn"])
  assert held_weights(file, Device["CPU"].renderer)[0] < 0.8 * sum(x.nbytes for x in file.tensors.values())

def test_sizes_by_hand(tmp_path):
  """A Llama 3.2 1B: 16 layers, keys and values of 8 heads of 64, halves; a rotation of 64 dimensions."""
  file, config = header(tmp_path, **SHAPES["llama-1b"] | {"vocab": 5000, "types": "Q4_K_M"})
  found = told(file, config)
  assert found.block == 16 * 2 * 8 * 64 * 64 * 2 == 2 * MIB
  assert (found.tables, found.logits, found.state, found.snapshots) == (64 * 4, 5000 * 4, 0, 0)
  assert found.context == 131072
  assert found.parts(4096, 4)["KV cache"] == 4 * 128 * MIB

def test_latent_cache_and_states(tmp_path):
  """
  DeepSeek-V2-Lite keeps 576 halves a position. 16 of 32 layers of Qwen 3.5 have a state here, held 18 times for 8 rows.
  """
  found = told(*header(tmp_path, **SHAPES["deepseek-v2-lite"] | {"vocab": VOCAB}))
  assert found.block == 27 * 64 * 576 * 2
  found = told(*header(tmp_path, **SHAPES["qwen35-4b"] | {"vocab": VOCAB}))
  state = 16 * 4 * (32 * 128 * 128 + 3 * (2 * 16 + 32) * 128)
  assert (found.block, found.state, found.snapshots) == (16 * 2 * 4 * 64 * 256 * 2, 18 * state, 4 * state)

def test_dequantised_weights(tmp_path):
  file, config = header(tmp_path, dim=512, ffn=512, types="Q8_0")
  elements = sum(x.nbytes // 34 * 32 for x in file.tensors.values() if len(x.shape) > 1)
  assert 2 * elements <= told(file, config, dequantize=True).weights < 2 * elements + 20_000

def test_largest_context():
  """800 MiB are there with any context, and a block of 64 positions has 2 MiB."""
  assert [TOLD.largest(free * MIB) for free in (799, 800, 801, 802, 900, 10_000)] == [0, 0, 0, 64, 50 * 64, 8192]
  assert [TOLD.largest(1000 * MIB, n) for n in (1, 2, 4, 8)] == [6400, 3200, 1600, 768]
  for free in (833, 1000, 1057):
    for n in (1, 2, 4, 8):
      if context := TOLD.largest(free * MIB, n):
        assert TOLD.needed(context, n) <= free * MIB < TOLD.needed(context + BLOCK, n) or context == TOLD.context
  with_states = replace(TOLD, state=10 * MIB, logits=MIB, tables=1000)
  context = with_states.largest(1000 * MIB, 4)
  assert with_states.needed(context, 4) <= 1000 * MIB < with_states.needed(context + BLOCK, 4)

def test_recurrent_model_has_one_size():
  """A model without a KV cache has room for its longest context, or for none; states of all rows are always held."""
  flat = replace(TOLD, block=0, state=50 * MIB)
  assert (flat.largest(849 * MIB), flat.largest(850 * MIB), flat.largest(850 * MIB, 2)) == (0, 8192, 8192)

# *** what a process takes

def grown(path: str, prompt: int) -> list[int]:
  """
  The growth of the process's peak memory by loading a model and answering, and what the budget told before.

  prompt: tokens; 0: nothing is fed.
  """
  import tinygrad_llm
  import tinygrad_llm.engine.llm  # noqa: F401
  from tinygrad_llm.device.memory import peak_memory_bytes
  file = open_gguf(path)
  told, before = memory_check.budget_here(file, read_config(file), 64), peak_memory_bytes()
  with tinygrad_llm.load(path, max_context=1024, chunk=64) as llm:
    if prompt:
      for _ in llm.generate([i % 300 + 1 for i in range(prompt)], 4): pass
  return [peak_memory_bytes() - before, told.needed(prompt + 4)]

def forecast(path, prompt: int) -> None:
  """The forecast is within 15% and 64 MB of the truth."""
  found, told = child.call(grown, str(path), prompt).value
  assert abs(found - told) < 0.15 * found + 64e6, (found, told)

def test_forecast_of_a_load(tmp_path):
  forecast(write_model(tmp_path / "m.gguf", dim=2048, ffn=8192, layers=2, heads=32, kv_heads=8, vocab=16384,
                       types="F16", header=True), 0)

@pytest.mark.extended
@pytest.mark.parametrize("shape", [
  {"dim": 1024, "ffn": 4096, "layers": 6, "heads": 16, "kv_heads": 8, "vocab": 8192, "types": "F16"},
  {"arch": "granitehybrid", "dim": 512, "ffn": 2048, "layers": 3, "heads": 8, "vocab": 32768, "types": "Q8_0"}])
def test_forecast_of_an_answer(tmp_path, shape):
  forecast(write_model(tmp_path / "m.gguf", **shape, context=2048, blocks=True), 600)

# *** refusal

@pytest.fixture(scope="module")
def model(tmp_path_factory):
  return header(tmp_path_factory.mktemp("m"), dim=512, ffn=1024, layers=4, heads=8, kv_heads=8, context=65536,
                types="Q8_0")

def check(monkeypatch, model, bound: int | None, lazy: bool, context=4096, total=0) -> None:
  """check_memory() on a device of `bound` free bytes."""
  monkeypatch.setattr(memory_check, "free_memory", lambda _: FreeMemory(total, bound or 0, bound))
  monkeypatch.setattr(memory_check, "is_lazy", lambda: lazy)
  file, config = model
  memory_check.check_memory(file, config, context, context, 256)

def test_model_that_does_not_fit_is_refused(monkeypatch, model):
  exact = memory_check.exact_weights(*model)
  for lazy in (True, False):
    with pytest.raises(InputError, match=r"memory: the model needs [\d.]+ MiB for its weights and \d+ positions, and "
                                         r"[\d.]+ MiB are free on \w+; use a smaller quant type or model$"):
      check(monkeypatch, model, exact, lazy)

def test_bound_of_a_refusal(monkeypatch, model):
  """On a CPU one block of keys and values is sure, on other devices the whole cache."""
  file, config = model
  sure = memory_check.exact_weights(*model) + 4 * config.vocab_size
  each = 4 * 2 * 8 * 64 * 2  # bytes of a position
  for lazy, positions in ((True, BLOCK), (False, 4096)):
    check(monkeypatch, model, sure + each * positions, lazy)
    with pytest.raises(InputError): check(monkeypatch, model, sure + each * positions - 1, lazy)
    check(monkeypatch, model, sure + each * positions - 1, lazy, total=64)  # a margin of two bytes

def test_smaller_context_is_named(monkeypatch, model):
  """Where the asked context is the cause, the message has the largest that fits."""
  free = told(*model).needed(2048)
  with pytest.raises(InputError, match="use --max-context (2048) or less$"):
    check(monkeypatch, model, free, False, context=65536)

def test_context_that_may_not_fill_is_a_warning(monkeypatch, model, capfd):
  """A CPU's pages come with the text: the model runs, and a long text would not."""
  check(monkeypatch, model, told(*model).needed(2048), True, context=65536)
  said = capfd.readouterr().err
  assert re.search(r"warning: .*memory: a text of 65536 tokens would need .* GiB.*; use --max-context 2048 or less\n",
                   said) or re.search(r"warning: .*a text of 65536 tokens would need .* MiB.*2048 or less\n", said)

@pytest.mark.parametrize("lazy", [True, False])
def test_nothing_is_refused_without_a_bound(monkeypatch, model, lazy):
  check(monkeypatch, model, None, lazy)
  monkeypatch.setattr(memory_check, "free_memory", lambda _: None)
  memory_check.check_memory(*model, 4096, 4096, 256)

def test_kept_buffers_are_freed_before_a_refusal(monkeypatch, model):
  freed, free = [], iter([1000, 4 * GIB])
  monkeypatch.setattr(memory_check, "free_memory", lambda _: FreeMemory(0, n := next(free), n))
  monkeypatch.setattr(memory_check, "free_buffers", freed.append)
  memory_check.check_memory(*model, 4096, 4096, 256)
  assert freed == [Device["CPU"].allocator]

def test_load_is_checked(monkeypatch, tmp_path):
  import tinygrad_llm
  path = write_model(tmp_path / "m.gguf", vocab=VOCAB)
  monkeypatch.setattr(memory_check, "free_memory", lambda _: FreeMemory(1000, 1000, 1000))
  with pytest.raises(InputError, match=re.escape(f"{path}: memory: the model needs")): tinygrad_llm.load(str(path))

# *** the table

def test_table():
  text = memory_check.table(TOLD, FreeMemory(2000 * MIB, 1000 * MIB, None), "CPU", 4096)
  assert text.splitlines() == [
    "part                             MiB", "weights                        700.0",
    "KV cache, 4096 positions       128.0", "process                        100.0",
    "together                       928.0", "free on CPU                   1000.0",
    "all of CPU                    2000.0", "", "fits: 1 x 6400, 2 x 3200, 4 x 1600, 8 x 768 tokens"]

def test_fits():
  assert memory_check.fits(TOLD, FreeMemory(0, 807 * MIB)) == "fits: 1 x 192, 2 x 64 tokens"
  assert memory_check.fits(TOLD, FreeMemory(0, 700 * MIB)) == "fits: no"
  assert memory_check.fits(TOLD, None) == "fits: unknown, this device does not tell its free memory"

# *** the pool's size

def test_rounded(): assert [pool_size.rounded(n) for n in (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 95, 96, 127, 128)] == [
  1, 2, 3, 4, 4, 6, 6, 8, 8, 12, 64, 96, 96, 128]

@pytest.mark.parametrize(("free", "blocks"), [
  (100, 64), (800 + 3 * 2 * 64, 64), (800 + 3 * 2 * 95, 64), (800 + 3 * 2 * 96, 96), (800 + 3 * 2 * 200, 192),
  (90_000, 8 * 64)])
def test_pool_blocks(free, blocks):
  """A third of what is free beside the model, from one context of 4,096 positions to 8."""
  assert pool_size.pool_blocks(TOLD, 4096, free * MIB) == blocks

def test_odd_context_has_whole_blocks(): assert pool_size.pool_blocks(TOLD, 5000, 0) == 79

def test_pool_size_is_remembered(monkeypatch, tmp_path, model):
  """The first size stays while it fits, whatever is free later; another context, file or machine has its own."""
  from tinygrad_llm.patches.cache import disk_cache
  monkeypatch.setattr(disk_cache.helpers, "CACHEDB", str(tmp_path / "cache.db"))
  file = model[0]
  def blocks(free: int, context=4096, of=file, total=90_000, device="CPU") -> int:
    return pool_size.remembered_blocks(of, TOLD, context, FreeMemory(total * MIB, free * MIB), device)
  assert blocks(800 + 3 * 2 * 200) == 192
  assert blocks(90_000) == blocks(800 + 2 * 193) == 192
  assert blocks(90_000, 2048) == 8 * 32
  assert blocks(90_000, total=80_000) == blocks(90_000, device="CUDA") == 8 * 64
  assert blocks(90_000, of=replace(file, kv={"general.name": "other"})) == 8 * 64
  assert blocks(800 + 2 * 192) == 64  # it no longer fits, with its scratch block
  assert blocks(90_000) == 64  # the new size is remembered
  assert pool_size.remembered_blocks(file, TOLD, 4096, None, "CL") == 64

def test_unusable_entry_is_chosen_anew(monkeypatch, tmp_path, model):
  from tinygrad_llm.patches.cache import disk_cache
  monkeypatch.setattr(disk_cache.helpers, "CACHEDB", str(tmp_path / "cache.db"))
  memory = FreeMemory(90_000 * MIB, 90_000 * MIB)
  for entry in (b"many", b"\xff", b"7", b"99999"):
    pool_size.STORE.put(pool_size._key(model[0], 4096, memory, "CPU"), entry)
    assert pool_size.remembered_blocks(model[0], TOLD, 4096, memory, "CPU") == 512
