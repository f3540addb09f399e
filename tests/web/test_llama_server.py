"""Requests of llama-server's clients beyond OpenAI's API, and the options that set defaults."""
import json
import math
import random

import numpy as np
import pytest
from starlette.testclient import TestClient
from tests.support.scripted_gguf import CHATML, CONTROL, build
from tests.support.served import served
from tinygrad_llm import InputError, serve
from tinygrad_llm.web.api.app import app
from tinygrad_llm.web.service import Service

CHAT, FOX = "/v1/chat/completions", [{"role": "user", "content": "Tell me about a fox."}]
SAID = [*FOX, {"role": "assistant", "content": "Once there"}]

@pytest.fixture(scope="module")
def server():
  with served() as found: yield found

def chat(server, **body): return server.post(CHAT, {"messages": FOX, "temperature": 0, "max_tokens": 8} | body)

def native(server, **body):
  return server.post("/completion", {"prompt": "Once upon", "temperature": 0, "ignore_eos": True} | body).json()

def events(server, path, body):
  with server.http.stream("POST", path, json=body | {"stream": True}) as r:
    return [json.loads(line[6:]) for line in r.iter_lines() if line.startswith("data: {")]

# *** grammars

def test_grammar(server):
  count = random.randint(2, 6)
  answer = chat(server, grammar=f'root ::= "a"{{{count}}} b\nb ::= [xy]', max_tokens=20).json()["choices"][0]
  assert answer["message"]["content"][:-1] == "a" * count and answer["message"]["content"][-1] in "xy"
  assert answer["finish_reason"] == "stop"

@pytest.mark.parametrize("body", [{"grammar": "root ::= this is (not"}, {"grammar": 'x ::= "a"'},
                                  {"grammar": 'root ::= "a"', "lark": 'start: "a"'},
                                  {"grammar": 'root ::= "a"', "json_schema": {}}])
def test_wrong_grammars(server, body):
  r = chat(server, **body)
  assert r.status_code == 400 and r.json()["error"]["param"] == "grammar", r.text

# *** conversations

def prompt(server, messages, **body):
  return server.post("/apply-template", {"messages": messages} | body)

def test_the_last_words_go_on(server):
  """They do unless a new turn is asked for; without one, the text may end after the last turn."""
  begun = prompt(server, FOX).json()["prompt"]
  assert prompt(server, SAID).json()["prompt"] == begun + "Once there"
  assert prompt(server, SAID, continue_final_message=True, add_generation_prompt=False).json()["prompt"] == \
         begun + "Once there"
  again = prompt(server, SAID, add_generation_prompt=True).json()["prompt"]
  assert again.startswith(begun + "Once there<|end|>") and again.endswith("<|assistant|>")
  assert prompt(server, FOX, add_generation_prompt=False).json()["prompt"] + "<|assistant|>" == begun

@pytest.mark.parametrize("messages,body", [(SAID, {"add_generation_prompt": True}), (FOX, {}), (SAID[1:], {})])
@pytest.mark.parametrize("path", [CHAT, "/apply-template", f"{CHAT}/input_tokens"])
def test_nothing_to_go_on_with(server, messages, body, path):
  r = server.post(path, {"messages": messages, "continue_final_message": True} | body)
  assert r.status_code == 400 and r.json()["error"]["param"] == "continue_final_message", r.text

def test_a_conversation_is_counted_and_shown(server):
  found = chat(server, messages=SAID, verbose=True).json()
  assert found["__verbose"]["prompt"] == prompt(server, SAID).json()["prompt"]
  assert "__verbose" not in chat(server).json()
  for path in (f"{CHAT}/input_tokens", "/chat/completions/input_tokens"):
    counted = server.post(path, {"messages": SAID}).json()
    assert counted == {"object": "response.input_tokens", "input_tokens": found["usage"]["prompt_tokens"]}

# *** progress

@pytest.mark.parametrize("path,asked", [
  (CHAT, lambda text: {"messages": [{"role": "user", "content": text}]}),
  ("/v1/completions", lambda text: {"prompt": text}), ("/completion", lambda text: {"prompt": text, "n_predict": 3})])
