"""A loaded model: logits, generate, chat."""
from __future__ import annotations
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
import numpy as np
from tinygrad import Device, Tensor, UOp, dtypes
from tinygrad.engine.realize import estimate_uop
from tinygrad.uop.ops import Ops, sym_infer
from tinygrad_llm.captured import captured
from tinygrad_llm.chat import ChatTemplate
from tinygrad_llm.config import ModelConfig
from tinygrad_llm.device import empty, fill, read
from tinygrad_llm.errors import InputError
from tinygrad_llm.gguf import open_gguf
from tinygrad_llm.hub import resolve
from tinygrad_llm.loader import Loader
from tinygrad_llm.model import Model
from tinygrad_llm.patches.captures import restore
from tinygrad_llm.progress import compiling
from tinygrad_llm.sampling import Sampler, greedy_key, greedy_token
from tinygrad_llm.stop import StopStrings
from tinygrad_llm.tokenizer import Tokenizer


@dataclass
class Timing:
  """The last generate(): wall times in seconds. All compiling is in `first_token`, none in `prefill` and `decode`."""
  prompt_tokens: int = 0
  cached_tokens: int = 0  # of the prompt, those whose keys and values were still there
  tokens: int = 0
  prefill: float = 0.0
  first_token: float = 0.0
  decode: float = 0.0  # the tokens after the first

  @property
  def decode_tok_s(self) -> float | None: return (self.tokens - 1) / self.decode if self.decode else None
  @property
  def prefill_tok_s(self) -> float | None:
    return (self.prompt_tokens - self.cached_tokens) / self.prefill if self.prefill else None

