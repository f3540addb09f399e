"""
What a chat template does with a conversation's words, found out by rendering one made of needles.

A template may leave out words without an error: a system message that it has no place for, a content that it takes for
a list of parts, all turns but the last. So each text of a conversation is replaced by a needle, a word that survives
trimming, another case, escapes and JSON. A needle that is not in the rendered prompt is a text that gets lost, and the
same conversation is tried in other words: as parts, with the system's words before the user's, with neighbouring turns
of one role made one. What is found holds for every conversation of the same shape (`shape`).
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
FLAGS = {"think", "no_think"}   # in a message they switch thinking: some templates take them out

def _needle(number: int) -> str: return f"wqx{number}zkv"

def text_of(content: Any) -> str:
  """The text of a content, that of parts line by line; "" for what is none."""
  if isinstance(content, str): return content
  if not isinstance(content, (list, tuple)): return ""
  return "\n".join(part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str))

def _is_text(content: Any) -> bool:
  """Whether a content is text and nothing else: a text, or parts that are texts."""
  return isinstance(content, str) or isinstance(content, (list, tuple)) and all(
    isinstance(part, Mapping) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)
    for part in content)

def typed(messages: Sequence[Message]) -> list[Message]:
  """The messages with contents that are lists of texts as parts of type text."""
  return [{**m, "content": [{"type": "text", "text": x} if isinstance(x, str) else x for x in m["content"]]}
          if isinstance(m.get("content"), (list, tuple)) else m for m in messages]

def shape(messages: Sequence[Message]) -> str:
  """What a template sees of messages when it does not look at their texts."""
  def of(value: Any, key: str = "") -> Any:
    if isinstance(value, str): return value if key in ("role", "type") else bool(value.strip())
    if isinstance(value, Mapping): return {str(k): of(v, str(k)) for k, v in value.items()}
    return [of(v) for v in value] if isinstance(value, (list, tuple)) else value
  return json.dumps([of(m) for m in messages], sort_keys=True, default=str)

def with_needles(messages: Sequence[Message]) -> tuple[list[Message], list[list[str]]]:
  """The messages with a needle for each text that is not blank, and the needles of each message."""
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
  """A tool, or a call of one, with a needle for its name, which is added to those found."""
  if not isinstance(tool, Mapping): return tool
  if isinstance(tool.get("function"), Mapping): return {**tool, "function": _renamed(tool["function"], found, what)}
  if not isinstance(tool.get("name"), str): return tool
  found.append(_needle(len(found)) + what)
  return {**tool, "name": found[-1]}

def tools_with_needles(tools: Sequence[Any] | None) -> tuple[Sequence[Any] | None, list[str]]:
  """The tools with a needle for each one's name, and the needles."""
  found: list[str] = []
  return (None if tools is None else [_renamed(tool, found, "tool") for tool in tools]), found

def calls_with_needles(messages: Sequence[Message]) -> tuple[list[Message], list[str]]:
  """The messages with a needle for the name in each of their tool calls, and the needles."""
  found: list[str] = []
  return [{**m, "tool_calls": [_renamed(call, found, "call") for call in m["tool_calls"]]}
          if isinstance(m.get("tool_calls"), (list, tuple)) else m for m in messages], found

def lost(text: str, needles: Sequence[Sequence[str]]) -> list[int]:
  """Which messages have a needle that is not in the text, or only as a list of parts that was written out as code."""
  text = text.lower().replace("&#39;", "'").replace("&#34;", '"').replace("&quot;", '"').replace('\\"', '"')
  def there(needle: str) -> bool:
    return needle in text and not any(f"{q}text{q}: {q}{needle}" in text for q in "'\"")
  return [i for i, of in enumerate(needles) if not all(map(there, of))]

