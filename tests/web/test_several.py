"""Several answers to one prompt: it is read once, and each answer has its own slot."""
import random
import threading

import pytest
from tests.support.served import served

RANDOM, FIRST = random.Random(5), iter(range(400, 500))

@pytest.fixture(scope="module")
def server():
  with served(parallel=3, queue=4) as found: yield found

def fresh_prompt(server, count):
  """Token ids of a text that nobody has asked for before: the first one is new, too."""
  words = RANDOM.choices("fox boat king bird tree river old small red went saw found and the a".split(), k=2 * count)
  return [next(FIRST), *server.service.llm.tokenizer.encode(" ".join(words))][:count]

def asked(server, prompt, n, **body):
  """The answer, and how many prompt tokens the engine's steps fed for it."""
  counts = server.service.llm.engine.scheduler.counts
  before = counts.prompt_tokens
  r = server.post("/v1/completions", {"prompt": prompt, "n": n, "max_tokens": 6, "ignore_eos": True} | body)
  assert r.status_code == 200, r.text
  return r.json(), counts.prompt_tokens - before

@pytest.mark.parametrize("n", [2, 3])
def test_prompt_is_read_once(server, n):
  ids = fresh_prompt(server, RANDOM.randint(70, 200))
  answer, fed = asked(server, ids, n, temperature=1.5, top_k=0, top_p=1, min_p=0, seed=1)
  usage = answer["usage"]
  assert fed == len(ids) == usage["prompt_tokens"] and usage["completion_tokens"] == 6 * n
  assert usage["prompt_tokens_details"]["cached_tokens"] == answer["timings"]["cache_n"] == 0
  assert len({choice["text"] for choice in answer["choices"]}) > 1

def test_more_answers_than_slots(server):
  """Those that begin later find the prompt's whole blocks."""
  ids = fresh_prompt(server, 150)
  answer, fed = asked(server, ids, 7, temperature=0)
  assert len(ids) - 1 <= fed <= len(ids) + 4 * (len(ids) - 128) and server.idle()
  assert [choice["index"] for choice in answer["choices"]] == [*range(7)]

def test_more_than_may_wait(server):
  """A number that never fits is an error of the request; one that does not fit now, a 503."""
  r = server.post("/v1/completions", {"prompt": "Once", "n": 8, "max_tokens": 1})
  assert r.status_code == 400 and r.json()["error"]["param"] == "n"
  r = server.post("/v1/completions", {"prompt": ["Once"] * 8, "max_tokens": 1})
  assert r.status_code == 400 and r.json()["error"]["param"] == "prompt" and server.idle()

def test_queue_counts_answers(server, monkeypatch):
  """Three of five run, two wait: three more are refused, and two are not."""
  hold, steps = threading.Event(), server.service.llm.engine.steps
  decode = steps.decode
  def held(*args):
    hold.wait(20)
    return decode(*args)
  monkeypatch.setattr(steps, "decode", held)
  def body(n): return {"prompt": "Once upon", "n": n, "max_tokens": 4, "ignore_eos": True}
  codes = []
  def ask(n): codes.append(server.post("/v1/completions", body(n)).status_code)
  threads = [threading.Thread(target=ask, args=(5,))]
  threads[0].start()
  assert server.until(lambda: (server.service.running, server.service.waiting) == (3, 2))
  refused = server.post("/v1/completions", body(3))
  assert refused.status_code == 503 and refused.json()["error"]["code"] == "queue_full"
  threads.append(threading.Thread(target=ask, args=(2,)))
  threads[1].start()
  assert server.until(lambda: server.service.waiting == 4)
  hold.set()
  for thread in threads: thread.join()
  assert codes == [200, 200] and server.idle()

@pytest.mark.parametrize("n", [2, 7])
def test_client_that_leaves_ends_all(server, monkeypatch, n):
  """Answers that run and those that wait; each slot is free again."""
  steps = server.service.llm.engine.steps
  decode, begun = steps.decode, threading.Event()
  def slow(*args):
    begun.set()
    threading.Event().wait(0.05)
    return decode(*args)
  monkeypatch.setattr(steps, "decode", slow)
  monkeypatch.setattr("tinygrad_llm.engine.batch.request.Request.is_plain", False)  # so every step is a decode()
  body = {"prompt": "Once upon", "n": n, "ignore_eos": True, "max_tokens": 1000, "stream": True}
  with server.http.stream("POST", "/v1/completions", json=body) as r:
    next(r.iter_lines())
    assert begun.wait(20)
  assert server.until(lambda: not server.service.running + server.service.waiting, 5) and server.idle()
  assert not server.service.llm.pool_counts().referenced
  assert asked(server, "Once", 3)[0]["usage"]["completion_tokens"] == 18
