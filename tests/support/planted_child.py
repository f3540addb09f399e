"""
A search sandbox's child process with planted faults: `python planted_child.py FAULT PARENT`.

A hash of its Opts selects about one candidate in four. The fault is in the candidate's code (hang, segfault, wrong) or
in its compilation (memory, killed, slow). With "device", running the candidate raises a driver error, and so does every
later use of the device by this process.
"""
from __future__ import annotations
import hashlib
import os
import signal
import sys
import time
from typing import Any

import numpy as np

FAULTS = ("hang", "segfault", "wrong", "memory", "killed", "slow", "device")
PLANTED = {
  "hang": {"CPU": "for (volatile int hang_ = 0;;) hang_++;", "CL": "for (volatile int hang_ = 0;;) hang_++;"},
  "segfault": {"CPU": "*(volatile int*)8 = 1;", "CL": "*(volatile __global int*)8 = 1;"},
  "wrong": {"CPU": "return;", "CL": "return;"}}  # much faster than the right kernel

def is_planted(opts: Any) -> bool:
  return bool(opts) and hashlib.sha256(repr([(o.op.name, o.axis, o.arg) for o in opts]).encode()).digest()[0] % 4 == 0

def with_fault(source: str, text: str) -> str:
  """The source with `text` inserted at the start of the last function, which is the kernel."""
  at = source.index("{", source.rindex("void "))
  return source[:at + 1] + text + source[at + 1:]

def main() -> None:
  fault = sys.argv.pop(1)
  from tinygrad_llm.patches.search import candidates, child
  lost = []
  class Planted(candidates.Candidates):
    def _next(self, opts: Any) -> Any:
      found = super()._next(opts)
      if lost or fault == "device" and opts is not candidates.UNOPTIMISED and is_planted(opts): lost.append(opts)
      if lost: raise RuntimeError("CUDA Error 700, an illegal memory access was encountered")
      return found
    def compile(self, opts: Any) -> bytes:
      if fault == "device" or not is_planted(opts): return super().compile(opts)
      held = []
      if fault == "memory":
        while True: held.append(np.empty(1 << 28, np.uint8))
      if fault == "killed": os.kill(os.getpid(), signal.SIGKILL)
      if fault == "slow": time.sleep(3600)
      render, device = self.ren.render, self.device.split(":")[0]
      self.lowered.pop(opts, None)  # forces a new rendering
      self.ren.render = lambda uops: with_fault(render(uops), PLANTED[fault][device])
      try: return super().compile(opts)
      finally: del self.ren.render
  class Child(child.Child):
    def kernel(self, memory: int, *args: Any) -> None:
      super().kernel(memory, *args)
      self.candidates.__class__ = Planted
  child.main(Child)

if __name__ == "__main__": main()
