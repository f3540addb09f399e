"""Splits streamed text into a model's thinking and its answer."""
from __future__ import annotations

START, THINKING, ANSWER, HEADER = "start", "thinking", "answer", "header"
Part = tuple[str, str]  # (THINKING or ANSWER, text)

# {opening mark: closing mark} of thinking before an answer. A template may end a prompt with the opening mark.
TAGS = {
  "<think>": "</think>",  # Qwen 3, DeepSeek, GLM, Nemotron, MiniMax M2
  "[THINK]": "[/THINK]",  # Magistral
  "<seed:think>": "</seed:think>",  # Seed-OSS
  "<|channel>thought": "<channel|>",  # Gemma 4
  "<|START_THINKING|>": "<|END_THINKING|>",  # Command R7B, Command A
  "<mm:think>": "</mm:think>",  # MiniMax M3
  "<think:opensource>": "</think:opensource>",  # Hunyuan 3
}
# gpt-oss, https://github.com/openai/harmony: messages are <|channel|>CHANNEL<|message|>TEXT<|end|>, all but the first
# after <|start|>ROLE. These marks are always control tokens.
CHANNEL, MESSAGE, ENDS = "<|channel|>", "<|message|>", {"<|start|>", "<|end|>", "<|return|>", "<|call|>"}

def _begun(text: str, mark: str) -> int:
  """How many characters at the end of a text may be the beginning of a mark: the longest such suffix."""
  return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)

class Thinking:
  """
  Splits one answer into parts, without the marks and the space around them.

  However the text is cut into pieces, the joined parts are the same.

  prompt: the end of the prompt's text, with control tokens written out. Thinking may have begun there. Otherwise an
  answer's thinking can only begin with its first word; a later opening mark is plain text.

  mode: the kind of the next text: START (not known yet), THINKING, ANSWER, or HEADER (a channel's name).

  other_turn: whether the header that has just ended names a role other than the assistant.
  """
  def __init__(self, prompt: str = ""):
    prompt = prompt.rstrip()
    self._close = next((close for tag, close in TAGS.items() if prompt.endswith(tag)), "")
    self._trim = bool(self._close) or prompt.endswith(f"{CHANNEL}analysis{MESSAGE}")  # strip space before the next text
    self.mode, self._held, self._last = THINKING if self._trim else START, "", ""
    self._channels, self._role, self.other_turn = False, False, False

  @property
  def undecided(self) -> int:
    """How many characters at the end are held back because their kind is open, or because they are a header."""
    return len(self._held) if self.mode in (START, HEADER) else 0

  def marks(self, token: str) -> bool:
    """Whether a control token is, or begins, a mark that opens or closes thinking."""
    return token == CHANNEL or any(mark.startswith(token) for pair in TAGS.items() for mark in pair)

  def push(self, text: str) -> list[Part]:
    """The parts that are certain after this piece of text."""
    self._held += text
    if self.mode == START: self._begin()
    found = self._think() if self.mode == THINKING else []
    return found + self._take(len(self._held)) if self.mode == ANSWER else found

  def control(self, token: str) -> list[Part]:
    """As `push`, for a control token, given as the vocabulary writes it."""
    if self.mode == HEADER and self._role and token in (CHANNEL, MESSAGE):
      self.other_turn = self._held.split()[:1] not in ([], ["assistant"])
    if token == CHANNEL or self._channels and token in ENDS:
      found = [] if self.mode == START else self.flush()
      self.mode, self._held, self._channels, self._role = HEADER, "", True, token == "<|start|>"
      return found
    if token == MESSAGE and self.mode == HEADER:
      self.mode = THINKING if self._held.split()[:1] == ["analysis"] else ANSWER
      self._held, self._close, self._trim = "", "", True
      return [(self.mode, "\n\n")] if self.mode == self._last else []
    return self.push(token) if self.marks(token) and self.mode in (START, THINKING) else []

  def flush(self) -> list[Part]:
    """The parts that were held back. Call it after the last text."""
    if self.mode == START: self.mode = ANSWER
    if self.mode == THINKING: self._held = self._held.rstrip()
    return [] if self.mode == HEADER else self._take(len(self._held))

  def _begin(self) -> None:
    text = self._held.lstrip()
    if tag := next((tag for tag in TAGS if text.startswith(tag)), ""):
      self.mode, self._close, self._held, self._trim = THINKING, TAGS[tag], text[len(tag):], True
    elif not any(tag.startswith(text) for tag in TAGS): self.mode = ANSWER

  def _think(self) -> list[Part]:
    if self._close and (end := self._held.find(self._close)) >= 0:
      rest = self._held[end + len(self._close):]
      found = self._take(len(self._held[:end].rstrip()))
      self.mode, self._held, self._trim = ANSWER, rest, True
      return found
    return self._take(len(self._held[:len(self._held) - _begun(self._held, self._close)].rstrip()))

  def _take(self, length: int) -> list[Part]:
    text, self._held = self._held[:length], self._held[length:]
    if self._trim: text = text.lstrip()
    if not text: return []
    self._trim, self._last = False, self.mode
    return [(self.mode, text)]
