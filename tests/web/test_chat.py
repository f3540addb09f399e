"""/v1/chat/completions, as OpenAI's own client asks it."""
import json

import numpy as np
import openai
import pytest
from tests.support.scripted_gguf import CHATML, CONTROL, build
from tests.support.served import Served, served

FOX = [{"role": "user", "content": "Tell me about a fox."}]
MARKS = [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL), ("<think>", CONTROL), ("</think>", CONTROL)]

@pytest.fixture(scope="module")
def server():
  with served() as found: yield found

def alone(server: Served, messages=FOX, **settings) -> str:
  return "".join(server.service.llm.chat(messages, **settings))

def whole(server: Served, messages=FOX, **settings):
  return server.openai().chat.completions.create(model="any", messages=messages, **settings)

def test_greedy_answer_is_chats(server):
  want = alone(server, max_tokens=20)
  answer = whole(server, temperature=0, max_tokens=20)
  assert answer.choices[0].message.content == want and answer.choices[0].finish_reason == "length"
  assert answer.model == "tiny" and answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
  prompt = len(server.service.llm.prompt(FOX))
  assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, 20)

def test_stream_is_the_whole_answer(server):
  want = whole(server, temperature=0, max_tokens=20).choices[0]
  chunks = [*whole(server, temperature=0, max_tokens=20, stream=True, stream_options={"include_usage": True})]
  assert chunks[0].choices[0].delta.role == "assistant" and not chunks[0].choices[0].delta.content
  assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == want.message.content
  assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
  assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 20
  assert all(c.usage is None for c in chunks[:-1]) and len({c.id for c in chunks}) == 1
  assert chunks[-2].timings["predicted_n"] == 20

def test_no_usage_unless_asked(server):
  with server.http.stream("POST", "/v1/chat/completions", json={"messages": FOX, "max_tokens": 2, "stream": True}) as r:
    lines = [line for line in r.iter_lines() if line]
  assert r.headers["content-type"].startswith("text/event-stream") and lines[-1] == "data: [DONE]"
  assert not any("usage" in line for line in lines)

def test_seed_decides(server):
  def drawn(seed): return whole(server, temperature=1.5, max_tokens=12, seed=seed).choices[0].message.content
  drawn(4)  # reads the prompt: a prompt that is found again has slightly other numbers
  first = drawn(5)
  assert drawn(5) == first and len({first, *(drawn(i) for i in range(6, 10))}) > 1
  several = whole(server, temperature=1.5, max_tokens=12, seed=5, n=3)
  assert [c.index for c in several.choices] == [0, 1, 2]
  assert [c.message.content for c in several.choices] == [first, drawn(6), drawn(7)]
  assert several.usage.completion_tokens == 36

def test_choices_stream_side_by_side(server):
  texts, ends = {}, {}
  for chunk in whole(server, temperature=0, max_tokens=9, n=3, stream=True):
    for choice in chunk.choices:
      texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
      if choice.finish_reason: ends[choice.index] = choice.finish_reason
  assert texts == dict.fromkeys(range(3), alone(server, max_tokens=9)) and ends == dict.fromkeys(range(3), "length")

def test_stop_strings_are_not_shown(server):
  text = alone(server, max_tokens=30)
  stop = text[8:11]
  want = text[:text.index(stop)]
  answer = whole(server, temperature=0, max_tokens=30, stop=[stop, ""])
  assert answer.choices[0].message.content == want and answer.choices[0].finish_reason == "stop"
  chunks = whole(server, temperature=0, max_tokens=30, stop=stop, stream=True, logprobs=True)
  assert "".join(c.choices[0].delta.content or "" for c in chunks) == want

def test_log_probabilities(server):
  llm = server.service.llm
  choice = whole(server, temperature=0, max_tokens=6, logprobs=True, top_logprobs=3).choices[0]
  prompt = llm.prompt(FOX)
  ids = [*llm.generate(prompt, max_tokens=6)]
  rows = llm.logits([*prompt, *ids])[len(prompt) - 1:-1].astype(np.float64)
  want = rows - np.log(np.exp(rows - rows.max(1, keepdims=True)).sum(1, keepdims=True)) - rows.max(1, keepdims=True)
  assert len(choice.logprobs.content) == 6
  for i, place in enumerate(choice.logprobs.content):
    assert bytes(place.bytes) == llm.tokenizer.shown_bytes(ids[i]) and place.top_logprobs[0].token == place.token
    assert abs(place.logprob - want[i, ids[i]]) < 0.1 and len(place.top_logprobs) == 3
  assert b"".join(bytes(p.bytes) for p in choice.logprobs.content).decode() == choice.message.content
  assert whole(server, max_tokens=2).choices[0].logprobs is None

