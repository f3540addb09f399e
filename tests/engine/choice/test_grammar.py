"""Grammars: masked random choices give texts of the language, and nothing else."""
import json
import re
import sys
import time

import numpy as np
import pytest
from tests.text.test_tokenizer import TOKENS, make, make_spm
from tests.tools.fetch_vectors import VECTORS

from tinygrad_llm.engine.choice import grammar
from tinygrad_llm.engine.choice.digits import MOST, with_digits
from tinygrad_llm.engine.choice.grammar import DeadGrammar, Grammar
from tinygrad_llm.engine.choice.penalties import unpacked
from tinygrad_llm.engine.sampling import Sampler
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.text.tokenizer import Tokenizer

pytest.importorskip("llguidance")
PERSON = {"type": "object", "additionalProperties": False, "required": ["he", "age"],
          "properties": {"he": {"enum": ["llo", "wor", 12]}, "age": {"type": "integer", "minimum": 0, "maximum": 999},
                         "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}}}
EXTRA = 7  # a model may have more rows than its tokenizer has tokens

def is_person(text: str) -> bool:
  found = json.loads(text)
  return (found.keys() <= {"he", "age", "tags"} and found["he"] in ("llo", "wor", 12) and 0 <= found["age"] <= 999 and
          all(isinstance(tag, bool) for tag in found.get("tags", [])))

LARK = 'start: "he" item+ "."\nitem: "l" item "l" | "o"'

def is_lark(text: str) -> bool:
  """LARK's language by hand: he, then o's, each with as many l's before as after it, then a point."""
  rest = text.removeprefix("he").removesuffix(".")
  first, *runs = map(len, rest.split("o"))
  for run in runs:
    if (first := run - first) < 0: break
  return text == f"he{rest}." and {*rest} <= {*"lo"} and len(runs) > 0 and first == 0

CASES = {"json": ({"json_schema": PERSON}, is_person), "json text": ({"json_schema": json.dumps(PERSON)}, is_person),
         "regex": ({"regex": r"(hello|wor(ld)?){1,3} [0-9é]{2}"},
                   lambda text: re.fullmatch(r"(hello|wor(ld)?){1,3} [0-9é]{2}", text)),
         "lark": ({"lark": LARK}, is_lark)}

INTEGER = {"type": "integer"}

@pytest.mark.parametrize("schema,text,taken", [
  (INTEGER, str(MOST), True), (INTEGER, str(-MOST), True), (INTEGER, str(MOST + 1), False),
  ({"type": ["integer", "null"]}, "1" * 17, False), ({"type": ["integer", "null"]}, "null", True),
  (INTEGER | {"minimum": 3}, "1" * 17, False), (INTEGER | {"minimum": 3}, "2", False),
  (INTEGER | {"exclusiveMinimum": 3}, "1" * 17, False), (INTEGER | {"exclusiveMinimum": 3}, "3", False),
  (INTEGER | {"minimum": 10**17}, str(10**18), True), (INTEGER | {"maximum": 10**17}, str(10**17), True),
  (INTEGER | {"maximum": -10**17}, str(-10**18), True),
  (INTEGER | {"enum": [10**17, 1]}, str(10**17), True), (INTEGER | {"const": 10**17}, str(10**17), True),
  ({"type": "array", "items": INTEGER}, f"[{MOST}]", True),
  ({"type": "array", "items": INTEGER}, f"[{10**16}]", False),
  ({"properties": {"type": INTEGER}, "type": "object"}, f'{{"type":{10**16}}}', False),
  ({"$defs": {"a": INTEGER}, "anyOf": [{"$ref": "#/$defs/a"}, {"type": "boolean"}]}, str(10**16), False),
  ({"$defs": {"a": INTEGER}, "anyOf": [{"$ref": "#/$defs/a"}, {"type": "boolean"}]}, "12", True)])
def test_integers_have_an_end(schema, text, taken):
  """They are below 2**53 in size, unless the schema says how large they may be."""
  llguidance, before = pytest.importorskip("llguidance"), json.dumps(schema)
  changed = with_digits(schema)
  source = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(changed))
  matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), source, log_level=0)
  assert not matcher.is_error() and json.dumps(schema) == before
  assert (matcher.consume_tokens([*text.encode()]) and matcher.is_accepting()) == taken

