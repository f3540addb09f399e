"""When an answer ends."""
import pytest

from tinygrad_llm.engine.choice.ending import Ending
from tinygrad_llm.errors import InputError

def test_end_tokens():
  ending = Ending({7, 3}, stop_ids=[9, 3])
  assert [ending.finish(token, 0) for token in (3, 7, 9, 8)] == ["stop", "stop", "stop", None]
  assert ending.finish(8, 10**9) is None and ending.most is None and ending.ruled_out(0) == ()

@pytest.mark.parametrize(("most", "room", "last", "why"), [
  (5, None, 5, "length"), (None, 5, 5, "context"), (5, 9, 5, "length"), (9, 5, 5, "context"), (5, 5, 5, "length")])
def test_length(most, room, last, why):
  ending = Ending({3}, max_tokens=most, room=room)
  assert ending.most == last and ending.full == why
  assert [ending.finish(8, n) for n in range(last)] == [None] * (last - 1) + [why]
  assert ending.finish(3, last - 1) == "stop" and [ending.is_full(n) for n in (last - 1, last)] == [False, True]

def test_no_tokens():
  ending = Ending({3}, max_tokens=0)
  assert ending.is_full(0) and ending.full == "length"

def test_min_tokens():
  ending = Ending({7}, stop_ids=[2], min_tokens=2, max_tokens=2)
  assert [ending.ruled_out(n) for n in range(4)] == [(2, 7), (2, 7), (), ()]
  with pytest.raises(InputError, match="^min_tokens: 3 is more than max_tokens, 2"):
    Ending((), min_tokens=3, max_tokens=2)
