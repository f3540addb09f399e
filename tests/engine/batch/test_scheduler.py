"""The scheduler on a simulated clock: shares of the time, gaps, order of prompts, preemption, cancelling."""
import random
import pytest
from tests.support.extended import extended
from tests.support.serving import Costs, HistoryPool, Request, Simulation, answer

from tinygrad_llm.engine.batch.residents import Residents, run_length
from tinygrad_llm.engine.batch.scheduler import Decode, Piece, Scheduler
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.errors import InputError

def prompt(n: int, seed: int = 0) -> list[int]: return random.Random(seed).choices(range(97), k=n)

def streams(count: int, length: int = 10**4) -> list[Request]:
  return [Request(prompt(10, i), length) for i in range(count)]

def check_answer(r: Request, length: int | None = None) -> None:
  length = r.length if length is None else length
  assert r.sequence.tokens == r.prompt + answer(r.prompt, length)

@pytest.mark.parametrize("costs", [Costs(), Costs(0.012, 0.0005, 0.004, 0.0001), Costs(0.25, 0.02, 0.05, 0.03),
                                   Costs(depth=1 / 8192)], ids=["cpu", "fast prompts", "slow", "deeper is slower"])
def test_streams_keep_their_speed_while_a_long_prompt_is_read(costs):
  """Four streams keep 60% of their speed, no gap is longer than 4 steps or 150 ms, and the prompt gets its share."""
  others, long = streams(4), Request(prompt(4096), 1, at=2.0)
  sim = Simulation(HistoryPool(4096), costs, [*others, long])
  sim.run(read=long)
  for r in others:
    tokens = sum(long.at < t <= long.read for t in r.given)
    ahead = 0 if costs == Costs() else sim.actions[-1][1] + costs.turn(4, 8)  # the last piece, and part of a turn
    assert costs.depth or tokens * costs.turn(4, 8) >= 0.6 * (long.read - long.at) - ahead
    assert 0 < r.worst <= 1
  beside = sum(seconds for start, seconds, action, _ in sim.actions if isinstance(action, Piece) and start >= long.at)
  assert 0.33 * (long.read - long.at) < beside <= 0.35 * (long.read - long.at) + ahead

@pytest.mark.parametrize("share", [0.1, 0.7])
def test_prompt_share(share):
  others, long = streams(2), Request(prompt(2000), 1, at=1.0)
  sim = Simulation(HistoryPool(4096), Costs(), [*others, long], prompt_share=share)
  sim.run(read=long)
  beside = sum(seconds for start, seconds, action, _ in sim.actions if isinstance(action, Piece) and start >= long.at)
  assert beside / (long.read - long.at) == pytest.approx(share, rel=0.03)

def test_a_prompt_alone_is_read_in_whole_chunks():
  r = Request(prompt(1000), 3)
  sim = Simulation(HistoryPool(100), Costs(), [r])
  sim.run()
  assert [count for _, _, count in r.pieces] == [256, 256, 256, 232]
  check_answer(r)
  counts = sim.scheduler.counts
  assert (counts.pieces, counts.prompt_tokens, counts.decode_steps, counts.tokens) == (4, 1000, 2, 2)

def test_pieces_end_with_their_run_and_never_leave_one_token():
  pool = HistoryPool(100, random.Random(1))
  pool.free_blocks -= set(range(3, 100, 3))  # runs of two blocks
  r = Request(prompt(128 * 3 + 1), 1)
  Simulation(pool, Costs(), [r]).run()
  assert all(count <= 128 for _, _, count in r.pieces) and r.pieces[-1][2] > 1
  check_answer(r)
  assert run_length([5, 6, 7, 9, 10], 70, 256) == 122
  assert run_length([5, 6, 7, 9, 10], 192, 256) == 128
  assert run_length([5, 6, 7, 9, 10], 0, 20) == 64

