"""`suffix` of /v1/completions, and /infill: a model with the marks fills in, one without is refused by name."""
import json

import pytest
from tests.support.scripted_gguf import CONTROL, build
from tests.support.served import served
from tinygrad_llm.text.fill_marks import fill_prompt

MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"]
SAID = ["the", " middle", ("id", "<|fim_pad|>")]

@pytest.fixture(scope="module")
def server(tmp_path_factory):
  path = tmp_path_factory.mktemp("fill") / "m.gguf"
  build(path, SAID, [(mark, CONTROL) for mark in MARKS])
  with served(path, parallel=2) as found: yield found

def told(server, path, body):
  r = server.post(path, {"temperature": 0, **body})
  assert r.status_code == 200, r.text
  return r.json()

def prompt(server, *args, **options): return fill_prompt(server.service.llm.tokenizer, *args, **options)

def test_suffix(server):
  answer = told(server, "/v1/completions", {"prompt": "def f(", "suffix": "):", "max_tokens": 9})
  choice, = answer["choices"]
  assert choice["text"] == "the middle" and choice["finish_reason"] == "stop"
  assert answer["usage"]["prompt_tokens"] == len(prompt(server, "def f(", "):", 512 - 10))
  several = told(server, "/v1/completions", {"prompt": ["a", "b"], "suffix": "c", "max_tokens": 9})
  assert [c["text"] for c in several["choices"]] == ["the middle"] * 2
  plain = told(server, "/v1/completions", {"prompt": "def f(", "suffix": "", "max_tokens": 9})
  assert plain["usage"]["prompt_tokens"] == len("def f(")

def test_infill(server):
  body = {"input_prefix": "a b", "input_suffix": "c", "prompt": "d", "n_predict": 9, "return_tokens": True,
          "input_extra": [{"filename": "f.py", "text": "x = 1"}]}
  answer = told(server, "/infill", body)
  ids = prompt(server, "a b", "c", 512 - 10, "d", [("f.py", "x = 1")])
  assert answer["content"] == "the middle" and answer["tokens_evaluated"] == len(ids)
  shown = server.service.llm.tokenizer.shown_bytes
  sent = b"".join(map(shown, ids)).decode()
  assert sent == ("<|repo_name|>myproject\n<|file_sep|>f.py\nx = 1<|file_sep|>filename\n"
                  "<|fim_prefix|>a bd<|fim_suffix|>c<|fim_middle|>")
  with server.http.stream("POST", "/infill", json={**body, "stream": True}) as r:
    events = [line for line in r.iter_lines() if line]
  assert r.headers["content-type"].startswith("text/event-stream") and '"stop":true' in events[-1]

@pytest.mark.parametrize("stream", [False, True])
def test_prompt_is_read_and_nothing_told(server, stream):
  """llama.vim sends n_predict 0 before its first key is pressed; the next request then finds the prompt."""
  body = {"input_prefix": "w" * 150, "input_suffix": "c", "n_predict": 0, "stream": stream}
  r = server.post("/infill", body)
  last = r.json() if not stream else json.loads(r.text.split("data: ")[-1])
  assert (last["content"], last["tokens_predicted"], last["stop_type"]) == ("", 0, "limit")
  assert r.text.count("content") == 1
  again = told(server, "/infill", {**body, "n_predict": 4, "stream": False})
  assert again["content"] == "the middle" and again["timings"]["cache_n"] >= 128

def test_long_sides_fit(server):
  """Texts beyond the context are cut, so that an answer has room."""
  body = {"input_prefix": "p" * 3000, "input_suffix": "s" * 3000, "input_extra": [{"text": "e" * 3000}]}
  for most in (1, 100, 10 ** 6, -1):
    answer = told(server, "/infill", {**body, "n_predict": most})
    assert answer["content"] == ("the" if most == 1 else "the middle")

@pytest.mark.parametrize("path,body,field", [
  ("/v1/completions", {"prompt": [1, 2], "suffix": "x"}, "prompt"),
  ("/v1/completions", {"prompt": "x", "suffix": "x", "echo": True}, "echo"),
  ("/infill", {"input_suffix": "x"}, "input_prefix"), ("/infill", {"input_prefix": "x"}, "input_suffix"),
  ("/infill", {"input_prefix": "x", "input_suffix": "x", "input_extra": [{"text": 5}]}, "input_extra[0].text")])
def test_wrong_values_name_the_field(server, path, body, field):
  r = server.post(path, body)
  assert r.status_code == 400 and r.json()["error"]["param"] == field

def test_model_without_marks(tmp_path):
  build(tmp_path / "m.gguf", SAID[:2])
  with served(tmp_path / "m.gguf", parallel=2) as server:
    for path, body, field in (("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix"),
                              ("/infill", {"input_prefix": "x", "input_suffix": "y"}, "input_suffix")):
      r = server.post(path, body)
      assert r.status_code == 400 and r.json()["error"]["param"] == field
      assert r.json()["error"]["code"] == "unsupported_parameter" and "the middle" in r.json()["error"]["message"]
