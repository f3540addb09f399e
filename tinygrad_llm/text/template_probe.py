"""
Probes what a chat template does with a conversation's words, by rendering a copy made of needles.

A template may leave out words without an error. Examples are a system message that it has no place for, a content that
it takes for a list of parts, or all turns but the last. So the probe replaces each text of a conversation by a needle:
a word that survives trimming, a change of case, escapes and JSON. A needle that is missing from the rendered prompt
marks a text that gets lost. Then the conversation is rearranged and tried again: contents as parts, the system's words
before the user's, or neighbouring turns of one role joined. The result holds for every conversation of the same shape
(`shape`).
"""
from __future__ import annotations
import json, re
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple
from tinygrad_llm.text.thinking import CHANNEL, TAGS

Message = Mapping[str, Any]
SYSTEM = ("system", "developer")
THOUGHTS = (*TAGS, *TAGS.values(), CHANNEL)
FLAGS = {"think", "no_think"}   # they switch thinking in a message; some templates remove them

def _needle(number: int) -> str: return f"wqx{number}zkv"

def text_of(content: Any) -> str:
  """A content's text: a text itself, or the texts of parts, one a line; "" for any other content."""
  if isinstance(content, str): return content
  if not isinstance(content, (list, tuple)): return ""
  return "\n".join(part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str))

def _is_text(content: Any) -> bool:
  """Whether a content is only text: a text, or parts that are texts."""
  return isinstance(content, str) or isinstance(content, (list, tuple)) and all(
    isinstance(part, Mapping) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)
    for part in content)

def typed(messages: Sequence[Message]) -> list[Message]:
  """The messages, with plain texts inside list contents turned into parts of type text."""
  return [{**m, "content": [{"type": "text", "text": x} if isinstance(x, str) else x for x in m["content"]]}
          if isinstance(m.get("content"), (list, tuple)) else m for m in messages]

def shape(messages: Sequence[Message]) -> str:
  """The structure of messages without their texts, as JSON: roles, types, keys, and whether each text is blank."""
  def of(value: Any, key: str = "") -> Any:
    if isinstance(value, str): return value if key in ("role", "type") else bool(value.strip())
    if isinstance(value, Mapping): return {str(k): of(v, str(k)) for k, v in value.items()}
    return [of(v) for v in value] if isinstance(value, (list, tuple)) else value
  return json.dumps([of(m) for m in messages], sort_keys=True, default=str)

def with_needles(messages: Sequence[Message]) -> tuple[list[Message], list[list[str]]]:
  """The messages with a needle in place of each text that is not blank, and the needles of each message."""
  count, found, ret = 0, list[list[str]](), list[Message]()
  def needle(text: str) -> str:
    nonlocal count
    if not text.strip(): return text
    count += 1
    found[-1].append(_needle(count))
    return found[-1][-1]
  def content_of(content: Any) -> Any:
    if isinstance(content, str): return needle(content)
    if not isinstance(content, (list, tuple)): return content
    return [part | {"text": needle(part["text"])} if isinstance(part, dict) and isinstance(part.get("text"), str)
            else part for part in content]
  for message in messages:
    found.append([])
    ret.append({**message, "content": content_of(message["content"])} if "content" in message else message)
  return ret, found

def _renamed(tool: Any, found: list[str], what: str) -> Any:
  """A tool, or a tool call, with a needle in place of its name; the needle is appended to `found`."""
  if not isinstance(tool, Mapping): return tool
  if isinstance(tool.get("function"), Mapping): return {**tool, "function": _renamed(tool["function"], found, what)}
  if not isinstance(tool.get("name"), str): return tool
  found.append(_needle(len(found)) + what)
  return {**tool, "name": found[-1]}

def tools_with_needles(tools: Sequence[Any] | None) -> tuple[Sequence[Any] | None, list[str]]:
  """The tools with a needle in place of each name, and the needles."""
  found: list[str] = []
  return (None if tools is None else [_renamed(tool, found, "tool") for tool in tools]), found

def calls_with_needles(messages: Sequence[Message]) -> tuple[list[Message], list[str]]:
  """The messages with a needle in place of the name in each tool call, and the needles."""
  found: list[str] = []
  return [{**m, "tool_calls": [_renamed(call, found, "call") for call in m["tool_calls"]]}
          if isinstance(m.get("tool_calls"), (list, tuple)) else m for m in messages], found

def lost(text: str, needles: Sequence[Sequence[str]]) -> list[int]:
  """Indices of messages with a needle that the text lacks, or has only in a list of parts printed as Python or JSON."""
  text = text.lower().replace("&#39;", "'").replace("&#34;", '"').replace("&quot;", '"').replace('\\"', '"')
  def there(needle: str) -> bool:
    return needle in text and not any(f"{q}text{q}: {q}{needle}" in text for q in "'\"")
  return [i for i, of in enumerate(needles) if not all(map(there, of))]