def test_more_sequences_than_rows_get_a_token_every_turn():
  others = streams(19, 50)
  sim = Simulation(HistoryPool(100), Costs(), others)
  sim.run()
  late = max(r.read for r in others)
  together = [len(a.sequences) for start, _, a, _ in sim.actions if isinstance(a, Decode) and start >= late]
  assert together[:6] == [8, 8, 3, 8, 8, 3]
  for r in others: check_answer(r)

def test_short_prompts_go_first_but_age():
  """A prompt of 4 s is overtaken by prompts that arrive within 4 s after it, and by no later one."""
  long = Request(prompt(1000), 2)
  short = [Request(prompt(200, 7 + i), 1, at=0.5 * i) for i in range(1, 40)]
  sim = Simulation(HistoryPool(1000), Costs(), [long, *short])
  sim.run()
  before = [r.at for r in short if r.read < long.read]
  assert len(before) >= 2 and max(before) <= 4

def test_cancelled_sequences_leave_within_one_action():
  decoding, reading = Request(prompt(9), 500), Request(prompt(4000, 1), 5, at=1.0)
  waiting = Request(prompt(4500), 5, at=1.0)
  sim = Simulation(HistoryPool(80), Costs(), [decoding, reading, waiting])
  sim.run(until=2.0)
  assert sim.scheduler.running == 2 and sim.scheduler.waiting == 1
  for left, r in ((2, reading), (1, waiting), (0, decoding)):
    r.cancel = sim.now
    sim.run(until=sim.now + 1e-6)  # one action
    assert r.ended is not None and r.sequence.finish == "cancelled" and not r.sequence.table
    assert sim.scheduler.running + sim.scheduler.waiting == left or left == 1
  sim.run()
  assert sim.pool.free() == 80

def test_finish_and_error_of_the_caller_release():
  pool = HistoryPool(10)
  scheduler = Scheduler(pool, 512)
  both = [Sequence(prompt(20, i), 20) for i in range(2)]
  for s in both: scheduler.submit(s)
  while any(len(s.tokens) == 20 for s in both):
    action = scheduler.next()
    for s in action.sequences if isinstance(action, Decode) else [action.sequence]:
      pool.feed(s, action.count if isinstance(action, Piece) else 1)
      if s.fed == len(s.tokens): s.tokens.append(1)
    scheduler.done(action, 0.1)
  both[0].finish, both[1].error = "stop", ValueError("NaN")
  assert scheduler.next() is None and scheduler.ended == both and pool.free() == 10
  assert (both[0].finish, both[0].error, both[1].finish) == ("stop", None, None)

def test_preemption_takes_the_youngest_and_loses_nothing():
  requests = [Request(prompt(100, i), 300, at=0.01 * i) for i in range(4)]
  sim = Simulation(HistoryPool(14), Costs(), requests)
  sim.run()
  assert sim.scheduler.preemptions >= 1
  for r in requests: check_answer(r)
  assert [r.ended for r in requests] == sorted(r.ended for r in requests)  # the oldest was never preempted
  again = [first for r in requests for _, first, _ in r.pieces if first]
  assert again  # reading on began behind cached blocks
  assert sim.pool.free() == 14

@pytest.mark.parametrize("seed", range(20))
def test_one_that_is_alone_reads_its_answer_again_by_steps(seed):
  """Pieces round otherwise than steps, so pieces read its prompt only, and steps of one row its answer."""
  rng = random.Random(seed)
  length, said = rng.randint(1, 700), rng.randint(0, 9)
  s, other = Sequence(prompt(length + said), length, alone=True), Sequence(prompt(30, 1), 30)
  scheduler, read, steps = Scheduler(HistoryPool(40), 1000), 0, list[int]()
  for each in rng.sample([s, other], 2): scheduler.submit(each)
  while len(s.tokens) < length + said + 3:
    action = scheduler.next()
    if isinstance(action, Piece):
      if action.sequence is s: read = action.first + action.count
      action.sequence.read(action.count)
      assert read <= length
    else:
      if s in action.sequences: steps.append(s.fed)
      assert s not in action.sequences or len(action.sequences) == 1
      for each in action.sequences: each.fed += 1
    for each in (s, other):
      if each.fed == len(each.tokens): each.tokens.append(1)
    scheduler.done(action, 0.1)
  assert read == length and steps == [*range(length, length + said + 2)][:len(steps)] and len(steps) >= said

