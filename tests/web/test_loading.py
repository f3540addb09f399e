"""The words of /health about a load: the work under way, and how far it is."""
import threading

from tests.support.served import served
from tinygrad_llm import progress
from tinygrad_llm.errors import InputError
from tinygrad_llm.patches.cache import programs
from tinygrad_llm.web.loading import Loading

def test_bytes_steps_and_kernels():
  """A step for which something was scheduled was compiled; the others were found."""
  loading = Loading()
  def told(*event):
    loading(*event)
    found = loading.told()
    assert found.pop("seconds") >= 0
    return found
  assert loading.told()["doing"] == "starting"
  now = {"doing": "reading weights", "bytes_read": 5, "bytes": 10}
  assert told("weights", 5, 10) == now
  now |= {"doing": "preparing steps", "steps_ready": 0, "steps": 3, "steps_found": 0, "steps_compiled": 0}
  assert told("steps", 0, 3) == now
  assert told("steps", 1, 3) == now | {"steps_ready": 1, "steps_found": 1}
  assert told("kernels", 0, 0)["doing"] == "scheduling a step"
  assert told("kernels", 2, 7)["kernels_compiled"] == 2
  now |= {"steps_ready": 2, "steps_found": 1, "steps_compiled": 1, "kernels_compiled": 2, "kernels": 7}
  assert told("steps", 2, 3) == now
  assert told("steps", 3, 3) == now | {"steps_ready": 3, "steps_found": 2}

def test_compiling_is_heard_without_a_terminal():
  """Batches of kernels add up."""
  heard = []
  token = progress.listener.set(lambda *event: heard.append(event))
  try:
    with progress.compiling(show=False):
      for event in ((0, 0), (1, 2), (2, 2), (1, 3)): programs.progress.get()(*event)
  finally: progress.listener.reset(token)
  assert heard == [("kernels", 0, 0), ("kernels", 1, 2), ("kernels", 2, 2), ("kernels", 3, 5)]
  with progress.compiling(show=False): assert programs.progress.get() is None

def test_health_while_it_loads():
  go, reached = threading.Event(), threading.Event()
  def load():
    progress.tell("weights", 7, 9)
    reached.set()
    go.wait(30)
    raise InputError("enough")
  with served(load=load, wait=False) as server:
    assert reached.wait(10)
    found = server.http.get("/health").json()
    assert found["status"] == "loading" and found["error"]["code"] == "loading"
    assert (found["loading"]["doing"], found["loading"]["bytes_read"]) == ("reading weights", 7)
    go.set()
    assert server.until(lambda: bool(server.codes))

def test_whole_load(model_file):
  """All bytes of the tensors, and all steps; a second load finds the steps."""
  path, compiled = model_file(types="F32", vocab=381, context=512), list[int]()
  for _ in range(2):
    with served(path, parallel=2) as server:
      found = server.service.loading.told()
      assert "loading" not in server.http.get("/health").json()
    assert 0 < found["bytes_read"] == found["bytes"] <= path.stat().st_size
    assert found["steps_ready"] == found["steps"] == 3 == found["steps_found"] + found["steps_compiled"]
    compiled.append(found["steps_compiled"])
  assert compiled[1] == 0
