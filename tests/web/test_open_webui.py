"""Open WebUI's requests are answered, with the fields that it reads."""
import json

import pytest
from tests.support import open_webui
from tests.support.served import served

@pytest.fixture(scope="module")
def server():
  with served(parallel=1) as found: yield found

def post(server, path, body): return server.http.post(f"/v1{path}", json=body, headers=open_webui.HEADERS)

@pytest.fixture(scope="module")
def model(server):
  """The name by which it knows the model, from the list that it asks for."""
  listed = server.http.get("/v1/models", headers=open_webui.HEADERS).json()
  assert listed["object"] == "list" and all(entry["owned_by"] != "ollama" for entry in listed["data"])
  return listed["data"][0]["id"]

FORMAT = {"max_tokens": 9, "response_format": {"type": "text"}}

@pytest.mark.parametrize("more", [{"max_tokens": 12}, open_webui.SET, FORMAT], ids=["plain", "set", "format"])
def test_turn_is_streamed(server, model, more):
  body = open_webui.chat(model, **more)
  with server.http.stream("POST", "/v1/chat/completions", json=body, headers=open_webui.HEADERS) as r:
    assert r.status_code == 200 and r.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in r.iter_lines() if line and not line.startswith(":")]
  assert all(line.startswith("data: ") for line in lines) and lines[-1] == "data: [DONE]"
  events = [json.loads(line[6:]) for line in lines[:-1]]
  text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
  usage = events[-1]["usage"]
  assert text and usage["completion_tokens"] <= 12
  assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]

@pytest.mark.parametrize("name", open_webui.TASKS)
def test_task_is_answered(server, model, name):
  text, more = open_webui.TASKS[name]
  answer = post(server, "/chat/completions", open_webui.task(model, text, **more)).json()
  assert isinstance(answer["choices"][0]["message"]["content"], str)
  assert answer["choices"][0]["finish_reason"] in ("stop", "length")
  if "max_tokens" in more: assert answer["usage"]["completion_tokens"] <= more["max_tokens"]

def test_embeddings(server, model):
  """It asks for many texts at once, and for no format."""
  texts = ["a fox", "a boat and a king", "a bird"]
  data = post(server, "/embeddings", open_webui.embeddings(model, texts)).json()["data"]
  assert [len(entry["embedding"]) for entry in data] == [server.service.llm.config.dim] * 3
  assert all(isinstance(x, float) for entry in data for x in entry["embedding"])

def test_image_is_refused_by_name(server, model):
  part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
  body = open_webui.chat(model) | {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, part]}]}
  r = post(server, "/chat/completions", body)
  assert r.status_code == 400 and "images" in r.json()["error"]["message"]