def test_a_sequence_that_cannot_fit_ends_with_a_reason():
  large, full, after = Request(prompt(700), 5), Request(prompt(600, 1), 500, at=0.1), Request(prompt(50, 2), 5, at=0.2)
  deep, limit = Request(prompt(900, 3), 5), Request(prompt(500, 4), 500, at=100)
  sim = Simulation(HistoryPool(10), Costs(), [large, full, after, deep, limit], context=800)
  sim.run()
  assert isinstance(large.sequence.error, InputError) and "700 tokens" in str(large.sequence.error)
  assert isinstance(deep.sequence.error, InputError) and "context of 800" in str(deep.sequence.error)
  assert full.sequence.finish == "context" and len(full.sequence.tokens) == 641
  check_answer(full, 41)
  assert after.sequence.finish == "length"
  assert limit.sequence.finish == "context" and len(limit.sequence.tokens) == 641
  one = Request(prompt(790), 500)
  Simulation(HistoryPool(20), Costs(), [one], context=800).run()
  assert one.sequence.finish == "context" and one.sequence.fed == 800

class Ahead:
  """A scheduler of sequences that decode, each after 60 tokens, and steps that are launched and done later."""
  def __init__(self, pool: HistoryPool, *lengths: int):
    self.pool, self.scheduler = pool, Scheduler(pool, 512)
    self.all = [Sequence(prompt(60, i), 60, max_tokens=length) for i, length in enumerate(lengths)]
    for s in self.all:
      pool.begin(s)
      assert pool.grow(s, 60)
      s.tokens.append(pool.feed(s, 60) % 97)
      self.scheduler.submit(s)

  def launch(self, step: Decode | Piece | None, *wanted: int) -> Decode:
    assert step == Decode(tuple(self.all[i] for i in wanted)) and isinstance(step, Decode)
    for s in step.sequences: s.launched += 1
    return step

  def done(self, step: Decode) -> None:
    for s in step.sequences:
      s.launched -= 1
      s.tokens.append(self.pool.feed(s, 1) % 97)
      if len(s.tokens) - s.prompt == s.max_tokens: s.finish = "length"
    self.scheduler.done(step, 0.01)

def test_ahead_leaves_out_who_ends():
  """The pending token of the first is its last; the second is cancelled. Both keep their blocks until all is done."""
  a = Ahead(HistoryPool(20), 3, 100, 100)
  one = a.launch(a.scheduler.next(), 0, 1, 2)
  two = a.launch(a.scheduler.ahead(), 0, 1, 2)
  a.done(one)
  a.all[1].cancelled = True
  three = a.launch(a.scheduler.ahead(), 2)
  assert all(s.table for s in a.all) and not a.scheduler.ended
  a.done(two)
  four = a.launch(a.scheduler.ahead(), 2)
  assert a.scheduler.ended == a.all[:2] and not a.all[0].table
  a.done(three)
  a.all[2].cancelled = True
  assert a.scheduler.ahead() is None and a.all[2].table
  a.done(four)
  assert a.scheduler.next() is None and not a.all[2].table

def test_nothing_is_ahead_of_prompts_and_without_blocks():
  """A launched step is done first; then next() reads the prompt, or lets the youngest wait."""
  a = Ahead(HistoryPool(3), 100, 100)
  steps = [a.launch(a.scheduler.next(), 0, 1)]
  while a.all[0].fed < 62:  # the next one is the last that fits
    steps.append(a.launch(a.scheduler.ahead(), 0, 1))
    a.done(steps.pop(0))
  steps.append(a.launch(a.scheduler.ahead(), 0, 1))
  a.done(steps.pop(0))
  assert a.scheduler.ahead() is None and not a.scheduler.preemptions
  a.done(steps.pop(0))
  step = a.launch(a.scheduler.next(), 0)
  assert a.scheduler.preemptions == 1 and a.scheduler.ahead() is None and not a.all[1].table
  a.done(step)

