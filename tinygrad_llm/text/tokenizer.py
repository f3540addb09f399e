"""
The tokenizer of a GGUF file: text to token ids and back.

Byte pair encoding ("gpt2", "gemma4" and "whitespace" in the file) is in `bpe`, SentencePiece ("llama") in
`sentencepiece`. The rules that split text into words (`tokenizer.ggml.pre`) are in `pretokenizers`. This module adds
the rest of the metadata: the types of the tokens and the special token ids.
Source: the GGUF specification (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Where a file leaves a
choice, llama.cpp is the reference.
"""
from __future__ import annotations
import codecs, math, re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Set
from functools import cached_property
from typing import Any, TypeVar
import numpy as np
from tinygrad_llm.errors import InputError, warn
from tinygrad_llm.text.bpe import BPE
from tinygrad_llm.text.builtin_templates import BUILTIN
from tinygrad_llm.text.fill_marks import FILL_ENDS, FILL_MARKS, KINDS, NAMES, fill_ids
from tinygrad_llm.text.literals import Literals
from tinygrad_llm.text.pretokenizers import DEFAULT, GEMMA4, PRE_TYPES, WHITESPACE, PreType
from tinygrad_llm.text.sentencepiece import SPACE, SentencePiece

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)   # tokenizer.ggml.token_type
NO_TEXT = {UNKNOWN, CONTROL, UNUSED}

# end-of-turn tokens of well-known vocabularies; they count whatever the file's eos_token_id says
END_TEXTS = frozenset((
  "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "</s>", "<|eom_id|>", "<eos>",
  "<end_of_turn>", "<turn|>", "<|tool_response>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<EOT>",
  "_<EOT>", "▁<EOT>", "[EOT]", "[EOS]", "[e~[", "<end_of_utterance>", "<｜end▁of▁sentence｜>"))
# tokens that begin a text, a turn or a turn's parts
TURN_MARKS = frozenset((
  "<|im_start|>", "<|im_sep|>", "<start_of_turn>", "<|turn>", "<|start_header_id|>", "<|end_header_id|>",
  "<|begin_of_text|>", "<|startoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|tool|>",
  "<|observation|>", "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<|start|>", "<|message|>",
  "<|channel|>", "<|constrain|>", "<|start_of_role|>", "<|end_of_role|>", "<|START_OF_TURN_TOKEN|>",
  "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|header_start|>",
  "<|header_end|>", "<|eot|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>",
  "<|end_of_turn|>", "<|eos|>", "<|bos|>"))
KNOWN_MARKS = END_TEXTS | FILL_ENDS | FILL_MARKS | TURN_MARKS
# vocabularies with one token that ends an answer and one that calls a tool: there <|end|> ends only one message
ANSWER_ENDS = ({"<|return|>", "<|call|>"}, {"<|return|>", "<|calls|>"}, {"<|flush|>", "<|call|>"},
               {"<|flush|>", "<|calls|>"})
# MARK: how a mark may look. _SURE: marks that cannot be HTML or code.
# _ROLES: words that make a mark a control token. Other marks, such as <think> and <tool_call>, are text of an answer.
MARK = re.compile(r"<[^\s<>]{1,60}>|\[\|[^\s\[\]]{1,60}\|\]|\[/?[A-Z][A-Z_]+\]|\[gMASK\]")
_SURE = re.compile(r"<[|｜].*|.*[|｜]>|\[.*|<(?:start|end|begin)_of_\w+>")
_ROLES = {*"start end begin s bos eos eot sop eop turn user human assistant bot ai system sys role 用户".split()}
_PADDING = frozenset(("<PAD>", "[PAD]"))   # end tokens if the file calls them control; else mostly fillers

# Special tokens take the white space after them along if the model's name has a text of STRIPPED, as in llama.cpp.
# C_SPACE is what C calls white space.
STRIPPED, KEEP_SPACE, C_SPACE = ("phi-3", "phi3"), {"<unk>", "<s>", "<|endoftext|>"}, " \t\n\v\f\r"

MOST_COMPILED = 500   # most texts in one regex: compiling takes 30 us per text, at every start

# a noncharacter that breaks up control tokens in untrusted text, see Tokenizer.quote
QUOTE = "\ufdd0"

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

def _shown(value: Any) -> str: return " ".join(ascii(value)[:200].split())[:80]

