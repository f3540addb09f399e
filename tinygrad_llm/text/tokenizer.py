"""
Text to token ids and back, from the metadata of a GGUF file.

Byte pair encoding ("gpt2" and "gemma4" in the file) is in `bpe`, SentencePiece ("llama") in `sentencepiece`, the kinds
of word splitting (`tokenizer.ggml.pre`) are in `pretokenizers`. This module adds what a GGUF file says on top: the
types of the tokens and the ids with a special meaning.
Source: the GGUF specification (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Where a file leaves a
choice, llama.cpp is the reference.
"""
from __future__ import annotations
import codecs, math, re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, TypeVar
from tinygrad_llm.text.bpe import BPE
from tinygrad_llm.errors import InputError, warn
from tinygrad_llm.text.pretokenizers import GEMMA4, PRE_TYPES, PreType
from tinygrad_llm.text.sentencepiece import SentencePiece

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)   # tokenizer.ggml.token_type

# texts that end a turn in well-known vocabularies, whatever the file's eos_token_id says
END_TEXTS = frozenset((
  "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "</s>", "<|eom_id|>", "<eos>",
  "<end_of_turn>", "<turn|>", "<|tool_response>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<EOT>", "[EOT]",
  "[EOS]", "[e~[", "<end_of_utterance>", "<｜end▁of▁sentence｜>"))
# where a token ends the answer and another asks for a tool, <|end|> only ends one of the answer's messages
ANSWER_ENDS = ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})

# a noncharacter that breaks up control tokens in untrusted text, see Tokenizer.quote
QUOTE = "\ufdd0"

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

def _shown(value: Any) -> str: return " ".join(ascii(value)[:200].split())[:80]

def _flag(kv: Mapping[str, Any], key: str, default: bool | None) -> bool | None:
  if (value := kv.get(key, default)) is None or isinstance(value, bool): return value
  raise InputError(f"{key}: {_shown(value)} is not true or false; correct the file's metadata")

def _strings(kv: Mapping[str, Any], key: str) -> list[str]:
  value = kv.get(key)
  if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
    raise InputError(f"{key}: {'missing' if value is None else 'not an array of strings'}; convert the model again")
  return value

Number = TypeVar("Number", int, float)

def _numbers(kv: Mapping[str, Any], key: str, kind: Callable[[Any], Number], default: Number,
             count: int) -> list[Number]:
  try:
    values = [kind(x) for x in kv.get(key, [default] * count)]
  except (TypeError, ValueError, OverflowError) as e:
    raise InputError(f"{key}: not an array of numbers; convert the model again") from e
  if len(values) < count: raise InputError(f"{key}: {len(values)} for {count} tokens; convert the model again")
  if len(values) > count: warn(f"{key}: {len(values)} for {count} tokens; those at the end are left out")
  return values[:count]

def pre_type(kv: Mapping[str, Any]) -> PreType | None:
  """How a file's metadata says that words are cut; None: not at all, by SentencePiece. InputError for other ways."""
  supported = f"supported: llama, gemma4, and gpt2 with tokenizer.ggml.pre {', '.join(PRE_TYPES)}"
  model, pre = kv.get("tokenizer.ggml.model"), kv.get("tokenizer.ggml.pre")
  if not isinstance(model, str) or model not in ("llama", "gpt2", "gemma4"):
    raise InputError(f"tokenizer.ggml.model: {_shown(model)} is not supported; {supported}")
  if model == "llama": return None
  if model == "gemma4": return GEMMA4
  # llama.cpp has a default for files without it, with which the text of most of them is cut as no model has learned it
  if not isinstance(pre, str) or pre not in PRE_TYPES:
    raise InputError(f"tokenizer.ggml.pre: {_shown(pre)} is not supported; {supported}")
  return PRE_TYPES[pre]

def _ids(tokens: list[str], types: list[int], kinds: Set[int]) -> dict[str, int]:
  """The ids of the tokens of some types, by text; the first of tokens with the same text counts."""
  return {text: i for i, text in reversed([*enumerate(tokens)]) if text and types[i] in kinds}