class LLM:
  """A model in memory with one KV cache; not for use from several threads at once."""
  def __init__(self, model: str | None, max_context: int, chunk: int, dequantize: bool, progress: bool):
    start = time.perf_counter()
    for name, value in (("max_context", max_context), ("chunk", chunk)):
      if value < 1: raise InputError(f"{name}: {value} is not positive; give a number of tokens from 1")
    self.path, self.device = resolve(model), Device.DEFAULT
    file = open_gguf(self.path)
    self.config = ModelConfig.from_gguf(file)
    try: self.tokenizer, self.template = Tokenizer.from_gguf(file.kv), ChatTemplate.from_gguf(file.kv)
    except InputError as e: raise InputError(f"{self.path}: {e}") from e
    if self.tokenizer.vocab_size > self.config.vocab_size:
      raise InputError(f"{self.path}: tokenizer.ggml.tokens: {self.tokenizer.vocab_size} tokens for "
                       f"{self.config.vocab_size} rows of token_embd.weight; the file is damaged")
    self.max_context = min(max_context, self.config.context_length)
    self.chunk = min(chunk, self.max_context)
    try:
      with Loader(file, dequantize, progress) as loader: self.model = Model(self.config, loader, self.max_context)
    except (MemoryError, OSError) as e:
      raise InputError(f"{self.path}: no memory on {self.device} for it and {self.max_context} positions; use a "
                       f"smaller max_context, quant type or model ({e})") from e
    self.weights, self.timing, self._progress = loader.weights, Timing(), progress
    self._held: list[int] = []  # the tokens whose keys and values are in the cache
    self._prompt, self._token = (empty((1, n), dtypes.int32) for n in (self.chunk, 1))
    self._x = empty((1, self.chunk, self.config.dim), dtypes.float32)  # the last layer's output
    self._prefill = captured(_prefill, self.model, self._x)
    self._logits, self._row_logits = captured(_logits, self.model), captured(_row_logits, self.model)
    self._decode = captured(_decode, self.model)
    self.load_s = time.perf_counter() - start

  def logits(self, ids: Sequence[int]) -> np.ndarray:
    """float32 (len(ids), vocab_size): the logits after each token, from an empty context. InputError for bad ids."""
    ids = self._check(ids)
    return np.concatenate([read(self._logits(self._x, self._length(size)), size, self.config.vocab_size).copy()
                           for size in self._chunks(ids, 0)])

  def generate(self, ids: Sequence[int], max_tokens: int | None = 64, temperature: float = 0.0, top_k: int = 0,
               top_p: float = 1.0, min_p: float = 0.0, repeat_penalty: float = 1.0, seed: int = 0,
               stop: Sequence[str] = (), ignore_eos: bool = False) -> Iterator[int]:
    """
    An iterator of the token ids that continue `ids`.

    It ends after max_tokens (None: with the context), before an end-of-turn token (ignore_eos: it does not look for
    one), or after the token that completes a stop string. Sampling: see sampling.Sampler. InputError for bad arguments
    comes from the call, not from the iterator.
    """
    sampler = Sampler(temperature, top_k, top_p, min_p, repeat_penalty, seed)
    tokens = self._tokens(self._check(ids), max_tokens, sampler, frozenset() if ignore_eos else self.tokenizer.stop_ids)
    return self._until(tokens, stop) if stop else tokens

  def chat(self, messages: Sequence[dict[str, str]], max_tokens: int | None = None, temperature: float = 0.0,
           top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, repeat_penalty: float = 1.0, seed: int = 0,
           stop: Sequence[str] = ()) -> Iterator[str]:
    """
    An iterator of the pieces of text that answer `messages` ({"role": .., "content": ..} each).

    It ends before a stop string. The other arguments are those of generate().
    """
    tokens = self.generate(self.prompt(messages), max_tokens, temperature, top_k, top_p, min_p, repeat_penalty, seed)
    return self.text(tokens, (*stop, *self.template.stop))

  def prompt(self, messages: Sequence[dict[str, str]]) -> list[int]:
    """The token ids of a conversation through the model's chat template, ready for the assistant's answer."""
    return self.template.encode(self.tokenizer, messages)

  def fit(self, messages: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """`messages` less the oldest turns (a system message stays): a quarter of the context is left for the answer."""
    kept, first = list(messages), 1 if messages and messages[0]["role"] == "system" else 0
    while len(kept) > first + 1 and len(self.prompt(kept)) > self.max_context * 3 // 4: del kept[first:first + 2]
    return kept

  def text(self, tokens: Iterable[int], stop: Sequence[str] = ()) -> Iterator[str]:
    """Pieces of text made of complete characters, up to a stop string."""
    stream, stops = self.tokenizer.stream(), StopStrings(stop)
    for token in tokens:
      piece, stopped = stops.push(stream.push(token))
      if piece: yield piece
      if stopped: return
    piece, stopped = stops.push(stream.flush())
    if rest := piece if stopped else piece + stops.flush(): yield rest

  def decode_cost(self) -> tuple[int, int] | None:
    """
    Kernels of a decode step, and the bytes it moves by tinygrad's estimate at the current position.

    None before generate() has run, or with JIT=0.
    """
    if self._decode.captured is None: return None
    calls = [inner for call in self._decode.captured.linear.src for inner in _calls(call)]
    moved = sum(int(sym_infer(estimate_uop(call).mem, {"start": len(self._held)})) for call in calls)
    return sum(map(_kernels, calls)), moved

  def _check(self, ids: Sequence[int]) -> list[int]:
    ids = [int(i) for i in ids]
    if not ids: raise InputError("prompt: it has no tokens; give at least one")
    if bad := [i for i in ids if not 0 <= i < self.config.vocab_size]:
      raise InputError(f"prompt: token {bad[0]} is not in 0..{self.config.vocab_size - 1}; use this model's tokenizer")
    if len(ids) > self.max_context:
      raise InputError(f"prompt: {len(ids)} tokens do not fit the context of {self.max_context}; shorten it or raise "
                       f"max_context (the model allows {self.config.context_length})")
    return ids

  def _chunks(self, ids: list[int], first: int) -> Iterator[int]:
    """Feeds ids[first:] chunk by chunk; yields the number of tokens of each, whose output is then in self._x."""
    for position in range(first, len(ids), self.chunk):
      part = ids[position:position + self.chunk]
      self._held = self._held[:position]
      _write(self._prompt, part)
      self._prefill(self._prompt[:, :self._length(len(part))], self._position(position))
      self._held += part
      yield len(part)

  def _feed(self, token: int, position: int) -> tuple[Tensor, Tensor]:
    """Feeds one token at `position`; the logits after it, (1, 1, vocab_size), and their greedy_key, (1, 1)."""
    self._held = self._held[:position]
    _write(self._token, [token])
    logits, key = self._decode(self._token, self._position(position))
    self._held.append(token)
    return logits, key

  def _step(self, token: int, position: int) -> np.ndarray:
    """Feeds one token at `position`; returns the logits after it, (vocab_size,)."""
    return read(self._feed(token, position)[0], self.config.vocab_size).copy()

  def _position(self, position: int) -> UOp: return UOp.variable("start", 0, self.max_context - 1).bind(position)
  def _length(self, length: int) -> UOp: return UOp.variable("length", 1, self.chunk).bind(length)

  def _last_logits(self, ids: list[int], first: int) -> np.ndarray:
    """Feeds ids[first:]; returns the logits after the last token, (vocab_size,)."""
    row = UOp.variable("row", 0, self.chunk - 1).bind(deque(self._chunks(ids, first), maxlen=1)[0] - 1)
    return read(self._row_logits(self._x, row), self.config.vocab_size).copy()

  def _compile(self, token: int) -> None:
    """
    Captures, once, the steps that generate() runs, on a token whose keys and values the prompt then overwrites. What an
    earlier process captured is only read.
    """
    if self._decode.captured is not None: return
    start, row = self._position(0), UOp.variable("row", 0, self.chunk - 1).bind(0)
    calls = ((self._prefill, self._prompt[:, :self._length(1)], start), (self._row_logits, self._x, row),
             (self._decode, self._token, start))
    if all(restore(*call) for call in calls): return
    with compiling(self._progress):
      self._last_logits([token], 0)
      self._step(token, 0)
    self._held = []

  def _tokens(self, ids: list[int], max_tokens: int | None, sampler: Sampler, ends: frozenset[int]) -> Iterator[int]:
    timing = self.timing = Timing(prompt_tokens=len(ids))
    start = time.perf_counter()
    self._compile(ids[0])
    timing.cached_tokens = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._held, ids[:-1])))
    compiled = time.perf_counter()
    token, history = sampler(self._last_logits(ids, timing.cached_tokens), ids), list(ids)
    timing.prefill = time.perf_counter() - compiled
    while (max_tokens is None or timing.tokens < max_tokens) and token not in ends:
      timing.tokens += 1
      if timing.tokens == 1: timing.first_token = time.perf_counter() - start
      else: timing.decode = time.perf_counter() - start - timing.first_token
      yield token
      if timing.tokens == max_tokens or len(history) == self.max_context: return
      logits, key = self._feed(token, len(history))
      history.append(token)
      if sampler.greedy: token = greedy_token(int(read(key, 1)[0]))  # nothing else crosses to the host
      else: token = sampler(read(logits, self.config.vocab_size), history)

  def _until(self, tokens: Iterable[int], stop: Sequence[str]) -> Iterator[int]:
    stream, stops = self.tokenizer.stream(), StopStrings(stop)
    for token in tokens:
      yield token
      if stops.push(stream.push(token))[1]: return

