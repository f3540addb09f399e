"""
Byte pair encoding by a list of merges ("gpt2" and "gemma4" in a GGUF file), in the `tokenizers` library.

Sources: byte-level BPE as in GPT-2 (https://github.com/openai/gpt-2/blob/master/src/encoder.py), the `tokenizers`
library (https://huggingface.co/docs/tokenizers). Where a file leaves a choice, llama.cpp is the reference.
"""
from __future__ import annotations
from collections.abc import Set
from tokenizers import Regex, Tokenizer as Pipeline, models, pre_tokenizers
from tinygrad_llm.errors import InputError
from tinygrad_llm.pretokenizers import PreType
from tinygrad_llm.spm import SPACE

def _byte_characters() -> dict[str, int]:
  """The byte for each character of a byte-level vocabulary: a byte that prints is itself, the others are U+0100 on."""
  printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
  rest = [b for b in range(256) if b not in printable]
  return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(rest)}

_BYTE_OF = _byte_characters()

class BPE:
  """
  Words of bytes, or of characters with byte tokens for those that are no token, put together by merges.

  vocab: the ids of the tokens that text may become.
  tokens: the texts of all tokens, with those that text never becomes.
  merges: pairs of tokens, a space between them, in the order in which they are applied.
  """
  prefix = ""

  def __init__(self, vocab: dict[str, int], tokens: Set[str], merges: list[str], pre: PreType):
    self._byte_level = pre.byte_level
    pairs: list[tuple[str, str]] = []
    for merge in dict.fromkeys(merges):   # of equal merges the first counts
      cut = merge.find(" ", 1)            # a part may itself begin with a space
      left, right = merge[:cut], merge[cut + 1:]
      if cut < 0 or not right:
        raise InputError(f"tokenizer.ggml.merges: {ascii(merge)[:80]} is not a pair of tokens; convert the model again")
      if left in vocab and right in vocab and left + right in vocab: pairs.append((left, right))
      # never merge text into a control token; any other gap is a damaged file
      elif not tokens >= {left, right, left + right}:
        raise InputError(f"tokenizer.ggml.merges: {ascii(merge)[:80]} needs a missing token; convert the model again")
    try:
      model = models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre.ignore_merges, byte_fallback=not pre.byte_level)
    except Exception as e:
      raise InputError("tokenizer.ggml.tokens: texts that are not Unicode; convert the model again") from e
    self._pipeline = Pipeline(model)
    steps = [pre_tokenizers.Split(Regex(split), "isolated") for split in pre.splits]
    as_bytes = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)] if pre.byte_level else []
    self._pipeline.pre_tokenizer = pre_tokenizers.Sequence([*steps, *as_bytes])  # type: ignore[assignment]

  def encode(self, text: str) -> list[int]:
    """Token ids of a text without special tokens."""
    text = text if self._byte_level else text.replace(" ", SPACE)
    return self._pipeline.encode(text, add_special_tokens=False).ids

  def text_bytes(self, text: str) -> bytes:
    """The bytes that a normal token's text stands for."""
    if self._byte_level and all(c in _BYTE_OF for c in text): return bytes(_BYTE_OF[c] for c in text)
    return (text if self._byte_level else text.replace(SPACE, " ")).encode("utf-8", "surrogatepass")