def test_progress(server, path, asked):
  """The first event has what was cached, the last one all; times and counts only grow."""
  rng = random.Random()
  text = " ".join(rng.choice("a fox and the king of some old boat".split()) for _ in range(300))
  body = asked(text) | {"return_progress": True, "timings_per_token": True, "max_tokens": 3}
  for again in (False, True):
    told = [e for e in events(server, path, body) if "prompt_progress" in e]
    seen, times = [e["prompt_progress"] for e in told], [e["timings"] for e in told]
    assert len(seen) >= 2 and len({(x["total"], x["cache"]) for x in seen}) == 1
    assert seen[0]["processed"] == seen[0]["cache"] and seen[-1]["processed"] == seen[0]["total"] > 100
    assert (seen[0]["cache"] > 100) == again
    assert all(a["processed"] < b["processed"] for a, b in zip(seen, seen[1:]))
    assert times[0]["prompt_n"] == times[0]["prompt_ms"] == times[-1]["predicted_n"] == 0
    assert times[-1]["prompt_n"] == seen[0]["total"] - seen[0]["cache"] and times[-1]["prompt_ms"] > 0
  assert not any("prompt_progress" in e for e in events(server, path, asked(text) | {"max_tokens": 3}))

# *** probabilities

def test_probabilities_after_sampling(server):
  """Those of the tokens that were picked from: the model's to the power 1 / temperature, and their sum is 1."""
  rng = random.Random()
  temperature, k = rng.uniform(0.5, 2), rng.randint(2, 6)
  body = {"n_predict": 4, "n_probs": 10, "top_k": k, "top_p": 1, "min_p": 0, "seed": rng.randrange(1000),
          "cache_prompt": False}
  plain = native(server, temperature=temperature, **body)["completion_probabilities"]
  found = native(server, temperature=temperature, post_sampling_probs=True, **body)["completion_probabilities"]
  for before, after in zip(plain, found, strict=True):
    chances = np.exp(np.array([x["logprob"] for x in before["top_logprobs"][:k]]) / temperature)
    assert [x["id"] for x in after["top_probs"]] == [x["id"] for x in before["top_logprobs"][:k]]
    np.testing.assert_allclose([x["prob"] for x in after["top_probs"]], chances / chances.sum(), rtol=1e-4)
    assert after["prob"] == next(x["prob"] for x in after["top_probs"] if x["id"] == after["id"])
  best = native(server, n_predict=1, n_probs=3, post_sampling_probs=True)["completion_probabilities"][0]
  assert best["prob"] == 1 and len(best["top_probs"]) == 1

def test_without_the_cache_numbers_are_equal(server):
  """To the bit: the last token of a prompt is read as it was at first, not by a decode step."""
  text = f"Once upon a time there was {random.randrange(10 ** 6)} and"
  body = {"prompt": text, "cache_prompt": False, "n_predict": 6, "n_probs": 3}
  def asked(): return native(server, **body)["completion_probabilities"]
  first = asked()
  assert asked() == first == asked()

# *** embeddings

