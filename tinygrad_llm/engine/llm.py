"""A loaded model: logits, generate, chat."""
from __future__ import annotations
import errno, time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import Any
import numpy as np
from tinygrad import Device, Tensor
from tinygrad_llm.engine.ahead import DECODE, PROMPT, Ahead, is_possible
from tinygrad_llm.engine.lookahead import Lookahead
from tinygrad_llm.engine.sampling import Sampler, greedy_token
from tinygrad_llm.engine.steps import Steps
from tinygrad_llm.engine.timing import Timing
from tinygrad_llm.errors import InputError, naming
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.files.hub import resolve
from tinygrad_llm.nn.config import ModelConfig, check_architecture
from tinygrad_llm.nn.model import Model
from tinygrad_llm.nn.weights.loader import Loader
from tinygrad_llm.progress import compiling
from tinygrad_llm.target.async_read import reader
from tinygrad_llm.target.buffers import read
from tinygrad_llm.target.cost import cost
from tinygrad_llm.text.chat_template import ChatTemplate
from tinygrad_llm.text.stop_strings import StopStrings
from tinygrad_llm.text.thinking import Part, Thinking
from tinygrad_llm.text.tokenizer import Tokenizer, pre_type

def check_metadata(kv: Mapping[str, Any]) -> None:
  """InputError if some of a file's metadata is enough to know that it cannot be run."""
  check_architecture(kv)
  if kv.keys() >= {"tokenizer.ggml.model", "tokenizer.ggml.pre"}: pre_type(kv)

