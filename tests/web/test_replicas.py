"""Replicas: what a supervisor asks of one, the command's options, and two of them under Ray Serve."""
import asyncio
import importlib.util
import json
import os
import pathlib
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.support.extended import extended
from tests.support.slow_replicas import STEP, Started, started
from tinygrad_llm import replicas
from tinygrad_llm.errors import InputError
from tinygrad_llm.web.replica import PATIENCE, Replica
from tinygrad_llm.web.service import Service

# *** without Ray

class Engine:
  """As much of a model as a check for health asks."""
  def __init__(self) -> None: self.error, self.state, self.closed = None, "idle", False
  def failure(self) -> BaseException | None: return self.error
  def health(self) -> SimpleNamespace: return SimpleNamespace(state=self.state)
  def close(self) -> None: self.closed = True

def replica() -> tuple[Replica, Engine]:
  engine = Engine()
  async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
    await send({"type": "http.response.body", "body": b"x"})
  made = Replica(Service("tiny", 2, 2), app, "r1")
  asyncio.run(made.load(lambda: engine))
  return made, engine

def test_replica_loads_names_itself_and_closes():
  found, engine = replica()
  assert found.service.health() == "ok"
  sent = []
  async def send(message): sent.append(message)
  asyncio.run(found({"type": "http"}, None, send))
  assert sent[0]["headers"] == [(b"a", b"b"), (b"x-replica", b"r1")] and sent[1]["body"] == b"x"
  found.close()
  assert engine.closed

def test_error_of_loading_is_raised():
  def load(): raise InputError("no such model")
  found = Replica(Service("tiny", 2, 2), None, "r1")
  with pytest.raises(InputError, match="no such model"): asyncio.run(found.load(load))
  assert found.service.health() == "loading"
  found.close()

def test_failed_engine_is_no_health():
  found, engine = replica()
  found.check()
  engine.error = RuntimeError("the card is gone")
  with pytest.raises(RuntimeError, match="dead: the card is gone"): found.check()
  assert found.service.health() == "dead"
  found.close()  # it might wait for a step that never ends
  assert not engine.closed

def test_readers_of_a_stuck_engine_are_told_in_time():
  """Not at once: it may still go on."""
  found, engine = replica()
  for _ in range(2):
    for _ in range(PATIENCE - 1):
      engine.state = "stuck"
      with pytest.raises(RuntimeError, match="stuck"): found.check()
    engine.state = "running"
    found.check()
  assert not found.service.ending
  engine.state = "stuck"
  for _ in range(PATIENCE):
    with pytest.raises(RuntimeError, match="stuck"): found.check()
  assert found.service.ending

@pytest.mark.parametrize("args,said", [
  ("--replicas 0", "--replicas '0'"), ("--replicas 3-2", "3-2"), ("--replicas x", "'x'"),
  ("--scale-at 0", "--scale-at"), ("--gpus -1", "--gpus -1"), ("--threads 0", "--threads 0"),
  ("--route any", "--route"), ("--parallel 9", "--parallel"), ("--port 0 --address auto", "--port 0")])
def test_wrong_options(args, said):
  with pytest.raises(InputError, match=f".*{said}"): replicas.parsed(args.split())

