"""A lost device, a full one or an old driver gives one line, wherever it happens; tested on a stub driver."""
import gc
import json
import os
import subprocess
import sys
from functools import partial

from tests.support import child
import pytest
from tests.support.extended import sample
from tests.tools.kernel_cases import has_cuda_wheels
from tinygrad_llm.device.device import check_device
from tinygrad_llm.device.device_errors import device_error, telling_device_errors
from tinygrad_llm.device.release import free_buffers
from tinygrad_llm.errors import DeviceError, InputError

pytestmark = pytest.mark.skipif(not has_cuda_wheels(), reason="NVIDIA makes no NVRTC wheel for this machine")
TOKENS = 6
STUB = str(child.ROOT / "tests" / "support" / "cuda_stub.py")
SETTINGS = {"max_context": 64, "chunk": 16}

@pytest.fixture(scope="module")
def model(model_file) -> str:
  """A model that compiles fast."""
  return str(model_file(types="F32", layers=1, vocab=381, context=96))

@pytest.fixture(scope="module")
def packed(model_file) -> str:
  """A model that runs kernels while it is loaded."""
  return str(model_file(types="Q8_0", vocab=381, context=96))

def answer(llm, first: int = 0) -> list[int]:
  """The answer to a prompt of two chunks that begins with `first`."""
  return list(llm.generate([first, *range(20)], max_tokens=TOKENS, ignore_eos=True))

def said(work) -> str:
  """The message of the DeviceError that `work` ends with; "" without one. Other errors are raised."""
  try: work()
  except DeviceError as e: return str(e)
  return ""

def losses(model: str) -> dict:
  """Loses the device at each launch of an answer, and collects the messages of that answer and of later calls."""
  from tests.support import cuda_stub
  driver = cuda_stub.install()
  import tinygrad_llm
  llm = tinygrad_llm.load(model, **SETTINGS)
  from tinygrad.runtime import ops_cuda  # imported after the search for NVRTC
  answer(llm)
  before = driver.launches
  tokens = answer(llm, 1)
  launches, lines = driver.launches - before, []
  for n in range(launches):
    driver.lose_at = driver.launches + n + 1
    first = said(partial(answer, llm, n))
    again = said(partial(answer, llm, n + 1))
    lines.append([bool(first), *{again, said(partial(llm.prefill, [1, 2]))}])
    driver.revive()
  same = answer(llm, 1) == tokens and len(tokens) == TOKENS
  driver.lose_at = driver.launches + 1
  lost = [said(partial(answer, llm, 2))]
  llm.engine.steps.piece = llm.engine.steps.decode = lambda *_: ops_cuda.check(719)  # spares compiling them
  lost += [said(partial(llm.logits, [1, 2])), said(partial(llm.step, 1, 0))]
  noise: list[str] = []
  sys.unraisablehook = lambda error: noise.append(str(error))
  llm.close()  # frees memory that is gone
  del llm
  gc.collect()
  return {"lines": lines, "same": same, "lost": lost, "noise": noise}

def test_device_lost_at_each_launch(model):
  found = child.call(losses, model, DEV="CUDA")
  lines = found.value["lines"]
  assert found.value["same"] and len(lines) == 2 + 1 + TOKENS - 1  # chunks, the last row's logits, steps
  assert all(found.value["lost"]) and found.value["noise"] == []
  assert sum(first for first, *_ in lines) >= len(lines) - 2  # an answer does not wait for its last launch
  for _, *others in lines:
    assert len(others) == 1
    assert others[0].startswith("CUDA: the device failed (CUDA Error 719, unspecified launch failure), and what it "
                                "held is lost; start the program again")

def full_while_loading(model: str, step: int) -> dict:
  """Loads with memory that ends at every `step`-th allocation, and collects messages and the bytes that remain held."""
  from tests.support import cuda_stub
  driver = cuda_stub.install()
  import tinygrad_llm
  from tinygrad import Device
  def work() -> None: tinygrad_llm.load(model, **SETTINGS).close()
  lines, held, first = [], [], 0
  for n in range(1, 1000, step):
    driver.no_memory_at = (first := driver.allocations) + n
    lines.append(said(work))
    gc.collect()
    free_buffers(Device["CUDA"].allocator)
    held.append(driver.used)
    if not lines[-1]: break
  return {"lines": lines, "held": held, "allocations": driver.allocations - first}

FULL = "CUDA: there is no memory left on it (Allocation of "
FIX = "; use a smaller max_context, quant type or model, or end what else uses it"

@pytest.mark.parametrize("step", sample([1, 7], [7]))
def test_out_of_memory_at_each_allocation_of_a_load(packed, step):
  found = child.call(full_while_loading, packed, step, DEV="CUDA").value
  *lines, last = found["lines"]
  assert last == "" and 20 < found["allocations"] <= len(lines) * step < found["allocations"] + step
  assert all(line.startswith(f"{packed}: {FULL}") and line.endswith(FIX) for line in lines), lines
  assert not any(found["held"]), found["held"]  # nothing of a model is left