@pytest.mark.parametrize("as_text", [False, True])
def test_integer_of_an_answer_ends(as_text):
  """A model that always prefers a digit comes to an end."""
  tokenizer = make()
  schema = {"type": "object", "properties": {"n": INTEGER}, "required": ["n"], "additionalProperties": False}
  found = Grammar(tokenizer, tokenizer.vocab_size, json_schema=json.dumps(schema) if as_text else schema)
  wanted, text = [tokenizer.encode(x)[-1] for x in ("9", "}", '"', "n", ":", "{")], ""
  while not found.is_over and len(text) < 40:
    allowed = unpacked(found.mask(), tokenizer.vocab_size)
    token = next(i for i in wanted if allowed[i])
    found.accept(token)
    text += tokenizer.decode([token])
  assert found.is_over and json.loads(text) == {"n": 10**15 - 1}

def drawn(made: Grammar, tokenizer: Tokenizer, seed: int, size: int) -> tuple[list[int], bool]:
  """An answer by random logits, and whether it ended by itself."""
  rng, sampler, ids = np.random.default_rng(seed), Sampler(temperature=1.0, seed=seed, masked=True), list[int]()
  for _ in range(400):
    if made.is_over: return ids, True
    token = sampler(rng.standard_normal(size).astype(np.float32) * 3, ids, made.mask())
    made.accept(token)
    if token in tokenizer.stop_ids: return ids, True
    ids.append(token)
  return ids, False

@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("tokenizer", [make, make_spm])
def test_random_choices_give_valid_texts(tokenizer, name):
  made, (asked, valid), ended = tokenizer(), CASES[name], 0
  size = made.vocab_size + EXTRA
  for seed in range(12):
    ids, whole = drawn(Grammar(made, size, **asked), made, seed, size)
    text = b"".join(map(made.token_bytes, ids)).decode()
    if whole: assert valid(text), text
    ended += whole
  assert ended >= 10
  free = [b"".join(map(made.token_bytes, np.random.default_rng(seed).integers(0, made.vocab_size, 9).tolist()))
          for seed in range(12)]
  def fits(raw: bytes) -> bool:
    try: return bool(valid(raw.decode()))
    except (ValueError, KeyError, AttributeError, TypeError): return False
  assert not any(map(fits, free))  # without the mask none is valid

def test_masks_allow_what_continues_the_text():
  tokenizer = make()
  size = tokenizer.vocab_size + EXTRA
  made, ends = Grammar(tokenizer, size, regex="(he|llo){1,2}"), {*map(tokenizer.shown_bytes, tokenizer.stop_ids)}
  def allowed() -> set[bytes]:
    return {tokenizer.shown_bytes(i) for i in np.flatnonzero(unpacked(made.mask(), size)).tolist()}
  assert allowed() == {b"h", b"he", b"l", b"ll", b"llo"} and not made.may_end
  other = made.fork()
  made.accept(TOKENS.index("he"))
  assert allowed() == {b"h", b"he", b"l", b"ll", b"llo"} | ends and made.may_end and not made.is_over
  for part in ("ll", "o"): made.accept(TOKENS.index(part))
  assert made.is_over and allowed() == ends
  other.accept(TOKENS.index("h"))
  assert not other.is_over

@pytest.mark.parametrize("tokenizer", [make, make_spm])
def test_forced_tokens(tokenizer):
  """Tokens that must come are the tokenizer's own, without the space that it would put before a text."""
  made = tokenizer()
  found = Grammar(made, made.vocab_size, regex="hellohello!+[0-9]")
  ids = found.forced()
  text = b"".join(map(made.token_bytes, ids)).decode()
  assert text and "hellohello!".startswith(text) and len(ids) < len(text)
  for token in ids: found.accept(token)
  assert Grammar(made, made.vocab_size, regex="[hx]ello").forced() == []

