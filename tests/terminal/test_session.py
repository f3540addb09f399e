"""Settings, and chats that are saved and loaded."""
import json
import os

import pytest

from tinygrad_llm.errors import InputError
from tinygrad_llm.terminal.session import Session, Settings, load, save

TURNS = [{"role": "user", "content": "héllo\n日本"}, {"role": "assistant", "content": "\x1b hi"}]

def test_settings():
  settings, seed = Settings(), 2**64 - 1
  for name, text, value in (
      ("temperature", "0.7", 0.7), ("temperature", "1", 1), ("top_k", "40", 40), ("top_p", "0.9", 0.9),
      ("min_p", ".1", 0.1), ("repeat_penalty", "1.1", 1.1), ("presence_penalty", "-0.5", -0.5),
      ("frequency_penalty", "0.25", 0.25), ("min_tokens", "3", 3), ("seed", str(seed), seed),
      ("count", "5", 5), ("count", "off", None),
      ("think", "off", "off")):
    settings = settings.parsed(name, text)
    assert getattr(settings, name) == value
  values = {"temperature": 1, "top_k": 40, "top_p": 0.9, "min_p": 0.1, "repeat_penalty": 1.1,
            "presence_penalty": -0.5, "frequency_penalty": 0.25, "seed": seed}
  assert settings.sampling() == values
  assert settings.shown() == {name: str(value) for name, value in values.items()} | {
    "count": "off", "min_tokens": "3", "think": "off"}

@pytest.mark.parametrize(("name", "text"), [
  ("temperature", "-1"), ("temperature", "hot"), ("temperature", "nan"), ("temperature", "1e999"), ("top_k", "1.5"),
  ("top_p", "2"), ("repeat_penalty", "0"), ("presence_penalty", "nan"), ("frequency_penalty", "x"),
  ("min_tokens", "-1"), ("min_tokens", "1.5"), ("seed", "-2"), ("count", "0"), ("count", "1.5"), ("count", "many"),
  ("think", "1"), ("think", "maybe"), ("nonsense", "1"), ("system", "x")])
def test_bad_settings(name, text):
  before = Settings()
  with pytest.raises(InputError, match=name): before.parsed(name, text)
  assert before == Settings()

def test_save_and_load(tmp_path):
  path = tmp_path / "a chat.json"
  session = Session("Be brief.", TURNS, Settings(temperature=0.5, count=3, think="hide"))
  save(session, path)
  assert load(path) == session
  save(Session(), path)  # replaces its own file
  assert load(path) == Session()
  assert os.listdir(tmp_path) == ["a chat.json"]
  (tmp_path / "notes").write_text("{}")
  with pytest.raises(InputError, match="no saved chat"): save(session, tmp_path / "notes")
  assert (tmp_path / "notes").read_text() == "{}"
  for bad in (tmp_path, tmp_path / "none" / "x", tmp_path / ("x" * 300), tmp_path / "a\0b"):
    with pytest.raises(InputError): save(session, bad)

GOOD = {"system": "", "messages": TURNS, "settings": {"temperature": 1}}
BAD = {  # content of the file: part of the error message
  "": "not JSON", "{": "not JSON", "[" * 100000: "not JSON", "[]": "the file", "{}": "messages", "null": "the file",
  json.dumps({**GOOD, "model": 1}): "'model'", json.dumps({**GOOD, "messages": {}}): "messages",
  json.dumps({**GOOD, "messages": TURNS[:1]}): r"messages\[0\]: it has no answer",
  json.dumps({**GOOD, "messages": TURNS[::-1]}): r"messages\[0\].role",
  json.dumps({**GOOD, "messages": [TURNS[0], {"role": [], "content": ""}]}): r"messages\[1\].role",
  json.dumps({**GOOD, "messages": [{"role": "user", "content": None}, TURNS[1]]}): r"messages\[0\].content",
  json.dumps({**GOOD, "messages": [{"role": "user"}, TURNS[1]]}): r"messages\[0\]",
  json.dumps({**GOOD, "messages": ["hi", "ho"]}): r"messages\[0\]", json.dumps({**GOOD, "system": 3}): "system",
  json.dumps({**GOOD, "settings": []}): "settings", json.dumps({**GOOD, "settings": {"top_p": "x"}}): "top_p",
  json.dumps({**GOOD, "settings": {"temperature": float("nan")}}): "temperature",
  json.dumps({**GOOD, "settings": {"think": 1}}): "think", json.dumps({**GOOD, "settings": {"count": True}}): "count",
  json.dumps({**GOOD, "settings": {"sampling": 1}}): "sampling", '{"messages": [], "seed": ' + "9" * 5000 + "}": "JSON"}

@pytest.mark.parametrize("text", BAD, ids=lambda text: text[-40:])
def test_rejects_bad_files(tmp_path, text):
  path = tmp_path / "x.json"
  path.write_text(text)
  with pytest.raises(InputError, match=f"x.json: not a saved chat: .*{BAD[text]}") as e: load(path)
  assert "\n" not in str(e.value) and len(str(e.value)) < 400

def test_rejects_non_files(tmp_path):
  os.mkfifo(tmp_path / "fifo")
  (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
  for name in ("none", ".", "fifo", "bytes", "a\0b"):
    with pytest.raises(InputError): load(tmp_path / name)

def test_lone_surrogates_are_replaced(tmp_path):
  """Lone surrogates are replaced: JSON can hold them, a terminal and UTF-8 cannot."""
  path = tmp_path / "x.json"
  path.write_text(json.dumps({"messages": [{"role": "user", "content": "a\ud800"}, TURNS[1]]}))
  session = load(path)
  assert session.turns[0]["content"] == "a?"
  save(session, path)