def _flag(kv: Mapping[str, Any], key: str, default: bool | None) -> bool | None:
  if (value := kv.get(key, default)) is None or isinstance(value, bool): return value
  raise InputError(f"{key}: {_shown(value)} is not true or false; correct the file's metadata")

def _strings(kv: Mapping[str, Any], key: str) -> list[str]:
  value = kv.get(key)
  if not isinstance(value, list) or not {*map(type, value)} <= {str}:
    raise InputError(f"{key}: {'missing' if value is None else 'not an array of strings'}; convert the model again")
  return value

Number = TypeVar("Number", int, float)

def _numbers(kv: Mapping[str, Any], key: str, kind: Callable[[Any], Number], default: Number,
             count: int) -> list[Number]:
  found = kv.get(key, [default] * count)
  values: list[Number]
  try:
    if isinstance(found, np.ndarray) and found.dtype.kind in ("iu" if kind is int else "f"): values = found.tolist()
    else: values = [kind(x) for x in found]
  except (TypeError, ValueError, OverflowError) as e:
    raise InputError(f"{key}: not an array of numbers; convert the model again") from e
  if len(values) < count: raise InputError(f"{key}: {len(values)} for {count} tokens; convert the model again")
  if len(values) > count: warn(f"{key}: {len(values)} for {count} tokens; those at the end are left out")
  return values[:count]

def pre_type(kv: Mapping[str, Any]) -> PreType | None:
  """The pre-tokenizer that a file's metadata names; None for SentencePiece, which has none. InputError for others."""
  supported = f"supported: llama, gemma4, whitespace, and gpt2 with tokenizer.ggml.pre {', '.join(PRE_TYPES)}"
  model, pre = kv.get("tokenizer.ggml.model"), kv.get("tokenizer.ggml.pre")
  if not isinstance(model, str) or model not in ("llama", "gpt2", "gemma4", "whitespace"):
    raise InputError(f"tokenizer.ggml.model: {_shown(model)} is not supported; {supported}")
  if model == "llama": return None
  if model == "gemma4": return GEMMA4
  if model == "whitespace": return WHITESPACE
  if pre is None or isinstance(pre, str) and pre == "default":
    warn(f"tokenizer.ggml.pre: {pre or 'missing'}; words are cut by llama.cpp's default, perhaps not as the model has "
         "learned them; convert the model again")
    return DEFAULT
  if not isinstance(pre, str) or pre not in PRE_TYPES:
    raise InputError(f"tokenizer.ggml.pre: {_shown(pre)} is not supported; {supported}")
  return PRE_TYPES[pre]

def special_id(kv: Mapping[str, Any], name: str, tokens: list[str]) -> int | None:
  """
  The id of a special token ("bos", "eos", "eot", "unknown", ..): the file's, or else llama.cpp's default; None for
  neither. The default for BPE is Falcon's id, and counts only if that token is a mark.
  """
  key, model = f"tokenizer.ggml.{name}_token_id", kv.get("tokenizer.ggml.model")
  default = {"llama": {"bos": 1, "eos": 2, "unknown": 0}, "gpt2": {"bos": 11, "eos": 11}}.get(str(model), {}).get(name)
  if default is not None and (default >= len(tokens) or model == "gpt2" and not MARK.fullmatch(tokens[default])):
    default = None
  if (value := kv.get(key)) is None: return default
  if isinstance(value, bool) or not isinstance(value, int):
    raise InputError(f"{key}: {_shown(value)} is not a token's id; correct the file's metadata")
  if 0 <= value < len(tokens): return value
  instead = "there is none" if default is None else f"{default} is taken"
  warn(f"{key}: {_shown(value)} is not one of the {len(tokens)} tokens; {instead}")
  return default

def suppressed_ids(kv: Mapping[str, Any]) -> tuple[int, ...]:
  """
  The ids of tokens that are never chosen (`tokenizer.ggml.suppress_tokens`), ascending; InputError if they are all.
  """
  key = "tokenizer.ggml.suppress_tokens"
  if (value := kv.get(key)) is None: return ()
  count = len(_strings(kv, "tokenizer.ggml.tokens"))
  array = np.asarray(value if isinstance(value, (list, np.ndarray)) else [None])
  if array.size and array.dtype.kind not in "iu":
    raise InputError(f"{key}: {_shown(value)} is not an array of token ids; correct the file's metadata")
  ids = sorted({*array.ravel().tolist()})
  if beyond := [i for i in ids if not 0 <= i < count]:
    warn(f"{key}: {len(beyond)} of {len(ids)}, such as {beyond[0]}, are none of the {count} tokens; they are left out")
  found = tuple(i for i in ids if 0 <= i < count)
  if len(found) == count: raise InputError(f"{key}: all {count} tokens; correct the file's metadata")
  return found