def cut_short(text: str, messages: Sequence[Message]) -> int | None:
  """
  Which message is the first that a rendered prompt has its needle of, but not all of its own words; None for none. A
  template may cut a text to a length, or to its first line. Looked for are the first and last words; what an assistant
  thought is left out by many templates, and is not looked for.
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

# *** the same conversation in other words; none of these loses one

def _parts(content: Any) -> list[Any]:
  if isinstance(content, str): return [{"type": "text", "text": content}] if content else []
  return list(content) if isinstance(content, (list, tuple)) else []

def _joined(first: Message, second: Message) -> Message:
  """The second message with the words of the first before its own."""
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
  return ret + held   # without a user's turn after them they are one

def fold(messages: Sequence[Message]) -> list[Message]:
  """A system message goes before the words of the user's next turn."""
  return _fold(messages, 0)

def fold_later(messages: Sequence[Message]) -> list[Message]:
  """The same, but for one that begins the conversation."""
  return _fold(messages, 1)

def fill(messages: Sequence[Message]) -> list[Message]:
  """A content that is nothing, as beside tool calls, is an empty text."""
  return [{**m, "content": ""} if m.get("content") is None else m for m in messages]

def rename(messages: Sequence[Message]) -> list[Message]:
  """A developer's message is a system message."""
  return [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]

def merge(messages: Sequence[Message]) -> list[Message]:
  """Neighbouring turns of the user, or of the assistant, are one."""
  ret: list[Message] = []
  for message in messages:
    plain = message.keys() <= {"role", "content"} and message["role"] in ("user", "assistant")
    if plain and ret and ret[-1].keys() <= {"role", "content"} and ret[-1]["role"] == message["role"]:
      ret[-1] = _joined(ret[-1], message)
    else: ret.append(message)
  return ret

def lead(messages: Sequence[Message]) -> list[Message]:
  """An empty system message begins a conversation without one: some templates leave out the first message."""
  return [{"role": "system", "content": ""}, *messages] if messages and messages[0]["role"] != "system" else [*messages]

Step = Callable[[Sequence[Message]], list[Message]]
# in this order they are applied, and the fewest that help are taken; what is said of each that changes the roles
STEPS: dict[Step, str] = {
  fill: "", rename: "", fold_later: "it has no system message but the first; others go before the user's words",
  fold: "it has no system message; its words go before the user's", lead: "",
  merge: "it wants user and assistant in turns; neighbouring turns of one role are joined"}

def flipped(message: Message) -> Message:
  """A text as parts, parts that are texts as one text."""
  content = message.get("content")
  if not _is_text(content): return message
  return {**message, "content": [{"type": "text", "text": content}] if isinstance(content, str) else text_of(content)}

class Way(NamedTuple):
  """How a conversation is put to a template: steps, then which contents are flipped between a text and parts."""
  steps: tuple[Step, ...] = ()
  flips: frozenset[int] = frozenset()

  def of(self, messages: Sequence[Message]) -> list[Message]:
    ret = list(messages)
    for step in self.steps: ret = step(ret)
    return [flipped(m) if i in self.flips else m for i, m in enumerate(ret)]

def find_way(messages: Sequence[Message], render: Callable[[Sequence[Message]], str | None]) -> Way | None:
  """
  The way on which a template loses no text of the messages; None if there is none.

  render: what the template makes of messages, None where it refuses them.
  """
  given, needles = with_needles(messages)
  tried: list[list[Message]] = []
  for count in range(len(STEPS) + 1):
    for steps in combinations(STEPS, count):
      if (start := Way(steps).of(given)) in tried: continue
      tried.append(start)
      way = Way(steps)
      for _ in range(3):   # as given, as far as words are lost the other way round, and once more where both are mixed
        text = render(now := way.of(given))
        gone = None if text is None else {needle for i in lost(text, needles) for needle in needles[i]}
        if gone is not None and not gone: return way
        flips = frozenset(i for i, m in enumerate(now) if _is_text(content := m.get("content")) and (
          isinstance(content, str) if gone is None else any(needle in text_of(content) for needle in gone)))
        if not flips: break
        way = Way(steps, way.flips ^ flips)
  return None
