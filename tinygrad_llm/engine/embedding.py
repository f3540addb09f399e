"""Embeddings: one vector a text, of the last layer's normed output, by the file's kind of pooling."""
from __future__ import annotations
import pathlib
from collections.abc import Iterator, Sequence
import numpy as np
from tinygrad_llm.errors import InputError, warn
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.text.tokenizer import Tokenizer, special_id

class Pooling:
  """
  How a model makes a vector of a text. kind: "mean" of all positions, or the "last" one's.

  The file says it; where it does not, it is the mean, and a warning says so. InputError for a model that scores texts,
  or that takes the first position, which in a causal model has seen nothing.
  """
  def __init__(self, path: pathlib.Path, pooling: str, tokenizer: Tokenizer):
    if pooling in ("rank", "first"): raise InputError(
      f"{path}: its pooling type is {pooling!r}, which gives no embedding; use a model with mean or last pooling")
    if not pooling: warn(f"{path}: no pooling type in the file; embeddings are the mean of all positions")
    self.kind, kv = pooling or "mean", open_gguf(path).kv
    self._tokenizer = tokenizer
    ends = kv.get("tokenizer.ggml.add_eos_token") is True
    self._end = special_id(kv, "eos", kv["tokenizer.ggml.tokens"]) if ends else None

  def ids(self, text: str | Sequence[int]) -> list[int]:
    """
    The token ids of a text, with the marks of its begin and end that the file asks for; ids stay as they are.

    InputError for a text without tokens.
    """
    if isinstance(text, (Sequence, np.ndarray)) and not isinstance(text, (str, bytes)): return list(text)
    if not isinstance(text, str): raise InputError(f"embed: {text!r:.60} is not a text")
    ids = [*self._tokenizer.encode(text, add_bos=self._tokenizer.add_bos), *([] if self._end is None else [self._end])]
    if not ids: raise InputError("embed: a text has no tokens; give at least one")
    return ids

  def vector(self, parts: Iterator[np.ndarray], unit: bool) -> np.ndarray:
    """float32 (dim,). parts: arrays (n, dim), the rows of all positions in order. unit: of length 1."""
    total, count, last = np.float64(0), 0, None
    for rows in parts: total, count, last = total + rows.sum(0, dtype=np.float64), count + len(rows), rows[-1].copy()
    vector = total / count if self.kind == "mean" else np.asarray(last, np.float64)
    if unit: vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return np.asarray(vector, np.float32)
