"""Where all commands find NVIDIA's compilers, and the messages if they are missing."""
import importlib
import os
import sys

from tests.support import child
import pytest
from tests.tools.kernel_cases import has_cuda_wheels
from tinygrad_llm.device import cuda, device
from tinygrad_llm.errors import InputError

NAMES = ("NVRTC_PATH", "CUDA_PATH", "NVJITLINK_PATH")

@pytest.fixture
def place(monkeypatch, tmp_path):
  """place(folder, *names) creates library files. No compiler is found otherwise."""
  for name in NAMES:
    monkeypatch.setenv(name, "")  # so that monkeypatch restores it, whatever is set
    monkeypatch.delenv(name)
  monkeypatch.setattr(cuda, "_wheels", lambda: None)
  def make(folder, *names):
    for name in names:
      (path := tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
      path.touch()
    return tmp_path / folder
  return make

def found() -> list[str | None]:
  cuda.find_cuda()
  return [os.environ.get(name) for name in NAMES]

def test_no_compiler(place): assert found() == [None, None, None]

def test_nvrtc_from_wheels(place, monkeypatch):
  names = ("nvrtc.so.12", "nvrtc.so.13", "nvrtc-builtins.so.13", "nvJitLink.so.13")
  root = place("cu13", *(f"lib/lib{name}" for name in names))
  monkeypatch.setattr(cuda, "_wheels", lambda: root)
  assert found() == [str(root / "lib/libnvrtc.so.13"), str(root), str(root / "lib/libnvJitLink.so.13")]

def test_toolkit_nvrtc_comes_first(place, monkeypatch):
  wheels, toolkit = place("cu13", "lib/libnvrtc.so.13"), place("toolkit", "bin/nvcc")
  monkeypatch.setattr(cuda, "_wheels", lambda: wheels)
  monkeypatch.setenv("CUDA_PATH", str(toolkit))
  assert found() == [str(wheels / "lib/libnvrtc.so.13"), str(wheels), None]
  monkeypatch.delenv("NVRTC_PATH")
  place("toolkit", "lib64/libnvrtc.so.12")
  monkeypatch.setenv("CUDA_PATH", str(toolkit))
  assert found() == [str(toolkit / "lib64/libnvrtc.so.12"), str(toolkit), None]

def test_nvrtc_path_variable(place, monkeypatch):
  monkeypatch.setattr(cuda, "_wheels", lambda: place("cu13", "lib/libnvrtc.so.13"))
  monkeypatch.setenv("NVRTC_PATH", "/mine")
  assert found() == ["/mine", None, None]

@pytest.mark.parametrize("command", ["run", "bench", "perplexity", "tune", "kernels"])
def test_every_command_searches_nvrtc(monkeypatch, tmp_path, command):
  """Every command searches in one place, before it opens the device."""
  def look() -> None: raise InputError("looked")
  monkeypatch.setattr(device, "find_cuda", look)
  monkeypatch.setenv("DEV", "CUDA")
  (text := tmp_path / "text").write_text("some words")
  args = {"run": ["--tokens", "1,2"], "perplexity": ["-f", str(text)]}
  monkeypatch.setattr(sys, "argv", [command, *args.get(command, [])])
  module = importlib.import_module(f"tinygrad_llm.{command}")
  with pytest.raises(InputError, match="looked"): module._main()

def test_gpu_check_searches_nvrtc_once(monkeypatch):
  """gpu_check searches once for all its parts, which are child processes."""
  sys.path.insert(0, str(child.ROOT / "bench"))
  gpu_check = importlib.import_module("gpu_check")
  def look() -> None: raise InputError("looked")
  monkeypatch.setattr(cuda, "find_cuda", look)
  monkeypatch.setattr(sys, "argv", ["gpu_check"])
  monkeypatch.setenv("DEV", "NV")
  with pytest.raises(InputError, match="looked"): gpu_check._main()

def test_missing_nvrtc_gives_a_warning(monkeypatch, capfd):
  cuda.check_compiler("DEV=NV", "CUDA")
  assert capfd.readouterr().err == ""
  cuda.check_compiler("DEV=NV", "PTX")
  said = capfd.readouterr().err
  assert said.startswith("warning: DEV=NV: NVRTC, NVIDIA's compiler, is not installed; run: pip install nvidia-cuda-")
  monkeypatch.setattr(cuda.shutil, "which", lambda name: None)
  with pytest.raises(InputError, match="DEV=NV: NVRTC, NVIDIA's compiler, is not installed; run: pip install"):
    cuda.check_compiler("DEV=NV", "NVCC")
  monkeypatch.setattr(cuda.shutil, "which", lambda name: f"/bin/{name}")
  cuda.check_compiler("DEV=NV", "NVCC")

def opened() -> list[str]:
  from tests.support import cuda_stub
  cuda_stub.install()
  name = device.check_device()
  return [name, device.renderer_of(name), device.with_renderer(name)]

@pytest.mark.skipif(not has_cuda_wheels(), reason="NVIDIA makes no NVRTC wheel for this machine")
@pytest.mark.parametrize("env, renderer, shown", [
  ({"DEV": "CUDA"}, "CUDA", "CUDA"), ({"DEV": "CUDA:PTX"}, "PTX", "CUDA:PTX"),
  ({"DEV": "CUDA", "NVRTC_PATH": "/none"}, "PTX", "CUDA:PTX")])
def test_renderer_selection(env, renderer, shown):
  kept = {name: "" for name in NAMES if name in os.environ}  # clears variables set in the tests' process
  assert child.call(opened, **{**kept, **env}).value == ["CUDA", renderer, shown]
