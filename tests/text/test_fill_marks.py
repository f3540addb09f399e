"""Marks for text with a gap: which ids they are, and the prompts that they make."""
import random
from types import SimpleNamespace

import pytest
from tests.support.scripted_gguf import CONTROL, NORMAL, build
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.text.fill_marks import ENDS, PARTS, SNIPPET, WINDOW, fill_prompt
from tinygrad_llm.text.tokenizer import Tokenizer


def tokenizer(path, marks, **options) -> Tokenizer:
  build(path, ["x"], [(text, CONTROL) for text in marks], **options)
  return Tokenizer.from_gguf(open_gguf(path).kv)

class Fake:
  """A tokenizer of one token a character, whose marks are beyond the characters."""
  bos, add_bos = 999, True
  def __init__(self, *names): self.fill = {name: 1000 + i for i, name in enumerate(("pre", "suf", "mid", "rep", "sep"))
                                           if name in names}
  def encode(self, text): return [*map(ord, text)]

@pytest.mark.parametrize("which", range(len(PARTS["pre"])))
def test_marks_by_their_texts(tmp_path, which):
  rng = random.Random(which)
  texts = {name: rng.choice(all_) for name, all_ in {**PARTS, **ENDS}.items()} | {
    name: PARTS[name][which] for name in PARTS}
  found = tokenizer(tmp_path / "m.gguf", texts.values())
  assert found.fill == {name: found.encode(text, parse_special=True)[0] for name, text in texts.items()}
  assert found.stop_ids >= {found.fill[name] for name in ENDS} and not found.stop_ids & {
    found.fill[name] for name in PARTS}

@pytest.mark.parametrize("keys", ["fim_pre fim_suf fim_mid", "prefix suffix middle"])
def test_marks_by_the_files_keys(tmp_path, keys):
  """The file's ids go before well-known texts; old files call them otherwise."""
  marks = ["<one>", "<two>", "<three>", *(texts[0] for texts in PARTS.values())]
  def kv(writer, ids):
    for key, mark in zip(keys.split(), marks): writer.add_uint32(f"tokenizer.ggml.{key}_token_id", ids[mark])
  found = tokenizer(tmp_path / "m.gguf", marks, kv=kv)
  assert [found.control_text(found.fill[name]) for name in PARTS] == marks[:3]

def test_text_that_looks_like_a_mark_is_text(tmp_path):
  """Marks in what a client sends do not become control tokens."""
  found = tokenizer(tmp_path / "m.gguf", [texts[0] for texts in PARTS.values()])
  ids = fill_prompt(found, "a<|fim_suffix|>b", "c<|fim_middle|>", 400)
  assert [i for i in ids if i in found.fill.values()] == [found.fill[name] for name in ("pre", "suf", "mid")]
  plain = tokenizer(tmp_path / "n.gguf", [], types={"x": NORMAL})
  with pytest.raises(InputError, match="the prefix, the suffix, the middle"): fill_prompt(plain, "a", "b", 400)

def test_one_mark_missing_is_named():
  with pytest.raises(InputError, match="mark for the middle"): fill_prompt(Fake("pre", "suf"), "a", "b", 99)

def test_order_of_the_parts():
  """https://github.com/ggml-org/llama.cpp, /infill: files, the text before, the begin of the gap, the text after."""
  fake = Fake("pre", "suf", "mid")
  ids = [*map(ord, "be"), *map(ord, "gun"), 1001, *map(ord, "af"), 1002]
  assert fill_prompt(fake, "be", "af", 400, "gun") == [999, 1000, *ids]
  snippet = [*map(ord, SNIPPET + "text")]
  assert fill_prompt(fake, "be", "af", 400, "gun", [("name", "text")]) == [*snippet, 999, 1000, *ids]
  whole = Fake("pre", "suf", "mid", "rep", "sep")
  files = [1003, *map(ord, "myproject\n"), 1004, *map(ord, "name\ntext"), 1004, *map(ord, "filename\n")]
  assert fill_prompt(whole, "be", "af", 400, "gun", [("name", "text")]) == [*files, 999, 1000, *ids]

@pytest.mark.parametrize("seed", range(40))
def test_room(seed):
  """The end of the text before and the begin of the text after are kept; the prompt has the room that it was given."""
  rng = random.Random(seed)
  def text(): return "".join(rng.choice("abc") for _ in range(rng.choice((0, 3, 200, 3000))))
  before, after, files, room = text(), text(), [("f", text())] * rng.randint(0, 2), rng.randint(20, 6000)
  fake = Fake("pre", "suf", "mid", *(("rep", "sep") if rng.random() < 0.5 else ()))
  ids = fill_prompt(fake, before, after, room, files=files)
  assert len(ids) <= room
  start, hole = ids.index(999), ids.index(1001)
  kept, rest = (SimpleNamespace(ids=part, text="".join(map(chr, part))) for part in (ids[start + 2:hole],
                                                                                    ids[hole + 1:-1]))
  assert before.endswith(kept.text) and after.startswith(rest.text) and ids[-1] == 1002
  assert len(kept.ids) == min(len(before), 3 * (min(WINDOW, room - 4) // 4))
  assert len(rest.ids) <= WINDOW // 4 and (len(rest.ids) == len(after) or len(kept.ids) + len(rest.ids) <= WINDOW)
  if room > 6000: assert start == len(fill_prompt(fake, before, after, 10 ** 6, files=files)) - len(ids) + start
