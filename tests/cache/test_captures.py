"""cache/captures.py: a jit's capture from an earlier process is replayed, and only where it would be the same."""
import dataclasses, functools, math, os, pathlib, subprocess, sys
import numpy as np
import pytest
from tests.support.extended import extended, sample
from tests.support.model_cases import MODELS, VOCAB, sizes
from tinygrad import Tensor, TinyJit, UOp, dtypes, helpers
from tinygrad.engine.jit import _TinyJit
from tinygrad.helpers import Context
import tinygrad_llm
from tinygrad_llm.nn.archs import ARCHS
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.cache import captures, disk_cache

ROOT = pathlib.Path(__file__).parents[2]
STEPS, MATRICES = 4, 5  # jits of a model; shapes of its matrices, each repacked by two kernels (Q8_0)
pytestmark = pytest.mark.skipif(not is_on("captures"), reason="it is off")

@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> pathlib.Path:
  """An empty cache of captures. It shares the programs of this test run, because lowering is not tested here."""
  (programs := pathlib.Path(f"{os.environ['CACHEDB']}.d") / "programs").mkdir(parents=True, exist_ok=True)
  (tmp_path / "cache.db.d").mkdir()
  (tmp_path / "cache.db.d" / "programs").symlink_to(programs)
  monkeypatch.setattr(helpers, "CACHEDB", str(tmp_path / "cache.db"))
  return tmp_path

def entries(folder: pathlib.Path) -> list[pathlib.Path]:
  kept = folder / "cache.db.d" / "captures"
  return sorted(kept.iterdir()) if kept.exists() else []

# *** a model

CODE = """
import sys, tinygrad_llm
from tinygrad_llm.device.device import check_device
check_device()
from tinygrad import codegen, tensor
from tinygrad.engine import realize
scheduled, lowered, ran = [], [], []
schedule, lower, kernel = tensor.create_linear_with_vars, codegen.full_rewrite_to_sink, realize.exec_kernel
tensor.create_linear_with_vars = lambda *args: scheduled.append(args) or schedule(*args)
codegen.full_rewrite_to_sink = lambda *args, **kwargs: lowered.append(args) or lower(*args, **kwargs)
llm = tinygrad_llm.load(sys.argv[1], max_context=int(sys.argv[2]))
ids = [*llm.generate([3, 1, 4, 1, 5], max_tokens=12, ignore_eos=True)]
logits = llm.logits([1, 2, 3]).tobytes().hex()[:4000]
print(len(scheduled), len(lowered), *llm.decode_cost() or (0, 0), ids, logits)
"""

def process(path: pathlib.Path, folder: pathlib.Path, context: int = 96, **env: str) -> tuple[int, int, str]:
  """(schedules, kernels) that a fresh process makes itself, and the rest of its output."""
  done = subprocess.run([sys.executable, "-c", CODE, str(path), str(context)], capture_output=True, text=True, cwd=ROOT,
                        timeout=300, env={**os.environ, "CACHEDB": str(folder / "cache.db"), "DEV": "CPU", **env})
  assert done.returncode == 0, done.stderr
  scheduled, lowered, rest = done.stdout.split(" ", 2)
  return int(scheduled), int(lowered), rest

def test_a_second_process_schedules_and_lowers_nothing(folder, model_file):
  path = model_file(types="Q8_0", vocab=384, context=96)
  scheduled, _, result = process(path, folder)
  assert len(entries(folder)) == STEPS + MATRICES and scheduled == STEPS + 2 * MATRICES
  assert process(path, folder) == (0, 0, result)

@extended
def test_contexts_of_one_bucket_share_captures(folder, model_file):
  """Contexts are rounded up to 512 * 2^n positions and chunks do not depend on them, so captures are shared."""
  path = model_file(types="F16", vocab=384, context=2048)
  scheduled, _, result = process(path, folder, context=300)
  assert scheduled == STEPS
  for context in (307, 100): assert process(path, folder, context=context) == (0, 0, result), context