def test_streamed_log_probabilities_are_complete(server):
  want = whole(server, temperature=0, max_tokens=8, logprobs=True).choices[0].logprobs.content
  chunks = whole(server, temperature=0, max_tokens=8, logprobs=True, stream=True)
  assert [p for c in chunks if c.choices[0].logprobs for p in c.choices[0].logprobs.content] == want

SCHEMA = {"type": "object", "properties": {"fox": {"enum": ["red", "grey"]}, "n": {"enum": [1, 2]}},
          "required": ["fox", "n"], "additionalProperties": False}

def test_json_schema(server):
  form = {"type": "json_schema", "json_schema": {"name": "fox", "schema": SCHEMA, "strict": True}}
  for seed in range(3):
    choice = whole(server, temperature=1, max_tokens=60, seed=seed, response_format=form).choices[0]
    found = json.loads(choice.message.content)
    assert choice.finish_reason == "stop" and found["fox"] in ("red", "grey") and found["n"] in (1, 2)
  form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
  with pytest.raises(openai.BadRequestError, match="response_format"): whole(server, response_format=form)

def test_json_object(server):
  text = whole(server, temperature=0, max_tokens=5, response_format={"type": "json_object"}).choices[0].message.content
  assert text.startswith("{")

def test_logit_bias_rules_out(server):
  llm = server.service.llm
  first = next(llm.generate(llm.prompt(FOX), max_tokens=1))
  other = whole(server, temperature=0, max_tokens=1, logit_bias={str(first): -100}).choices[0].message.content
  assert other != llm.tokenizer.decode([first])

def test_last_words_of_the_assistant_go_on(server):
  llm, said = server.service.llm, "Once there was"
  ids = [*llm.prompt(FOX), *llm.tokenizer.encode_on(said)]
  want = llm.tokenizer.decode([*llm.generate(ids, max_tokens=8)])
  answer = whole(server, [*FOX, {"role": "assistant", "content": said}], temperature=0, max_tokens=8)
  assert answer.choices[0].message.content.strip() == want.strip()

def test_second_turn_reads_new_tokens_only(server):
  first = whole(server, temperature=0, max_tokens=100)
  said = {"role": "assistant", "content": first.choices[0].message.content}
  usage = whole(server, [*FOX, said, {"role": "user", "content": "Why?"}], temperature=0, max_tokens=2).usage
  assert usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens

@pytest.mark.parametrize("field,value,name", [
  ("messages", [], "messages"), ("messages", [{"role": "user"}], "messages[0].content"),
  ("messages", [{"content": "x"}], "messages[0].role"), ("messages", "hello", "messages"),
  ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
   "messages[0].content[0]"),
  ("temperature", "hot", "temperature"), ("temperature", -1, "temperature"), ("top_p", 7, "top_p"), ("n", 0, "n"),
  ("max_tokens", "many", "max_tokens"), ("logit_bias", "x", "logit_bias"), ("top_logprobs", 3, "top_logprobs"),
  ("tools", [{"type": "function", "function": {"name": "f"}}], "tools"), ("seed", 1.5, "seed"),
  ("response_format", {"type": "xml"}, "response_format.type"), ("stop_token_ids", [10**9], "stop_token_ids")])
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_values_name_the_field(server, field, value, name, stream):
  r = server.post("/v1/chat/completions", {"messages": FOX, "stream": stream, field: value})
  error = r.json()["error"]
  assert r.status_code == 400 and error["param"] == name and error["type"] == "invalid_request_error", error
  assert name.split("[")[0].split(".")[0] in error["message"]