def full_while_answering(model: str, allocations: int) -> list:
  """An answer that runs out of memory at one of its allocations, and the next answer, with memory again."""
  from tests.support import cuda_stub
  driver = cuda_stub.install()
  import tinygrad_llm
  llm = tinygrad_llm.load(model, **SETTINGS)
  driver.no_memory_at = driver.allocations + allocations
  first = said(lambda: answer(llm))
  driver.no_memory_at = 0
  return [first, len(answer(llm))]

@pytest.mark.parametrize("allocations", sample([1, 2, 3, 4, 5], [3]))
def test_out_of_memory_while_answering(model, allocations):
  line, tokens = child.call(full_while_answering, model, allocations, DEV="CUDA").value
  assert tokens == TOKENS
  assert line.startswith(FULL) and line.endswith(FIX)

def too_old(model: str) -> str:
  from tests.support import cuda_stub
  cuda_stub.install(ptx=60)
  import tinygrad_llm
  return said(partial(tinygrad_llm.load, model, **SETTINGS))

def test_driver_older_than_compiler(packed):
  found = child.call(too_old, packed, DEV="CUDA").value
  assert found.startswith(f"{packed}: CUDA: its driver is older than the compiler (module load failed with status code "
                          "222: CUDA_ERROR_UNSUPPORTED_PTX_VERSION); update the driver, or install an older nvidia-")

def chatted(model: str, path: str) -> dict:
  """A chat of two messages that loses the device near the end of the second answer, and is then saved."""
  from tests.support import cuda_stub
  driver = cuda_stub.install()
  import tinygrad_llm
  from tinygrad_llm.terminal.repl import Chat
  from tinygrad_llm.terminal.session import Session, Settings
  chat = Chat(tinygrad_llm.load(model, max_context=64, chunk=16), Session(settings=Settings(count=TOKENS)))
  chat.handle("a")
  before = driver.launches
  chat.handle("a")
  chat.session.turns = chat.session.turns[:2]
  driver.lose_at = driver.launches + (driver.launches - before) - 2
  lines = []
  for text in ("a", "c", f"/save {path}"):
    try: chat.handle(text)
    except InputError as e: lines.append(str(e))
  return {"lines": lines}

def test_chat_keeps_its_turns(model, tmp_path):
  found = child.call(chatted, model, str(path := tmp_path / "chat.json"), DEV="CUDA").value
  first, second = found["lines"]
  assert first == second and first.endswith("; /save FILE keeps the conversation")
  turns = json.loads(path.read_text())["messages"]
  assert [turn["content"] for turn in turns[::2]] == ["a", "a"]
  assert [turn["role"] for turn in turns[1::2]] == ["assistant"] * 2
  assert 0 < len(turns[3]["content"]) < len(turns[1]["content"])  # the part that was answered

def test_command_reports_device_error_in_one_line(model):
  command = [sys.executable, STUB, "no_memory_at=9", "tinygrad_llm.run", "-m", model, "--tokens", "5,6,7", "-n", "30"]
  done = subprocess.run(command, env=child.environment(DEV="CUDA"), capture_output=True, text=True, cwd=child.ROOT)
  assert done.returncode == 2
  assert done.stderr.count("\n") == 1
  assert done.stderr.startswith(f"error: {model}: CUDA: there is no memory left on it (Allocation of ")

def kinds() -> list[bool]:
  """Which errors count as a device's: errors of its runtime, and their consequences."""
  from tests.support import cuda_stub
  driver = cuda_stub.install()
  from tinygrad import Device, Tensor
  found = [device_error(RuntimeError("CUDA Error 719")) is not None]  # never raised
  check_device()
  def of(work) -> bool:
    try:
      with telling_device_errors(): work()
    except DeviceError: return True
    except Exception: return False
    raise AssertionError("no error")
  def other() -> None: raise RuntimeError("CUDA Error 719, as our own code has it")
  def chained() -> None:
    try: Tensor([1.0]).realize().tolist()
    except RuntimeError as e: raise ValueError("no number") from e
  def compiled() -> None: Device["CUDA"].renderer.compiler.compile("no code;")
  found += [of(other), of(compiled)]
  driver.fail["cuMemcpyDtoH_v2"] = 700
  found += [of(lambda: Tensor([1.0]).realize().tolist())]
  try: chained()
  except ValueError as e: found += [device_error(e) is not None]
  driver.fail = {"cuMemAlloc_v2": 719}
  try: Tensor([2.0] * 9).realize()
  except MemoryError as e: found += ["the device failed" in str(device_error(e))]  # tinygrad's name for it
  return found

def test_device_error_classification():
  assert child.call(kinds, DEV="CUDA").value == [False, False, False, True, True, True]
  assert device_error(MemoryError("of the host")) is None  # here the device is the CPU

def test_stub_runs_a_module(tmp_path):
  """The stub runs a module as __main__, with its arguments."""
  (tmp_path / "shown.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
  env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(child.ROOT)])}
  done = subprocess.run([sys.executable, STUB, "memory=5", "shown", "a=1"], env=env, capture_output=True, text=True)
  assert done.stdout == "__main__ ['a=1']\n", done.stderr
