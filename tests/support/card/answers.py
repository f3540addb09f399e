"""What child processes do on the stand-in, and on the CPU to compare: functions of JSON, for child.call."""
from typing import Any

import numpy as np

def by_steps(path: str, prompt: list[int], count: int) -> list[list[float]]:
  """
  Logits of an answer of decode steps alone, those of the prompt, too: a third of the kernels. `path` "" is the bundled
  model. The ids of the answer are where the rows are largest.
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
  What a user does: logits of a prompt in chunks (saved as `out`, with those of 4 steps after it), a greedy answer,
  sampled ones, a second turn, an answer until the context is full, one that is left, and the next.
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
  """An answer of the bundled model, drawn."""
  import tinygrad_llm
  with tinygrad_llm.load() as llm:
    return [int(x) for x in llm.generate(prompt, max_tokens=count, ignore_eos=True, temperature=0.8, top_k=40, seed=11,
                                         repeat_penalty=1.1)]

def products(shapes: list[tuple[int, int, int]], names: list[str]) -> list[float]:
  """Errors of tinygrad's own products with tensor cores, in standard deviations of float64's: each shape, each type."""
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
  """What one kernel of so many buffers and a variable adds up, three times by a captured graph."""
  import tinygrad_llm  # noqa: F401
  from tinygrad import Tensor, TinyJit, UOp
  parts = [Tensor([float(i), 2.0 * i]).realize() for i in range(count)]
  @TinyJit
  def step(n: UOp) -> Tensor: return sum((x for x in parts), start=Tensor([0.0, 0.0])).mul(n).contiguous().realize()
  return [step(UOp.variable("n", 1, 9).bind(n)).tolist()[1] for n in (1, 2, 3, 4, 5)]

def by_queues(name: str, *args: Any) -> Any:
  """One of the functions above on NV's queues: the stand-in's interface instead of the kernel driver's."""
  from tests.support.card import nv
  nv.install()
  return globals()[name](*args)
