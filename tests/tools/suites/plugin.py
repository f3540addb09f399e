"""
A plugin of llama.cpp's server tests: it starts a server on the bundled model in the place of llama-server on theirs.

Texts that only their model writes, and counts of its tokens that are a test's parameters, are not compared.
"""
from __future__ import annotations
import contextlib
import json
import pathlib
import sys
import types
from typing import Any

from tests.tools.suites.model import write
from tests.tools.suites.servers import Ours, Peer

COUNTS = ("n_prompt", "n_tokens")

class _Any:
  """It is equal to every number."""
  def __eq__(self, other: object) -> bool: return isinstance(other, int)
  __hash__ = None  # type: ignore[assignment]

def pytest_addoption(parser: Any) -> None:
  for name in ("wget", "filelock"): sys.modules[name] = types.ModuleType(name)  # what fetches their models
  vars(sys.modules["filelock"])["FileLock"] = contextlib.nullcontext
  parser.addoption("--peer-python", default="", help="an interpreter with xllamacpp: its llama-server is tested")
  parser.addoption("--suite-model", help="the path at which the model is made")
  parser.addoption("--outcomes", default="", help="a file for {test: [outcome, message]}")

def pytest_configure(config: Any) -> None:
  from requests.structures import CaseInsensitiveDict
  import utils  # type: ignore[import-not-found]
  folder, python = pathlib.Path(utils.__file__).parent, config.getoption("--peer-python")
  model = write(pathlib.Path(config.getoption("--suite-model")))
  config.stash[SERVERS] = servers = Peer(python, model, folder) if python else Ours(model, folder)
  def start(server: Any, timeout_seconds: int = 0) -> None:
    servers.start(server)
    utils.server_instances.add(server)
  def stop(server: Any) -> None:
    utils.server_instances.discard(server)
    servers.stop(server)
  ask = utils.ServerProcess.make_request
  def make_request(server: Any, method: str, path: str, data: Any = None, *args: Any, **more: Any) -> Any:
    """A server with `debug` tells more in each answer; here a request asks for it. Headers are of any case."""
    if server.debug and isinstance(data, dict): data = {"verbose": True} | data
    found = ask(server, method, path, data, *args, **more)
    found.headers = CaseInsensitiveDict(found.headers)
    return found
  if not python: utils.ServerProcess.make_request = make_request
  utils.ServerPreset.load_all = staticmethod(lambda: None)
  utils.ServerProcess.start, utils.ServerProcess.stop = start, stop
  utils.match_regex = lambda regex, text: isinstance(text, str)
  config.pluginmanager.register(_Outcomes(config.getoption("--outcomes")), "outcomes")

SERVERS: Any = __import__("pytest").StashKey()

def pytest_unconfigure(config: Any) -> None:
  if (servers := config.stash.get(SERVERS, None)) is not None: servers.close()

def pytest_collection_modifyitems(items: list[Any]) -> None:
  for item in items:
    if not hasattr(item, "callspec"): continue
    for name in COUNTS:
      if name in item.callspec.params: item.callspec.params[name] = _Any()

class _Outcomes:
  """Keeps what came of each test."""
  def __init__(self, path: str): self._path, self._found = path, dict[str, list[str]]()

  def pytest_runtest_logreport(self, report: Any) -> None:
    if report.when != "call" and report.passed: return
    message = ""
    if report.failed: message = getattr(getattr(report.longrepr, "reprcrash", None), "message", str(report.longrepr))
    self._found[report.nodeid] = [report.outcome, message]

  def pytest_sessionfinish(self) -> None:
    if self._path: pathlib.Path(self._path).write_text(json.dumps(self._found, indent=1))
