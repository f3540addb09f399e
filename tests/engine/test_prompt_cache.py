"""load(prompt_cache=DIR): after a restart, a prompt that begins like an earlier one reads only the rest."""
import gc
import os
import pathlib
import random
import shutil
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from tests.support import child
from tests.support.extended import sample
from tests.support.model_cases import MODELS
import tinygrad_llm
from tinygrad_llm import InputError, run
from tinygrad_llm.engine.llm import LLM
from tinygrad_llm.engine.prefixes import kv_identity, prompt_cache
from tinygrad_llm.engine.prefixes.prefix_files import files_of
from tinygrad_llm.files.gguf import open_gguf

VOCAB, CHUNK = 307, 64

@pytest.fixture
def rng() -> random.Random:
  print("seed", seed := random.randrange(2**32))
  return random.Random(seed)

@pytest.fixture(scope="module")
def path(model_file) -> str: return str(model_file(types="F32", vocab=VOCAB, context=1024))

def load(path, folder, **settings):
  return tinygrad_llm.load(str(path), max_context=512, chunk=CHUNK, prompt_cache=folder, **settings)

def drawn(rng: random.Random, count: int) -> list[int]: return [rng.randrange(VOCAB) for _ in range(count)]

def answer(llm, ids: list[int], stream: bool, count: int = 8, **settings) -> tuple[list[int], int]:
  """The tokens, and how many of the prompt were not read."""
  told = (llm.stream if stream else llm.generate)(ids, max_tokens=count, ignore_eos=True, **settings)
  return list(told), told.timing.cached_tokens

def in_child(path: str, folder: str, ids: list[int], stream: bool) -> list:
  with load(path, folder) as llm: return answer(llm, ids, stream)

def is_near(llm, ids: list[int], got: list[int], want: list[int]) -> bool:
  """Equal answers, or they part where two tokens are almost equally likely: reused KV may differ in the last bits."""
  at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), None)
  if at is None: return len(got) == len(want)
  row = llm.logits([*ids, *want[:at]])[-1]
  return abs(float(row[got[at]] - row[want[at]])) < 1e-2 * row.std()

def test_second_process(path, tmp_path, rng):
  """Streams and generate() find each other's prefixes, of prompts and of answers."""
  ids, more = drawn(rng, 200), drawn(rng, 30)
  with load(path, tmp_path) as llm:
    want, cached = answer(llm, ids, True, 60)
    assert cached == 0
    again = [*ids, *want, *more]
    fresh = answer(llm, again, True, exact_prefix=True)[0]
  for stream in (True, False):
    got, cached = child.call(in_child, path, str(tmp_path), again, stream).value
    assert cached == 256 and is_near(tinygrad_llm.load(path, max_context=512), again, got, fresh)

FAMILIES = [(name, stream) for name in ("gemma3", "gpt-oss", "deepseek2", "gemma2", "gemma4-e") for stream in (0, 1)]

@pytest.mark.parametrize(("name", "stream"), sample(FAMILIES, [("gemma2", 0)]))
def test_families(model_file, tmp_path, rng, name, stream):
  """Windows, latent attention, shared keys and values: the numbers after a restart are those before it."""
  path, ids = model_file(vocab=VOCAB, **MODELS[name]), drawn(rng, 190)
  with load(path, tmp_path) as llm:
    want = answer(llm, ids, stream)[0]
    row = llm.logits([*ids, *want])[-1]
  with load(path, tmp_path) as llm:
    got, cached = answer(llm, ids, stream)
    assert cached == 128 and is_near(llm, ids, got, want)
    near = llm.prefill([*ids, *got], len(ids) + len(got) - 1) if not stream and got == want else row
    assert np.abs(near - row).max() < 0.05 * row.std()

