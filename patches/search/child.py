"""
The process that candidates live and die in: `python -m tinygrad_llm.patches.search.child`, started by sandbox.py.

It answers one request after another, each a pickle on standard input, with a pickle on what was standard output. It
ends with whoever started it, and has no more memory than it was given: what a candidate breaks is this process alone.
"""
from __future__ import annotations
import contextlib, os, pickle, struct, sys, threading, time
from collections.abc import Callable
from typing import Any, BinaryIO

SIZE = struct.Struct("=Q")

def send(stream: BinaryIO, message: Any) -> None:
  data = pickle.dumps(message)
  stream.write(SIZE.pack(len(data)) + data)
  stream.flush()

def receive(stream: BinaryIO) -> Any:
  """EOFError if there is no more."""
  if len(head := stream.read(SIZE.size)) < SIZE.size: raise EOFError
  return pickle.loads(stream.read(SIZE.unpack(head)[0]))

def limit_memory(nbytes: int) -> None:
  """Of this process and those that it starts, where the system can do that; a device's own memory is not in it."""
  try: import resource
  except ImportError: return
  _, most = resource.getrlimit(resource.RLIMIT_DATA)
  if most != resource.RLIM_INFINITY: nbytes = min(nbytes, most)
  with contextlib.suppress(ValueError, OSError): resource.setrlimit(resource.RLIMIT_DATA, (nbytes, most))

def end_with(parent: int) -> None:
  """Ends this process when its parent has, also in the middle of a kernel that never will."""
  def watch() -> None:
    while os.getppid() == parent: time.sleep(0.5)
    os._exit(1)
  threading.Thread(target=watch, daemon=True).start()

ON_DEVICE = ("prepare", "time", "survey", "reference", "check")  # requests that use the device

class Child:
  """What is asked of it, by its name: the methods of the kernel's Candidates, and `kernel`, which sets that."""
  def __init__(self) -> None: self.candidates: Any = None

  def kernel(self, memory: int, *args: Any) -> None:
    """memory: bytes that this process may take for it, and all that it starts."""
    from tinygrad_llm.patches.search.candidates import Candidates
    self.candidates = None  # frees the memory of the one before
    limit_memory(memory)
    self.candidates = Candidates(*args)

  def answer(self, name: str, args: tuple[Any, ...]) -> Any:
    method: Callable[..., Any] = self.kernel if name == "kernel" else getattr(self.candidates, name)
    return method(*args)

  def failed(self, name: str, error: Exception) -> tuple[str, Any]:
    """An answer that says why. After an error of the device it does nothing right in this process any more."""
    from tinygrad_llm.patches.search.candidates import Refused
    line = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if name not in ON_DEVICE or isinstance(error, Refused): return "failed", line
    return "broken", (line, self.candidates.at_work)

def serve(child: Child, requests: BinaryIO, answers: BinaryIO) -> None:
  """
  ("done", result); ("failed", a line that says why); or ("broken", (that line, what ran last)), if this process is to
  be another one from then on.
  """
  send(answers, ("ready", os.getpid()))
  while True:
    try: name, args = receive(requests)
    except EOFError: return
    try: answer = "done", child.answer(name, args)
    except Exception as e: answer = child.failed(name, e)
    send(answers, answer)

def main(child: Callable[[], Child] = Child) -> None:
  """The process to end with is the argument."""
  end_with(int(sys.argv[1]))
  answers = os.fdopen(os.dup(1), "wb")
  os.dup2(2, 1)  # what anything prints is no answer
  from tinygrad_llm import patches
  patches.apply()
  serve(child(), sys.stdin.buffer, answers)

if __name__ == "__main__": main()
