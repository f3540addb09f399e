"""The event loop answers while the engine computes: /health stays quick, and nothing else holds all threads."""
import gc
import json
import os
import random
import statistics
import threading
import time
from typing import Any

import httpx
import pytest
import tinygrad_llm
from starlette.testclient import TestClient
from tests.support.extended import extended
from tests.support.served import Served, served
from tinygrad_llm.web.api.app import app
from tinygrad_llm.web.api.completions import _listed
from tinygrad_llm.web.service import Service

def health_times(server: Served, busy: threading.Thread) -> list[float]:
  """Seconds of /health, about 30 a second, while a thread lives."""
  times = list[float]()
  with httpx.Client(base_url=server.url) as http:
    http.get("/health")
    busy.start()
    while busy.is_alive():
      begun = time.perf_counter()
      http.get("/health").raise_for_status()
      times.append(time.perf_counter() - begun)
      time.sleep(0.03)
  return times

@extended
def test_health_while_4096_tokens_are_read(model_file):
  """100 ms; on a busy machine one of twenty may take longer."""
  with served(model_file(types="Q8_0", vocab=4096, context=8192), parallel=2) as server:
    rng, times, found = random.Random(1), list[float](), list[int]()
    def ask() -> None:
      prompt = [rng.randrange(300, 4000) for _ in range(4096)]
      found.append(server.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}).status_code)
    while len(times) < 60 and len(found) < 50: times += health_times(server, threading.Thread(target=ask))
  times.sort()
  print(f"{len(times)} samples in {len(found)} prompts: median {statistics.median(times) * 1e3:.1f} ms, "
        f"95% {times[len(times) * 95 // 100] * 1e3:.1f}, worst {times[-1] * 1e3:.1f}; load {os.getloadavg()[0]:.1f}")
  assert {*found} == {200} and times[len(times) * 95 // 100] < 0.1

def test_collections_are_short(model_file):
  """The model's graphs are left out of them until the server ends; a full one else takes 0.7 s, in one piece."""
  frozen = gc.get_freeze_count()
  with served(model_file(types="F32", vocab=381, context=512), parallel=2) as server:
    assert gc.get_freeze_count() > frozen + 10_000 and server.service.state == "ready"
  assert gc.get_freeze_count() == 0

@pytest.mark.parametrize("path,body,status", [
  ("/v1/completions", {"prompt": "TEXT"}, 400), ("/completion", {"prompt": ["TEXT", 5]}, 400),
  ("/v1/completions", {"prompt": "x", "logit_bias": [["TEXT", 1]]}, 400), ("/tokenize", {"content": "TEXT"}, 413),
  ("/v1/chat/completions", {"messages": [{"role": "user", "content": "TEXT"}, {"role": "user", "content": "x"}]}, 400),
  ("/v1/chat/completions", {"messages": [{"role": "system", "content": "TEXT"}, {"role": "user", "content": "x"}]},
   400), ("/apply-template", {"messages": [{"role": "user", "content": "TEXT"}] * 2}, 400),
  ("/v1/embeddings", {"input": ["x", "TEXT"]}, 400), ("/infill", {"input_prefix": "TEXT", "input_suffix": "x"}, 400)])
def test_long_texts_are_refused_untokenised(model_file, monkeypatch, path, body, status):
  """17 MiB took 30 s to tokenise, in which /health took up to 3 s, and 60 s where the event loop did it."""
  service = Service("tiny", 1, 1)
  service.llm, service.state = tinygrad_llm.load(str(model_file(types="F32", vocab=381, context=512))), "ready"
  encode = service.llm.tokenizer.encode
  def short(text: str, *args: Any, **options: Any) -> list[int]:
    assert len(text) < 200_000
    return encode(text, *args, **options)
  monkeypatch.setattr(service.llm.tokenizer, "encode", short)
  sent = json.dumps(body).replace("TEXT", "a fox " * 400_000)
  with service.llm:
    r = TestClient(app(service), base_url="http://127.0.0.1").post(
      path, content=sent, headers={"content-type": "application/json"})
  assert r.status_code == status, r.text[:200]

def test_offsets_of_many_scores():
  """They are linear: a prompt's scores are listed by the event loop."""
  assert _listed([], "x")["text_offset"] == []
  assert _listed([None] * 4, "abc", 5)["text_offset"] == [5, 8, 11, 14]
  begun = time.perf_counter()
  _listed([None] * 30_000, "abc")
  assert time.perf_counter() - begun < 1
