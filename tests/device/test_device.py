"""Which of tinygrad's devices can answer, and the messages for the others."""
from tests.support import child
import pytest
from tinygrad_llm.device import device
from tinygrad_llm.errors import InputError

def refusal(name: str, runs: bool) -> str:
  try: device.check_computes() if runs else device.check_device()
  except InputError as e: return str(e)
  return ""

STORES = [(name, runs) for name in device.STORES for runs in (True, False)]

@pytest.mark.parametrize(("name", "runs"), STORES)
def test_rejects_storage_only_devices(monkeypatch, name, runs):
  from tinygrad.helpers import DEV
  monkeypatch.setenv("DEV", name)
  monkeypatch.setattr(DEV, "value", name)
  assert refusal(name, runs).startswith(f"DEV={name}: it holds data and computes nothing; use one of METAL, ")

def lies() -> str:
  """The messages for a compiler that computes a wrong sum, and for one that fails."""
  from tinygrad import Tensor
  Tensor.item = lambda self: 6.0  # type: ignore[method-assign,assignment]
  wrong = refusal("CPU:X86", True)
  def fails(self): raise RuntimeError("src:14:46: error:\n  expected '<2 x float>*'")
  Tensor.item = fails  # type: ignore[method-assign]
  return f"{wrong}|{refusal('CPU:X86', True)}"

def test_renderer_is_checked_by_running():
  wrong, failed = child.call(lies, DEV="CPU:X86").value.split("|")
  assert wrong.startswith("DEV=CPU:X86: it computes 1 + 2 + 4 as 6.0; use one of")
  assert failed.startswith("DEV=CPU:X86: it does not compute (src:14:46: error: expected '<2 x float>*'); use one of")

def names() -> list[str]:
  out = [refusal("", True)]
  return [*out, device.check_computes()]

@pytest.mark.parametrize("name", ["cpu", "CPU:X86"])
def test_cpu_device_names(name): assert child.call(names, DEV=name).value == ["", "CPU"]

def test_null_only_compiles():
  found = child.call(names, DEV="NULL", NULL_ALLOW_COPYOUT="1").value
  assert found == ["", "NULL"]
