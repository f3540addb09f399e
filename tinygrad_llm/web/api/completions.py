"""/v1/completions: texts or token ids that go on, several prompts at once, and the probabilities of a prompt itself."""
from __future__ import annotations
import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import accumulate
from typing import Any
import numpy as np
from starlette.responses import Response
from starlette.types import Receive
from tinygrad_llm.engine.choice.logprobs import Logprobs, logprobs
from tinygrad_llm.web.api import settings
from tinygrad_llm.web.api.answers import Answers, head
from tinygrad_llm.web.api.chat import LEAST
from tinygrad_llm.web.api.filling import fill_lists
from tinygrad_llm.web.errors import ApiError, as_api_error
from tinygrad_llm.web.replies import DONE, EventStream, Json, event, together, while_there
from tinygrad_llm.web.api.schemas import Completion, Prompt, prompts
from tinygrad_llm.web.service import Service

DEFAULT_TOKENS = 16  # of an answer, as OpenAI's completions have it

async def completions(service: Service, asked: Completion, receive: Receive) -> Response:
  """The continuations of one or several prompts."""
  count = settings.count(asked)
  if asked.best_of is not None and asked.best_of != count:
    raise ApiError(400, "best_of: only n answers are made; send best_of equal to n", "unsupported_parameter", "best_of")
  if asked.echo and (asked.stream or asked.suffix):
    raise ApiError(400, f"echo: it cannot be {'streamed' if asked.stream else 'with a suffix'}",
                   "unsupported_parameter", "echo")
  llm = service.check(count)
  most = asked.max_tokens if asked.max_tokens is not None else service.most or DEFAULT_TOKENS
  found = settings.settings(service, asked, most)
  settings.add_format(found, asked.response_format)
  found["logprobs"] = settings.completion_logprobs(asked)
  if suffix := asked.suffix: prompts = await asyncio.to_thread(fill_lists, llm, asked.prompt, suffix, most)
  else: prompts = await asyncio.to_thread(prompt_lists, llm, asked.prompt)
  service.check(count * len(prompts), "prompt")
  progress = bool(asked.stream and asked.return_progress)
  answers = [Answers(service, ids, found, count, progress=progress) for ids in prompts]
  for each in answers: await each.check()
  reply = _Reply(service, asked, answers)
  if asked.stream: return EventStream(reply.events())
  return Json(await while_there(receive, reply.whole()))

def prompt_lists(llm: Any, given: Prompt) -> list[list[int]]:
  """The token ids of each prompt: a text, a list of ids, or a list of either."""
  return [text_ids(llm, x) if isinstance(x, str) else x for x in prompts(given, "prompt")]

def text_ids(llm: Any, text: str) -> list[int]:
  """A prompt's ids: control tokens are parsed, and the first token is the model's own where it wants one."""
  tokenizer = llm.tokenizer
  llm.check_size([text])
  ids: list[int] = tokenizer.encode(text, parse_special=True)
  if tokenizer.add_bos and tokenizer.bos is not None and ids[:1] != [tokenizer.bos]: ids.insert(0, tokenizer.bos)
  return ids

def prompt_logprobs(llm: Any, ids: list[int], top: int) -> list[Logprobs]:
  """The log-probabilities of all tokens of a prompt but the first. It runs in a thread."""
  found, n = list[Logprobs](), 1
  for rows in llm.iter_logits(ids):
    for row in rows:
      if n < len(ids): found.append(logprobs(np.asarray(row), ids[n], top, llm.tokenizer))
      n += 1
  return found

def _listed(places: Sequence[Logprobs | None], first: str, offset: int = 0) -> dict[str, Any]:
  """
  Log-probabilities as OpenAI's completions list them, the end token's, too.

  None: a prompt's first token, whose text is `first`.
  """
  texts = [first if p is None else p.chosen.raw.decode("utf-8", "replace") for p in places]
  offsets = [*accumulate(map(len, texts[:-1]), initial=offset)] if texts else []
  top = [None if p is None else {x.raw.decode("utf-8", "replace"): max(LEAST, x.logprob) for x in reversed(p.top)}
         for p in places]
  return {"tokens": texts, "token_logprobs": [None if p is None else max(LEAST, p.chosen.logprob) for p in places],
          "top_logprobs": top, "text_offset": offsets}

class _Reply:
  """The answers to all prompts, in OpenAI's words: choice i * n + j is answer j to prompt i."""
  def __init__(self, service: Service, asked: Completion, answers: list[Answers]):
    self._service, self._asked, self._answers = service, asked, answers
    self._head = head(service, "cmpl", "text_completion")

  def usage(self) -> dict[str, Any]:
    first, *others = (answers.usage() for answers in self._answers)
    for other in others:
      for name in ("prompt_tokens", "completion_tokens", "total_tokens"): first[name] += other[name]
    return first

  async def whole(self) -> dict[str, Any]:
    choices = await together(self._choices(i) for i in range(len(self._answers)))
    return self._head | {"choices": choices, "usage": self.usage(), "timings": self._answers[0].timings()}

  async def _choices(self, which: int) -> list[dict[str, Any]]:
    answers, llm, top = self._answers[which], self._service.llm, settings.completion_logprobs(self._asked)
    echoed, places = "", list[Logprobs | None]()
    if self._asked.echo:
      echoed = llm.tokenizer.decode(answers.prompt)
      if top is not None:
        async with self._service.slot():  # so that not all threads wait for the model
          places = [None, *await asyncio.to_thread(prompt_logprobs, llm, answers.prompt, top)]
    found, count = await answers.whole(), len(answers.results)
    first = llm.tokenizer.shown_bytes(answers.prompt[0]).decode("utf-8", "replace")
    return [{"index": which * count + i, "text": echoed + whole.text, "finish_reason": result.finish,
             "logprobs": None if top is None else _listed([*places, *whole.logprobs, *whole.end], first)}
            for i, (whole, result) in enumerate(zip(found, answers.results))]

  async def events(self) -> AsyncGenerator[bytes, None]:
    usage: dict[str, Any] = {"usage": None} if self._asked.wants_usage else {}
    listed, offsets = self._asked.logprobs not in (None, False), dict[int, int]()
    try:
      for which, answers in enumerate(self._answers):
        async with aclosing(answers.deltas()) as deltas:
          async for delta in deltas:
            index, text = which * len(answers.results) + delta.choice, "".join(text for _, text in delta.parts)
            if not text and not delta.over and not delta.progress: continue
            found = _listed([*delta.logprobs, *delta.end], "", offsets.get(index, 0)) if listed else None
            offsets[index] = offsets.get(index, 0) + len(text)
            last = delta.over and answers is self._answers[-1]
            choice = {"index": index, "text": text, "logprobs": found,
                      "finish_reason": answers.results[delta.choice].finish if delta.over else None}
            more = {"timings": answers.timings(delta.progress)} if last or self._asked.timings_per_token else {}
            if delta.progress: more["prompt_progress"] = delta.progress.shown()
            yield event(self._head | {"choices": [choice]} | usage | more)
      if usage: yield event(self._head | {"choices": [], "usage": self.usage(),
                                             "timings": self._answers[0].timings()})
      yield DONE
    except Exception as e: yield event(as_api_error(e).body())
