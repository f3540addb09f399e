"""The requests of server_differences.py: good ones, odd ones and wrong ones, for all routes that both servers have."""
from __future__ import annotations
from typing import Any, NamedTuple

class Case(NamedTuple):
  """A request. body: JSON's, or the text itself; None sends none."""
  name: str
  path: str
  body: Any = None
  method: str = "POST"

CHAT, TEXT, NATIVE = "/v1/chat/completions", "/v1/completions", "/completion"
USER = [{"role": "user", "content": "Tell me about a fox."}]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["fox", "king"]}}, "required": ["a"],
          "additionalProperties": False}

def _get(path: str) -> Case: return Case(f"GET {path}", path, method="GET")
def _chat(name: str, **body: Any) -> Case: return Case(f"chat {name}", CHAT, _bounded("messages", USER, 8, body))
def _text(name: str, **body: Any) -> Case: return Case(f"text {name}", TEXT, _bounded("prompt", "Once upon", 8, body))
def _native(name: str, **body: Any) -> Case:
  found = {"prompt": "Once upon", "n_predict": 8, "temperature": 0, "ignore_eos": True} | body
  return Case(f"native {name}", NATIVE, found)

def _bounded(field: str, given: Any, tokens: int, body: dict[str, Any]) -> dict[str, Any]:
  return {field: given, "max_tokens": tokens, "temperature": 0, "ignore_eos": True} | body

def _user(content: Any) -> list[dict[str, Any]]: return [{"role": "user", "content": content}]