def test_ray_is_missing(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(InputError, match=r"tinygrad_llm\[ray\]"): replicas.parsed([])

# *** two replicas

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed: make ray")
FOX = [{"role": "user", "content": "Tell me about a fox."}]

@pytest.fixture(scope="module")
def two():
  with started("--parallel", "2", "--queue", "4") as found:
    print(f"\ntwo replicas answer after {found.seconds:.1f} s")
    yield found

def until(true: Callable[[], Any], seconds: float = 60) -> float:
  """Waits until something is true; the seconds that it took."""
  begun = time.monotonic()
  while not true():
    assert time.monotonic() < begun + seconds, "it did not come to be"
    time.sleep(0.1)
  return time.monotonic() - begun

class Reader(threading.Thread):
  """A stream of an answer. ended: as it should. told: of an error by an event."""
  def __init__(self, server: Started, session: str | None, tokens: int = 60):
    super().__init__(daemon=True)
    self._server, self._tokens = server, tokens
    self._headers = {} if session is None else {"x-session-id": session}
    self.replica, self.status, self.times, self.told, self.ended, self.stopped = "", 0, list[float](), "", False, False
    self.start()

  def run(self) -> None:
    body = {"messages": FOX, "max_tokens": self._tokens, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    used = 0
    try:
      with httpx.stream("POST", f"{self._server.url}/v1/chat/completions", json=body, headers=self._headers,
                        timeout=60) as r:
        self.replica, self.status = r.headers.get("x-replica", ""), r.status_code
        for line in r.iter_lines():
          if self.stopped: return
          if line == "data: [DONE]": self.ended = used == self._tokens
          if not line.startswith("data: {"): continue
          event = json.loads(line[6:])
          if "error" in event: self.told = event["error"]["message"]
          elif event.get("usage"): used = event["usage"]["completion_tokens"]
          else: self.times.append(time.monotonic())
    except httpx.HTTPError: pass

def reading(server: Started, sessions: Iterable[str], tokens: int) -> list[Reader]:
  """Streams that have a replica. They start one by one: for a moment each is in the proxy's queue, which is short."""
  found = list[Reader]()
  for name in sessions:
    found.append(Reader(server, name, tokens))
    until(lambda: found[-1].status or not found[-1].is_alive(), 10)
  return found

def begun(readers: list[Reader], events: int = 4) -> None:
  until(lambda: all(len(reader.times) >= events or not reader.is_alive() for reader in readers), 30)

def joined(readers: list[Reader]) -> None:
  for reader in readers: reader.join(60)
  assert not any(reader.is_alive() for reader in readers)

@extended
@needs_ray
class TestTwo:
  def test_sessions_stay_at_their_replica(self, two):
    assert len(two.replicas()) == 2
    rng = random.Random()
    for name in [f"{rng.random()}" for _ in range(10)]: assert len({two.replica(name) for _ in range(4)}) == 1

  def test_answers_come_token_by_token(self, two):
    readers = [Reader(two, name, 40) for names in two.sessions().values() for name in names]
    joined(readers)
    assert len({reader.replica for reader in readers}) == 2
    for reader in readers:
      assert reader.ended and 10 < len(reader.times) <= 43  # an event has several tokens if the machine is busy
      middle = reader.times[len(reader.times) // 2]          # and not all come at the end
      assert reader.times[1] + 5 * STEP < middle < reader.times[-1] - 5 * STEP
      assert reader.times[-1] - reader.times[1] > 30 * STEP

  def test_next_turn_finds_its_prefix(self, two):
    """Sessions are for this: the second request reads only the new part."""
    body = {"messages": [{"role": "user", "content": "fox boat king " * 60}], "max_tokens": 1}
    for name in ("one", "two", "three"):
      text = [{"role": "user", "content": f"{name} " + "fox boat king " * 60}]
      found = [two.http.post("/v1/chat/completions", json=body | {"messages": text}, headers={"x-session-id": name})
               for _ in range(2)]
      cached = [r.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for r in found]
      assert cached[1] >= 64 and cached[1] > cached[0]

  @pytest.mark.parametrize("whole", [False, True])
  def test_client_that_leaves_ends_its_answer(self, two, whole):
    headers = {"x-session-id": "leaver"}
    def busy() -> bool:
      return any(slot["is_processing"] for slot in two.http.get("/slots", headers=headers).json())
    if whole:
      with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{two.url}/v1/chat/completions", headers=headers, timeout=1,
                   json={"messages": FOX, "max_tokens": 400, "ignore_eos": True})
    else:
      reader = Reader(two, "leaver", 400)
      begun([reader])
      assert busy()
      reader.stopped = True
    assert until(lambda: not busy(), 5) < 3 < 400 * STEP

  def test_full_replica_gives_way_and_a_full_queue_refuses(self, two):
    """A session's replica holds some of its requests, the other one more; then four wait; the next is refused."""
    readers = reading(two, ["same"] * 2 * (2 + replicas.SPARE), 200)
    assert {reader.status for reader in readers} == {200} and len({reader.replica for reader in readers}) == 2
    readers += [Reader(two, "same", 200) for _ in range(4)]
    time.sleep(0.5)
    refused = two.http.post("/v1/completions", json={"prompt": "Once"})
    assert refused.status_code == 503 and refused.headers["retry-after"]
    for reader in readers: reader.stopped = True
    joined(readers)
    until(lambda: two.http.post("/v1/completions", json={"prompt": "Once", "max_tokens": 1}).status_code == 200)

  def test_killed_replica_loses_only_its_own(self, two):
    """The other's answers end as they should, what waits is answered, and another replica takes the place."""
    sessions = two.sessions(3)
    lost = random.choice([*sessions])
    pid = two.http.get("/pid", headers={"x-session-id": sessions[lost][0]}).json()
    readers = reading(two, [name for three in zip(*sessions.values()) for name in three], 100)
    begun(readers[:4])  # of each replica one waits for a slot
    whole = threading.Thread(target=lambda: codes.append(two.http.post(
      "/v1/completions", json={"prompt": "Once"}, headers={"x-session-id": sessions[lost][0]}).status_code))
    codes = list[int]()
    whole.start()
    time.sleep(0.2)
    os.kill(pid, signal.SIGKILL)
    dead = time.monotonic()
    whole.join(10)
    assert codes == [500]
    after = [Reader(two, name, 20) for names in sessions.values() for name in names[:1]]
    joined(readers + after)
    mine = [reader for reader in readers if reader.replica == lost]
    assert len(mine) == 3 and not any(reader.ended for reader in mine)
    assert all(reader.ended for reader in readers if reader.replica != lost)
    assert all(reader.ended and reader.replica != lost for reader in after)
    until(lambda: len(two.replicas() - {lost}) == 2)
    print(f"\na replica that was killed is replaced after {time.monotonic() - dead:.1f} s")
    assert lost not in two.replicas()

  @pytest.mark.parametrize("fault", ["fail", "stick"])
  def test_broken_engine_is_replaced(self, two, fault):
    """Its readers are told by an event, and others notice nothing."""
    sessions = two.sessions()
    lost = random.choice([*sessions])
    readers = [Reader(two, name, 150) for names in sessions.values() for name in names]
    begun(readers)
    two.http.get(f"/{fault}", headers={"x-session-id": sessions[lost][0]})
    broken = time.monotonic()
    joined(readers)
    for reader in readers:
      if reader.replica == lost: assert not reader.ended and reader.told
      else: assert reader.ended and not reader.told
    until(lambda: len(two.replicas() - {lost}) == 2)
    print(f"\na replica whose engine has a fault ({fault}) is replaced after {time.monotonic() - broken:.1f} s")
    until(lambda: lost not in two.replicas(), 30)

@extended
@needs_ray
def test_drain():
  """After a signal running answers end as they should, and no process is left."""
  with started("--parallel", "2") as server:
    readers = [Reader(server, name, 150) for names in server.sessions(2).values() for name in names]
    begun(readers)
    pids = [server.http.get("/pid", headers={"x-session-id": name}).json() for name in map(str, range(20))]
    server.process.send_signal(signal.SIGTERM)
    signalled = time.monotonic()
    until(lambda: server.http.get("/version").status_code != 200, 5)
    assert all(reader.is_alive() for reader in readers)
    joined(readers)
    assert len({reader.replica for reader in readers}) == 2 and all(reader.ended for reader in readers)
    assert server.process.wait(30) == 0
    print(f"\ndrained after {time.monotonic() - signalled:.1f} s")
    assert not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids)

@extended
@needs_ray
def test_drain_ends_in_time_and_a_second_signal_at_once():
  with started("--replicas", "1", "--drain", "1") as server:
    reader = Reader(server, None, 400)
    begun([reader])
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(20) == 0
    joined([reader])
    assert not reader.ended
  with started("--replicas", "1") as server:
    reader = Reader(server, None, 400)
    begun([reader])
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(8) == 0

@extended
@needs_ray
def test_more_replicas_start_under_load():
  with started("--replicas", "1-2", "--scale-at", "1", "--route", "load") as server:
    assert len(server.replicas(10)) == 1
    readers, begun = list[Reader](), time.monotonic()
    def load() -> bool:
      readers[:] = [reader for reader in readers if reader.is_alive()]
      while len(readers) < 4: readers.append(Reader(server, None, 100))
      return len(server.replicas(4)) == 2
    until(load, 180)
    print(f"\na second replica answers after {time.monotonic() - begun:.1f} s of load")
    joined(readers)

@extended
@needs_ray
def test_model_that_cannot_be_loaded_ends_with_a_line(tmp_path):
  (broken := tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(60))
  with pytest.raises(AssertionError) as e, started("-m", str(broken)): pass
  last = str(e.value).splitlines()[-1]
  assert last.startswith("error: replicas: ") and "broken.gguf" in last
