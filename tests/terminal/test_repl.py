"""The chat's commands and turns, with a fake model whose answers the tests set."""
import json
import pathlib
import types

import pytest

from tinygrad_llm.engine.llm import Timing
from tinygrad_llm.errors import InputError
from tinygrad_llm.terminal import history, repl
from tinygrad_llm.terminal.repl import COMMANDS, Chat, completions, read_message
from tinygrad_llm.terminal.session import Session, Settings

class Model:
  """A fake model that yields the parts of `answer`; an exception among them is raised."""
  path, device, timing = pathlib.Path("fake.gguf"), "CPU", Timing(tokens=2, first_token=0.5)
  template = types.SimpleNamespace(stop=("User:",), thinking=lambda on: {"enable_thinking": on})
  def __init__(self):
    self.answer = [("thinking", "hm"), ("answer", "It "), ("answer", "is.")]
    self.asked, self.given, self.stop = [], {}, ()
  def fit(self, messages, template=None): return messages[:1] + messages[1:][-3:]
  def prompt(self, messages, template=None):
    self.template_given = template
    if messages[-1]["content"] == "bad": raise InputError("tokenizer.chat_template: no")
    self.asked.append(messages)
    return [1, 2]
  def generate(self, ids, count, **sampling):
    assert ids == [1, 2]
    self.given = {"count": count, **sampling}
    return iter(())
  def parts(self, tokens, stop, prompt):
    self.stop = stop
    for part in self.answer:
      if isinstance(part, BaseException): raise part
      yield part

@pytest.fixture
def chat(): return Chat(Model(), Session("Be brief."), ["STOP"])

def message(role, content): return {"role": role, "content": content}

def test_turns(chat, capsys):
  chat.handle("hi")
  out, err = capsys.readouterr()
  assert out == "<think>\nhm\n</think>\n\nIt is.\n"
  assert "[2 tokens, first token after 0.50 s]" in err
  chat.handle("and?\nwhy?")
  system = message("system", "Be brief.")
  assert chat.llm.asked == [[system, message("user", "hi")], [
    system, message("user", "hi"), message("assistant", "It is."), message("user", "and?\nwhy?")]]  # no thinking
  assert chat.llm.stop == ("STOP", "User:")
  chat.handle("more")
  assert chat.llm.asked[-1] == [system, message("user", "and?\nwhy?"), message("assistant", "It is."),
                                message("user", "more")]  # the oldest turns do not fit
  assert [m["content"] for m in chat.session.turns[::2]] == ["hi", "and?\nwhy?", "more"]  # they are kept
  assert "[the first 2 messages no longer fit the context and are not sent; they are kept]" in capsys.readouterr().err
  chat.handle(" \n ")
  assert len(chat.llm.asked) == 3

def test_reports_turns_that_are_not_sent(chat, capsys):
  def said(line):
    chat.handle(line)
    err = capsys.readouterr().err
    return err.count("not sent"), err.count("sent again")
  assert [said(str(i)) for i in range(4)] == [(0, 0), (0, 0), (1, 0), (1, 0)]
  chat.llm.fit = lambda messages: messages
  assert [said("4"), said("5")] == [(0, 1), (0, 0)]
  chat.llm.fit = lambda messages: [messages[0], messages[-1]]
  chat.llm.generate, generate = lambda *args, **kwargs: (_ for _ in ()).throw(InputError("too long")), chat.llm.generate
  with pytest.raises(InputError): chat.handle("6")
  assert len(chat.session.turns) == 12 and "not sent" not in capsys.readouterr().err
  chat.llm.generate = generate
  assert said("6") == (1, 0)
  chat.handle("/clear")
  assert said("7") == (0, 0)

def test_line_ends(chat, tmp_path):
  chat.handle("a\r\nb")
  chat.handle("/system c\r\nd")
  assert chat.session.turns[0]["content"] == "a\nb" and chat.session.system == "c\nd"
  rows = {"system": "c\r\nd", "messages": [message("user", "a\r\nb"), message("assistant", "x\ry")]}
  (tmp_path / "x.json").write_text(json.dumps(rows))
  chat.handle(f"/load {tmp_path}/x.json")
  assert chat.session == Session("c\nd", [message("user", "a\nb"), message("assistant", "x\ry")])

def test_ctrl_c_keeps_partial_answer(chat, capsys):
  chat.llm.answer[2] = KeyboardInterrupt()
  assert chat.handle("hi")
  assert chat.session.turns == [message("user", "hi"), message("assistant", "It ")]
  chat.llm.answer = [("thinking", "hm"), KeyboardInterrupt()]
  assert chat.handle("more")
  assert len(chat.session.turns) == 2
  assert "not kept" in capsys.readouterr().err

def test_errors_leave_session_unchanged(chat, capsys):
  chat.handle("hi")
  before = list(chat.session.turns)
  with pytest.raises(InputError): chat.handle("bad")
  chat.llm.answer = [("answer", "x"), InputError("logits: bad")]
  with pytest.raises(InputError): chat.handle("hi")
  assert chat.session.turns == before
  assert capsys.readouterr().out.endswith("x\n")

