"""
The perplexity of a text by llama.cpp's method (llama-perplexity), and the KL divergence from another model.

The text's tokens are cut into chunks of one context each; the remainder is dropped. A chunk begins from an empty cache,
with the BOS token in place of its first token if the model wants one. The tokens of its second half count, each by -ln
of its probability. Perplexity: exp of their mean. KL: of the base's distribution from this model's.
"""
from __future__ import annotations
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
import numpy as np
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.kl_base import Reader, Writer
if TYPE_CHECKING: from tinygrad_llm.engine.llm import LLM

ROWS = 16  # positions at a time: their logits stay in the CPU's cache

def mean_and_error(values: np.ndarray) -> tuple[float, float]:
  """The mean and its standard error."""
  if values.size < 2: return float(values.mean()), 0.0
  return float(values.mean()), math.sqrt(max(0.0, float(values.var())) / (values.size - 1))

def _exp(x: float) -> float: return math.exp(x) if x < 709 else math.inf

@dataclass
class Perplexity:
  """nll: -ln p of each counted token so far."""
  nll: list[float] = field(default_factory=list)

  @property
  def value(self) -> float: return _exp(math.fsum(self.nll) / len(self.nll))
  @property
  def error(self) -> float: return self.value * mean_and_error(np.array(self.nll))[1]

@dataclass
class Divergence:
  """
  Results of comparing a model with a base, one for each counted position.

  base_nll, nll: -ln p of the token by the base and by the model; kl: the KL divergence; same: whether both models have
  the same best token.
  """
  nll: list[float] = field(default_factory=list)
  base_nll: list[float] = field(default_factory=list)
  kl: list[float] = field(default_factory=list)
  same: list[bool] = field(default_factory=list)

  def report(self) -> dict[str, float]:
    """Means with their standard errors, as llama.cpp prints them; probabilities are from 0 to 1."""
    nll, base, kl = np.array(self.nll), np.array(self.base_nll), np.array(self.kl)
    (mine, own), (theirs, other) = mean_and_error(nll), mean_and_error(base)
    covariance = float(np.cov(nll, base, ddof=0)[0, 1]) / (nll.size - 1) if nll.size > 1 else 0.0
    change = np.exp(-nll) - np.exp(-base)
    squares, squares_error = mean_and_error(change ** 2)
    rms, same = math.sqrt(squares), float(np.mean(self.same))
    return {"base_perplexity": _exp(theirs), "ln_ratio": mine - theirs,
            "ln_ratio_error": math.sqrt(max(0.0, own ** 2 + other ** 2 - 2 * covariance)),
            "correlation": covariance / (own * other) if own and other else 1.0,
            "kl": float(kl.mean()), "kl_error": mean_and_error(kl)[1], "kl_max": float(kl.max()),
            "kl_median": float(np.median(kl)), "rms_dp": rms, "rms_dp_error": squares_error / (2 * rms) if rms else 0.0,
            "same_top": same, "same_top_error": math.sqrt(same * (1 - same) / max(1, len(self.same) - 1))}

def chunks_of(llm: LLM, text: str, context: int, most: int | None = None) -> np.ndarray:
  """The token ids of a text, (chunks, context). InputError if they do not fill two contexts."""
  ids = llm.tokenizer.encode(text, add_bos=llm.tokenizer.add_bos)
  if len(ids) < 2 * context: raise InputError(
    f"text: its {len(ids)} tokens are fewer than two contexts of {context}; give more text or a smaller -c")
  count = len(ids) // context if most is None else min(most, len(ids) // context)
  return np.array(ids[:count * context], np.int32).reshape(count, context)

def _rows(llm: LLM, tokens: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
  """A few of a chunk's counted positions at a time: the number of the first, and their logits (n, vocab_size)."""
  ids, first, done = tokens.tolist(), len(tokens) // 2, 0
  if llm.tokenizer.add_bos and llm.tokenizer.bos is not None: ids[0] = llm.tokenizer.bos
  for part in llm.iter_logits(ids[:-1], first):
    for at in range(0, len(part), ROWS):
      rows = part[at:at + ROWS, :llm.tokenizer.vocab_size]
      yield done, rows
      done += len(rows)

def _log_sum(rows: np.ndarray) -> np.ndarray:
  """Log-sum-exp of each row, (n,) float32."""
  top = rows.max(1, keepdims=True)
  found: np.ndarray = top + np.log(np.exp(rows - top).sum(1, keepdims=True, dtype=np.float64))
  return found[:, 0].astype(np.float32)

def measure(llm: LLM, chunks: np.ndarray, told: Callable[[Perplexity], None], writer: Writer | None = None,
            base: Reader | None = None) -> tuple[Perplexity, Divergence | None]:
  """
  The perplexity of chunks (chunks, context) of token ids; with a base, the divergence, too.

  told: called after each chunk. writer: gets the log-probabilities. InputError for logits that are NaN or infinite.
  """
  found, against = Perplexity(), None if base is None else Divergence()
  for number, tokens in enumerate(chunks):
    targets = tokens[len(tokens) // 2 + 1:]
    for first, rows in _rows(llm, tokens):
      log_sum, wanted = _log_sum(rows), targets[first:first + len(rows), None]
      if not np.isfinite(log_sum).all(): raise InputError(
        f"{llm.path}: its logits at chunk {number + 1} are NaN or infinite; the model's weights are damaged")
      nll = log_sum - np.take_along_axis(rows, wanted, 1)[:, 0]
      found.nll += nll.tolist()
      if writer is not None: writer.write(rows, log_sum)
      if base is not None and against is not None:
        logs = base.log_probabilities(number, first, first + len(rows))
        _compare(against, rows, log_sum, logs, base.probabilities(number, logs), wanted, nll)
    told(found)
  return found, against

def _compare(found: Divergence, rows: np.ndarray, log_sum: np.ndarray, theirs: np.ndarray, probabilities: np.ndarray,
             wanted: np.ndarray, nll: np.ndarray) -> None:
  found.nll += nll.tolist()
  found.base_nll += (-np.take_along_axis(theirs, wanted, 1)[:, 0]).tolist()
  found.same += (rows.argmax(1) == theirs.argmax(1)).tolist()
  difference = theirs - (rows - log_sum[:, None])
  found.kl += np.where(theirs > -16, probabilities * difference, 0).sum(1, dtype=np.float64).tolist()

def check_base(base: Reader, llm: LLM) -> None:
  """InputError if a base's vocabulary has another size."""
  if base.vocab_size != llm.tokenizer.vocab_size: raise InputError(
    f"{base.path}: it is of a vocabulary of {base.vocab_size}, the model has {llm.tokenizer.vocab_size}; "
    "write the base with a model of the same tokenizer")
