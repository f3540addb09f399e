"""/v1/chat/completions: OpenAI's chat, streamed or whole, with reasoning_content beside content."""
from __future__ import annotations
import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any
from starlette.responses import Response
from starlette.types import Receive
from tinygrad_llm.engine.choice.logprobs import Logprob, Logprobs
from tinygrad_llm.text.thinking import ANSWER, Part
from tinygrad_llm.web.api import settings
from tinygrad_llm.web.api.answers import Answers, head
from tinygrad_llm.web.errors import ApiError, as_api_error
from tinygrad_llm.web.api.messages import messages
from tinygrad_llm.web.replies import DONE, EventStream, Json, event, while_there
from tinygrad_llm.web.api.schemas import Chat, Template
from tinygrad_llm.web.service import Service

LEAST = -9999.0  # OpenAI's log-probability of what cannot come: JSON has no infinity

async def chat(service: Service, asked: Chat, receive: Receive) -> Response:
  """The answers to a conversation."""
  count = settings.count(asked)
  llm = service.check(count)
  _refuse_tools(asked)
  most = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
  found = settings.settings(service, asked, most)
  settings.add_format(found, asked.response_format)
  found |= {"logprobs": settings.chat_logprobs(asked), "stop": [*found["stop"], *llm.template.stop]}
  prompt = await asyncio.to_thread(prompt_ids, service, asked)
  answers = Answers(service, prompt, found, count, as_parts=True, progress=bool(asked.stream and asked.return_progress))
  await answers.check()
  reply = _Reply(service, asked, answers)
  if asked.stream: return EventStream(reply.events())
  return Json(await while_there(receive, reply.whole()))

def prompt_ids(service: Service, asked: Chat | Template) -> list[int]:
  """The token ids of a request's messages. An assistant's message at the end is continued."""
  llm, given = service.llm, messages(asked.messages)
  llm.check_size([m["content"].strip() for m in given if m["role"] in ("system", "user")])  # templates write them out
  variables = service.variables | (asked.chat_template_kwargs or {})
  if effort := getattr(asked, "reasoning_effort", None):
    if effort == "none": variables = llm.template.thinking(False) | variables
    elif "reasoning_effort" in llm.template.variables(): variables.setdefault("reasoning_effort", effort)
  if not _continues(asked, given):
    ids: list[int] = llm.prompt(given, variables, asked.add_generation_prompt is not False)
    return ids
  before: list[int] = llm.prompt(given[:-1], variables)
  return [*before, *llm.tokenizer.encode_on(given[-1]["content"])]

async def input_tokens(service: Service, asked: Chat) -> Response:
  """How many tokens a conversation is."""
  service.check(0)
  ids = await asyncio.to_thread(prompt_ids, service, asked)
  return Json({"object": "response.input_tokens", "input_tokens": len(ids)})

def _continues(asked: Chat | Template, given: list[dict[str, Any]]) -> bool:
  """Whether the last message is to be continued. ApiError if the request contradicts itself."""
  can = len(given) > 1 and given[-1]["role"] == "assistant" and "tool_calls" not in given[-1]
  if not asked.continue_final_message: return can and not asked.add_generation_prompt
  name, why = "continue_final_message", "add_generation_prompt is true, too; give one of them"
  if not asked.add_generation_prompt:
    if can: return True
    why = "the last message is not a text of the assistant's after another message"
  raise ApiError(400, f"{name}: {why}", "invalid_value", name)

def _refuse_tools(asked: Chat) -> None:
  for name in ("tools", "functions"):
    if getattr(asked, name) and asked.tool_choice != "none":
      raise ApiError(400, f"{name}: this server calls no tools; leave them out, or send tool_choice none",
                     "unsupported_parameter", name)

def chat_logprobs(places: Sequence[Logprobs]) -> dict[str, Any]:
  """Log-probabilities as OpenAI's chat lists them, with each token's bytes."""
  def shown(x: Logprob) -> dict[str, Any]:
    return {"id": x.token, "token": x.raw.decode("utf-8", "replace"), "logprob": max(LEAST, x.logprob),
            "bytes": list(x.raw)}
  return {"content": [shown(p.chosen) | {"top_logprobs": [*map(shown, p.top)]} for p in places], "refusal": None}

class _Reply:
  """The answers of a chat, in OpenAI's words."""
  def __init__(self, service: Service, asked: Chat, answers: Answers):
    self._answers, self._asked = answers, asked
    self._head = head(service, "chatcmpl", "chat.completion")

  def _logprobs(self, places: Sequence[Logprobs]) -> dict[str, Any] | None:
    return chat_logprobs(places) if self._asked.logprobs else None

  async def whole(self) -> dict[str, Any]:
    found = await self._answers.whole()
    choices = [{"index": i, "message": _message(whole.parts), "logprobs": self._logprobs(whole.logprobs),
                "finish_reason": result.finish} for i, (whole, result) in enumerate(zip(found, self._answers.results))]
    more = {"__verbose": {"prompt": self._answers.prompt_text()}} if self._asked.verbose else {}
    return self._head | {"choices": choices, "usage": self._answers.usage(), "timings": self._answers.timings(), **more}

  async def events(self) -> AsyncGenerator[bytes, None]:
    begin = self._head | {"object": "chat.completion.chunk"}
    usage: dict[str, Any] = {"usage": None} if self._asked.wants_usage else {}
    def chunk(index: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish: str | None = None,
              more: dict[str, Any] | None = None) -> bytes:
      choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
      return event(begin | {"choices": [choice]} | usage | (more or {}))
    try:
      for i in range(len(self._answers.results)): yield chunk(i, {"role": "assistant", "content": None})
      left = len(self._answers.results)
      async with aclosing(self._answers.deltas()) as deltas:
        async for delta in deltas:
          logprobs, more = self._logprobs(delta.logprobs), dict[str, Any]()
          if self._asked.timings_per_token: more = {"timings": self._answers.timings(delta.progress)}
          if delta.progress:
            yield chunk(delta.choice, {}, more=more | {"prompt_progress": delta.progress.shown()})
            continue
          for name, text in fields(delta.parts):
            yield chunk(delta.choice, {name: text}, logprobs, more=more)
            logprobs = None
          if not delta.over: continue
          left -= 1
          if not left: more = {"timings": self._answers.timings()}
          finish = self._answers.results[delta.choice].finish
          yield chunk(delta.choice, {}, logprobs if delta.logprobs else None, finish, more)
      if usage: yield event(begin | {"choices": [], "usage": self._answers.usage(), "timings": self._answers.timings()})
      yield DONE
    except Exception as e: yield event(as_api_error(e).body())

def _message(parts: Sequence[Part]) -> dict[str, Any]:
  """A whole answer as a message."""
  texts = {"content": ""}
  for name, text in fields(parts): texts[name] = texts.get(name, "") + text
  return {"role": "assistant", "refusal": None, **texts}

def fields(parts: Sequence[Part]) -> list[tuple[str, str]]:
  """Parts by the message's fields, neighbours of one kind joined."""
  found = list[tuple[str, str]]()
  for kind, text in parts:
    name = "content" if kind == ANSWER else "reasoning_content"
    if found and found[-1][0] == name: found[-1] = (name, found[-1][1] + text)
    else: found.append((name, text))
  return found
