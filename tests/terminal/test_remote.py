"""run --server: a chat or a prompt that a server answers."""
import os
import sys

import pytest
from tests.support.served import served
from tinygrad_llm import run
from tinygrad_llm.errors import InputError
from tinygrad_llm.terminal.remote import Remote
from tinygrad_llm.terminal.repl import Chat
from tinygrad_llm.terminal.session import Session, Settings
from tinygrad_llm.text.thinking import ANSWER

@pytest.fixture(scope="module")
def server():
  with served(keys=["secret"], parallel=2) as found: yield found

@pytest.fixture(autouse=True)
def stdin(monkeypatch):
  """Nothing is piped in."""
  with open(os.devnull) as nothing:
    monkeypatch.setattr(sys, "stdin", nothing)
    yield

def remote(server, url=None): return Remote(url or server.url, "secret")

def test_answers_are_the_models(server):
  for url in (server.url, f"{server.url}/v1/", server.url.removeprefix("http://")):
    model, llm = remote(server, url), server.service.llm
    asked = model.prompt(model.fit([{"role": "user", "content": "Tell me about a fox."}]))
    pieces = [*model.parts(model.generate(asked, 12, temperature=0.0, seed=0))]
    assert {kind for kind, _ in pieces} == {ANSWER}
    assert "".join(text for _, text in pieces) == "".join(llm.chat(asked.messages, max_tokens=12))
    assert model.timing.tokens == 12 and model.timing.finish == "length" and model.timing.first_token > 0

def test_chat_and_its_commands(server, capsys):
  chat = Chat(remote(server), Session(settings=Settings(count=8)))
  for line in ("/set temperature 0", "Tell me about a fox.", "Why?", "/system Be kind.", "And a boat?", "/nothing"):
    chat.handle(line)
  out, err = capsys.readouterr()
  assert len(chat.session.turns) == 6 and all(t["content"] for t in chat.session.turns) and "no such command" in err
  assert chat.session.turns[1]["content"] in out

def test_old_turns_are_left_out(server):
  model = remote(server)
  turns = [{"role": role, "content": f"{i} fox " * 20} for i in range(20) for role in ("user", "assistant")]
  messages = [{"role": "system", "content": "Be kind."}, *turns, {"role": "user", "content": "Why?"}]
  sent, want = model.fit(messages), server.service.llm.fit(messages)
  assert sent == want and sent[0]["role"] == "system" and len(sent) < 42
  with pytest.raises(InputError, match="fit the context"): model.fit([{"role": "user", "content": "fox " * 2000}])

def test_stopped_answer_ends_on_the_server(server):
  model = remote(server)
  body = model.generate(model.prompt([{"role": "user", "content": "Tell me"}]), None, temperature=0, ignore_eos=True)
  parts = model.parts(body)
  next(parts)
  parts.close()
  assert server.idle()

def test_command(server, capsys, monkeypatch):
  monkeypatch.setattr(sys, "argv", ["run", "--server", server.url, "--api-key", "secret", "-p", "Tell me about a fox.",
                                    "-n", "9", "--temperature", "0"])
  run._main()
  out, err = capsys.readouterr()
  want = "".join(server.service.llm.chat([{"role": "user", "content": "Tell me about a fox."}], max_tokens=9))
  assert out.strip() == want and "9 tokens" in err

@pytest.mark.parametrize("args,said", [
  (["--server", "http://127.0.0.1:1"], "python -m tinygrad_llm.serve"), (["--server", "ftp://x"], "http://HOST:PORT"),
  (["--server", "URL"], "--api-key"), (["--server", "URL", "--model", "x.gguf"], "--model"),
  (["--server", "URL/wrong", "--api-key", "secret"], "nothing at")])
def test_errors(server, monkeypatch, args, said):
  args = [arg.replace("URL", server.url) for arg in args]
  monkeypatch.setattr(sys, "argv", ["run", *args, "-p", "hello"])
  with pytest.raises(InputError, match=said): run._main()
