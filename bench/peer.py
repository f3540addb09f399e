"""
A peer in a comparison: a child process that loads a model once and times one repetition per request.

Each peer has its own process because the environment chooses patches for a whole process. While one peer works, the
others are stopped (SIGSTOP), so that their spinning threads do not take its cores. Requests and replies are lines of
JSON on the child's stdin and stdout. The libraries' own output goes to the child's log.

- load: model, ids, threads, settings -> {"load_s": .., "version": ..}
- time: n_prompt, n_gen, n_depth, passes -> {"ns": ..}
- logits: n -> {"logits": float32 in base64}, after the first n ids
- kernels: -> {"kernels": hash of the kernels that ran, "" if unknown}
"""
from __future__ import annotations
import abc, base64, json, os, signal, subprocess, sys, tempfile, time
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable
import numpy as np

class PeerFailed(Exception):
  """A peer reported an error or died. The message is one line."""

class Worker(Protocol):
  """The interface of a child. `ids` are the tokens to feed, the same for every peer."""
  def load(self, model: str, ids: list[int], threads: int, settings: dict[str, Any]) -> str:
    """Loads the model. Returns the names and versions of the software that runs it."""
  def time(self, n_prompt: int, n_gen: int, n_depth: int, passes: int) -> int:
    """Returns the ns of `passes` runs. Filling the depth, and a token that wakes the threads, are not timed."""
  def logits(self, n: int) -> np.ndarray:
    """Returns (vocab_size,) float32 after ids[:n], from an empty context."""

class CachedPositions(abc.ABC):
  """The clock of a worker with a KV cache of one sequence, whose last positions it can drop."""
  depth = 0  # positions that are filled before the clock starts

  @abc.abstractmethod
  def keep(self, n: int) -> None:
    """Drops all positions but the first n."""
  @abc.abstractmethod
  def feed(self, first: int, last: int) -> Any:
    """Computes ids[first:last], at least one, at these positions, and the logits after the last."""

  def restart(self) -> None:
    self.depth = 0
    self.keep(0)

  def time(self, n_prompt: int, n_gen: int, n_depth: int, passes: int) -> int:
    """See Worker. One of n_prompt and n_gen is 0."""
    if n_depth != self.depth:
      self.restart()
      if n_depth: self.feed(0, n_depth)
      self.depth = n_depth
    self.keep(n_depth)
    self.feed(n_depth, n_depth + 1)
    start = time.perf_counter_ns()
    for _ in range(passes):
      self.keep(n_depth)
      if n_prompt: self.feed(n_depth, n_depth + n_prompt)
      for i in range(n_depth, n_depth + n_gen): self.feed(i, i + 1)
    return time.perf_counter_ns() - start

@runtime_checkable
class Compiles(Protocol):
  """The interface of a child that knows its kernels."""
  def kernels(self) -> str:
    """Returns a hash of the source code of all kernels so far."""

def serve(worker: Worker) -> None:
  """Runs the child's main loop, until stdin ends."""
  replies = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)
  for line in sys.stdin:
    request = json.loads(line)
    op, reply = request.pop("op"), dict[str, Any]()
    try:
      if op == "load":
        start = time.perf_counter()
        reply["version"] = worker.load(**request)
        reply["load_s"] = time.perf_counter() - start
      elif op == "time": reply["ns"] = worker.time(**request)
      elif op == "kernels": reply["kernels"] = worker.kernels() if isinstance(worker, Compiles) else ""
      else: reply["logits"] = base64.b64encode(np.asarray(worker.logits(**request), np.float32).tobytes()).decode()
    except Exception as e:  # the parent reports the peer and goes on without it
      reply = {"error": f"{type(e).__name__}: {e}"}
    print(json.dumps(reply), file=replies, flush=True)

class Peer:
  """The parent's side."""
  def __init__(self, command: Sequence[str], env: dict[str, str]):
    self.log = tempfile.TemporaryFile()  # noqa: SIM115  # closed in close()
    self.process = subprocess.Popen(list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
                                    env={**os.environ, **env}, text=True)

  def load(self, model: str, ids: Sequence[int], threads: int, settings: dict[str, Any]) -> dict[str, Any]:
    return self._ask(op="load", model=model, ids=list(ids), threads=threads, settings=settings)

  def time(self, n_prompt: int, n_gen: int, n_depth: int, passes: int = 1) -> int:
    return int(self._ask(op="time", n_prompt=n_prompt, n_gen=n_gen, n_depth=n_depth, passes=passes)["ns"])

  def logits(self, n: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(self._ask(op="logits", n=n)["logits"]), np.float32)

  def kernels(self) -> str: return str(self._ask(op="kernels")["kernels"])

  def _ask(self, **request: Any) -> dict[str, Any]:
    assert self.process.stdin is not None and self.process.stdout is not None
    try:
      self._signal("SIGCONT")
      print(json.dumps(request), file=self.process.stdin, flush=True)
      line = self.process.stdout.readline()
    except BrokenPipeError: line = ""
    if not line: raise PeerFailed(self._last_words())
    self._signal("SIGSTOP")
    reply: dict[str, Any] = json.loads(line)
    if "error" in reply: raise PeerFailed(" ".join(reply["error"].split())[:300])
    return reply

  def _signal(self, name: str) -> None:
    if hasattr(signal, name) and self.process.poll() is None: self.process.send_signal(getattr(signal, name))

  def _last_words(self) -> str:
    code = self.process.wait()
    self.log.seek(0)
    lines = self.log.read().decode(errors="replace").strip().splitlines()
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"ended with {how}" + (f": {lines[-1].strip()[:300]}" if lines else "")

  def close(self) -> None:
    self.process.kill()  # nothing is to be kept, and this ends a stopped process, too
    self.process.communicate()
    self.log.close()
