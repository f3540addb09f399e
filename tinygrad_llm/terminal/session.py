"""The state of a chat and the files it is saved to: the conversation, the system message, the settings."""
from __future__ import annotations
import contextlib, json, os, pathlib, secrets, stat
from dataclasses import asdict, dataclass, field, fields
from typing import Any
from tinygrad_llm.errors import InputError
from tinygrad_llm.terminal.stdin import unix_lines

BYTES = 64 << 20  # most bytes of a file that is loaded
THINK = ("on", "off", "hide")
SHOWN = {True: "on", False: "hide"}  # "think" was a bool in earlier files
RANDOM = -1  # draws a new seed for each answer
ROLES = ("user", "assistant")

@dataclass
class Settings:
  """The settings of `/set`; values mean the same as for the command line's flags. think: "" is not set yet."""
  temperature: float = 0.0
  top_k: int = 0
  top_p: float = 1.0
  min_p: float = 0.0
  repeat_penalty: float = 1.0
  presence_penalty: float = 0.0
  frequency_penalty: float = 0.0
  seed: int = RANDOM
  count: int | None = None
  min_tokens: int = 0
  think: str = ""

  def sampling(self) -> dict[str, Any]:
    """The arguments of generate() that a Sampler has, too. A random seed is drawn if one is needed."""
    found = {k: v for k, v in asdict(self).items() if k not in ("count", "min_tokens", "think")}
    if self.seed == RANDOM: found["seed"] = secrets.randbits(32) if self.samples else 0
    return found

  @property
  def samples(self) -> bool:
    """Whether tokens are drawn at random, so that a seed matters."""
    return isinstance(self.temperature, (int, float)) and self.temperature > 0 and self.top_k != 1

  def changed(self, name: str, value: Any) -> Settings:
    """A copy of these settings with one value changed. InputError for an unknown name or a wrong value."""
    if name not in (names := [f.name for f in fields(self)]):
      raise InputError(f"{name:.60}: no such setting; there are {', '.join(names)}")
    if name == "think":
      if isinstance(value, bool): value = SHOWN[value]
      if value not in ("", *THINK): raise InputError(f"think: {value!r:.60} is not on, off or hide")
    if name == "count" and value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
      raise InputError(f"count: {value!r:.60} is not a number of tokens from 1, or off")
    if name == "min_tokens" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
      raise InputError(f"min_tokens: {value!r:.60} is not a number of tokens from 0")
    new = Settings(**{**asdict(self), name: value})
    from tinygrad_llm.engine.sampling import Sampler
    Sampler(**new.sampling())  # raises InputError for wrong values
    return new

  def parsed(self, name: str, text: str) -> Settings:
    """As `changed`, for a value that was typed."""
    value: Any = text
    if name == "think": pass
    elif (name, text) in (("count", "off"), ("count", "-1")): value = None
    elif (name, text) == ("seed", "random"): value = RANDOM
    else:
      for kind in (float, int):
        with contextlib.suppress(ValueError): value = kind(text)
    return self.changed(name, value)

  def shown(self) -> dict[str, str]:
    """The values, written as the user types them."""
    words: dict[str, dict[Any, str]] = {"seed": {RANDOM: "random"}, "count": {None: "off"}, "think": {"": "on"}}
    return {k: words.get(k, {}).get(v) or (f"{v:g}" if isinstance(v, float) else str(v))
            for k, v in asdict(self).items()}

@dataclass
class Session:
  """A conversation: turns of user and assistant, each {"role": .., "content": ..}, without the model's thinking."""
  system: str = ""
  turns: list[dict[str, str]] = field(default_factory=list)
  settings: Settings = field(default_factory=Settings)

  def messages(self) -> list[dict[str, str]]:
    return [*([{"role": "system", "content": self.system}] if self.system else []), *self.turns]

def save(session: Session, path: pathlib.Path) -> None:
  """
  Writes a file for load(), replacing an earlier one. InputError if another kind of file is there, or writing fails.
  """
  try:
    if path.exists():
      try: load(path)
      except InputError: raise InputError(f"{path}: it is there and no saved chat; choose another name") from None
    rows = {"system": session.system, "messages": session.turns, "settings": asdict(session.settings)}
    text = json.dumps(rows, ensure_ascii=False, indent=1) + "\n"
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
      new.write_text(text, encoding="utf-8")
      os.replace(new, path)
    finally: new.unlink(missing_ok=True)
  except (OSError, ValueError) as e:
    raise InputError(f"{path}: cannot be written ({_reason(e)}); choose another name") from e

def load(path: pathlib.Path) -> Session:
  """Reads a file that save() wrote. InputError for any other file."""
  try:
    if not stat.S_ISREG(path.stat().st_mode): raise InputError(f"{path}: not a file; give one that /save wrote")
    with path.open("rb") as file: data = file.read(BYTES + 1)
  except (OSError, ValueError) as e:
    raise InputError(f"{path}: cannot be read ({_reason(e)}); give one that /save wrote") from e
  try:
    if len(data) > BYTES: raise InputError(f"more than {BYTES >> 20} MiB")
    return _session(json.loads(data))
  except (ValueError, RecursionError, InputError) as e:
    why = str(e) if isinstance(e, InputError) else "it is not JSON"
    raise InputError(f"{path}: not a saved chat: {why}; give one that /save wrote") from e

def _reason(e: Exception) -> str: return (isinstance(e, OSError) and e.strerror) or str(e)

def _expect(value: Any, kind: type, where: str, what: str) -> Any:
  if not isinstance(value, kind): raise InputError(f"{where}: {value!r:.60} is not {what}")
  return unix_lines(value.encode("utf-8", "replace").decode()) if isinstance(value, str) else value

def _session(file: Any) -> Session:
  _expect(file, dict, "the file", "an object")
  if other := sorted(file.keys() - {"system", "messages", "settings"}): raise InputError(f"{other[0]!r:.60}: unknown")
  turns = []
  for i, turn in enumerate(_expect(file.get("messages"), list, "messages", "a list")):
    if _expect(turn, dict, f"messages[{i}]", "an object").keys() != {"role", "content"}:
      raise InputError(f"messages[{i}]: it does not have a role and a content, and nothing else")
    if turn["role"] != ROLES[i % 2]: raise InputError(f"messages[{i}].role: {turn['role']!r:.60} is not {ROLES[i % 2]}")
    turns.append({"role": ROLES[i % 2], "content": _expect(turn["content"], str, f"messages[{i}].content", "a text")})
  if len(turns) % 2: raise InputError(f"messages[{len(turns) - 1}]: it has no answer")
  settings = Settings()
  for name, value in _expect(file.get("settings", {}), dict, "settings", "an object").items():
    settings = settings.changed(name, value)
  return Session(_expect(file.get("system", ""), str, "system", "a text"), turns, settings)