def test_ahead_takes_turns():
  """With 11 sequences, the other 3 are next behind 8, and their tokens are known."""
  a = Ahead(HistoryPool(30), *[100] * 11)
  eight = a.launch(a.scheduler.next(), *range(8))
  three = a.launch(a.scheduler.ahead(), 8, 9, 10)
  a.done(eight)
  eight = a.launch(a.scheduler.ahead(), *range(8))
  a.done(three)
  a.launch(a.scheduler.ahead(), 8, 9, 10)

def test_a_fork_runs_at_once():
  pool = HistoryPool(10)
  scheduler = Scheduler(pool, 512)
  s = Sequence(prompt(20), 20)
  pool.begin(s)
  assert pool.grow(s, 21)
  pool.feed(s, 20)
  s.tokens.append(3)
  scheduler.submit(s)
  assert scheduler.running == 1 and scheduler.next() == Decode((s,))

def test_a_shared_prefix_is_admitted_once_it_is_read():
  """Three prompts of 640 positions that share 576 fit into 20 blocks together, though not apart."""
  common = prompt(576)
  requests = [Request(common + prompt(60, i), 200, at=i) for i in range(3)]
  sim = Simulation(HistoryPool(20), Costs(), requests)
  sim.run(until=6)
  assert sim.scheduler.running == 3
  assert [r.pieces[0][1] for r in requests] == [0, 576, 576]

def test_first_calls_and_rare_long_ones_do_not_count():
  """A first piece that compiles for 20 s, a first decode step for 5 s, and a step in 50 that takes 10 times longer."""
  rng, calls = random.Random(3), [20 / 0.04, 5 / 0.025]
  costs = Costs(factor=lambda: calls.pop(0) if calls else 10.0 if rng.random() < 0.02 else 1.0)
  others, long = streams(4), Request(prompt(2000), 1, at=26.0)
  sim = Simulation(HistoryPool(4096), costs, [*others, long])
  sim.run(read=long)
  pieces = [(a.count, seconds) for start, seconds, a, _ in sim.actions if isinstance(a, Piece) and start >= long.at]
  assert all(seconds < 0.1 or seconds > 0.3 for _, seconds in pieces)
  assert sum(count == 16 for count, _ in pieces) > 0.9 * len(pieces)
  for r in others:
    assert sum(long.at < t <= long.read for t in r.given) * 0.031 >= 0.45 * (long.read - long.at)  # 10x: 18% more

