"""Workloads for child.call, run on the simulated GPU and on the CPU to compare. Arguments and values are JSON."""
from typing import Any

import numpy as np

def by_steps(path: str, prompt: list[int], count: int) -> list[list[float]]:
  """
  The logits of each token of a greedy answer. The prompt runs as decode steps, too: that needs a third of the kernels.

  `path`: the model ("": the bundled one). The answer's ids are the argmax of the rows.
  """
  import tinygrad_llm
  llm = tinygrad_llm.load(path or None, chunk=32, max_context=64)
  ids, logits = list(prompt), []
  for at in range(len(prompt) + count - 1):
    row = llm.step(ids[at], at)
    if at < len(prompt) - 1: continue
    logits.append([float(x) for x in row])
    ids.append(int(row.argmax()))
  return logits

def everything(path: str, ids: list[int], chunk: int, out: str) -> dict[str, list[int]]:
  """
  A user's session: greedy and sampled answers, two turns, a full context, an abandoned answer and the one after it.

  The logits of a prompt in chunks, and of 4 decode steps after it, are saved as `out`.
  """
  import tinygrad_llm
  llm = tinygrad_llm.load(path, max_context=len(ids) + 24, chunk=chunk)
  def answer(prompt: list[int], count: int | None, **settings: Any) -> list[int]:
    return [int(x) for x in llm.generate(prompt, max_tokens=count, ignore_eos=True, **settings)]
  n = len(ids) - 4
  logits = [*llm.logits(ids[:n])]
  llm.prefill(ids[:n])
  np.save(out, np.stack([*logits, *(llm.step(x, n + i) for i, x in enumerate(ids[n:]))]))
  found = {"greedy": answer(ids[:20], 12), "top": answer(ids[:20], 12, temperature=0.8, top_k=40, top_p=0.95, seed=3),
           "least": answer(ids[:20], 8, temperature=1.3, min_p=0.02, repeat_penalty=1.3, seed=4)}
  turn = answer(ids[:30], 6)
  found["turns"] = turn + answer(ids[:30] + turn + ids[30:38], 6)
  found["full"] = answer(ids[:len(ids) + 15], None)
  half = llm.generate(ids[:10], max_tokens=30, ignore_eos=True)
  found["left"] = [int(next(half)) for _ in range(4)]
  half.close()
  found["next"] = answer(ids[:12], 5)
  return found

def sampled(prompt: list[int], count: int) -> list[int]:
  """A sampled answer of the bundled model."""
  import tinygrad_llm
  with tinygrad_llm.load() as llm:
    return [int(x) for x in llm.generate(prompt, max_tokens=count, ignore_eos=True, temperature=0.8, top_k=40, seed=11,
                                         repeat_penalty=1.1)]

def streamed(path: str, samples: bool = False) -> list[list[int]]:
  """
  Streams beside each other, one that ends at a token, one that is left, and a turn that goes on.

  samples: whether two of them sample.
  """
  import tinygrad_llm
  with tinygrad_llm.load(path, max_context=128, chunk=32) as llm:
    assert llm.engine.steps.is_ahead == (llm.device != "CPU")
    def ids(n: int, seed: int) -> list[int]: return [(seed * 37 + i * 11) % 300 for i in range(n)]
    asked = [(ids(3, 1), 24), (ids(61, 2), 9)]
    first = [int(x) for x in llm.stream(ids(5, 4), max_tokens=10, ignore_eos=True)]
    streams = [llm.stream(prompt, max_tokens=n, ignore_eos=True) for prompt, n in asked]
    stopped = llm.stream(ids(5, 4), max_tokens=30, ignore_eos=True, stop_ids=first[6:7])
    how = {"temperature": 1.3, "seed": 9} if samples else {}
    left = llm.stream(ids(5, 5), max_tokens=60, ignore_eos=True, **how)
    how = {"temperature": 0.9, "top_k": 30, "repeat_penalty": 1.3}
    if samples: streams.append(llm.stream(ids(7, 6), max_tokens=20, ignore_eos=True, **how))
    found = [first, *([int(x) for x in stream] for stream in (*streams, stopped))]
    found.append([int(next(left)) for _ in range(3)])
    left.cancel()
    turn = ids(5, 4) + found[-2] + [9]
    return [*found, [int(x) for x in llm.stream(turn, max_tokens=8, ignore_eos=True)]]

def products(shapes: list[tuple[int, int, int]], names: list[str]) -> list[float]:
  """Largest error of tinygrad's tensor-core matmul for each shape and type, in standard deviations of the result."""
  import tinygrad_llm  # noqa: F401
  from tinygrad import Tensor, dtypes
  rng, found = np.random.default_rng(1), []
  for (m, k, n), name in ((shape, name) for shape in shapes for name in names):
    a, b = (Tensor(rng.standard_normal(s, np.float32)).cast(getattr(dtypes, name)).realize() for s in ((m, k), (k, n)))
    got = a.matmul(b, dtype=dtypes.float32).numpy()
    want = a.float().numpy().astype(np.float64) @ b.float().numpy().astype(np.float64)
    found.append(float(np.abs(got - want).max() / want.std()))
  return found

def many_arguments(count: int) -> list[float]:
  """Sums from one kernel with `count` buffers and a variable; a captured graph runs the last three."""
  import tinygrad_llm  # noqa: F401
  from tinygrad import Tensor, TinyJit, UOp
  parts = [Tensor([float(i), 2.0 * i]).realize() for i in range(count)]
  @TinyJit
  def step(n: UOp) -> Tensor: return sum((x for x in parts), start=Tensor([0.0, 0.0])).mul(n).contiguous().realize()
  return [step(UOp.variable("n", 1, 9).bind(n)).tolist()[1] for n in (1, 2, 3, 4, 5)]

def by_queues(name: str, *args: Any) -> Any:
  """Runs a function of this file on tinygrad's NV device, with the simulator in place of the kernel driver."""
  from tests.support.card import nv
  nv.install()
  return globals()[name](*args)

def rows(path: str) -> list[float]:
  """
  How far a row's logits in steps of 2, 4 and 8 rows are from its own alone, in standard deviations, at most.

  The rows are sequences of up to three tokens each.
  """
  import tinygrad_llm
  from tinygrad_llm.engine.batch.row_steps import Row
  with tinygrad_llm.load(path, max_context=64, chunk=32) as llm:
    steps, far = llm.engine.steps, list[float]()
    def fed(n: int) -> Any:
      """(3, n, vocab): the logits of each row, in steps of `n` rows or, where n is 0, of one."""
      found = []
      for at in range(3):
        made = [Row((7 + 31 * i + 5 * at) % 300, at, [i + 1]) for i in range(n or 8)]
        if n: logits = [steps.logits(steps.decode(made)[0], i).copy() for i in range(n)]
        else: logits = [steps.logits(steps.decode([row])[0], 0).copy() for row in made]
        found.append(np.stack(logits))
      return np.stack(found)
    alone = fed(0)
    for n in (2, 4, 8): far.append(float(np.abs(fed(n) - alone[:, :n]).max() / alone.std()))
    return far
