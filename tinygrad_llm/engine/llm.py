"""A loaded model: logits, generate, chat."""
from __future__ import annotations
import inspect, os, pathlib, sys, threading, time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import prod
from functools import cached_property, partial
from typing import Any, NoReturn, TypeVar, get_args
import numpy as np
from tinygrad import Device
from tinygrad_llm.device.async_read import is_asynchronous
from tinygrad_llm.device.cost import cost
from tinygrad_llm.device.device_errors import device_error, telling_device_errors
from tinygrad_llm.device.free_memory import free_memory
from tinygrad_llm.device.memory import check_address_space
from tinygrad_llm.engine.answer import Answer
from tinygrad_llm.engine.batch.engine import Engine
from tinygrad_llm.engine.batch.health import Health
from tinygrad_llm.engine.batch.memory_check import budget_here, check_memory
from tinygrad_llm.engine.batch.pool_size import remembered_blocks, window_size
from tinygrad_llm.engine.batch.request import Request
from tinygrad_llm.engine.batch.row_ahead import AheadSteps
from tinygrad_llm.engine.batch.row_steps import RowSteps
from tinygrad_llm.engine.batch.sequence import Sequence as BatchSequence
from tinygrad_llm.engine.batch.stream import Asked, AsyncStream, Pieces, Stream, TokenStream
from tinygrad_llm.engine.choice.grammar import Grammar
from tinygrad_llm.engine.choice.logprobs import most_logprobs
from tinygrad_llm.engine.arguments import token_ids, whole
from tinygrad_llm.engine.choice.ending import Ending
from tinygrad_llm.engine.closed import CLOSED, close
from tinygrad_llm.engine.embedding import Pooling
from tinygrad_llm.engine.prefixes.disk_thread import DiskThread
from tinygrad_llm.engine.by_hand import ByHand
from tinygrad_llm.engine.prefixes.prompt_cache import BUDGET, folder_of, open_prompt_cache
from tinygrad_llm.engine.precompile import Ahead, is_possible
from tinygrad_llm.engine.ready import PIECE, ROW, Kind, Ready
from tinygrad_llm.engine.sampling import Sampler, token_bias
from tinygrad_llm.engine.steps import positions_for
from tinygrad_llm.engine.stopping import answer_text, stopped_by_text
from tinygrad_llm.engine.suggested import of_sampling, suggested
from tinygrad_llm.engine.timing import Timing
from tinygrad_llm.engine.prefixes.prefix_pool import Counts
from tinygrad_llm.errors import ContextError, DeviceError, InputError, is_shortage, naming
from tinygrad_llm.files.gguf import GGUF, open_gguf
from tinygrad_llm.files.hub import resolve
from tinygrad_llm.nn.cache.kv_cache import KVCache
from tinygrad_llm.nn.cache.place import BLOCK
from tinygrad_llm.nn.keys import check_architecture
from tinygrad_llm.nn.reader import read_config
from tinygrad_llm.nn.model import Model
from tinygrad_llm.process.forks import in_children
from tinygrad_llm.process.weak import weakly
from tinygrad_llm.progress import compiling
from tinygrad_llm.text.chat_template import ChatTemplate, checked, user_texts
from tinygrad_llm.text.stop_strings import checked as checked_stops
from tinygrad_llm.text.thinking import Part
from tinygrad_llm.text.fit_context import fitted
from tinygrad_llm.text.tokenizer import Tokenizer, pre_type, suppressed_ids
from tinygrad_llm.text.turn_marks import TurnMarks, turn_marks
from tinygrad_llm.weights.loader import Loader

S = TypeVar("S", bound=Stream[Any])

def check_metadata(kv: Mapping[str, Any]) -> None:
  """InputError if a part of a file's metadata is enough to know that the model cannot be run."""
  check_architecture(kv)
  if kv.keys() >= {"tokenizer.ggml.model", "tokenizer.ggml.pre"}: pre_type(kv)