def _ids(tokens: list[str], types: list[int], kinds: Set[int]) -> dict[str, int]:
  """{text: id} of the tokens of some types. The first of several tokens with the same text counts."""
  ids = np.flatnonzero(np.isin(types, [*kinds]))[::-1].tolist()
  found = dict(zip(map(tokens.__getitem__, ids), ids))
  found.pop("", None)
  return found

def _literals(kv: Mapping[str, Any]) -> set[str]:
  """All texts that look like a mark in the sources of a file's chat templates."""
  sources = [BUILTIN.get(source.strip(), source) for key, source in kv.items()
             if key.startswith("tokenizer.chat_template") and isinstance(source, str)]
  return {found for source in sources for found in MARK.findall(source)}

def _is_ordinary(text: str, vocab: Mapping[str, int], merges: Any) -> bool:
  """Whether merges produce a token, so that it is a word and no mark, such as </s> in a vocabulary that knows HTML."""
  if _SURE.fullmatch(text): return False
  halves = [(text[:i], text[i:]) for i in range(1, len(text))]
  if isinstance(merges, list): return not {" ".join(pair) for pair in halves}.isdisjoint(merges)
  return any(a in vocab and b in vocab for a, b in halves)

def _mended(kv: Mapping[str, Any], types: list[int], vocab: Mapping[str, int], named: Set[str],
            words: Set[str] = frozenset()) -> dict[str, int]:
  """
  The types to correct: {text: right type} of the tokens whose type in the file is wrong. `vocab` holds the tokens that
  are not control tokens according to the file. `words` are known to be no marks.

  CONTROL is right for well-known turn marks, as in llama.cpp. It is also right for others that look like control
  tokens, where the file names them (`named`: bos, eos, ..), its template writes them out, or it has no types.
  USER_DEFINED is right for other marks that a template writes out and an answer may hold, such as <think>: one token,
  but text.
  """
  literal = _literals(kv) & vocab.keys()
  found = (KNOWN_MARKS - _PADDING) & vocab.keys() | literal | {x for x in named if x in vocab and MARK.fullmatch(x)}
  if "tokenizer.ggml.token_type" not in kv: found |= {x for x in vocab if x[0] in "<[" and MARK.fullmatch(x)}
  ret, merges = dict[str, int](), kv.get("tokenizer.ggml.merges")
  for text in found - words:
    kind, role = types[vocab[text]], not _ROLES.isdisjoint(re.findall(r"[^\W_]+", text.lower()))
    if kind in (USER_DEFINED, BYTE) and text not in KNOWN_MARKS or _BYTE_TOKEN.fullmatch(text): continue
    if kind != USER_DEFINED and text not in named and _is_ordinary(text, vocab, merges): continue
    if text in KNOWN_MARKS or _SURE.fullmatch(text) or role: ret[text] = CONTROL
    elif text in literal: ret[text] = USER_DEFINED
  told = sorted(text for text in ret if types[vocab[text]] != USER_DEFINED)  # converters give it to all added tokens
  if told:
    lacking = "missing" if "tokenizer.ggml.token_type" not in kv else "wrong"
    warn(f"tokenizer.ggml.token_type: {lacking} for {len(told)} marks of turns, such as {ascii(told[0])}; they are "
         "taken as such all the same")
  return ret

def _types_by_text(tokens: list[str], unknown: int | None, spelt: bool) -> list[int]:
  """Token types for a file without them: BYTE for bytes that are spelt <0x..>, UNKNOWN for `unknown`, else NORMAL."""
  types = [BYTE if spelt and _BYTE_TOKEN.fullmatch(text) else NORMAL for text in tokens]
  if unknown is not None and MARK.fullmatch(tokens[unknown]): types[unknown] = UNKNOWN
  return types

def _pattern(texts: list[str], depth: int = 0) -> str:
  """A regex for any of the texts, the longest first. Many texts are branched by their characters, as in a trie."""
  if len(texts) < 8 or depth == 20: return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
  rests: dict[str, list[str]] = {}
  for text in texts: rests.setdefault(text[:1], []).append(text[1:])
  ends = "|" if rests.pop("", None) else ""
  return "|".join(f"{re.escape(c)}(?:{_pattern(rest, depth + 1)})" for c, rest in rests.items()) + ends

