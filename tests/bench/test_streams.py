"""bench/traffic.py and bench/peer_llama_server.py: rates of answers that overlap, and events read as tokens."""
import json
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from bench.peer_llama_server import HttpAnswer
from bench.traffic import beside_prompt, decode, first_token, window

def test_window_is_where_all_answers_run():
  rng = random.Random(1)
  for _ in range(50):
    times = [sorted(rng.uniform(0, 10) for _ in range(rng.randint(2, 9))) for _ in range(rng.randint(1, 5))]
    found = window(times)
    inside = [t for answer in times for t in answer if all(a[0] < t for a in times) or t == found.begin]
    assert found.begin == max(t[0] for t in times) and found.end == min(t[-1] for t in times)
    assert found.tokens == sum(found.begin < t <= found.end for t in inside)

class Scripted:
  """Answers of a server that gives all of them a token every 2 ms, and none for `pause` seconds after a long prompt."""
  def __init__(self, pause: float): self.pause, self.until, self.ended = pause, 0.0, 0

  def begin(self, ids, tokens):
    if len(ids) > 100: self.until = time.perf_counter() + self.pause
    return self.Answer(self, tokens)

  class Answer:
    def __init__(self, server, tokens): self.server, self.tokens, self.cancelled = server, tokens, False
    def __iter__(self):
      for _ in range(self.tokens):
        time.sleep(max(0.002, self.server.until - time.perf_counter()))
        if self.cancelled: break
        yield 1
      self.server.ended += 1
    def cancel(self): self.cancelled = True

class InStep(Scripted):
  """Answers of `count` readers, none of which gets its next token before all have counted the last one."""
  def __init__(self, count: int):
    super().__init__(0)
    self.barrier = threading.Barrier(count)

  class Answer(Scripted.Answer):
    def __iter__(self):
      for token in super().__iter__():
        self.server.barrier.wait(20)
        yield token

def test_rate_of_answers_in_step():
  """The window begins with the last first token, and ends with the first last token."""
  server = InStep(3)
  found = decode(server.begin, [[1]] * 3, 10)
  assert 25 <= found.tokens <= 27 and found.rate < 1600 and server.ended == 3

def test_scripted_traffic():
  server = Scripted(0.2)
  assert 0.002 <= first_token(server.begin, [1]) < 1
  found = beside_prompt(server.begin, [[1]] * 4, [1] * 200, 20)
  assert found["gap_ms"] >= 190 and found["first_token_s"] >= 0.19 and found["share"] < 0.5 and found["step_ms"] >= 2
  assert server.ended == 1 + 5

def test_errors_of_answers_are_raised():
  class Failing:
    def __iter__(self):
      yield 1
      raise ValueError("it broke")
    def cancel(self): pass
  with pytest.raises(ValueError, match="it broke"): decode(lambda ids, tokens: Failing(), [[1]], 5)

def test_http_events_are_counted_as_tokens():
  """An event may tell of several tokens, and the last one of none."""
  asked = []
  class Server(BaseHTTPRequestHandler):
    def do_POST(self):
      asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
      self.send_response(200)
      self.end_headers()
      for n in (1, 3, 4, 4): self.wfile.write(f"data: {json.dumps({'tokens_predicted': n})}\n\n".encode())
      self.wfile.write(b"data: [DONE]\n\n")
    def log_message(self, *_): pass
  server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  try: assert [*HttpAnswer(f"127.0.0.1:{server.server_port}", [5, 6], 4)] == [1, 2, 1]
  finally: server.shutdown()
  assert asked[0]["prompt"] == [5, 6] and asked[0]["n_predict"] == 4 and asked[0]["temperature"] == 0