@pytest.mark.parametrize(("asked", "words"), [
  ({"regex": "(ab"}, "unclosed group"), ({"lark": "start: foo"}, "unknown name"),
  ({"json_schema": "{"}, "json_schema: "),
  ({"json_schema": {"type": "foo"}}, "Invalid type: foo"), ({}, "nothing is given"), ({"lark": 7}, "lark: "),
  ({"regex": "a", "lark": "b"}, "regex and lark is given"), ({"json_schema": {"a": {1}}}, "json_schema: ")], ids=str)
def test_bad_grammars(asked, words):
  with pytest.raises(InputError, match=re.escape(words)) as e: Grammar(make(), len(TOKENS), **asked)
  assert "\n" not in str(e.value) and len(str(e.value)) < 250 and not isinstance(e.value, DeadGrammar)

def test_dead_grammars():
  """A grammar ends where a token breaks it, or the vocabulary cannot write what it asks for."""
  tokenizer = make()
  made = Grammar(tokenizer, len(TOKENS), regex="hello")
  with pytest.raises(DeadGrammar, match="regex: token 0 is not allowed here"): made.accept(0)
  with pytest.raises(DeadGrammar): made.mask()
  with pytest.raises(DeadGrammar): Grammar(tokenizer, len(TOKENS), regex="a").accept(len(TOKENS))
  tokens = [text if text != "x" else "gone" for text in TOKENS]  # no token writes an x
  made = Grammar(lacking := make(tokens=tokens), len(TOKENS), regex="hex")
  made.accept(tokens.index("he"))
  with pytest.raises(DeadGrammar, match="^regex: ") as e: made.mask()
  assert "\n" not in str(e.value)
  assert Grammar(lacking, len(TOKENS), regex="he.").mask().any()

def test_tokenizers_are_made_once_and_not_kept(monkeypatch):
  tokenizer, count = make(), len(grammar._made)
  Grammar(tokenizer, 400, regex="a")
  assert len(grammar._made) == count + 1
  with monkeypatch.context() as m:
    m.setattr(grammar, "_Words", None)
    Grammar(tokenizer, 400, regex="b")
  del tokenizer
  assert len(grammar._made) == count

def test_without_the_library(monkeypatch):
  monkeypatch.setitem(sys.modules, "llguidance", None)
  with pytest.raises(InputError, match=r'llguidance is not installed; pip install "tinygrad_llm\[serve\]"'):
    Grammar(make(), len(TOKENS), regex="a")

def test_times_of_a_large_vocabulary():
  """Prints the times of masks with 128,256 tokens."""
  path = VECTORS / "ggml-vocab-llama-bpe.gguf"
  if not path.exists(): pytest.skip(f"no {path}: run `make vectors`")
  tokenizer, starts = Tokenizer.from_gguf(open_gguf(path).kv), [time.perf_counter()]
  for _ in range(2):
    Grammar(tokenizer, tokenizer.vocab_size, json_schema=PERSON)
    starts.append(time.perf_counter())
  times = list[float]()
  made, rng = Grammar(tokenizer, tokenizer.vocab_size, json_schema=PERSON), np.random.default_rng(0)
  while not made.is_over:
    start = time.perf_counter()
    mask = made.mask()
    times.append(time.perf_counter() - start)
    token = int(rng.choice(np.flatnonzero(unpacked(mask, tokenizer.vocab_size))))
    if token in tokenizer.stop_ids: break
    made.accept(token)
  first, second = np.diff(starts)
  print(f"{tokenizer.vocab_size} tokens: {first:.2f} s for the tokenizer and a grammar, {second * 1e3:.2f} ms for "
        f"another; a mask {np.median(times) * 1e3:.3f} ms, at most {max(times) * 1e3:.3f}")
