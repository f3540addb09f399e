"""engine/batch/outbox.py: tokens come in order, and the end once all were taken."""
import asyncio
import random
import threading
import time

import pytest
from tinygrad_llm.engine.batch.outbox import Bell, Outbox, Relay
from tinygrad_llm.errors import InputError

def taken(box: Outbox, wait: float = 5.0) -> list[int]:
  found = list[int]()
  while True:
    try: token = box.take(wait)
    except StopIteration: return found
    assert token is not None
    found.append(token)

def test_random_readers():
  """Several readers share the tokens; each meets the end, at whatever moment the tokens come."""
  rng = random.Random(1)
  for _ in range(20):
    box, tokens, found = Outbox(), [rng.randrange(100) for _ in range(rng.randint(0, 50))], list[list[int]]()
    threads = [threading.Thread(target=lambda box=box, found=found: found.append(taken(box))) for _ in range(3)]
    for thread in threads: thread.start()
    for token in tokens:
      box.put(token)
      if rng.random() < 0.1: time.sleep(0.001)
    box.end()
    for thread in threads: thread.join(10)
    assert sorted(sum(found, [])) == sorted(tokens) and len(found) == 3

def test_order_and_the_end():
  box, woken = Outbox(), list[int]()
  box.wake = lambda: woken.append(1)
  assert box.take() is None and box.take(0.01) is None
  for token in (4, 5): box.put(token)
  box.end()
  box.put(6)
  box.end(InputError("late"))
  assert taken(box) == [4, 5] and taken(box) == [] and box.error is None and len(woken) == 3

def test_each_take_raises_an_error_of_its_own():
  box, error = Outbox(), InputError("no more")
  box.put(4)
  box.end(error)
  assert box.take() == 4
  raised = []
  for _ in range(2):
    with pytest.raises(InputError, match="no more") as e: box.take(1)
    raised.append(e.value)
  assert raised[0] is not raised[1] and error not in raised and error.__traceback__ is None

def test_a_child_is_told_whose_answer_it_is():
  box = Outbox()
  box.put(4)
  box.leave()
  with pytest.raises(InputError, match="forked"): box.take()

def waiting(boxes: list[Outbox], readers: int = 1) -> None:
  """Waits until so many readers of each wait."""
  end = time.perf_counter() + 10
  while any(len(box._waiting) < readers for box in boxes) and time.perf_counter() < end: time.sleep(1e-4)

def relayed(relay: Relay, count: int) -> list[Outbox]:
  boxes = [Outbox() for _ in range(count)]
  for box in boxes: box.relay = relay
  return boxes

def test_one_ring_wakes_all_readers_of_a_step():
  relay, found = Relay(), list[int]()
  boxes = relayed(relay, 8)
  for turn in range(3):
    threads = [threading.Thread(target=lambda box=box: found.append(box.take(30))) for box in boxes]
    for thread in threads: thread.start()
    waiting(boxes)
    for i, box in enumerate(boxes): box.put(i)
    time.sleep(0.01)
    assert len(found) == 8 * turn  # nobody is woken before
    relay.ring()
    for thread in threads: thread.join(10)
    assert len(found) == 8 * turn + 8 and sorted(found[-8:]) == [*range(8)]

def test_an_end_waits_for_no_ring():
  """The last token and the end arrive, whoever else was to be woken; several readers of an answer all meet the end."""
  relay, found = Relay(), list[list[int]]()
  boxes = relayed(relay, 3)
  threads = [threading.Thread(target=lambda box=box: found.append(taken(box, 30))) for box in boxes for _ in range(2)]
  for thread in threads: thread.start()
  waiting(boxes, 2)
  for box in boxes: box.put(7)
  for box in boxes: box.end()
  for thread in threads: thread.join(10)
  assert sorted(found) == [[]] * 3 + [[7]] * 3

def test_random_waits_and_rings():
  """Readers who give up at any moment keep no token from others: all tokens of a step come before the step after."""
  relay, steps, rng = Relay(), 300, random.Random(3)
  boxes = relayed(relay, 4)
  found: list[list[int]] = [[] for _ in boxes]
  def read(i: int) -> None:
    r = random.Random(i)
    while len(found[i]) < steps:
      if (token := boxes[i].take(r.choice([0, 1e-5, 1e-4, 5]))) is not None: found[i].append(token)
  threads = [threading.Thread(target=read, args=(i,), daemon=True) for i in range(4)]
  for thread in threads: thread.start()
  for step in range(steps):
    for box in boxes: box.put(step)
    relay.ring()
    if rng.random() < 0.1: time.sleep(0.001)
    end = time.perf_counter() + 4  # less than the longest wait
    while any(len(tokens) < step for tokens in found) and time.perf_counter() < end: time.sleep(1e-5)
    assert all(len(tokens) >= step for tokens in found)
  relay.ring_all()
  for thread in threads: thread.join(10)
  assert found == [[*range(steps)]] * 4

def test_a_loop_is_called_once_for_all_that_came():
  class Loop:
    calls = []
    call_soon_threadsafe = calls.append
  bell, events = Bell(), [asyncio.Event() for _ in range(5)]
  for turn in range(1, 4):
    for event in events: bell.ring(Loop, event)
    assert len(Loop.calls) == turn and not any(event.is_set() for event in events)
    Loop.calls[-1]()
    assert all(event.is_set() for event in events)
    for event in events: event.clear()

def test_bells_of_a_closed_loop():
  loop, bell, event = asyncio.new_event_loop(), Bell(), asyncio.Event()
  loop.close()
  for _ in range(3): bell.ring(loop, event)
  bell.answer()
  assert not event.is_set()

def test_random_rings_of_several_threads():
  """No event that was rung stays unset, whatever other threads do at that moment."""
  async def main() -> None:
    loop, bell, rounds = asyncio.get_running_loop(), Bell(), 100
    events, seen = [asyncio.Event() for _ in range(4)], [0] * 4
    def ring(i: int) -> None:
      rng, end = random.Random(i), time.perf_counter() + 30
      for n in range(rounds):
        bell.ring(loop, events[i])
        while seen[i] == n and time.perf_counter() < end: time.sleep(rng.choice([0, 0, 1e-4]))
    async def see(i: int) -> None:
      for _ in range(rounds):
        await events[i].wait()
        events[i].clear()
        seen[i] += 1
    threads = [threading.Thread(target=ring, args=(i,)) for i in range(4)]
    for thread in threads: thread.start()
    await asyncio.wait_for(asyncio.gather(*map(see, range(4))), 30)
    for thread in threads: thread.join()
  asyncio.run(main())