def test_two_turns_of_a_chat(path, tmp_path):
  """The second turn comes after a restart, and reads less than half of its prompt."""
  say = [{"role": "user", "content": "Once upon a time there was a fox that lived in a wood. " * 4}]
  for chat in ("chat", "stream"):
    with load(path, tmp_path / chat) as llm: first = "".join(getattr(llm, chat)(say, max_tokens=40))
    turns = [*say, {"role": "assistant", "content": first}, {"role": "user", "content": "And?"}]
    with load(path, tmp_path / chat) as llm:
      pieces = getattr(llm, chat)(turns, max_tokens=5)
      got = "".join(pieces)
      timing = pieces.timing if chat == "stream" else llm.timing
      assert timing.cached_tokens >= 128 and timing.cached_tokens % 64 == 0
    with tinygrad_llm.load(path, max_context=512, chunk=CHUNK) as llm:
      assert got == "".join(getattr(llm, chat)(turns, max_tokens=5))

def test_exact_prefix_reads_nothing_from_disk(path, tmp_path, rng):
  ids = drawn(rng, 150)
  told = []
  for _ in range(2):
    with load(path, tmp_path) as llm:
      stream = llm.stream(ids, max_tokens=5, ignore_eos=True, exact_prefix=True, logprobs=0)
      told.append((list(stream), [repr(x) for x in stream.logprobs], stream.timing.cached_tokens))
  assert told[0] == told[1] and told[1][2] == 0

# *** bad files, bad folders, other models

@pytest.mark.parametrize("stream", [True, False])
def test_damaged_files_change_no_answer(path, tmp_path, rng, capfd, stream):
  """Each file is cut or gets a flipped bit at random: one warning, and a right answer; then they are written anew."""
  ids = drawn(rng, 330)
  with load(path, tmp_path) as llm: want = answer(llm, ids, stream)[0]
  for file in rng.sample(sorted(tmp_path.iterdir()), 4):
    data = bytearray(file.read_bytes())
    if rng.random() < 0.3: del data[rng.randrange(len(data)):]
    else: data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
  capfd.readouterr()
  with load(path, tmp_path) as llm:
    got, cached = answer(llm, ids, stream)
    assert cached <= 64 and is_near(llm, ids, got, want)
  assert capfd.readouterr().err.count("warning: ") == 1
  with load(path, tmp_path) as llm: assert answer(llm, ids, stream)[1] == 320
  assert not capfd.readouterr().err

def test_another_model_of_the_same_shape(path, model_file, tmp_path, rng):
  other, ids = str(model_file(types="F32", vocab=VOCAB, context=1024, seed=1)), drawn(rng, 200)
  with load(path, tmp_path) as llm: want = answer(llm, ids, True)[0]
  with load(other, tmp_path) as llm:
    got, cached = answer(llm, ids, True)
    assert cached == 0 and got != want
  shutil.copy(path, copied := tmp_path / "copied.gguf")  # another name and time, but the same model
  with load(copied, tmp_path) as llm: assert answer(llm, ids, True) == (want, 192)

@pytest.mark.parametrize("stream", [True, False])
def test_folder_that_cannot_be_used(path, tmp_path, rng, capfd, stream):
  (tmp_path / "file").write_text("")
  with load(path, tmp_path / "file" / "folder") as llm: assert answer(llm, drawn(rng, 150), stream)[1] == 0
  err = capfd.readouterr().err
  assert err.count("warning: ") == 1 and "Not a directory" in err

def test_full_disk(path, tmp_path, rng, capfd, monkeypatch):
  """Writes fail from the second block on: answers go on, with one warning; what was written is used."""
  ids, replace, count = drawn(rng, 400), pathlib.Path.replace, [0]
  def full(self, target):
    count[0] += 1
    if count[0] > 1: raise OSError(28, "No space left on device")
    return replace(self, target)
  monkeypatch.setattr(pathlib.Path, "replace", full)
  with load(path, tmp_path) as llm: want = answer(llm, ids, True)[0]
  assert capfd.readouterr().err.count("warning: ") == 1 and len([*tmp_path.iterdir()]) == 1
  with load(path, tmp_path) as llm:
    got, cached = answer(llm, ids, True)
    assert cached == 64 and is_near(llm, ids, got, want)

def test_recurrent_models_have_none(model_file, tmp_path, rng, capfd):
  with load(model_file(vocab=VOCAB, **MODELS["lfm2"]), tmp_path / "none") as llm:
    assert answer(llm, drawn(rng, 100), True)[1] == 0
  err = capfd.readouterr().err
  assert err.count("warning: ") == 1 and "recurrent" in err and not (tmp_path / "none").exists()