def cut_short(text: str, messages: Sequence[Message]) -> int | None:
  """
  The index of the first message whose own words are not all in a rendered prompt, though its needle was; None if there
  is none.

  A template may cut a text to a length, or to its first line. The first and last 50 words are looked for. An
  assistant's messages that hold thinking are skipped, because many templates leave thinking out.
  """
  folded = ""
  def gone(said: str) -> bool:
    nonlocal folded
    if said.strip() in text: return False
    folded, words = folded or text.casefold(), re.findall(r"\w+", said)
    return any(word.casefold() not in folded and json.dumps(word)[1:-1].casefold() not in folded
               for word in {*words[:50], *words[-50:]} - FLAGS)
  for i, message in enumerate(messages):
    content = message.get("content")
    if message["role"] == "assistant" and any(mark in text_of(content) for mark in THOUGHTS): continue
    if any(map(gone, [text_of([x]) for x in content] if isinstance(content, list) else [text_of(content)])): return i
  return None

# *** rearrangements of a conversation; none of them loses a word

def _parts(content: Any) -> list[Any]:
  if isinstance(content, str): return [{"type": "text", "text": content}] if content else []
  return list(content) if isinstance(content, (list, tuple)) else []

def _joined(first: Message, second: Message) -> Message:
  """The second message, with the first one's words before its own."""
  a, b = first.get("content"), second.get("content")
  if isinstance(a, str) and isinstance(b, str): content: Any = "\n\n".join(x for x in (a, b) if x.strip())
  else: content = [*_parts(a), *([{"type": "text", "text": "\n\n"}] if a and b else []), *_parts(b)]
  return {**second, "content": content}

def _fold(messages: Sequence[Message], first: int) -> list[Message]:
  ret, held = list[Message](messages[:first]), list[Message]()
  for message in messages[first:]:
    if message["role"] in SYSTEM: held.append({**message, "role": "user"})
    elif held and message["role"] == "user":
      for before in reversed(held): message = _joined(before, message)
      ret.append(message)
      held = []
    else: ret.append(message)
  return ret + held   # system messages without a user's turn after them become user turns

def fold(messages: Sequence[Message]) -> list[Message]:
  """Moves each system message to the front of the user's next turn."""
  return _fold(messages, 0)

def fold_later(messages: Sequence[Message]) -> list[Message]:
  """As `fold`, but the conversation's first message stays."""
  return _fold(messages, 1)

def fill(messages: Sequence[Message]) -> list[Message]:
  """Replaces a missing content, as beside tool calls, by an empty text."""
  return [{**m, "content": ""} if m.get("content") is None else m for m in messages]

def rename(messages: Sequence[Message]) -> list[Message]:
  """Turns developer messages into system messages."""
  return [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]

def merge(messages: Sequence[Message]) -> list[Message]:
  """Joins neighbouring turns of the user, or of the assistant."""
  ret: list[Message] = []
  for message in messages:
    plain = message.keys() <= {"role", "content"} and message["role"] in ("user", "assistant")
    if plain and ret and ret[-1].keys() <= {"role", "content"} and ret[-1]["role"] == message["role"]:
      ret[-1] = _joined(ret[-1], message)
    else: ret.append(message)
  return ret

def lead(messages: Sequence[Message]) -> list[Message]:
  """Puts an empty system message in front of a conversation without one: some templates drop the first message."""
  return [{"role": "system", "content": ""}, *messages] if messages and messages[0]["role"] != "system" else [*messages]

Step = Callable[[Sequence[Message]], list[Message]]
# {step: the warning if it changes the roles}; steps are applied in this order, and the fewest that help are taken
STEPS: dict[Step, str] = {
  fill: "", rename: "", fold_later: "it has no system message but the first; others go before the user's words",
  fold: "it has no system message; its words go before the user's", lead: "",
  merge: "it wants user and assistant in turns; neighbouring turns of one role are joined"}

def flipped(message: Message) -> Message:
  """The message with a text content as a list of parts, or with text parts as one text; other contents stay."""
  content = message.get("content")
  if not _is_text(content): return message
  return {**message, "content": [{"type": "text", "text": content}] if isinstance(content, str) else text_of(content)}

class Way(NamedTuple):
  """How to arrange a conversation for a template: steps, then indices of messages to flip between text and parts."""
  steps: tuple[Step, ...] = ()
  flips: frozenset[int] = frozenset()

  def of(self, messages: Sequence[Message]) -> list[Message]:
    ret = list(messages)
    for step in self.steps: ret = step(ret)
    return [flipped(m) if i in self.flips else m for i, m in enumerate(ret)]

def find_way(messages: Sequence[Message], render: Callable[[Sequence[Message]], str | None]) -> Way | None:
  """
  The first way on which a template loses no text of the messages; None if there is none.

  render: renders messages; None if the template refuses them.
  """
  given, needles = with_needles(messages)
  tried: list[list[Message]] = []
  for count in range(len(STEPS) + 1):
    for steps in combinations(STEPS, count):
      if (start := Way(steps).of(given)) in tried: continue
      tried.append(start)
      way = Way(steps)
      for _ in range(3):   # as given; with the contents that lose words flipped; once more where both forms are mixed
        text = render(now := way.of(given))
        gone = None if text is None else {needle for i in lost(text, needles) for needle in needles[i]}
        if gone is not None and not gone: return way
        flips = frozenset(i for i, m in enumerate(now) if _is_text(content := m.get("content")) and (
          isinstance(content, str) if gone is None else any(needle in text_of(content) for needle in gone)))
        if not flips: break
        way = Way(steps, way.flips ^ flips)
  return None
