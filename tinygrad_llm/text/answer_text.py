"""Splits the tokens of an answer into thinking and answer text, up to a stop string."""
from __future__ import annotations
from collections.abc import Sequence
from tinygrad_llm.text.stop_strings import StopStrings, checked
from tinygrad_llm.text.thinking import ANSWER, HEADER, START, Part, Thinking
from tinygrad_llm.text.tokenizer import Tokenizer
from tinygrad_llm.text.turn_marks import TurnMarks

class AnswerText:
  """
  Reads the tokens of an answer one by one.

  Stop strings are looked for in the answer's text, not in the thinking. They also match the name of a token that has no
  text, such as <|im_end|>. A token that begins another turn ends the answer wherever it comes.

  prompt: the token ids that the answer continues. Thinking may have begun there. Turn marks end the answer only if the
  prompt has some.

  stopped: whether a stop string or another turn came. Push nothing after that.
  """
  def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), prompt: Sequence[int] = (),
               turns: TurnMarks | None = None):
    self._name, self._stream = tokenizer.control_text, tokenizer.stream()
    tail = [self._name(i) or tokenizer.token_bytes(i).decode("utf-8", "replace") for i in prompt[-16:]]
    self._turns = turns if turns is not None and turns.opened(prompt, tokenizer) else TurnMarks()
    self._thinking, self._stops = Thinking("".join(tail)), StopStrings(checked(stop) + self._turns.texts)
    self._raw, self._over, self.stopped = "", False, False

  def push(self, token: int) -> list[Part]:
    """The parts that can be shown after this token, see text.thinking."""
    if name := self._name(token): return self._control(name)
    self._raw += (piece := self._stream.push(token))
    return self._until_stop(self._thinking.push(piece))

  def finish(self) -> list[Part]:
    """The parts that were held back. Call it after the last token."""
    self._raw += (piece := self._stream.flush())
    parts = self._until_stop(self._thinking.push(piece))
    if not self.stopped: parts += self._until_stop(self._thinking.flush())
    return parts if self.stopped else parts + self._end()

  def raw(self) -> str:
    """The text that is certain and new since the last call, thinking and its marks included."""
    left = self._stops.left + (0 if self._over else self._thinking.undecided)
    cut = max(0, len(self._raw) - left)
    text, self._raw = self._raw[:cut], self._raw[cut:]
    return text

  def _control(self, name: str) -> list[Part]:
    thinking, parts = self._thinking, list[Part]()
    if thinking.mode in (START, ANSWER) and self._stops.mentions(name):
      if thinking.mode == START and not thinking.marks(name): parts = self._until_stop(thinking.flush())
      if thinking.mode == ANSWER and not self.stopped:
        shown, self.stopped = self._stops.push(name, name=True)
        parts += [(ANSWER, shown)] if shown else []
      if self.stopped: return parts
    if name in self._turns.names: return parts + self._turn()
    before, header = thinking.mode, thinking.undecided
    found = thinking.control(name)
    if thinking.other_turn:
      self._raw = self._raw[:max(0, len(self._raw) - header)] if before == HEADER else self._raw
      return parts + self._turn()
    if before == ANSWER != thinking.mode: parts += self._held()  # a stop string does not span messages
    return parts + (found if thinking.mode != before else self._until_stop(found))

  def _until_stop(self, parts: list[Part]) -> list[Part]:
    shown = list[Part]()
    for kind, text in parts:
      if kind == ANSWER and not self.stopped: text, self.stopped = self._stops.push(text)
      if text: shown.append((kind, text))
      if self.stopped: break
    return shown

  def _turn(self) -> list[Part]:
    parts = self.finish()
    self.stopped = True
    return parts

  def _held(self) -> list[Part]: return [(ANSWER, text)] if (text := self._stops.flush()) else []

  def _end(self) -> list[Part]:
    self._over = True
    return self._held()