def test_devices_that_the_host_does_not_reach_have_none(path, tmp_path, rng, capfd, monkeypatch):
  monkeypatch.setattr(prompt_cache, "host_view", lambda tensor: None)
  with load(path, tmp_path / "none") as llm: assert answer(llm, drawn(rng, 100), True)[1] == 0
  assert capfd.readouterr().err.count("warning: ") == 1 and not (tmp_path / "none").exists()

@pytest.mark.parametrize("settings", [{"folder": 3}, {"folder": ""}, {"folder": "a\0b"}, {"prompt_cache_bytes": 0},
                                      {"prompt_cache_bytes": 1.5}, {"prompt_cache_bytes": None}])
def test_bad_arguments(path, settings):
  with pytest.raises(InputError, match=r"^prompt_cache"): load(path, **{"folder": None, **settings})

def test_budget(path, tmp_path, rng):
  """A path's beginning is kept; nothing beyond the budget is."""
  size = 15 * 33136
  with load(path, tmp_path, prompt_cache_bytes=size) as llm:
    for _ in range(4): answer(llm, drawn(rng, 400), True, 2)
    last = drawn(rng, 400)
    answer(llm, last, True, 2)
  assert size // 2 < sum(file.nbytes for file in files_of(tmp_path)) <= size
  with load(path, tmp_path) as llm: assert answer(llm, last, True, 2)[1] >= 192

# *** the name of a model's KV

def test_identity(path, model_file, tmp_path, monkeypatch):
  """Equal for a copy of the file and another context; another one for all else that changes numbers."""
  with tinygrad_llm.load(path, max_context=64) as llm:
    def identity(file, context=64, dequantize=False):
      return kv_identity.kv_identity(open_gguf(pathlib.Path(file)), llm.model, context, dequantize)
    mine = identity(path)
    shutil.copy(path, tmp_path / "copy.gguf")
    assert identity(tmp_path / "copy.gguf", 512) == mine
    data = bytearray(pathlib.Path(path).read_bytes())
    others = [identity(path, dequantize=True)]
    for at in (len(data) - 5, data.index(b"context_length") + 18, min(
        info.offset for info in open_gguf(pathlib.Path(path)).tensors.values()) + 3):
      (tmp_path / "other.gguf").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1:])
      others.append(identity(tmp_path / "other.gguf"))
    with monkeypatch.context() as changed:
      changed.setattr(kv_identity.disk_cache, "surroundings", lambda: ("another version",))
      others.append(identity(path))
    with monkeypatch.context() as changed:
      changed.setattr(kv_identity.captures, "source", lambda package: "other code")
      others.append(identity(path))
    with monkeypatch.context() as changed:
      changed.setattr(kv_identity.numerics, "multiplies_bytes", lambda: "other numbers")
      others.append(identity(path))
    assert len({mine, *others}) == 1 + len(others) == 8

def test_long_rope_depends_on_the_context(model_file):
  path = model_file(vocab=VOCAB, **MODELS["phi3-long"])
  with tinygrad_llm.load(str(path), max_context=64) as llm:
    short = max(rope.short_context for rope in llm.config.ropes)
    found = [kv_identity.kv_identity(open_gguf(path), llm.model, context, False)
             for context in (short - 1, short, short + 1, short + 2)]
  assert found[0] == found[1] != found[2] == found[3]

# *** the end

def test_several_processes_at_once(path, tmp_path, rng):
  """Two children with prompts that share a beginning, beside streams here: all answers are right."""
  start, results = drawn(rng, 140), dict[int, list]()
  prompts = [[*start, *drawn(rng, 60)] for _ in range(2)]
  def ask(i: int) -> None: results[i] = child.call(in_child, path, str(tmp_path), prompts[i], i % 2 == 0).value
  threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
  for thread in threads: thread.start()
  with load(path, tmp_path) as llm:
    for ids in prompts: answer(llm, ids, True)
  for thread in threads: thread.join()
  with load(path, tmp_path) as llm:
    for i, ids in enumerate(prompts):
      want, cached = answer(llm, ids, True)
      assert cached >= 192 and is_near(llm, ids, results[i][0], want)