def _pattern(texts: list[str], depth: int = 0) -> str:
  """Matches any of the texts, the longest first; many are told apart by one character after the other."""
  if len(texts) < 8 or depth == 20: return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))
  rests: dict[str, list[str]] = {}
  for text in texts: rests.setdefault(text[:1], []).append(text[1:])
  ends = "|" if rests.pop("", None) else ""
  return "|".join(f"{re.escape(c)}(?:{_pattern(rest, depth + 1)})" for c, rest in rests.items()) + ends

def _alternatives(texts: Iterable[str]) -> re.Pattern[str] | None:
  """A regex with one group that finds any of the texts, the longest first; None for none."""
  found = sorted(texts)
  return re.compile(f"({_pattern(found)})") if found else None

class TextStream:
  """Turns token ids into text one at a time, holding back a character until all of its bytes are there."""
  def __init__(self, tokenizer: Tokenizer):
    self._tokenizer = tokenizer
    self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

  def push(self, token: int) -> str:
    """The text that is certain after this token. Bytes that can no longer become a character are U+FFFD."""
    return self._decoder.decode(self._tokenizer.token_bytes(token))

  def flush(self) -> str:
    """What is left at the end: "", or U+FFFD for a character that never came whole. The stream can be used again."""
    rest = self._decoder.decode(b"", final=True)
    self._decoder.reset()
    return rest

