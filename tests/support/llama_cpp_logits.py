"""llama.cpp's logits through llama-cpp-python, for recording and comparing; development only."""
import ctypes
import pathlib
from collections.abc import Container, Iterator

import llama_cpp as lc
import numpy as np

_quiet = lc.llama_log_callback(lambda level, text, data: None)

class Peer:
  """A model loaded by llama.cpp on `threads` threads; one sequence of up to `context` tokens."""
  def __init__(self, path: pathlib.Path, context: int, threads: int = 2):
    lc.llama_log_set(_quiet, ctypes.c_void_p())
    lc.llama_backend_init()
    self.model = lc.llama_model_load_from_file(str(path).encode(), lc.llama_model_default_params())
    asked = lc.llama_context_default_params()
    asked.n_ctx = asked.n_batch = asked.n_ubatch = context
    asked.n_threads = asked.n_threads_batch = threads
    self.context = lc.llama_init_from_model(self.model, asked)
    self.vocab = lc.llama_model_get_vocab(self.model)
    self.vocab_size = lc.llama_vocab_n_tokens(self.vocab)

  def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
    data = text.encode("utf-8", "replace")
    out = (lc.llama_token * (len(data) + 16))()
    count = lc.llama_tokenize(self.vocab, data, len(data), out, len(out), add_special, parse_special)
    return list(out[:count])

  def decode(self, ids: list[int]) -> str:
    pieces, piece = b"", ctypes.create_string_buffer(256)
    for i in ids:
      size = lc.llama_token_to_piece(self.vocab, i, piece, len(piece), 0, False)
      pieces += piece.raw[:size]
    return pieces.decode("utf-8", "replace")

  def logits(self, ids: list[int], first: int = 0) -> np.ndarray:
    """float32 (len(ids) - first, vocab_size): the logits after each of ids[first:], from an empty context."""
    lc.llama_memory_clear(lc.llama_get_memory(self.context), True)
    return np.stack(list(self._decode(ids, 0, first)))

  def greedy(self, ids: list[int], count: int, ends: Container[int] = ()) -> list[tuple[int, int, float]]:
    """
    Greedy decoding up to a token of `ends`: (best token, second best, how much less the second's logit is) each step.
    """
    lc.llama_memory_clear(lc.llama_get_memory(self.context), True)
    out, fed = list[tuple[int, int, float]](), list(ids)
    for position in range(len(ids), len(ids) + count):
      *_, row = self._decode(fed, position - len(fed), len(fed) - 1)
      second, best = sorted(np.argpartition(row, -2)[-2:].tolist(), key=lambda i: row[i])
      out.append((best, second, float(row[best] - row[second])))
      if best in ends: break
      fed = [best]
    return out

  def close(self) -> None:
    lc.llama_free(self.context)
    lc.llama_model_free(self.model)

  def _decode(self, ids: list[int], position: int, first: int) -> Iterator[np.ndarray]:
    batch = lc.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
      batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position + i, 1, i >= first
      batch.seq_id[i][0] = 0
    assert lc.llama_decode(self.context, batch) == 0
    for i in range(first, len(ids)):
      yield np.ctypeslib.as_array(lc.llama_get_logits_ith(self.context, i), (self.vocab_size,)).copy()
    lc.llama_batch_free(batch)
