"""The servers that the tests start: this one, or the real llama-server. Options are the attributes of ServerProcess."""
from __future__ import annotations
import hashlib
import pathlib
import socket
import subprocess
import sys
import time
from typing import Any

from bench.peer_llama_server import LlamaServer

ROOT = pathlib.Path(__file__).resolve().parents[3]
MOST = 4  # processes of this server that are kept for tests with the same options

def _slots(server: Any) -> int: return min(server.n_slots or 4, 8)

def _context(server: Any, slots: int) -> int:
  """Positions of a slot."""
  context = server.n_ctx or 4096
  return int(context if server.kv_unified else context // slots)

def _template(server: Any, folder: pathlib.Path) -> str:
  """A template's text, or a name that llama-server knows."""
  if server.chat_template_file: return str((folder / server.chat_template_file).read_text())
  return str(server.chat_template or "")

def _port(server: Any) -> int:
  """The server's port: a free one at first, and the same when it starts again."""
  if not hasattr(server, "own_port"):
    with socket.create_server(("127.0.0.1", 0)) as free: server.own_port = free.getsockname()[1]
    server.server_port = server.own_port
  return int(server.own_port)

class Peer:
  """llama-server. python: an interpreter with xllamacpp. A process for each test, as llama.cpp has it."""
  def __init__(self, python: str, model: pathlib.Path, folder: pathlib.Path):
    self._python, self._model, self._folder = python, model, folder

  def start(self, server: Any) -> None:
    slots = _slots(server)
    options: dict[str, Any] = {
      "sampling.seed": server.seed, "sampling.temp": server.temperature, "kv_unified": bool(server.kv_unified),
      "n_ctx": server.n_ctx or 4096, "endpoint_slots": bool(server.server_slots), "use_jinja": bool(server.jinja),
      "endpoint_metrics": bool(server.server_metrics), "ctx_shift": bool(server.enable_ctx_shift),
      "ui": not server.no_ui, "ui_mcp_proxy": server.ui_mcp_proxy, "port": _port(server)}
    if "," in server.server_host: options["hostnames"] = server.server_host.split(",")
    if server.debug: options["verbosity"] = 10
    for theirs, ours in (("n_predict", "n_predict"), ("n_batch", "n_batch"), ("n_ubatch", "n_ubatch"),
                         ("slot_save_path", "slot_save_path"), ("cors_origins", "cors_origins"),
                         ("cache_ram_mib", "cache_ram"), ("media_path", "media_path")):
      if (value := getattr(server, ours)) is not None: options[theirs] = value
    for theirs, ours in (("model_alias", "model_alias"), ("model_tags", "model_tags")):
      if value := getattr(server, ours): options[theirs] = {"set": value.split(",")}
    if server.api_key: options["api_keys"] = [server.api_key]
    if server.server_tools: options["server_tools"] = [server.server_tools]
    if server.reasoning: options["enable_reasoning"] = {"on": 1, "off": 0, "auto": -1}[server.reasoning]
    if template := _template(server, self._folder): options["chat_template"] = template
    if server.pooling: options["pooling_type"] = {"enum": f"LLAMA_POOLING_TYPE_{server.pooling.upper()}"}
    found = LlamaServer(self._python, str(self._model), 1, slots, 0, embedding=bool(server.server_embeddings),
                        options=options)
    server.process = found

  def stop(self, server: Any) -> None:
    if server.process is not None: server.process.close()
    server.process = None

  def close(self) -> None: pass

class Ours:
  """This server. A process is kept for later tests with the same options."""
  def __init__(self, model: pathlib.Path, folder: pathlib.Path):
    self._model, self._folder, self._log = model, folder, model.with_name("serve.log")
    self._running = dict[tuple[str, ...], tuple[subprocess.Popen[bytes], int]]()

  def options(self, server: Any) -> tuple[str, ...]:
    """Options of this server that mean the same as theirs."""
    slots = _slots(server)
    found = ["--parallel", str(slots), "--log-format", "none", "--max-context", str(_context(server, slots))]
    if server.model_alias: found += ["--alias", server.model_alias]
    if server.api_key: found += ["--api-key", server.api_key]
    if server.n_predict and server.n_predict > 0: found += ["--count", str(server.n_predict)]
    if server.no_ui: found.append("--no-page")
    found += ["--temperature", str(server.temperature), "--seed", str(server.seed)]
    found += ["--cors-origin", server.cors_origins or "*"]
    if template := _template(server, self._folder):
      if "{" in template or " " in template:
        path = self._model.with_name(f"template-{hashlib.sha256(template.encode()).hexdigest()[:12]}.jinja")
        path.write_text(template, encoding="utf-8")
        template = str(path)
      found += ["--chat-template", template]
    if server.reasoning: found += ["--think", "off" if server.reasoning == "off" else "on"]
    return tuple(found)

  def start(self, server: Any) -> None:
    import requests
    options = self.options(server)
    if options not in self._running:
      port = _port(server)
      for other, (_, taken) in [*self._running.items()]:
        if taken == port or len(self._running) >= MOST: _end(self._running.pop(other)[0])
      command = [sys.executable, "-m", "tinygrad_llm.serve", "-m", str(self._model), "--port", str(port), *options]
      with self._log.open("wb") as log:
        self._running[options] = subprocess.Popen(command, cwd=ROOT, stderr=log), port
    process, port = self._running[options] = self._running.pop(options)
    server.own_port, server.server_port, server.process = port, port, process
    for _ in range(3000):
      try:
        if requests.get(f"http://127.0.0.1:{server.server_port}/health", timeout=5).status_code == 200: return
      except requests.ConnectionError: pass
      if process.poll() is not None: raise RuntimeError(f"serve: {self._log.read_text()[-300:]} {' '.join(options)}")
      time.sleep(0.1)
    raise TimeoutError("the server did not start")

  def stop(self, server: Any) -> None: pass

  def close(self) -> None:
    for process, _ in self._running.values(): _end(process)

def _end(process: subprocess.Popen[bytes]) -> None:
  process.kill()
  process.wait(60)