class LLM:
  """A model in memory. Any number of answers, from any threads, share its steps and one pool of keys and values."""
  turns: TurnMarks | None = None  # set by the first prompt()

  def __init__(self, model: str | None, max_context: int, chunk: int, dequantize: bool, progress: bool,
               ahead: bool = False, prompt_cache: str | os.PathLike[str] | None = None,
               prompt_cache_bytes: int = BUDGET):
    start = time.perf_counter()
    max_context, chunk = (whole(name, value, 1, what="a number of tokens from 1")
                          for name, value in (("max_context", max_context), ("chunk", chunk)))
    folder, budget = folder_of(prompt_cache), whole("prompt_cache_bytes", prompt_cache_bytes, 1)
    self.path, self.device = resolve(model, check_metadata), Device.DEFAULT
    file = open_gguf(self.path)
    self.config, self._sampling = read_config(file), of_sampling(file.kv)
    with naming(self.path): self._suppressed = suppressed_ids(file.kv)
    self.max_context = min(max_context, self.config.context_length)
    self.positions = positions = positions_for(self.max_context, self.config.context_length)
    self.chunk = min(chunk, positions)
    limited = check_address_space(sum(info.nbytes for info in file.tensors.values()), self.config.vocab_size)
    check_memory(file, self.config, self.max_context, positions, self.chunk, dequantize)
    self._blocks, self._progress, self._ahead = self._pool_blocks(file), progress, None
    if ahead and not (limited or dequantize) and is_possible():
      self._ahead = Ahead(file, self.config, positions, self.chunk, self._blocks, self._suppressed)
    try:
      with ThreadPoolExecutor(1) as meanwhile:
        text = meanwhile.submit(self._text, file.kv, ahead)
        if limited: text.result()  # the tokenizer's library ends the process if the weights leave it no memory
        try:
          with Loader(file, dequantize, progress, text) as loader:
            self.model = Model(self.config, loader, positions, self.max_context)
        except InputError:
          text.result()  # if both fail, this error is always the one raised
          raise
        self.tokenizer, self.template = text.result()
      self.lock = threading.RLock()  # held during a step
      self.engine, self._disk = self._make_engine(), None
      if folder is not None: self._disk = self._open_cache(folder, budget, file, dequantize)
    except (MemoryError, OSError, RuntimeError) as e:
      if (error := device_error(e)) is not None: raise DeviceError(f"{self.path}: {error}") from e
      if not is_shortage(e): raise
      raise InputError(f"{self.path}: no memory on {self.device} for it and {self.max_context} positions; use a "
                       f"smaller max_context, quant type or model ({e})") from e
    self.weights, self.timing = loader.weights, Timing()
    self._by_hand = ByHand(self.engine)
    self.load_s = time.perf_counter() - start
    in_children(self, LLM._forked)

  @cached_property
  def suggested(self) -> dict[str, Any]:
    """
    The file's suggestions for arguments of generate(), with a warning for each bad one.

    They do not change the defaults of generate().
    """
    with naming(self.path): return suggested(self._sampling)

  def _text(self, kv: Mapping[str, Any], soon: bool) -> tuple[Tokenizer, ChatTemplate]:
    with naming(self.path):
      template = ChatTemplate.from_gguf(kv)
      if soon: template.prepare()
      tokenizer = Tokenizer.from_gguf(kv)
    if tokenizer.vocab_size > self.config.vocab_size:
      raise InputError(f"{self.path}: tokenizer.ggml.tokens: {tokenizer.vocab_size} tokens for "
                       f"{self.config.vocab_size} rows of token_embd.weight; the file is damaged")
    return tokenizer, template

  def _make_engine(self) -> Engine:
    kind = AheadSteps if is_asynchronous(self.device) else RowSteps
    bias = token_bias(self._suppressed, self.config.vocab_size)
    window = window_size(self.config, self._blocks, self.positions, self.chunk)
    steps = kind(self.model, self.positions, self.chunk, self._blocks, bias, window)
    return Engine(steps, self.max_context, self.chunk, self.lock, ready=Ready(self._ahead, self._progress))

  def _pool_blocks(self, file: GGUF) -> int:
    """Blocks of the KV pool, block 0 included. Indices of 32 bits reach all of a layer's elements."""
    told = budget_here(file, self.config, self.chunk)
    blocks = remembered_blocks(file, told, self.positions, free_memory(self.device), self.device)
    layers = [layer.attention for layer in self.config.layers if layer.attention is not None]
    return min(1 + blocks, (2**31 - 1) // max((prod(KVCache.shape(c, BLOCK)) for c in layers), default=BLOCK))

  def _open_cache(self, folder: pathlib.Path, budget: int, file: GGUF, dequantize: bool) -> DiskThread | None:
    """Keeps prefixes on disk."""
    kept = open_prompt_cache(folder, budget, file, self.model, self.max_context, dequantize, self.device)
    if kept is None: return None
    self.engine.keep(kept)
    kept.disk.finish = weakly(self._keep_all)
    return kept.disk

  def _keep_all(self) -> None:
    """Hands over all that is to be kept on disk, as the process or the model ends."""
    if not self.lock.acquire(timeout=5): return
    try:
      if self.engine is not CLOSED and self.engine.kept is not None: self.engine.kept.finish()
    finally: self.lock.release()

  def close(self) -> None:
    """
    Frees the model's memory at once, as the end of a `with` block and the last reference do.

    Any later use of the model is an InputError, and so is the next token of an answer that is being read. A second call
    does nothing.
    """
    close(self)

  def __enter__(self) -> LLM:
    self.check_open()
    return self

  def __exit__(self, *_: object) -> None: self.close()

  def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:  # the module's own name may be gone
    if finalizing(): return
    with suppress(Exception): self.close()

  def __reduce__(self) -> NoReturn:
    """TypeError: a copy would close the model that both share, and nothing in memory can be sent elsewhere."""
    raise TypeError("LLM: a model cannot be copied or pickled; load it again, in each process that uses it")

  def check_open(self) -> None:
    """InputError after close()."""
    if vars(self).get("model") is CLOSED: self.model.config  # noqa: B018

  def logits(self, ids: Sequence[int]) -> np.ndarray:
    """float32 (len(ids), vocab_size): the logits after each token, from an empty context. InputError for bad ids."""
    return np.concatenate(list(self.iter_logits(ids)))

  def iter_logits(self, ids: Sequence[int], first: int = 0) -> Iterator[np.ndarray]:
    """
    An iterator of arrays (n, vocab_size): a few rows of logits() at a time, without the first `first` rows.

    The call itself raises InputError for bad ids.
    """
    ids = self._check(ids)
    return self._rows(ids, whole("first", first, 0, len(ids) - 1))

  def prefill(self, ids: Sequence[int], first: int = 0) -> np.ndarray:
    """
    Feeds ids[first:] after ids[:first]; float32 (vocab_size,): the logits after the last.

    It reuses whatever the pool has of ids[:first], and reads all other tokens. By default these are all.
    """
    ids = self._check(ids)
    first = whole("first", first, 0, len(ids) - 1)
    with self.lock, telling_device_errors():
      self._capture(PIECE)
      return self._by_hand.prompt(ids, first)

  def step(self, token: int, position: int) -> np.ndarray:
    """
    Feeds one token at `position`, after all before it were fed; float32 (vocab_size,): the logits after it.

    It continues what prefill() and step() fed, whatever else uses the model. InputError if these are fewer than
    `position` tokens.
    """
    (token,), position = token_ids("token", [token], self.config.vocab_size), whole("position", position, 0,
                                                                                    self.max_context - 1)
    with self.lock, telling_device_errors():
      self.check_open()
      before = self._by_hand.tokens
      if position > len(before): raise InputError(
        f"step: position {position} does not continue what was fed last, {len(before)} tokens; call prefill() first")
      self._capture(ROW)
      return self._by_hand.step(before[:position], token).copy()

  def generate(self, ids: Sequence[int], max_tokens: int | None = 64, temperature: float = 0.0, top_k: int = 0,
               top_p: float = 1.0, min_p: float = 0.0, repeat_penalty: float = 1.0, seed: int = 0,
               stop: Sequence[str] = (), ignore_eos: bool = False, presence_penalty: float = 0.0,
               frequency_penalty: float = 0.0, logit_bias: Mapping[int, float] | None = None, min_tokens: int = 0,
               stop_ids: Sequence[int] = ()) -> Iterator[int]:
    """
    An iterator of the token ids that continue `ids`.

    The first token that is asked for begins the answer. It ends after max_tokens (None, -1: at the end of the context),
    before an end-of-turn token (unless ignore_eos), before one of stop_ids, or after the token that completes a stop
    string. Neither kind of token is chosen before the answer has min_tokens. Sampling: see sampling.Sampler.
    Several answers may be read in turns, and by several threads. Their tokens do not depend on that.
    The call itself, not the iterator, raises InputError for bad arguments.
    """
    tokens = Answer(self, self._requests(
      ids, 1, stop=stop, max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
      repeat_penalty=repeat_penalty, seed=seed, ignore_eos=ignore_eos, presence_penalty=presence_penalty,
      frequency_penalty=frequency_penalty, logit_bias=logit_bias, min_tokens=min_tokens, stop_ids=stop_ids,
      pieces="ids"))
    self.timing = tokens.timing
    return tokens

  def stream(self, prompt: Sequence[int] | Sequence[dict[str, str]], **settings: Any) -> TokenStream[Any]:
    """
    An answer that other answers do not wait for: any number of streams, from any threads, share the model's steps.

    prompt: token ids, and the stream gives token ids; or messages, and it gives pieces of text, see chat().
    settings: as for generate(), and for messages `template`. Others:
    - pieces: "ids", "text", or "parts": lists of ("thinking" or "answer", text), see parts()
    - json_schema (a mapping, or JSON as text), regex, or lark: the answer is in this language
    - logprobs: how many alternatives (0 to 20) Stream.logprobs lists with each token's log-probability
    - sampled_logprobs: these are by the chances that the sampler gave, of the tokens that it picked from
    - exact_prefix: reuse only what was read as a prompt, so that an answer is equal, to the bit, to a fresh one
    The call itself raises InputError for bad arguments.
    """
    return self.streams(prompt, 1, **settings)[0]

  def streams(self, prompt: Sequence[int] | Sequence[dict[str, str]], n: int, **settings: Any
              ) -> list[TokenStream[Any]]:
    """
    `n` answers (1 to 128) to one prompt, which is read once. Answer i has the seed `seed` + i.

    Each is a stream of its own, and equals stream() with its seed. See there for the arguments.
    """
    return self._submitted(TokenStream, self.ask(prompt, n, **settings))

  def astream(self, prompt: Sequence[int] | Sequence[dict[str, str]], **settings: Any) -> AsyncStream[Any]:
    """stream() for asyncio: `async for piece in llm.astream(..)`, within a running event loop."""
    return self.astreams(prompt, 1, **settings)[0]

  def astreams(self, prompt: Sequence[int] | Sequence[dict[str, str]], n: int, **settings: Any
               ) -> list[AsyncStream[Any]]:
    """streams() for asyncio."""
    return self.begin(self.ask(prompt, n, **settings))

  def ask(self, prompt: Sequence[int] | Sequence[dict[str, str]], n: int = 1, **settings: Any) -> Asked:
    """
    Requests for `n` answers, checked, that begin() begins. Any thread may tokenise and compile a grammar so.

    InputError for bad arguments.
    """
    return self._requests(prompt, whole("n", n, 1, 128), **settings)

  def begin(self, asked: Asked) -> list[AsyncStream[Any]]:
    """The answers to what was asked, once, within a running event loop. The time of their tokens counts from here."""
    return self._submitted(AsyncStream, asked)

  def health(self) -> Health:
    """Whether streams make progress: "idle", "running", "stuck" or "dead". It waits for no lock and no step."""
    if (engine := self.engine) is CLOSED: return Health("dead", 0.0, {})
    return engine.health()

  def failure(self) -> Exception | None:
    """The last error that ended all streams at once; None: there was none."""
    return None if (engine := self.engine) is CLOSED else engine.failure

  def prepare(self, streams: int = 8) -> None:
    """
    Captures the steps of up to so many streams at once, 1 to 8, so that none of them compiles anything later.

    It returns at once while streams are running: they capture what they need.
    """
    streams = whole("streams", streams, 1, 8)
    with self.lock, compiling(self._progress), telling_device_errors():
      if not self.engine.is_busy(): self.engine.prepare(streams)

  def pool_counts(self) -> Counts:
    """The blocks of the pool that holds all streams' keys and values."""
    return self.engine.pool.counts()

  def _submitted(self, kind: type[S], asked: Asked) -> list[S]:
    """Streams of a kind, whose requests the engine has."""
    requests, text, pieces = asked
    streams = [kind(self, self.engine, request, text and text(), pieces) for request in requests]
    requests[0].forks = requests[1:]
    self.engine.submit(requests[0])
    return streams

  def _requests(self, prompt: Sequence[Any], n: int, *, stop: Sequence[str] = (),
                template: Mapping[str, Any] | None = None, logprobs: int | None = None, exact_prefix: bool = False,
                json_schema: Any = None, regex: str | None = None, lark: str | None = None,
                sampled_logprobs: bool = False,
                pieces: Pieces | None = None, **settings: Any) -> Asked:
    self.check_open()
    stop = checked_stops(stop)
    if pieces not in (None, *get_args(Pieces)): raise InputError(f"pieces: {pieces!r:.60} is not ids, text or parts")
    as_text = isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)
    if as_text:
      self.check_size(user_texts(prompt))
      prompt, settings = self.prompt(prompt, template), {"max_tokens": None} | settings
      stop = (*stop, *self.template.stop)
    elif template is not None: raise InputError("template: token ids need no template; give messages")
    grammar = None
    if not json_schema is regex is lark is None:
      grammar = Grammar(self.tokenizer, self.config.vocab_size, json_schema=json_schema, regex=regex, lark=lark)
    known, own = (inspect.signature(f).parameters for f in (self._choices, self._requests))
    if unknown := settings.keys() - (names := known.keys() - {"ids", "masked"}):
      names |= {name for name, parameter in own.items() if parameter.kind is parameter.KEYWORD_ONLY}
      raise InputError(
        f"stream: {', '.join(sorted(unknown))} is no setting; the settings are {', '.join(sorted(names))}")
    top = None if logprobs is None else most_logprobs(logprobs)
    def request(i: int) -> Request:
      nonlocal prompt
      more = settings | {"seed": whole("seed", settings.get("seed", 0)) + i} if i else settings
      ids, sampler, ending = self._choices(prompt, masked=grammar is not None, **more)
      prompt = ids  # it may have been an iterator
      sequence = BatchSequence([*ids], len(ids), max_tokens=ending.most, exact_prefix=bool(exact_prefix))
      return Request(sequence, sampler, ending, self.tokenizer, grammar and (grammar.fork() if i else grammar), top,
                     sampled_logprobs)
    requests = [request(i) for i in range(n)]
    pieces = pieces or ("text" if as_text else "ids")
    return Asked(requests, partial(answer_text, self, (), stop, prompt) if stop or pieces != "ids" else None, pieces)

  def _choices(self, ids: Sequence[int], max_tokens: int | None = 64, temperature: float = 0.0, top_k: int = 0,
               top_p: float = 1.0, min_p: float = 0.0, repeat_penalty: float = 1.0, seed: int = 0,
               ignore_eos: bool = False, presence_penalty: float = 0.0, frequency_penalty: float = 0.0,
               logit_bias: Mapping[int, float] | None = None, min_tokens: int = 0, stop_ids: Sequence[int] = (),
               masked: bool = False) -> tuple[list[int], Sampler, Ending]:
    """The checked ids, and what the arguments of generate() say about the choice of tokens and the answer's end."""
    least, vocab = whole("min_tokens", min_tokens, what="a number of tokens"), self.config.vocab_size
    sampler = Sampler(temperature, top_k, top_p, min_p, repeat_penalty, seed, self._suppressed, presence_penalty,
                      frequency_penalty, logit_bias, masked=masked or least > 0)
    token_ids("logit_bias", [*(logit_bias or ())], vocab)
    most = -1 if max_tokens is None else whole("max_tokens", max_tokens, -1, what="a number of tokens, or -1 for all")
    ends, ids = frozenset[int]() if ignore_eos else self.tokenizer.stop_ids, self._check(ids)
    room = self.max_context - len(ids) + 1  # the last position's logits give one token more
    return ids, sampler, Ending(ends, token_ids("stop_ids", stop_ids, vocab), least, None if most == -1 else most, room)

  def chat(self, messages: Sequence[dict[str, str]], max_tokens: int | None = None, temperature: float = 0.0,
           top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0, repeat_penalty: float = 1.0, seed: int = 0,
           stop: Sequence[str] = (), template: Mapping[str, Any] | None = None, presence_penalty: float = 0.0,
           frequency_penalty: float = 0.0, logit_bias: Mapping[int, float] | None = None, min_tokens: int = 0,
           stop_ids: Sequence[int] = ()) -> Iterator[str]:
    """
    An iterator of the pieces of text that answer `messages` ({"role": .., "content": ..} each).

    It ends before a stop string, and before another turn. template: variables for the chat template, such as
    {"enable_thinking": False}. See generate() for the other arguments.
    """
    self.check_size(user_texts(messages))
    ids = self.prompt(messages, template)
    tokens = self.generate(ids, max_tokens, temperature, top_k, top_p, min_p, repeat_penalty, seed,
                           presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
                           logit_bias=logit_bias, min_tokens=min_tokens, stop_ids=stop_ids)
    return self.text(tokens, (*checked_stops(stop), *self.template.stop), ids)

  def embed(self, texts: Sequence[str | Sequence[int]], unit: bool = True) -> np.ndarray:
    """
    float32 (len(texts), dim): a vector for each text, or for its token ids, of length 1 unless `unit` is False.

    It is the mean of all positions, or the last position, as the file says; a model whose file says neither takes the
    mean, with a warning. InputError for a text without tokens, or too long for the context.
    """
    self.check_open()
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
      raise InputError(f"embed: {texts!r:.60} is not a list of texts; give one, also for one text")
    pooling, ids = self.pooling, list[list[int]]()
    for text in texts:
      if isinstance(text, str): self.check_size([text])
      ids.append(self._check(pooling.ids(text)))
    vectors = [pooling.vector(self._normed(x), unit) for x in ids]
    return np.stack(vectors) if vectors else np.empty((0, self.config.dim), np.float32)

  @cached_property
  def pooling(self) -> Pooling: return Pooling(self.path, self.config.pooling, self.tokenizer)

  def _normed(self, ids: list[int]) -> Iterator[np.ndarray]:
    """The normed rows of a text's positions, (n, dim) a chunk."""
    return self._read(ids, lambda _, n: self.engine.steps.piece_normed(n))

  def prompt(self, messages: Sequence[dict[str, str]], template: Mapping[str, Any] | None = None,
             add_generation_prompt: bool = True) -> list[int]:
    """
    The token ids of a conversation through the model's chat template, ready for the assistant's answer, unless
    `add_generation_prompt` is False.

    template: variables for the template. InputError if the template would drop words of the messages. A last message
    that is sure not to fit is an InputError before it is tokenised.
    """
    self.check_size(user_texts(messages[-1:]))
    ids = self.template.encode(self.tokenizer, messages, add_generation_prompt, **checked(template or {}))
    if self.turns is None: self.turns = turn_marks(self.template, self.tokenizer)
    return ids

  def check_size(self, texts: Sequence[str]) -> None:
    """ContextError for texts that are sure not to fit the context, without tokenising them."""
    text = "".join(texts)
    if len(text) > self.max_context and (least := self.tokenizer.least_tokens(text)) > self.max_context:
      raise self._too_long(least, about="at least ")

  def fit(self, messages: Sequence[dict[str, str]], template: Mapping[str, Any] | None = None) -> list[dict[str, str]]:
    """
    `messages` without the oldest turns, so that a quarter of the context is left for the answer.

    A system message stays. The last message may take more than that; if it or the system message is too long by itself,
    an InputError names it. template: as for prompt().
    """
    return fitted(messages, self.max_context, lambda kept: len(self.prompt(kept, template)), self._too_long)

  def text(self, tokens: Iterable[int], stop: Sequence[str] = (), prompt: Sequence[int] = ()) -> Iterator[str]:
    """
    Pieces of the generated text, made of complete characters, up to a stop string or another turn, see parts().
    """
    answer = answer_text(self, tokens, stop, prompt)
    for token in tokens:
      answer.push(token)
      if piece := answer.raw(): yield piece
      if answer.stopped: return stopped_by_text(self, tokens)
    answer.finish()
    if piece := answer.raw(): yield piece
    if answer.stopped: stopped_by_text(self, tokens)

  def parts(self, tokens: Iterable[int], stop: Sequence[str] = (), prompt: Sequence[int] = ()) -> Iterator[Part]:
    """
    The pieces of text() as ("thinking" or "answer", piece), without the marks around thinking.

    `stop`: texts that end the answer. They do not count in what the model thinks. A token that has no text, such as
    <|im_end|>, is given as the vocabulary writes it.
    `prompt`: the token ids that `tokens` continue, where thinking may have begun. By default, it is the prompt of
    generate() if `tokens` come from there. If the prompt has turns, a model that begins another turn is stopped, too.
    """
    answer = answer_text(self, tokens, stop, prompt)
    for token in tokens:
      yield from answer.push(token)
      if answer.stopped: return stopped_by_text(self, tokens)
    yield from answer.finish()
    if answer.stopped: stopped_by_text(self, tokens)

  def memory(self) -> dict[str, int]:
    """
    Bytes of the model's parts: weights, the pool of keys and values, and recurrent states with their snapshots.

    On a CPU, blocks of the pool that nobody has used take no memory.
    """
    return {"weights": sum(weight.nbytes for weight in self.weights.values()), **self.engine.memory()}

  def decode_cost(self) -> tuple[int, int] | None:
    """
    The number of kernels of a decode step, and the bytes that it moves at the end of the last answer, as tinygrad
    estimates them.

    None before generate() has run, or with JIT=0.
    """
    if (linear := self.engine.steps.linear) is None: return None
    return cost(linear, {"end": self.timing.prompt_tokens + self.timing.tokens, "at0": 0})

  def _forked(self) -> None:
    """In a forked child, which has no other thread: replaces a lock that one of the parent's held."""
    if self.lock.acquire(blocking=False): return self.lock.release()
    self.lock = threading.RLock()
    if self.engine is not CLOSED: self.engine.lock = self.lock

  def _rows(self, ids: list[int], first: int) -> Iterator[np.ndarray]:
    """The iterator of iter_logits()."""
    def rows(at: int, n: int) -> np.ndarray | None:
      return self.engine.steps.piece_logits(n)[max(0, first - at):] if at + n > first else None
    return self._read(ids, rows)

  def _read(self, ids: list[int], rows: Callable[[int, int], np.ndarray | None]) -> Iterator[np.ndarray]:
    """
    Copies of rows(at, n) for each piece of a prompt, its n tokens from `at` on. Between two of them, others may use the
    model.
    """
    feed, at = ByHand(self.engine, exact=True), 0
    pieces = feed.pieces(ids)
    try:
      while at < len(ids):
        with self.lock, telling_device_errors():
          self._capture(PIECE)
          n = next(pieces)
          found = None if (part := rows(at, n)) is None else part.copy()
          if (at := at + n) == len(ids): feed.leave()
        if found is not None: yield found
    finally: feed.drop()  # whoever drops the iterator may hold any lock

  def _capture(self, kind: Kind) -> None:
    """With the lock held: captures a kind of steps before its first use."""
    self.check_open()
    self.engine.capture(kind)

  def _check(self, ids: Sequence[int]) -> list[int]:
    self.check_open()
    ids = token_ids("prompt", ids, self.config.vocab_size)
    if not ids: raise InputError("prompt: it has no tokens; give at least one")
    if len(ids) > self.max_context: raise self._too_long(len(ids))
    return ids

  def _too_long(self, count: int, name: str = "prompt", about: str = "") -> ContextError:
    rest = ("beyond it, this model's sparse attention is not supported"
            if self.max_context == self.config.dense_context else
            f"shorten it or raise max_context (the model allows {self.config.context_length})")
    return ContextError(f"{name}: {about}{count} tokens do not fit the context of {self.max_context}; {rest}", count,
                        self.max_context)