class Tokenizer:
  """
  A GGUF file's tokenizer. Make one with `Tokenizer.from_gguf(kv)`.

  bos: id of the token that begins a text, or None.
  add_bos: whether the file asks for it at the beginning of a prompt.
  stop_ids: ids that end a generation: eos, eot and eom of the file, and well-known end-of-turn tokens (`END_TEXTS`).
  vocab_size: number of tokens.
  """
  def __init__(self, tokens: list[str], types: list[int], model: BPE | SentencePiece, bos: int | None = None,
               add_bos: bool = False, stop_ids: Iterable[int] = ()):
    self.bos, self.add_bos, self.vocab_size = bos, add_bos, len(tokens)
    self._tokens, self._types, self._model = tokens, types, model
    self._bytes: dict[int, bytes] = {}
    user, control = _ids(tokens, types, {USER_DEFINED}), _ids(tokens, types, {CONTROL, UNKNOWN})
    self._special = control | user
    self._find_user, self._find_all, self._find_control = map(_alternatives, (user, self._special, control))
    self._control = [*sorted(control), ""]
    ends = END_TEXTS - ({"<|end|>"} if any(texts <= control.keys() for texts in ANSWER_ENDS) else set())
    self.stop_ids = frozenset(stop_ids) | {i for text, i in control.items() if text in ends}

  @classmethod
  def from_gguf(cls, kv: Mapping[str, Any]) -> Tokenizer:
    """Reads the `tokenizer.ggml.*` entries of a file's metadata. InputError for a tokenizer that is not supported."""
    pre = pre_type(kv)
    tokens = _strings(kv, "tokenizer.ggml.tokens")
    if not tokens: raise InputError("tokenizer.ggml.tokens: empty; convert the model again")
    types = _numbers(kv, "tokenizer.ggml.token_type", int, NORMAL, len(tokens))
    # an end of turn that a converter took for an ordinary added token is a control token all the same
    types = [CONTROL if t == USER_DEFINED and x in END_TEXTS else t for x, t in zip(tokens, types)]

    def special(name: str, default: int | None = None) -> int | None:   # llama.cpp's default for SentencePiece
      key = f"tokenizer.ggml.{name}_token_id"
      default = default if pre is None and default is not None and default < len(tokens) else None
      if (value := kv.get(key)) is None: return default
      if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{key}: {_shown(value)} is not a token's id; correct the file's metadata")
      if 0 <= value < len(tokens): return value
      instead = "there is none" if default is None else f"{default} is taken"
      warn(f"{key}: {_shown(value)} is not one of the {len(tokens)} tokens; {instead}")
      return default

    bos, eos, unknown = special("bos", 1), special("eos", 2), special("unknown", 0) or 0
    asked = _flag(kv, "tokenizer.ggml.add_bos_token", None)
    if asked and bos is None:
      raise InputError("tokenizer.ggml.add_bos_token: there is no bos_token_id; correct the file's metadata")
    if pre is GEMMA4: asked = bos is not None   # early files say no, by mistake
    add_bos = bool(asked) if asked is not None else bos is not None and (pre is None or pre.add_bos)
    stop_ids = [i for i in (eos, special("eot"), special("eom")) if i is not None]
    vocab = _ids(tokens, types, {*types} - {CONTROL, UNKNOWN})
    if pre is not None:
      merges = _strings(kv, "tokenizer.ggml.merges")
      return cls(tokens, types, BPE(vocab, {*tokens}, merges, pre), bos, add_bos, stop_ids)
    scores = _numbers(kv, "tokenizer.ggml.scores", float, 0.0, len(tokens))
    if any(map(math.isnan, scores)): raise InputError("tokenizer.ggml.scores: not numbers; convert the model again")
    byte_ids = {b: vocab[text] for b in range(256) if (text := f"<0x{b:02X}>") in vocab}
    words = {text: i for text, i in vocab.items() if types[i] != BYTE}
    space_prefix = bool(_flag(kv, "tokenizer.ggml.add_space_prefix", True))
    return cls(tokens, types, SentencePiece(words, scores, byte_ids, unknown, space_prefix), bos, add_bos, stop_ids)

  def encode(self, text: str, add_bos: bool = False, parse_special: bool = False) -> list[int]:
    """
    Token ids of a text, with the bos token in front if `add_bos`.

    Control tokens written out in the text are parsed only with `parse_special`; without it no text becomes one. Tokens
    that the file calls user-defined are always parsed. A SentencePiece vocabulary, unless its file says otherwise, puts
    a space before a text and before text that follows one of these tokens. What the vocabulary cannot write is left out
    (BPE, as in llama.cpp) or the unknown token (SentencePiece); a lone surrogate is U+FFFD.
    """
    ids: list[int] = []
    if add_bos:
      if self.bos is None: raise InputError("tokenizer.ggml.bos_token_id: missing; encode without a bos token")
      ids.append(self.bos)
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    find = self._find_all if parse_special else self._find_user
    for i, part in enumerate(find.split(text) if find else [text]):   # text and special tokens in turn
      ids += [self._special[part]] if i % 2 else self._model.encode(part.replace(QUOTE, "") if parse_special else part)
    return ids

  def quote(self, text: str) -> str:
    """
    Makes a text from a user safe to be part of a prompt that is encoded with `parse_special`: control tokens in it, or
    begun at its end, are broken up by U+FDD0, which `encode` takes out again after it has looked for control tokens.
    """
    text = text.replace(QUOTE, "")
    if self._find_control: text = self._find_control.sub(lambda m: m[0][0] + QUOTE + m[0][1:], text)
    longest, last = min(1000, max(map(len, self._control))), len(self._control) - 1
    ends = (text[n:] for n in range(max(0, len(text) - longest), len(text)))
    begun = any(self._control[bisect_left(self._control, end, hi=last)].startswith(end) for end in ends)
    return text + QUOTE if begun else text

  def token_bytes(self, token: int) -> bytes:
    """The bytes of text that a token stands for. Control, unknown and unused tokens have none, as in llama.cpp."""
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
    """How the vocabulary writes a control token; "" for any other."""
    return self._tokens[token] if token < self.vocab_size and self._types[token] == CONTROL else ""

  def decode(self, ids: Iterable[int]) -> str:
    """
    The text that `encode` made token ids from. Control tokens have no text; broken UTF-8 becomes U+FFFD.

    It is what `stream` gives, less the space that a SentencePiece vocabulary puts before a text (the first one, with or
    without a bos token). For ids that continue a text, where that space is one between words, use `stream`.
    """
    text = b"".join(self.token_bytes(int(i)) for i in ids).decode("utf-8", "replace")
    return text.removeprefix(self._model.prefix)

  def stream(self) -> TextStream:
    """A decoder for tokens that continue a text and arrive one by one. It keeps every space, as llama.cpp does."""
    return TextStream(self)