def test_system_and_clear(chat, capsys):
  def said(line):
    assert chat.handle(line)
    return capsys.readouterr().err
  chat.handle("hi")
  assert "Be brief." in said("/system")
  assert "Rhyme." in said("/system Rhyme.")
  assert "forgotten" in said("/clear")
  assert chat.session.messages() == [message("system", "Rhyme.")]
  assert "no system message" in said('/system ""')
  assert chat.session.messages() == []

def test_set_command(chat, capsys):
  for line in ("temperature 0.5", "top-k 3", " think  off ", "count 7", "seed 5"): chat.handle(f"/set {line}")
  assert chat.session.settings == Settings(temperature=0.5, top_k=3, think="off", count=7, seed=5)
  capsys.readouterr()
  chat.handle("hi")
  assert capsys.readouterr().out == "It is.\n"
  assert chat.llm.given == {"count": 7, "min_tokens": 0, **chat.session.settings.sampling()}
  chat.handle("/set")
  assert "temperature     0.5" in capsys.readouterr().err
  chat.handle("/set top_k")
  assert "[top_k 3]" in capsys.readouterr().err
  for line in ("/set top_k -1", "/set nonsense 1", "/set nonsense", "/set think maybe"):
    with pytest.raises(InputError): chat.handle(line)

def test_save_and_load(chat, tmp_path, capsys):
  chat.handle("hi")
  chat.handle(f"/save {tmp_path}/a b.json")
  assert json.loads((tmp_path / "a b.json").read_text())["messages"] == [
    message("user", "hi"), message("assistant", "It is.")]
  other = Chat(Model(), Session())
  other.handle(f"/load {tmp_path}/a b.json")
  assert other.session == chat.session
  assert "2 messages, a system message" in capsys.readouterr().err
  for line in ("/save", "/load", f"/load {tmp_path}/none", f"/save {tmp_path}"):
    with pytest.raises(InputError): other.handle(line)
  assert other.session == chat.session

def test_commands(chat, capsys):
  assert not any(chat.handle(line) for line in ("/bye", " /exit ", "/quit"))
  assert chat.handle("/help")
  err = capsys.readouterr().err
  assert all(name in err for name in COMMANDS)
  for line, words in (("/hlep", "did you mean /help?"), ("/usr/x is what", "/usr/x: no such command"), ("/", "/help")):
    assert chat.handle(line)
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1
  assert chat.llm.asked == []
  assert chat.handle("/hlep", quoted=True)
  assert chat.llm.asked[-1][-1] == message("user", "/hlep")

@pytest.mark.parametrize(("lines", "wanted"), [
  (["hi"], ("hi", False)), (['say """x"""'], ('say """x"""', False)), (['"""a"""'], ("a", True)),
  (['"""', "a", "", "  b", '"""'], ("a\n\n  b", True)), (['"""a', 'b"""  '], ("a\nb", True)), (['""""""'], ("", True)),
  (['"""a\nb', '/bye', '"""'], ("a\nb\n/bye", True)), (['/system """a', 'b"""'], ("/system a\nb", False)),
  (['/system """', '"""'], ('/system """"""', False))])
def test_multi_line_messages(lines, wanted):
  waiting, prompts = list(lines), []
  def ask(prompt):
    prompts.append(prompt)
    return waiting.pop(0)
  assert read_message(ask) == wanted
  assert not waiting and prompts == [repl.PROMPT] + [repl.MORE] * (len(lines) - 1)

def test_completion(tmp_path, monkeypatch):
  assert completions("/s", "/s") == ["/system ", "/set ", "/save "]
  assert completions("/set t", "t") == ["temperature ", "top_k ", "top_p ", "think "]
  assert completions("/set think o", "o") == ["on", "off"]  # hide begins with another letter
  monkeypatch.chdir(tmp_path)
  (tmp_path / "a.json").touch()
  (tmp_path / "ab").mkdir()
  assert completions("/load a", "a") == ["a.json", "ab/"]
  for line, word in (("", ""), ("tell", "tell"), ("tell /s", "/s"), ("/clear x", "x")):
    assert completions(line, word) == []

def test_loop_continues_after_errors(monkeypatch, capsys, chat):
  """The loop goes on after Ctrl-C, bytes that are no text, and bad input; it ends at the end of input."""
  lines = iter([KeyboardInterrupt(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, ""), "/set x 1", "/load none.json",
                "bad", "hi", '"""', KeyboardInterrupt(), "/clear", EOFError()])
  class Editor:
    def __init__(self, complete): assert complete is completions
    def ask(self, prompt):
      if isinstance(line := next(lines), BaseException): raise line
      return line
  monkeypatch.setattr(repl, "Editor", Editor)
  chat.run()
  out, err = capsys.readouterr()
  assert out == "<think>\nhm\n</think>\n\nIt is.\n"
  assert err.count("error: ") == 4
  assert "[forgotten]" in err
  assert next(lines, None) is None

def test_without_a_terminal(monkeypatch, capsys, tmp_path):
  """With typed input and output to a file, the prompt goes to stderr and no history is kept."""
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
  monkeypatch.setattr("builtins.input", lambda: "a\udcff")
  assert history.Editor(completions).ask("> ") == "a?"
  assert capsys.readouterr() == ("", "> ")
  assert not list(tmp_path.iterdir())
