"""device/absent.py: devices that cannot be present are not tried; others are."""
import pathlib
import sys

from tests.support import child
import pytest
from tinygrad_llm.device.absent import is_absent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is absent")

@pytest.mark.parametrize(("file", "text", "here"), [
  (None, "", set()), ("dev/kfd", "", {"AMD", "CUDA"}), ("dev/nvidiactl", "", {"NV", "CUDA"}),
  ("dev/nvidia-uvm", "", {"CUDA"}), ("dev/nvhost-ctrl-gpu", "", {"CUDA"}), ("dev/dxg", "", {"CUDA"}),
  ("dev/dri/card0", "", {"CUDA"}), ("dev/kgsl-3d0", "", {"QCOM"}), ("sys/bus/usb/devices/1-1/x", "", {"AMD"}),
  ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x1002\n", {"AMD"}),
  ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n", {"NV"}),
  ("sys/bus/pci/devices/0000:01:00.0/vendor", "0x8086\n", set())])
def test_absent_devices_on_linux(tmp_path: pathlib.Path, monkeypatch, file, text, here):
  if file is not None:
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
  assert {name for name in ("METAL", "AMD", "NV", "CUDA", "QCOM") if not is_absent(name, tmp_path)} == here
  assert not any(is_absent(name, tmp_path) for name in ("CL", "CPU", "WEBGPU", "UNHEARD"))
  monkeypatch.setenv("REMOTE", "host:1")
  assert not is_absent("AMD", tmp_path)

CODE = """
import os, sys
import tinygrad_llm
from tinygrad_llm.device import device
device.is_absent = lambda name: {absent}
chosen = device.check_device()
from tinygrad import Device
tried = sorted(m for m in sys.modules if "runtime.ops_" in m)
print(chosen == Device.DEFAULT == os.environ["DEV"], Device.DEFAULT, *tried)
"""

def test_default_device_matches_tinygrad():
  stock, ours = (child.run(CODE.format(absent=absent), DEV="").stdout.split() for absent in
                 ("False", "name in ('METAL', 'AMD', 'NV', 'QCOM')"))
  assert stock[:2] == ours[:2] and stock[0] == "True"
  assert "tinygrad.runtime.ops_nv" not in ours and "tinygrad.runtime.ops_amd" not in ours

def test_requested_device_is_tried():
  """A device named by DEV is tried even if it seems absent: the error is the driver's."""
  done = child.run("from tinygrad_llm.device.device import check_device; check_device()", check=False, DEV="QCOM")
  assert done.returncode and "DEV=QCOM: it does not open" in done.stderr