@extended
@pytest.mark.parametrize("off", [{"CCACHE": "0"}, {"NO_CAPTURES": "1"}, {"NO_PATCHES": "1"}], ids=str)
def test_disabled_by_switches(folder, model_file, off):
  """Switched off, captures are neither read nor written."""
  path = model_file(types="F16", vocab=384, context=96)
  process(path, folder)
  kept = entries(folder)
  assert len(kept) == STEPS
  changed = [file.stat().st_mtime_ns for file in kept]
  scheduled, lowered, _ = process(path, folder, **off)
  assert scheduled == STEPS and entries(folder) == kept and (lowered > 20 or "NO_CAPTURES" in off)
  assert [file.stat().st_mtime_ns for file in kept] == changed

@extended
def test_replay_needs_no_compile_worker(folder, model_file):
  """A capture holds the kernels that compile workers made, so a replay needs no worker."""
  path = model_file(types="F16", vocab=384, context=96)
  result = process(path, folder, PARALLEL="2", NO_PROGRAMS="1")
  assert result[0] == STEPS
  again = process(path, folder, PARALLEL="2", NO_PROGRAMS="1")
  assert again[0] == 0 and again[2] == result[2]

@extended
def test_damaged_capture_is_rebuilt(folder, model_file):
  path = model_file(types="F16", vocab=384, context=96)
  _, _, result = process(path, folder)
  files = entries(folder)
  largest = max(files, key=lambda file: file.stat().st_size)
  largest.write_bytes(largest.read_bytes()[:5000])
  assert process(path, folder) == (1, 0, result)
  assert process(path, folder) == (0, 0, result)

@pytest.mark.parametrize("arch", sample(ARCHS, ("llama",)))
def test_replay_is_bit_exact_for_every_architecture(folder, model_file, arch, monkeypatch):
  """Each architecture's model can be captured, and the replay computes the same to the last bit."""
  _, chunk, context = sizes(arch)
  def run() -> tuple[list[int], bytes]:
    llm = tinygrad_llm.load(str(model_file(vocab=VOCAB, **MODELS[arch])), max_context=context, chunk=chunk)
    ids = [*llm.generate([1, 2, 3], max_tokens=5, ignore_eos=True)]
    return ids, llm.logits([3, 2, 1, 0]).tobytes()
  first = run()
  assert len(entries(folder)) == STEPS
  monkeypatch.setattr(captures, "_jit_lower", None)  # a new capture would fail
  assert run() == first

# *** a jit

class Scale:
  def __init__(self, weight: Tensor, by: float = 1.0, **more):
    self.weight, self.by = weight, by
    vars(self).update(more)

def step(scale: Scale, x: Tensor) -> Tensor: return (x * scale.weight * scale.by).sum(0)
def other_step(scale: Scale, x: Tensor) -> Tensor: return (x + scale.weight * scale.by).sum(0)
def with_constant(scale: Scale, x: Tensor) -> Tensor: return x * scale.weight + Tensor([1.0, 2.0, 3.0])
def two(scale: Scale, x: Tensor) -> tuple[Tensor, Tensor]: return x + scale.weight, x * scale.weight
def in_a_list(scale: Scale, x: Tensor) -> list[Tensor]: return [x * scale.weight]
def variable(scale: Scale, x: Tensor, n: UOp) -> Tensor: return (x[:n] * scale.weight).sum(0)

def weight(n: int = 3, value: float = 2.0, dtype=dtypes.float32) -> Tensor:
  return Tensor([value] * n, dtype=dtype).contiguous().realize()
def inputs(rows: int = 4, n: int = 3) -> Tensor:
  return Tensor(np.arange(rows * n, dtype=np.float32).reshape(rows, n)).contiguous().realize()

def jit(function, *state) -> _TinyJit:
  made = TinyJit(functools.partial(function, *state))
  made.cnt = 1
  return made