def test_process_that_does_not_close(path, tmp_path, rng):
  """The end of a process keeps what was read last; so does the end of the last reference."""
  ids = drawn(rng, 200)
  code = f"""
import tinygrad_llm
llm = tinygrad_llm.load({path!r}, max_context=512, prompt_cache={str(tmp_path / "exit")!r})
next(llm.generate({ids}, max_tokens=4)), next(llm.stream({ids[::-1]}, max_tokens=4))
"""
  child.run(code, **child.environment())
  with load(path, tmp_path / "exit") as llm:
    assert answer(llm, ids, False)[1] == answer(llm, ids[::-1], True)[1] == 192
  llm = load(path, tmp_path / "del")
  answer(llm, ids, True)
  del llm
  gc.collect()
  with load(path, tmp_path / "del") as llm: assert answer(llm, ids, True)[1] == 192

def hold_until_closed(llm: LLM) -> None:
  """No decode step ends before the model is closed."""
  inbox, steps = llm.engine._inbox, llm.engine.steps
  def decode(*args, step=steps.decode):
    while not inbox.closed: time.sleep(0.001)
    return step(*args)
  steps.decode = decode

def test_close_frees_all(path, tmp_path, rng):
  """No thread stays, and a stream that is kept keeps no model."""
  llm = load(path, tmp_path)
  hold_until_closed(llm)
  stream = llm.stream(drawn(rng, 300), max_tokens=4, ignore_eos=True)
  next(stream)
  gone = [weakref.ref(x) for x in (llm.model, llm.engine.kept, llm._disk)]
  llm.close()
  gc.collect()
  assert [x() for x in gone] == [None] * 3 and stream.finish == "cancelled"
  assert not [t for t in threading.enumerate() if t.name == "tinygrad_llm prompt cache"]
  llm.close()

@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child(path, tmp_path, rng):
  """A child has no thread of the parent's, and uses and fills the folder itself."""
  ids, other = drawn(rng, 200), drawn(rng, 200)
  code = f"""
import os, tinygrad_llm
llm = tinygrad_llm.load({path!r}, max_context=512, prompt_cache={str(tmp_path)!r})
list(llm.stream({ids}, max_tokens=4))
if not (pid := os.fork()):
  list(llm.stream({other}, max_tokens=4))
  llm.close()
  os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
llm.close()
"""
  child.run(code, **child.environment())
  with load(path, tmp_path) as llm: assert [answer(llm, x, True)[1] for x in (ids, other)] == [192, 192]

def test_run(path, tmp_path, capfd, monkeypatch):
  """The command's flags: a second run gives the same text, and warns of nothing."""
  told = []
  for _ in range(2):
    args = ["-m", path, "-p", "tell " * 100, "-n", "6", "-c", "512", "--temperature", "0"]
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
    monkeypatch.setattr(sys, "argv", ["run", *args, "--prompt-cache", str(tmp_path), "--prompt-cache-bytes", "9000000"])
    run.main()
    gc.collect()
    told.append(capfd.readouterr())
  assert told[0].out == told[1].out and "warning" not in told[1].err
  assert sum(1 for _ in files_of(tmp_path)) >= 2

def test_an_answer_ends_after_close_as_before(path, tmp_path, rng):
  for folder in (None, tmp_path):
    llm = load(path, folder)
    tokens = llm.generate(drawn(rng, 80), max_tokens=3, ignore_eos=True)
    assert len(list(tokens)) == 3
    llm.close()
    assert list(tokens) == []
    tokens.close()

def test_an_idle_engine_sleeps(path, tmp_path, rng):
  """The disk wakes the engine's thread only while there is something to do."""
  with load(path, tmp_path) as llm:
    answer(llm, drawn(rng, 300), True)
    end = time.monotonic() + 20
    while (llm.engine.kept.has_work() or llm._disk._thread) and time.monotonic() < end: time.sleep(0.01)
    steps, step = [0], llm.engine.step
    def counted():
      steps[0] += 1
      return step()
    llm.engine.step = counted
    time.sleep(0.2)
    assert steps[0] < 5 and not llm.engine.kept.has_work() and llm._disk._thread is None