def _alternatives(texts: Iterable[str]) -> re.Pattern[str] | Literals | None:
  """A search for any of the texts, the longest first: Literals if many, else a regex with one group; None for none."""
  found = sorted(texts)
  if len(found) > MOST_COMPILED: return Literals(found)
  return re.compile(f"({_pattern(found)})") if found else None

class TextStream:
  """Turns token ids into text one at a time. A character is held back until all of its bytes are there."""
  def __init__(self, tokenizer: Tokenizer):
    self._tokenizer = tokenizer
    self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

  def push(self, token: int) -> str:
    """The text that is certain after this token. Bytes that can no longer become a character are U+FFFD."""
    return self._decoder.decode(self._tokenizer.token_bytes(token))

  def flush(self) -> str:
    """The rest at the end: "", or U+FFFD for an incomplete character. The stream can be used again."""
    rest = self._decoder.decode(b"", final=True)
    self._decoder.reset()
    return rest

class Tokenizer:
  """
  A GGUF file's tokenizer. Make one with `Tokenizer.from_gguf(kv)`.

  bos: id of the token that begins a text, or None.

  add_bos: whether the file asks for bos at the beginning of a prompt.

  stop_ids: ids that end a generation. They are the file's eos, eot, eom and fill-in-the-middle ends, and well-known
  end-of-turn tokens (`END_TEXTS`, `FILL_ENDS`). Once a chat template has been used, the mark that it puts after an
  answer is one, too (`end_with`).

  vocab_size: number of tokens.

  fill: ids of the marks around the parts of a text with a gap, by their names in a file (fill_marks.NAMES).

  strips: whether white space after a special token is left out, KEEP_SPACE excepted.
  """
  def __init__(self, tokens: list[str], types: list[int], model: BPE | SentencePiece, bos: int | None = None,
               add_bos: bool = False, stop_ids: Iterable[int] = (), strips: bool = False,
               fill: Mapping[str, int] | None = None):
    self.fill = dict(fill or {})
    self.bos, self.add_bos, self.vocab_size, self._strips = bos, add_bos, len(tokens), strips
    self._tokens, self._types, self._model = tokens, types, model
    self._bytes: dict[int, bytes] = {}
    user, control = _ids(tokens, types, {USER_DEFINED}), _ids(tokens, types, {CONTROL, UNKNOWN})
    self._special = control | user
    self._user, self._control = user, [*sorted(control), ""]
    # no ends, even if the file names them, as in llama.cpp: <|end|> may end one message of several; </s> may be HTML
    # (Gemma 4, PaddleOCR)
    no_ends = {"<|end|>": any(texts <= control.keys() for texts in ANSWER_ENDS), "</s>": "<|tool_response>" in control}
    self._no_ends = {control.get(text) for text, holds in no_ends.items() if holds}
    ends = {i for text, i in control.items() if text in END_TEXTS | FILL_ENDS}
    self.stop_ids = (frozenset(stop_ids) | ends) - self._no_ends

  def end_with(self, text: str) -> None:
    """Makes the mark at the beginning of a text, which a template puts after an answer, end a generation."""
    text = text.lstrip()
    if (found := self._find_all.match(text) if self._find_all else None) is None: return
    i = self._special[found[0]]
    if self._types[i] == CONTROL or _SURE.fullmatch(found[0]): self.stop_ids |= {i} - self._no_ends

  @cached_property
  def _find_user(self) -> re.Pattern[str] | Literals | None: return _alternatives(self._user)
  @cached_property
  def _find_all(self) -> re.Pattern[str] | Literals | None: return _alternatives(self._special)
  @cached_property
  def _find_control(self) -> re.Pattern[str] | Literals | None: return _alternatives(self._control[:-1])

  @classmethod
  def from_gguf(cls, kv: Mapping[str, Any]) -> Tokenizer:
    """Reads the `tokenizer.ggml.*` entries of a file's metadata. InputError for a tokenizer that is not supported."""
    pre = pre_type(kv)
    tokens = _strings(kv, "tokenizer.ggml.tokens")
    if not tokens: raise InputError("tokenizer.ggml.tokens: empty; convert the model again")
    types = _numbers(kv, "tokenizer.ggml.token_type", int, NORMAL, len(tokens))
    bos, eos, unknown = (special_id(kv, name, tokens) for name in ("bos", "eos", "unknown"))
    asked = _flag(kv, "tokenizer.ggml.add_bos_token", None)
    if asked and bos is None:
      raise InputError("tokenizer.ggml.add_bos_token: there is no bos_token_id; correct the file's metadata")
    if pre is GEMMA4: asked = bos is not None   # early files say false, by mistake
    add_bos = bool(asked) if asked is not None else bos is not None and (pre is None or pre.add_bos)
    stop_ids = [i for i in (eos, *(special_id(kv, name, tokens) for name in ("eot", "eom"))) if i is not None]
    if "tokenizer.ggml.token_type" not in kv: types = _types_by_text(tokens, unknown, pre is None or not pre.byte_level)
    known = {*tokens}
    html = {"</s>"} if pre is GEMMA4 and known >= {"</s>", "<|tool_response>"} else set()  # as in llama.cpp
    for text in html: types[tokens.index(text)] = NORMAL
    vocab = _ids(tokens, types, {*types} - {CONTROL, UNKNOWN})
    mended = _mended(kv, types, vocab, {tokens[i] for i in (bos, *stop_ids) if i is not None}, html)
    for text, kind in mended.items():
      types[vocab[text]] = kind
      if kind == CONTROL: del vocab[text]
    named = {name: i for name in NAMES for key in (f"fim_{name}", KINDS.get(name))
             if key is not None and (i := special_id(kv, key, tokens)) is not None}
    stop_ids += [named[name] for name in ("pad", "rep", "sep") if name in named]
    fill = fill_ids(_ids(tokens, types, {CONTROL, USER_DEFINED})) | named
    strips = any(name in str(kv.get("general.name")).lower() for name in STRIPPED)
    if pre is not None:
      merges = _strings(kv, "tokenizer.ggml.merges")
      lowercase = pre is WHITESPACE and bool(_flag(kv, "tokenizer.ggml.normalizer.lowercase", False))
      return cls(tokens, types, BPE(vocab, known, merges, pre, lowercase), bos, add_bos, stop_ids, strips, fill)
    scores = _numbers(kv, "tokenizer.ggml.scores", float, 0.0, len(tokens))
    if any(map(math.isnan, scores)): raise InputError("tokenizer.ggml.scores: not numbers; convert the model again")
    byte_ids = {b: vocab[text] for b in range(256) if (text := f"<0x{b:02X}>") in vocab}
    words = vocab.copy()
    for text, i in _ids(tokens, types, {BYTE}).items():
      if words[text] == i: del words[text]
    space_prefix = bool(_flag(kv, "tokenizer.ggml.add_space_prefix", True))
    model = SentencePiece(words, scores, byte_ids, unknown or 0, space_prefix)
    return cls(tokens, types, model, bos, add_bos, stop_ids, strips, fill)

  def encode(self, text: str, add_bos: bool = False, parse_special: bool = False) -> list[int]:
    """
    Token ids of a text, with the bos token in front if `add_bos`.

    Control tokens written out in the text are parsed only with `parse_special`; without it no text becomes one. Tokens
    that the file calls user-defined are always parsed. A SentencePiece vocabulary, unless its file says otherwise, puts
    a space before a text and before text that follows one of these tokens. Characters that the vocabulary cannot write
    are left out (BPE, as in llama.cpp) or become the unknown token (SentencePiece). A lone surrogate becomes U+FFFD.

    InputError for `add_bos` if the file has no bos token.
    """
    ids: list[int] = []
    if add_bos:
      if self.bos is None: raise InputError("tokenizer.ggml.bos_token_id: missing; encode without a bos token")
      ids.append(self.bos)
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    find = self._find_all if parse_special else self._find_user
    parts = find.split(text) if find else [text]   # text and special tokens alternate
    for i, part in enumerate(parts):
      if self._strips and i and i % 2 == 0 and parts[i - 1] not in KEEP_SPACE: part = part.lstrip(C_SPACE)
      ids += [self._special[part]] if i % 2 else self._model.encode(part.replace(QUOTE, "") if parse_special else part)
    return ids

  def encode_on(self, text: str) -> list[int]:
    """
    Token ids of a text that continues another one: no space comes before it. Control tokens are not parsed.

    A SentencePiece vocabulary gets a line break first, which is cut off again.
    """
    if not self._model.prefix: return self.encode(text)
    first, ids = self.encode("\n"), self.encode("\n" + text)
    return ids[len(first):] if ids[:len(first)] == first else self.encode(text)

  def least_tokens(self, text: str) -> int:
    """
    A lower bound for the number of token ids of a text, and of any text that contains it. It is computed without
    tokenising: the text's bytes divided by the longest token's bytes, rounded up.
    """
    if not self._longest or self._strips: return 0
    return -(-len(text.replace(QUOTE, "").replace(SPACE, " ").encode("utf-8", "ignore")) // self._longest)

  @cached_property
  def _longest(self) -> int:
    """The most bytes of text that one token stands for; 0 if some text becomes no token at all."""
    if not self._model.writes_all: return 0
    most = max(map(len, self._tokens))  # a character has at most 4 bytes, and an unknown character is one token
    return max(4, *(max(len(self._model.text_bytes(text)), len(text.encode("utf-8", "surrogatepass")) * special)
                    for text, kind in zip(self._tokens, self._types) if 4 * len(text) >= most
                    for special in (kind in (CONTROL, UNKNOWN, USER_DEFINED),)))

  def quote(self, text: str) -> str:
    """
    Makes a user's text safe inside a prompt that is encoded with `parse_special`.

    U+FDD0 is put into control tokens in the text, and after one that its end may begin. `encode` removes U+FDD0 again
    after it has looked for control tokens.
    """
    text = text.replace(QUOTE, "")
    if self._find_control: text = self._find_control.sub(lambda m: m[0][0] + QUOTE + m[0][1:], text)
    longest, last = min(1000, max(map(len, self._control))), len(self._control) - 1
    ends = (text[n:] for n in range(max(0, len(text) - longest), len(text)))
    begun = any(self._control[bisect_left(self._control, end, hi=last)].startswith(end) for end in ends)
    return text + QUOTE if begun else text

  def token_bytes(self, token: int) -> bytes:
    """
    The bytes of text that a token stands for. Control, unknown and unused tokens have none, as in llama.cpp. InputError
    for an id that is not in the vocabulary.
    """
    if (known := self._bytes.get(token)) is not None: return known
    if not 0 <= token < self.vocab_size:
      raise InputError(f"token id {_shown(token)}: not in the vocabulary; use 0 to {self.vocab_size - 1}")
    text, kind = self._tokens[token], self._types[token]
    plain = text.encode("utf-8", "surrogatepass")
    if kind == NORMAL: value = self._model.text_bytes(text)
    elif kind == BYTE: value = bytes.fromhex(m[1]) if (m := _BYTE_TOKEN.fullmatch(text)) else plain
    else: value = plain if kind == USER_DEFINED else b""
    self._bytes[token] = value
    return value

  def control_text(self, token: int) -> str:
    """The vocabulary's name of a token that has no text (control, unknown, unused); "" for any other token."""
    return self._tokens[token] if token < self.vocab_size and self._types[token] in NO_TEXT else ""

  def shown_bytes(self, token: int) -> bytes:
    """token_bytes(), or the name of a token that has no text. An id beyond the vocabulary, of padding, has none."""
    if token >= self.vocab_size: return b""
    return self.token_bytes(token) or self.control_text(token).encode("utf-8", "surrogatepass")

  def pieces(self, text: str) -> list[tuple[str, bool]]:
    """Cuts a text at the special tokens written out in it: (piece, whether it is a token that has no text)."""
    found = self._find_all.split(text) if self._find_all else [text]
    return [(part, i % 2 == 1 and self.control_text(self._special[part]) != "") for i, part in enumerate(found) if part]

  @property
  def end_texts(self) -> frozenset[str]:
    """The vocabulary's names of the tokens in stop_ids that have no text; "" stands for the others."""
    return frozenset(self.control_text(i) for i in self.stop_ids)

  def decode(self, ids: Iterable[int]) -> str:
    """
    The text of token ids, the reverse of `encode`. Control tokens have no text; broken UTF-8 becomes U+FFFD.

    It is the text that `stream` gives, without the first space if that is the one which a SentencePiece vocabulary puts
    before a text. For ids that continue a text, where that space separates words, use `stream`.
    """
    text = b"".join(self.token_bytes(int(i)) for i in ids).decode("utf-8", "replace")
    return text.removeprefix(self._model.prefix)

  def stream(self) -> TextStream:
    """An incremental decoder for tokens that continue a text. It keeps every space, as llama.cpp does."""
    return TextStream(self)