CASES = [
  *map(_get, ("/health", "/v1/health", "/v1/models", "/models", "/props", "/slots", "/nothing", CHAT)),
  # *** chats
  _chat("plain"), _chat("stream", stream=True), _chat("stream, usage", **USAGE),
  _chat("model named", model="gpt-4o"), _chat("null fields", stop=None, seed=None, top_p=None, n=None),
  _chat("parts", messages=_user([{"type": "text", "text": "Tell me"}, {"type": "text", "text": " more."}])),
  _chat("system", messages=[{"role": "system", "content": "Be brief."}, *USER]),
  _chat("developer", messages=[{"role": "developer", "content": "Be brief."}, *USER]),
  _chat("assistant last", messages=[*USER, {"role": "assistant", "content": "Once"}]),
  _chat("logprobs", logprobs=True, top_logprobs=2),
  _chat("logprobs, stream", logprobs=True, top_logprobs=1, stream=True),
  _chat("top_logprobs alone", top_logprobs=2), _chat("stop", stop=["a", "e", "i", "o"]), _chat("stop text", stop="e"),
  _chat("two", n=2), _chat("two, stream", n=2, stream=True), _chat("n 0", n=0), _chat("n -1", n=-1),
  _chat("no tokens", max_tokens=0), _chat("tokens -1", max_tokens=-1, ignore_eos=False),
  _chat("completion tokens", max_completion_tokens=3), _chat("bias", logit_bias={"5": -100}),
  _chat("bias list", logit_bias=[[5, False]]), _chat("bias text", logit_bias={"fox": 5}),
  _chat("bias word", logit_bias="x"),
  _chat("grammar", grammar='root ::= "a"{3}', ignore_eos=False), _chat("grammar wrong", grammar="root ::= ("),
  _chat("progress", stream=True, return_progress=True),
  _chat("going on", add_generation_prompt=False, continue_final_message=True,
        messages=[*USER, {"role": "assistant", "content": "Once"}]),
  _chat("going on and beginning", add_generation_prompt=True, continue_final_message=True),
  Case("chat counted", f"{CHAT}/input_tokens", {"messages": USER}),
  _chat("json_object", response_format={"type": "json_object"}), _chat("json unknown", response_format={"type": "x"}),
  _chat("schema", ignore_eos=False, max_tokens=40, response_format={
    "type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}),
  _chat("temperature text", temperature="hot"), _chat("temperature below 0", temperature=-1),
  _chat("top_p 0", top_p=0), _chat("top_p 2", top_p=2), _chat("seed -1", seed=-1),
  _chat("max_tokens text", max_tokens="8"),
  _chat("stream text", stream="yes"), _chat("unknown field", colour="red"), _chat("messages a number", messages=3),
  _chat("messages empty", messages=[]), _chat("content missing", messages=[{"role": "user"}]),
  _chat("content number", messages=_user(5)), _chat("role missing", messages=[{"content": "Hi"}]),
  _chat("role unknown", messages=[{"role": "fox", "content": "Hi"}]), _chat("message a text", messages=["Hi"]),
  _chat("image", messages=_user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}])),
  _chat("part unknown", messages=_user([{"type": "fox"}])), _chat("too long", messages=_user("a fox " * 2000)),
  _chat("long, stream", messages=_user("a fox " * 2000), stream=True),
  Case("chat without messages", CHAT, {"max_tokens": 3}), Case("chat no JSON", CHAT, "{"), Case("chat empty", CHAT, ""),
  Case("chat a list", CHAT, []), Case("chat null", CHAT, "null"),
  # *** completions
  _text("plain"), _text("stream", stream=True), _text("stream, usage", **USAGE), _text("ids", prompt=[5, 6, 7]),
  _text("two prompts", prompt=["Once", "The king"]), _text("lists of ids", prompt=[[5, 6], [7]]),
  _text("two", n=2), _text("stop", stop=["e"]), _text("empty prompt", prompt=""), _text("no prompts", prompt=[]),
  _text("a number", prompt=5), _text("id too large", prompt=[10**6]), _text("no tokens", max_tokens=0),
  _text("progress", stream=True, return_progress=True),
  _text("echo", echo=True), _text("too long", prompt="a fox " * 2000),
  Case("text without prompt", TEXT, {"max_tokens": 3}),
  # *** llama-server's own
  _native("plain"), _native("stream", stream=True), _native("probabilities", n_probs=2),
  _native("sampled probabilities", n_probs=2, post_sampling_probs=True),
  _native("tokens", return_tokens=True),
  _native("probabilities, stream", n_probs=1, stream=True), _native("stop", stop=["e"]),
  _native("two", prompt=["Once", "The"]),
  _native("none", n_predict=0), _native("mixed", prompt=["Once", 5]), _native("to the end", n_predict=-1),
  _native("object", prompt={"prompt_string": "Once"}),
  _native("schema", json_schema=SCHEMA, ignore_eos=False, n_predict=40),
  _native("n_probs text", n_probs="x"), _native("too long", prompt="a fox " * 2000), _native("slot", id_slot=0),
  _native("timings", stream=True, timings_per_token=True), _native("progress", stream=True, return_progress=True),
  _native("fields", response_fields=["content", "timings/predicted_n"]),
  Case("native without prompt", NATIVE, {"n_predict": 3}),
  Case("/completions", "/completions", {"prompt": "Once", "n_predict": 3, "temperature": 0}),
  *(Case(f"tokenize {i}", "/tokenize", body) for i, body in enumerate((
    {"content": "Once upon a fox"}, {"content": "Once", "add_special": True}, {"content": "<|end|>"},
    {"content": "<|end|>", "parse_special": False}, {"content": "f\u00e9x", "with_pieces": True}, {"content": ""}, {},
    {"content": ["Once", 5]}, {"content": 5}))),
  *(Case(f"detokenize {i}", "/detokenize", body) for i, body in enumerate((
    {"tokens": [5, 6, 300]}, {"tokens": []}, {}, {"tokens": "x"}, {"tokens": [10**6]}, {"tokens": [-1]}))),
  *(Case(f"template {i}", "/apply-template", body) for i, body in enumerate((
    {"messages": USER}, {"messages": [*USER, {"role": "assistant", "content": "Once"}]}, {}, {"messages": "x"}))),
  *(Case(f"embeddings {i}", "/v1/embeddings", body) for i, body in enumerate((
    {"input": "a fox"}, {"input": ["a fox", "a king"]}, {"input": [5, 6]}, {"input": [[5], [6, 7]]},
    {"input": "a fox", "encoding_format": "base64"}, {"input": "a fox", "encoding_format": "x"}, {"input": ""}, {},
    {"input": []}, {"input": 5}, {"input": {"prompt_string": "a fox"}}, {"input": [5, "a fox"]},
    {"input": ["a fox", {"content": [{"type": "text", "text": "a king"}]}]}, {"input": {"content": "a fox"}}))),
  *(Case(f"embedding {i}", "/embedding", body) for i, body in enumerate((
    {"content": "a fox"}, {"content": ["a fox", "a king"]}, {"input": "a fox"}, {})))]
