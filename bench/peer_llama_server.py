"""
The real llama-server as a peer of streams.py: answers by streaming HTTP, from a process of its own.

Its interpreter needs the package xllamacpp, and nothing else: `python -m venv V && V/bin/pip install xllamacpp`, then
`python bench/streams.py --llama-server V/bin/python`. It is no dependency of this project.
"""
from __future__ import annotations
import http.client, json, subprocess, sys
from collections.abc import Iterator, Sequence
from typing import Any

class LlamaServer:
  """
  The server in a child process, with a slot of `context` positions for each of `slots` answers.

  embedding: it gives mean vectors, too. version: of the package, and what the processor's kernels were compiled for.

  options: of xllamacpp.CommonParams, as {"sampling.seed": 1}. A value {"set": [..]} is a set, and {"enum": name} is a
  member of the attribute's own class.
  """
  def __init__(self, python: str, model: str, threads: int, slots: int, context: int,
               embedding: bool = False, options: dict[str, Any] | None = None):
    settings = json.dumps({"model": model, "threads": threads, "slots": slots, "context": context,
                           "embedding": embedding, "options": options or {}})
    self._process = subprocess.Popen([python, __file__, settings], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     stderr=subprocess.DEVNULL, text=True)
    assert self._process.stdout is not None
    for line in self._process.stdout:
      if line.startswith("{"): break
    else: raise RuntimeError(f"{python}: the server did not start; pip install xllamacpp there")
    found = json.loads(line)
    self.version, self.host = found["version"], found["address"].split("://")[-1]

  def begin(self, ids: Sequence[int], tokens: int) -> HttpAnswer:
    """A greedy answer that no token ends."""
    return HttpAnswer(self.host, ids, tokens)

  def close(self) -> None:
    self._process.kill()
    self._process.communicate()

class HttpAnswer:
  """An answer of POST /completion as server-sent events."""
  def __init__(self, host: str, ids: Sequence[int], tokens: int):
    body = json.dumps({"prompt": list(ids), "n_predict": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                       "cache_prompt": True, "samplers": ["temperature"], "return_tokens": True})
    self._connection = http.client.HTTPConnection(host)
    self._connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
    self._cancelled = False

  def __iter__(self) -> Iterator[int]:
    """Numbers of tokens: an event has several where the bytes of the first were no whole character."""
    response, told = self._connection.getresponse(), 0
    if response.status != 200: raise RuntimeError(f"llama-server: {response.status} {response.read()[:300]!r}")
    for line in response:
      if self._cancelled: break
      if not line.startswith(b"data: {"): continue
      now = int(json.loads(line[6:]).get("tokens_predicted", told))
      if now > told: yield now - told
      told = max(told, now)
    self._connection.close()

  def cancel(self) -> None: self._cancelled = True

def _serve(settings: dict[str, Any]) -> None:
  import xllamacpp  # type: ignore[import-not-found]
  p = xllamacpp.CommonParams()
  p.model.path, p.n_parallel, p.n_ctx = settings["model"], settings["slots"], settings["slots"] * settings["context"]
  p.cpuparams.n_threads = p.cpuparams_batch.n_threads = settings["threads"]
  p.n_gpu_layers, p.kv_unified = 0, False
  if settings["embedding"]: p.embedding, p.pooling_type = True, xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
  for path, value in settings["options"].items():
    *parents, name = path.split(".")
    at: Any = p
    for parent in parents: at = getattr(at, parent)
    if isinstance(value, dict): value = set(value["set"]) if "set" in value else type(getattr(at, name))[value["enum"]]
    setattr(at, name, value)
  server = xllamacpp.Server(p)
  version = f"xllamacpp {xllamacpp.__version__}, {xllamacpp.get_system_info().strip(' |')}"
  print("\n" + json.dumps({"address": server.listening_address, "version": version}), flush=True)
  sys.stdin.read()  # until the parent ends

if __name__ == "__main__": _serve(json.loads(sys.argv[1]))
