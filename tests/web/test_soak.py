"""Many clients, of which some go away at random moments: no errors, no leaks, and the answers of one alone."""
import asyncio
import json
import random
import sys

import httpx
import pytest
from tests.support.extended import some
from tests.support.served import Served, served
from tests.support.resident import resident

WORDS = "fox boat king bird tree river stone star cloud door".split()

def asked(i: int) -> dict:
  rng = random.Random(i)
  text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 80)))
  return {"messages": [{"role": "user", "content": f"{i % 7} {text}"}], "max_tokens": rng.randint(1, 50),
          "temperature": 0, "ignore_eos": True}

def alone(server: Served, i: int) -> str:
  llm, body = server.service.llm, asked(i)
  prompt = llm.prompt(body["messages"])
  return "".join(llm.text(llm.generate(prompt, body["max_tokens"], ignore_eos=True), llm.template.stop, prompt))

async def ask(http: httpx.AsyncClient, i: int) -> str | None:
  """A request's answer, streamed or whole; None: the client went away, at a random moment, in 30% of them."""
  rng, body, text = random.Random(-1 - i), asked(i), ""
  leaves, stream = rng.random() < 0.3, rng.random() < 0.5
  if leaves and not stream:
    try: await asyncio.wait_for(http.post("/v1/chat/completions", json=body), rng.random() * 0.1)
    except TimeoutError: return None
  if not stream:
    r = await http.post("/v1/chat/completions", json=body)
    r.raise_for_status()
    found: str = r.json()["choices"][0]["message"]["content"]
    return found
  left = rng.randint(0, body["max_tokens"]) if leaves else -1
  async with http.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as r:
    r.raise_for_status()
    async for line in r.aiter_lines():
      if not line.startswith("data: {"): continue
      event = json.loads(line[6:])
      assert "error" not in event, event
      text += event["choices"][0]["delta"].get("content") or ""
      if (left := left - 1) == -1: return None
  return text

async def traffic(url: str, count: int) -> tuple[dict[int, str | None], list[int]]:
  """All answers, and the resident bytes after each tenth of the requests; 8 are under way at a time."""
  places, found, sizes = asyncio.Semaphore(8), dict[int, str | None](), list[int]()
  async with httpx.AsyncClient(base_url=url, timeout=120) as http:
    async def one(i: int) -> None:
      async with places:
        found[i] = await ask(http, i)
        if len(found) % (count // 10) == 0: sizes.append(resident())
    await asyncio.gather(*map(one, range(count)))
  return found, sizes

@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("count", some((60, 500), 0))
def test_soak(model_file, count):
  """With F32 weights a row's numbers depend on no other row. With int8 activations a rounding may flip (streams.md)."""
  with served(model_file(types="F32", vocab=381, context=512), parallel=4, queue=64) as server:
    found, sizes = asyncio.run(traffic(server.url, count))
    assert server.idle() and not server.service.llm.pool_counts().referenced
    assert server.service.llm.engine.counters["errors"] == 0 and server.service.state == "ready"
    wrong = {i: text for i, text in found.items() if text is not None and text != alone(server, i)}
    assert not wrong, [(i, text, alone(server, i)) for i, text in wrong.items()]
    if count >= 500: assert max(sizes[5:]) <= 1.02 * sizes[4], sizes