def test_inputs_of_embeddings(server):
  def vectors(given):
    r = server.post("/v1/embeddings", {"input": given})
    return [e["embedding"] for e in r.json()["data"]] if r.is_success else r.status_code
  text, = vectors("a fox")
  parts = {"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "fox"}]}
  assert vectors({"prompt_string": "a fox"}) == vectors(parts) == [text]
  ids = server.service.llm.pooling.ids("a fox")
  assert vectors(["a fox", parts, ids, [ids[0], *ids[1:]]]) == [text] * 4
  mixed, = vectors([*ids, " and"])
  assert vectors([[*ids, " and"]]) == [mixed] == vectors([[*ids, *server.service.llm.tokenizer.encode(" and")]])
  for wrong in ({"content": "a fox"}, {"content": []}, {"content": [{"type": "image_url", "text": "x"}]}, {},
                ["a", {"content": [5]}], [5, {}], {"prompt_string": "x", "multimodal_data": ["x"]}, True):
    assert vectors(wrong) == 400

# *** defaults

def test_defaults_of_the_command(server):
  service = server.service
  try:
    service.defaults, service.most = {"temperature": 0.0, "seed": 7}, 3
    assert server.http.get("/props").json()["default_generation_settings"]["params"]["seed"] == 7
    found = server.post("/completion", {"prompt": "Once", "ignore_eos": True}).json()
    settings = found["generation_settings"]
    assert (found["tokens_predicted"], settings["temperature"], settings["seed"]) == (3, 0.0, 7)
    assert len(settings["logit_bias"]) == len(service.llm.tokenizer.stop_ids)  # what ignore_eos rules out
    body = {"prompt": "Once", "ignore_eos": True, "max_tokens": 5}
    assert server.post("/v1/completions", body).json()["usage"]["completion_tokens"] == 5
    del body["max_tokens"]
    assert server.post("/v1/completions", body).json()["usage"]["completion_tokens"] == 3
  finally: service.defaults, service.most = {}, None

def test_bias_by_texts_of_an_object(server):
  token = native(server, n_predict=1, return_tokens=True)["tokens"][0]
  text = server.service.llm.tokenizer.decode([token])
  assert server.service.llm.tokenizer.encode(text) == [token]
  assert native(server, n_predict=1, return_tokens=True, logit_bias={text: -100})["tokens"] != [token]

def test_thinking_is_off_by_default(tmp_path):
  """--think sets a variable of the template, and a request may set it otherwise."""
  template = CHATML.replace("assistant\n{% endif %}",
                            "assistant\n{% if not enable_thinking %}<think></think>{% endif %}{% endif %}")
  build(tmp_path / "m.gguf", ["a"], [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL)], template=template)
  with served(tmp_path / "m.gguf") as server:
    server.service.variables = server.service.llm.template.thinking(True)
    assert prompt(server, FOX).json()["prompt"].endswith("assistant\n")
    closed = prompt(server, FOX, chat_template_kwargs={"enable_thinking": False}).json()["prompt"]
    assert closed.endswith("</think>")
    server.service.llm.template = server.service.llm.template.replaced("llama3")
    assert "<|start_header_id|>user" in prompt(server, FOX).json()["prompt"]

def parsed(*args): return serve._parser().parse_args([*args])

def test_options(tmp_path):
  (tmp_path / "t.jinja").write_text("{{ messages }}")
  assert serve._template(parsed("--chat-template", str(tmp_path / "t.jinja"))) == "{{ messages }}"
  assert serve._template(parsed("--chat-template", "chatml")) == "chatml" and serve._template(parsed()) is None
  with pytest.raises(InputError, match="--chat-template 'nothing'.*chatml"):
    serve._template(parsed("--chat-template", "nothing"))
  assert serve._defaults(parsed("--top-k", "5", "--seed", "3", "--temperature", "0.5")) == {
    "temperature": 0.5, "top_k": 5, "seed": 3} and serve._defaults(parsed()) == {}
  for wrong in (["--top-p", "2"], ["--seed", "-4"], ["--repeat-penalty", "-1"]):
    with pytest.raises(InputError, match=wrong[0][2:].replace("-", ".")): serve._defaults(parsed(*wrong))
  with pytest.raises(InputError, match="--count"): serve.check(parsed("--count", "0"))

def test_no_page():
  def status(**options): return TestClient(app(Service("m", 1, 1), **options), base_url=LOCAL).get("/").status_code
  assert status() == 200 and status(page=False) == 404

LOCAL = "http://127.0.0.1"

def test_chances_are_of_what_a_sampler_picks():
  """A call draws each token as often as candidates() says."""
  from tinygrad_llm.engine.sampling import Sampler
  rng = np.random.default_rng()
  logits = rng.normal(0, 2, 50).astype(np.float32)
  sampler = Sampler(temperature=rng.uniform(0.5, 1.5), top_k=int(rng.integers(0, 9)), top_p=0.9, min_p=0.02, seed=1)
  ids, weights = sampler.candidates(logits)
  chances = np.zeros(50)
  chances[slice(None) if ids is None else ids] = weights / weights.sum()
  drawn = np.bincount([sampler(logits) for _ in range(4000)], minlength=50) / 4000
  assert np.abs(drawn - chances).max() < 5 * math.sqrt(0.25 / 4000)
