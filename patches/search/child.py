"""
The worker process that runs candidates: `python -m tinygrad_llm.patches.search.child`, started by sandbox.py.

It reads pickled requests from standard input and answers each with a pickle on the original standard output. It ends
with the process that started it, and its memory is limited. A bad candidate therefore breaks only this process.
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
  """The next message of a stream. EOFError at its end."""
  if len(head := stream.read(SIZE.size)) < SIZE.size: raise EOFError
  return pickle.loads(stream.read(SIZE.unpack(head)[0]))

def limit_memory(nbytes: int) -> None:
  """Limits the data of this process and its children, where the system can. A device's own memory does not count."""
  try: import resource
  except ImportError: return
  _, most = resource.getrlimit(resource.RLIMIT_DATA)
  if most != resource.RLIM_INFINITY: nbytes = min(nbytes, most)
  with contextlib.suppress(ValueError, OSError): resource.setrlimit(resource.RLIMIT_DATA, (nbytes, most))

def end_with(parent: int) -> None:
  """Ends this process when its parent has ended, even in the middle of a kernel that never returns."""
  def watch() -> None:
    while os.getppid() == parent: time.sleep(0.5)
    os._exit(1)
  threading.Thread(target=watch, daemon=True).start()

ON_DEVICE = ("prepare", "time", "survey", "reference", "check")  # requests that use the device

class Child:
  """Answers requests by name: a method of the kernel's Candidates, or `kernel`, which sets the kernel."""
  def __init__(self) -> None: self.candidates: Any = None

  def kernel(self, memory: int, *args: Any) -> None:
    """Sets the kernel. memory: bytes that this process, and each one that it starts, may take."""
    from tinygrad_llm.patches.search.candidates import Candidates
    self.candidates = None  # frees the previous kernel's memory
    limit_memory(memory)
    self.candidates = Candidates(*args)

  def answer(self, name: str, args: tuple[Any, ...]) -> Any:
    method: Callable[..., Any] = self.kernel if name == "kernel" else getattr(self.candidates, name)
    return method(*args)

  def failed(self, name: str, error: Exception) -> tuple[str, Any]:
    """The answer to a request that raised. After a device error ("broken") this process is of no further use."""
    from tinygrad_llm.patches.search.candidates import Refused
    line = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if name not in ON_DEVICE or isinstance(error, Refused): return "failed", line
    return "broken", (line, self.candidates.at_work)

def serve(child: Child, requests: BinaryIO, answers: BinaryIO) -> None:
  """
  Answers requests until they end: ("done", result), ("failed", reason) or ("broken", (reason, last candidate run)).

  After "broken" the parent is to start a new process.
  """
  send(answers, ("ready", os.getpid()))
  while True:
    try: name, args = receive(requests)
    except EOFError: return
    try: answer = "done", child.answer(name, args)
    except Exception as e: answer = child.failed(name, e)
    send(answers, answer)

def main(child: Callable[[], Child] = Child) -> None:
  """Runs the worker. The command's argument is the id of the parent, with which it ends."""
  end_with(int(sys.argv[1]))
  answers = os.fdopen(os.dup(1), "wb")
  os.dup2(2, 1)  # prints go to standard error: they are no answers
  from tinygrad_llm import patches
  patches.apply()
  serve(child(), sys.stdin.buffer, answers)

if __name__ == "__main__": main()