def _write(tensor: Tensor, ids: Sequence[int]) -> None:
  def write(memory: np.ndarray) -> None: memory[0, :len(ids)] = ids
  fill(tensor, write)

def _calls(call: UOp) -> Iterator[UOp]:
  """Those inside of captured graphs: a graph that never ran has no estimate of its own."""
  function = call.src[0]
  if function.op is not Ops.CUSTOM_FUNCTION or function.arg != "graph": yield call
  else:
    for inner in function.src[0].src: yield from _calls(inner)

def _kernels(call: UOp) -> int:
  """Kernels that a call of a schedule runs: itself, or those of a command queue (HCQ2=1)."""
  function = call.src[0]
  if function.op is Ops.CUSTOM_FUNCTION and function.arg == "hcq": return len(call.arg.aux.kernels)
  return int(function.op is Ops.PROGRAM)

def _prefill(model: Model, x: Tensor, tokens: Tensor, start: UOp) -> Tensor:
  return x[:, :tokens.shape[1]].assign(model.hidden(tokens, start))
def _logits(model: Model, x: Tensor, length: UOp) -> Tensor: return model.logits(x[:, :length])
def _row_logits(model: Model, x: Tensor, row: UOp) -> Tensor: return model.logits(x[:, row:row+1])
def _decode(model: Model, token: Tensor, start: UOp) -> tuple[Tensor, Tensor]:
  return (logits := model.logits(model.hidden(token, start))), greedy_key(logits)