def test_restore_uses_current_weights():
  assert jit(step, Scale(weight(value=2.0)))(inputs()).tolist() == [36, 44, 52]
  again = jit(step, Scale(weight(value=3.0)))
  assert captures.restore(again, inputs())
  assert again(inputs()).tolist() == [54, 66, 78]
  assert again(inputs()).tolist() == [54, 66, 78]

def test_restore_runs_nothing():
  assert not captures.restore(jit(step, Scale(weight())), inputs())
  jit(step, Scale(weight()))(inputs())
  again = jit(step, Scale(weight()))
  helpers.GlobalCounters.reset()
  x = inputs()
  before = helpers.GlobalCounters.kernel_count
  assert captures.restore(again, x) and captures.restore(again, x)
  assert helpers.GlobalCounters.kernel_count == before

def test_variables_are_inputs():
  n = UOp.variable("n", 1, 4)
  assert jit(variable, Scale(weight()))(inputs(), n.bind(2)).tolist() == [6, 10, 14]
  again = jit(variable, Scale(weight()))
  assert captures.restore(again, inputs(), n.bind(4))
  assert again(inputs(), n.bind(4)).tolist() == [36, 44, 52]
  assert not captures.restore(jit(variable, Scale(weight())), inputs(), UOp.variable("n", 1, 3).bind(2))

def key(function, *state, x: Tensor | None = None, **kwargs) -> str | None:
  found = captures.key(jit(function, *state), (inputs() if x is None else x,), kwargs)
  return found and found.text

@dataclasses.dataclass
class Settings: values: tuple = (1, 2)

def closing_over(y): return lambda x: x * y

def test_key_depends_on_function_and_objects():
  same = weight()
  assert key(step, Scale(weight())) == key(step, Scale(weight(value=9.0)))
  keys = [key(step, Scale(weight())), key(other_step, Scale(weight())), key(step, Scale(weight(), 2.0)),
          key(step, Scale(weight(), -0.0)), key(step, Scale(weight(), 0.0)), key(step, Scale(weight(), 0)),
          key(step, Scale(weight(), math.nextafter(1.0, 2))), key(step, Scale(weight(), True)),
          key(step, Scale(weight().reshape(1, 3))), key(step, Scale(weight(dtype=dtypes.half))),
          key(step, Scale(weight(6)[:3])), key(step, Scale(weight(6)[3:])),
          key(step, Scale(weight()), x=inputs(5)), key(step, Scale(weight()), x=inputs(8)[:4]),
          key(step, Scale(same, more=same)), key(step, Scale(weight(), more=weight())),
          key(step, Scale(weight(), more=[1, 2])), key(step, Scale(weight(), more=(1, 2))),
          key(step, Scale(weight(), more={"a": 1})), key(step, Scale(weight(), more={"b": 1})),
          key(step, Scale(weight(), more=Settings())), key(step, Scale(weight(), more=Settings((1, 3)))),
          key(step, Scale(weight(), more=np.arange(3))), key(step, Scale(weight(), more=np.arange(4))),
          key(step, Scale(weight(), more=closing_over(1))), key(step, Scale(weight(), more=closing_over(2))),
          key(step, Scale(weight(), more=step)), key(step, Scale(weight(), more=functools.partial(step, 1))),
          key(step, Scale(weight(), more=dtypes.half)), key(step, Scale(weight(), more=helpers.Target("CPU")))]
  assert None not in keys and len(set(keys)) == len(keys)