class LLM:
  """A model in memory with one KV cache; not for use from several threads at once."""
  def __init__(self, model: str | None, max_context: int, chunk: int, dequantize: bool, progress: bool,
               ahead: bool = False):
    start = time.perf_counter()
    for name, value in (("max_context", max_context), ("chunk", chunk)):
      if value < 1: raise InputError(f"{name}: {value} is not positive; give a number of tokens from 1")
    self.path, self.device = resolve(model, check_metadata), Device.DEFAULT
    file = open_gguf(self.path)
    self.config = ModelConfig.from_gguf(file)
    self.max_context = min(max_context, self.config.context_length)
    self.chunk = min(chunk, self.max_context)
    self._ahead = None
    if ahead and not dequantize and is_possible(): self._ahead = Ahead(file, self.config, self.max_context, self.chunk)
    try:
      with ThreadPoolExecutor(1) as meanwhile:
        text = meanwhile.submit(self._text, file.kv)
        try:
          with Loader(file, dequantize, progress, text) as loader:
            self.model = Model(self.config, loader, self.max_context)
        except InputError:
          text.result()  # of two errors it is always this one that is told
          raise
        self.tokenizer, self.template = text.result()
    except (MemoryError, OSError) as e:
      if isinstance(e, OSError) and e.errno != errno.ENOMEM: raise
      raise InputError(f"{self.path}: no memory on {self.device} for it and {self.max_context} positions; use a "
                       f"smaller max_context, quant type or model ({e})") from e
    self.weights, self.timing, self._progress = loader.weights, Timing(), progress
    self._held: list[int] = []  # the tokens whose keys and values are in the cache
    self.steps = Steps(self.model, self.max_context, self.chunk)
    # the CPU computes while it launches: it would only compute one step too many
    self._lookahead = None if reader(self.device) is None else Lookahead(self.model, self.max_context)
    self.load_s = time.perf_counter() - start

  def _text(self, kv: Mapping[str, Any]) -> tuple[Tokenizer, ChatTemplate]:
    with naming(self.path): tokenizer, template = Tokenizer.from_gguf(kv), ChatTemplate.from_gguf(kv)
    if tokenizer.vocab_size > self.config.vocab_size:
      raise InputError(f"{self.path}: tokenizer.ggml.tokens: {tokenizer.vocab_size} tokens for "
                       f"{self.config.vocab_size} rows of token_embd.weight; the file is damaged")
    return tokenizer, template

  def logits(self, ids: Sequence[int]) -> np.ndarray:
    """float32 (len(ids), vocab_size): the logits after each token, from an empty context. InputError for bad ids."""
    ids = self._check(ids)
    return np.concatenate([self.steps.logits(size).copy() for size in self._chunks(ids, 0)])

  def prefill(self, ids: Sequence[int], first: int = 0) -> np.ndarray:
    """Feeds ids[first:], all before them being fed; float32 (vocab_size,): the logits after the last."""
    last = deque(self._chunks(ids, first), maxlen=1)[0] - 1
    return self.steps.row_logits(last).copy()

  def step(self, token: int, position: int) -> np.ndarray:
    """Feeds one token, all before `position` being fed; float32 (vocab_size,): the logits after it."""
    return read(self._feed(token, position)[0], self.config.vocab_size).copy()

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

  def parts(self, tokens: Iterable[int], stop: Sequence[str] = (), prompt: Sequence[int] = ()) -> Iterator[Part]:
    """
    The pieces of text() as ("thinking" or "answer", piece), without the marks around thinking.

    prompt: the token ids that `tokens` continue, where thinking may have begun.
    """
    control, stream, stops = self.tokenizer.control_text, self.tokenizer.stream(), StopStrings(stop)
    tail = [control(i) or self.tokenizer.token_bytes(i).decode("utf-8", "replace") for i in prompt[-16:]]
    thinking, stopped = Thinking("".join(tail)), False
    for token in tokens:
      if mark := control(token): yield from thinking.push(stops.flush()) + thinking.control(mark)
      else:
        piece, stopped = stops.push(stream.push(token))
        yield from thinking.push(piece)
      if stopped: break
    else:
      piece, stopped = stops.push(stream.flush())
      yield from thinking.push(piece if stopped else piece + stops.flush())
    yield from thinking.flush()

  def decode_cost(self) -> tuple[int, int] | None:
    """
    Kernels of a decode step, and the bytes it moves by tinygrad's estimate at the current position.

    None before generate() has run, or with JIT=0.
    """
    linear = self.steps.decode_linear
    if linear is None and self._lookahead is not None: linear = self._lookahead.linear
    return None if linear is None else cost(linear, {"start": len(self._held)})

  def _check(self, ids: Sequence[int]) -> list[int]:
    ids = [int(i) for i in ids]
    if not ids: raise InputError("prompt: it has no tokens; give at least one")
    if bad := [i for i in ids if not 0 <= i < self.config.vocab_size]:
      raise InputError(f"prompt: token {bad[0]} is not in 0..{self.config.vocab_size - 1}; use this model's tokenizer")
    if len(ids) > self.max_context:
      raise InputError(f"prompt: {len(ids)} tokens do not fit the context of {self.max_context}; shorten it or raise "
                       f"max_context (the model allows {self.config.context_length})")
    return ids

  def _chunks(self, ids: Sequence[int], first: int) -> Iterator[int]:
    """Feeds ids[first:] chunk by chunk; yields the number of tokens of each, when the steps' logits are theirs."""
    for position in range(first, len(ids), self.chunk):
      part = ids[position:position + self.chunk]
      self._held = self._held[:position]
      self.steps.prefill(part, position)
      self._held += part
      yield len(part)

  def _feed(self, token: int, position: int) -> tuple[Tensor, Tensor]:
    """Feeds one token at `position`; the logits after it, (1, 1, vocab_size), and their greedy_key, (1, 1)."""
    self._held = self._held[:position]
    logits, key = self.steps.decode(token, position)
    self._held.append(token)
    return logits, key

  def _compile_prompt(self) -> None:
    """
    Captures, once, the steps that the first token needs, at a position that the prompt then overwrites. What another
    process captured is only read.
    """
    with compiling(self._progress):
      if self._ahead is not None: self._ahead.wait(PROMPT)
      if self.steps.restore_prompt(): return
      self._held = []
      self.steps.capture_prompt()

  def _compile_decode(self, token: int, position: int, sampler: Sampler) -> None:
    """Captures, once, the step that each further token needs, on the one that is fed next."""
    with compiling(self._progress, midline=True):
      if self._lookahead is not None: return self._lookahead.compile(sampler, position)
      if self._ahead is not None: self._ahead.wait(DECODE)
      if not self.steps.restore_decode(): self.steps.decode(token, position)

  def _tokens(self, ids: list[int], max_tokens: int | None, sampler: Sampler, ends: frozenset[int]) -> Iterator[int]:
    timing = self.timing = Timing(prompt_tokens=len(ids))
    start = time.perf_counter()
    self._compile_prompt()
    timing.cached_tokens = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self._held, ids[:-1])))
    compiled = time.perf_counter()
    token, history = sampler(self.prefill(ids, timing.cached_tokens), ids), list(ids)
    timing.prefill = time.perf_counter() - compiled
    last = self.max_context - len(ids) + 1
    if max_tokens is not None: last = min(last, max_tokens)
    following = (self._next if self._lookahead is None else self._next_ahead)(token, history, sampler, last - 1)
    while timing.tokens < last and token not in ends:
      timing.tokens += 1
      if timing.tokens == 1: timing.first_token = time.perf_counter() - start
      else: timing.decode = time.perf_counter() - start - timing.first_token - timing.compile
      yield token
      if timing.tokens == last: return
      if timing.tokens == 1:
        told = time.perf_counter()
        self._compile_decode(token, len(history), sampler)
        timing.compile = time.perf_counter() - told
      token = next(following)

  def _next(self, token: int, history: list[int], sampler: Sampler, count: int) -> Iterator[int]:
    """The `count` tokens after `token`, itself not yet in `history`, to which they are added as they are fed."""
    for _ in range(count):
      logits, key = self._feed(token, len(history))
      history.append(token)
      if sampler.greedy: token = greedy_token(int(read(key, 1)[0]))  # nothing else crosses to the host
      else: token = sampler(read(logits, self.config.vocab_size), history)
      yield token

  def _next_ahead(self, token: int, history: list[int], sampler: Sampler, count: int) -> Iterator[int]:
    """The same, each launched before the one before it is read."""
    assert (ahead := self._lookahead) is not None
    def launch(position: int) -> Callable[[], int]:
      self._held = self._held[:position]
      return ahead.launch(position)
    first = len(history)
    ahead.start(token, history, sampler)
    reading = launch(first)
    for position in range(first, first + count):
      history.append(token)
      self._held.append(token)
      following = launch(position + 1) if position + 1 < first + count else None
      token = reading()
      yield token
      if following is not None: reading = following

  def _until(self, tokens: Iterable[int], stop: Sequence[str]) -> Iterator[int]:
    stream, stops = self.tokenizer.stream(), StopStrings(stop)
    for token in tokens:
      yield token
      if stops.push(stream.push(token))[1]: return
