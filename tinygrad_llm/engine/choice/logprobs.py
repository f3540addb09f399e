"""Log-probabilities of tokens, from the logits as the model computes them: before penalties and temperature."""
from __future__ import annotations
from typing import NamedTuple
import numpy as np
from tinygrad_llm.engine.arguments import whole
from tinygrad_llm.engine.sampling import check_best
from tinygrad_llm.text.tokenizer import Tokenizer

MOST = 20  # as in OpenAI's API

class Logprob(NamedTuple):
  """raw: the token's bytes, perhaps a part of a character; a token without text has the bytes of its name."""
  token: int
  logprob: float
  raw: bytes

class Logprobs(NamedTuple):
  """One place of an answer. top: the likeliest tokens first; equal ones by their ids."""
  chosen: Logprob
  top: tuple[Logprob, ...]

def most_logprobs(top_logprobs: int) -> int:
  """The argument, checked. InputError outside 0..20."""
  return whole("top_logprobs", top_logprobs, 0, MOST)

def logprobs(logits: np.ndarray, token: int, top: int, tokenizer: Tokenizer) -> Logprobs:
  """
  The log-probability of `token` and of the `top` likeliest tokens; (vocab,) float32, by log-softmax in float64.

  A logit of -inf has the log-probability -inf. InputError if one is NaN or +inf, or all are -inf.
  """
  check_best(best := float(logits.max()))
  total = best + float(np.log(np.exp(logits.astype(np.float64) - best).sum()))
  def found(i: int) -> Logprob: return Logprob(i, float(logits[i]) - total, tokenizer.shown_bytes(i))
  return Logprobs(found(token), tuple(map(found, _likeliest(logits, most_logprobs(top)))))

def sampled_logprobs(ids: np.ndarray | None, weights: np.ndarray, token: int, top: int, tokenizer: Tokenizer
                     ) -> Logprobs:
  """logprobs() among the tokens that a sampler picks from, by its weights; see Sampler.candidates()."""
  total = np.log(weights.sum(dtype=np.float64))
  def found(at: int) -> Logprob:
    i = at if ids is None else int(ids[at])
    with np.errstate(divide="ignore"): return Logprob(i, float(np.log(weights[at]) - total), tokenizer.shown_bytes(i))
  best = [at for at in _likeliest(weights, most_logprobs(top)) if weights[at] > 0]
  return Logprobs(found(token if ids is None else int(np.searchsorted(ids, token))), tuple(map(found, best)))

def _likeliest(logits: np.ndarray, count: int) -> list[int]:
  """The ids of the `count` largest logits, in descending order; equal ones ascend by id."""
  if not count: return []
  count = min(count, logits.size)
  least = np.partition(logits, logits.size - count)[logits.size - count]
  ids = np.flatnonzero(logits >= least)  # ascending, all ties included
  order: list[int] = ids[np.argsort(-logits[ids], kind="stable")][:count].tolist()
  return order