def test_null_is_absence_and_unknown_fields_are_ignored(server):
  body = {"messages": FOX, "max_tokens": 3, "temperature": 0, "nothing": {"a": 1}, "user": "me"}
  names = ("stop", "seed", "n", "logprobs", "top_p", "tools", "tool_choice", "response_format", "stream_options",
           "max_completion_tokens", "logit_bias", "stream", "presence_penalty", "reasoning_effort")
  r = server.post("/v1/chat/completions", body | dict.fromkeys(names))
  assert r.status_code == 200 and r.json()["choices"][0]["message"]["content"] == alone(server, max_tokens=3)

def test_overflow_tells_both_numbers(server):
  context = server.service.llm.max_context
  with pytest.raises(openai.BadRequestError) as e: whole(server, [{"role": "user", "content": "fox " * 3 * context}])
  assert e.value.code == "context_length_exceeded" and str(context) in str(e.value)
  assert e.value.body["n_ctx"] == context and e.value.body["n_prompt_tokens"] > context

def test_answer_is_clamped_to_the_context(server):
  answer = whole(server, temperature=0, max_tokens=10**6, extra_body={"ignore_eos": True})
  assert answer.choices[0].finish_reason == "length"
  assert answer.usage.total_tokens == server.service.llm.max_context + 1  # the last position gives a token, too

def test_roles_and_parts(server):
  parts = [{"type": "text", "text": "Tell me"}, {"type": "text", "text": "about a fox."}]
  answer = whole(server, [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": parts}],
                 temperature=0, max_tokens=6)
  system = [{"role": "system", "content": "Be kind."}, *FOX]
  assert answer.choices[0].message.content == alone(server, system, max_tokens=6)

def test_thinking_is_told_apart(tmp_path):
  script = [("id", "<think>"), "so", " so", ("id", "</think>"), "\n\n", "yes", " \u00e9".encode(), " indeed",
            ("id", "<|im_end|>")]
  build(tmp_path / "m.gguf", script, MARKS, template=CHATML, eos="<|im_end|>")
  with served(tmp_path / "m.gguf") as server:
    message = whole(server, temperature=0).choices[0].message
    assert message.reasoning_content.strip() == "so so" and message.content.strip() == "yes \u00e9 indeed"
    seen = [(name, value) for chunk in whole(server, temperature=0, stream=True)
            for name, value in chunk.choices[0].delta.model_dump(exclude_none=True).items() if name != "role"]
    texts = {name: "".join(text for kind, text in seen if kind == name) for name in ("reasoning_content", "content")}
    assert texts == {"reasoning_content": message.reasoning_content, "content": message.content}
    assert "\ufffd" not in texts["content"]
    usage = whole(server, temperature=0).usage
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens
    turns = [*FOX, {"role": "assistant", "content": "yes", "reasoning_content": "so"}, *FOX]
    assert whole(server, turns, temperature=0, max_tokens=3).choices[0].finish_reason == "length"

def test_one_request_failing_leaves_the_others(server, monkeypatch):
  """A row whose numbers are not finite ends its own answer with an error event."""
  want = alone(server, max_tokens=20)
  request = server.service.llm.engine.__class__
  chosen = request._choose
  def choose(asked, key, logits, is_chosen=False):
    broken = asked.sampler.temperature == 0.5
    chosen(asked, None, (lambda: np.full(8192, np.nan, np.float32)) if broken else logits, is_chosen)
  monkeypatch.setattr(request, "_choose", staticmethod(choose))
  streams = [whole(server, temperature=t, max_tokens=20, stream=True) for t in (0.5, 0)]
  assert "".join(c.choices[0].delta.content or "" for c in streams[1]) == want
  with pytest.raises(openai.APIError): list(streams[0])
  assert server.service.state == "ready" and server.idle()

def test_schemas_are_closed_unless_they_say_otherwise():
  """Nested objects, too; what is open by its own words, or has allOf, stays."""
  from tinygrad_llm.web.api.settings import closed
  inner = {"properties": {"b": {"type": "string"}}}
  schema = {"properties": {"a": inner, "c": {"items": inner}}, "$defs": {"d": inner | {"additionalProperties": True}}}
  shut = inner | {"additionalProperties": False}
  assert closed(schema) == {"properties": {"a": shut, "c": {"items": shut}}, "$defs": schema["$defs"],
                            "additionalProperties": False}
  for kept in ({"allOf": [inner, inner]}, {"type": "object"}, True, {"properties": {}, "patternProperties": {"x": {}}}):
    assert closed(kept) == kept