def test_key_depends_on_environment(monkeypatch):
  plain, others = key(step, Scale(weight())), []
  for context in ({"JIT": 2}, {"NOOPT": 1}, {"SPLIT_REDUCEOP": 0}, {"JIT_BATCH_SIZE": 1}, {"NO_MEMORY_PLANNER": 1}):
    with Context(**context): others.append(key(step, Scale(weight())))
  for name, value in (("patch_set", lambda: "others"), ("machine", lambda: "another"), ("TINYGRAD", "0.14.1")):
    with monkeypatch.context() as m:
      m.setattr(disk_cache, name, value)
      others.append(key(step, Scale(weight())))
  with monkeypatch.context() as m:
    m.setattr(captures, "source", lambda package: f"{package} was edited")
    others.append(key(step, Scale(weight())))
  assert None not in others and len({plain, *others}) == 1 + len(others)
  for context in ({"CCACHE": 0}, {"CACHELEVEL": 0}, {"JIT": 0}, {"DEBUG": 3}):
    with Context(**context): assert key(step, Scale(weight())) is None

def test_key_contains_the_code(tmp_path, monkeypatch):
  """The key has the code of the function's package (or file) and of the objects' packages."""
  (package := tmp_path / "some_model").mkdir()
  (package / "__init__.py").write_text("from some_model.part import step, Part")
  (package / "part.py").write_text("class Part: pass\ndef step(scale, x): return x * scale.weight")
  monkeypatch.syspath_prepend(str(tmp_path))
  import some_model
  before = key(some_model.step, Scale(weight())), key(step, Scale(weight(), more=some_model.Part()))
  assert key(some_model.step, Scale(weight())) == before[0]
  (package / "far").mkdir()
  (package / "far" / "new.py").write_text("constant = 3")
  captures.source.cache_clear()
  after = key(some_model.step, Scale(weight())), key(step, Scale(weight(), more=some_model.Part()))
  assert None not in before + after and len({*before, *after}) == 4

def in_a_function():
  def local(scale, x): return x * scale.weight
  return local

@pytest.mark.parametrize("made", [
  lambda: TinyJit(lambda x: x + 1), lambda: jit(lambda scale, x: x * scale.weight, Scale(weight())),
  lambda: jit(in_a_function(), Scale(weight())), lambda: jit(step, Scale(weight(), more=sys.stderr)),
  lambda: jit(step, Scale(weight(), more=object())), lambda: jit(step, Scale(weight(), more=iter([1]))),
  lambda: jit(step, Scale(weight(), more=memoryview(b"1"))), lambda: jit(step, Scale(weight(), more=sys))])
def test_undescribable_functions_are_not_cached(folder, made):
  (function := made()).cnt = 1
  for _ in range(2): function(inputs())
  assert entries(folder) == []

@pytest.mark.parametrize("function", [with_constant, in_a_list])
def test_unsupported_captures_are_not_cached(folder, function):
  function = jit(function, Scale(weight()))
  for _ in range(2): function(inputs())
  assert function.captured is not None and entries(folder) == []

def test_multiple_results():
  jit(two, Scale(weight()))(inputs())
  again = jit(two, Scale(weight(value=3.0)))
  assert captures.restore(again, inputs())
  total, product = again(inputs())
  np.testing.assert_array_equal(total.numpy(), inputs().numpy() + 3)
  np.testing.assert_array_equal(product.numpy(), inputs().numpy() * 3)

def test_cyclic_references():
  """Cyclic references terminate, and their structure is in the key."""
  a, b = Scale(weight()), Scale(weight())
  a.other, b.other = b, a
  c, d = Scale(weight()), Scale(weight())
  c.other, d.other = d, d
  assert key(step, a) is not None and key(step, a) != key(step, c)

def test_plain_tinyjit_is_unchanged(folder):
  """An ordinary TinyJit still captures on its second call and checks its arguments."""
  function = TinyJit(functools.partial(step, Scale(weight())))
  assert [function(inputs()).tolist() for _ in range(4)] == [[36, 44, 52]] * 4
  assert len(entries(folder)) == 1
  again = TinyJit(functools.partial(step, Scale(weight())))
  assert [again(inputs()).tolist() for _ in range(3)] == [[36, 44, 52]] * 3
  with pytest.raises(Exception, match="args mismatch"): again(inputs(8)[:4].contiguous().realize()[:2])