def mix(seed: int) -> Simulation:
  """Random requests, costs, pool and rows."""
  rng = random.Random(seed)
  decode = rng.uniform(0.005, 0.08)
  costs = Costs(decode, decode * rng.uniform(0, 0.2), decode * rng.uniform(0.05, 1), decode * rng.uniform(0.02, 0.3))
  if seed % 2: costs.factor = lambda: rng.uniform(0.9, 1.1)  # of pieces and of the steps that bound them
  common = prompt(rng.choice([0, 70, 200]), seed)
  requests, at = [], 0.0
  for _ in range(rng.randint(2, 10)):
    at += rng.expovariate(1 / decode / rng.choice([1, 20]))
    tokens = common * rng.randint(0, 1) + rng.choices(range(97), k=rng.choice([1, 2, 63, 64, 65, rng.randint(3, 400)]))
    requests.append(Request(tokens, rng.choice([1, 2, 20, 60]), at))
    if rng.random() < 0.15: requests[-1].cancel = at + rng.expovariate(1 / decode / 30)
  most = max(len(r.prompt) + r.length for r in requests)
  blocks = rng.choice([-(-most // 64), -(-most // 64) + rng.randint(0, 8), 100])
  pool = HistoryPool(blocks, rng if rng.random() < 0.5 else None)
  return Simulation(pool, costs, requests, context=1024, rows=rng.choice([1, 2, 4, 8, 8, 8]))

def check_mix(seed: int) -> None:
  """
  Everybody ends with exactly their tokens, in time, and the pool is whole again.

  With noise of 10% a gap may be 15% longer: a piece is chosen by the shorter of two times of its size.
  """
  sim = mix(seed)
  sim.run()
  assert sim.pool.free() == len(sim.pool.cells)
  for r in sim.requests:
    assert r.ended is not None, f"mix {seed}"
    check_answer(r, len(r.sequence.tokens) - len(r.prompt))
    if r.sequence.finish == "cancelled": assert r.ended >= r.cancel
    else: assert r.sequence.finish == "length" and len(r.sequence.tokens) == len(r.prompt) + r.length
    assert r.worst <= (1.15 if seed % 2 else 1.0), f"mix {seed}: a gap is {r.worst} of the longest allowed"
  check_shares(sim, seed)

def check_shares(sim: Simulation, seed: int) -> None:
  """
  Prompts get no more than their share beside decoders, give or take one stall, and no prompt starves.

  While the pool refuses nobody, a prompt is read when pieces have had 0.39 of the time, all pieces since its arrival
  counted. Among these, pieces of later prompts belong to those that came within its own reading time.
  """
  stall = max(0.1, 2.75 * sim.costs.turn(len(sim.requests), sim.rows)) * 1.3
  beside = sum(seconds for _, seconds, a, beside in sim.actions if beside and isinstance(a, Piece))
  whole = sum(seconds for _, seconds, _, beside in sim.actions if beside)
  assert beside <= 0.35 * whole + 2 * stall, f"mix {seed}"
  if sim.scheduler.preemptions or len(sim.pool.cells) < 100: return
  of, pieces = sim.of, [(start, seconds, a) for start, seconds, a, _ in sim.actions if isinstance(a, Piece)]
  for r in sim.requests:
    if r.read is None: continue
    read = min([r.read, *(end for end, *_ in r.pieces[-1:])])  # a last token may be left to the next turn
    others = [(seconds, of[a.sequence]) for start, seconds, a in pieces if r.submitted <= start < read]
    assert read - r.submitted <= sum(s for s, _ in others) / 0.39 + 3 * stall + sim.costs.of_chunk(), f"mix {seed}"
    own = len(r.prompt) * sim.costs.of_chunk(16) / 16  # a shared prefix is only known after admission
    late = [o.submitted - r.submitted for _, o in others]
    assert max(late, default=0) <= 1.1 * own + stall, f"mix {seed}: overtaken by a prompt that came too late"

def told(sim: Simulation) -> list[tuple]:
  """The actions, with the requests' numbers."""
  def numbers(a: Piece | Decode) -> list[int]:
    return [sim.requests.index(sim.of[s]) for s in (a.sequences if isinstance(a, Decode) else [a.sequence])]
  return [(type(a), numbers(a), seconds) for _, seconds, a, _ in sim.actions]

def test_a_company_that_goes_on_is_chosen_as_anew(monkeypatch):
  """All actions, and the prompts' share, are as if none were taken again; `again` counts those that are."""
  again = 0
  for seed in range(60):
    sims = mix(seed), mix(seed)
    with monkeypatch.context() as m:
      m.setattr(Residents, "go_on", lambda self, sequences: False)
      sims[1].run()
    sims[0].run()
    assert told(sims[0]) == told(sims[1]), f"mix {seed}"
    credits = [sim.scheduler._share._credit for sim in sims]
    assert credits[0] == pytest.approx(credits[1], abs=1e-9)
    again += sum(x[2] is y[2] for x, y in zip(sims[0].actions, sims[0].actions[1:]))
  assert again > 1000

def test_random_mixes():
  for seed in range(400): check_mix(seed)
  for seed in (1161, 2577, 2817, 6171, 6823, 8109): check_mix(seed)  # the longest gaps by the line alone

@extended
def test_ten_thousand_random_mixes():
  """The same for a hundred seconds."""
  for seed in range(400, 10400): check_mix(seed)
