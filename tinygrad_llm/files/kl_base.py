"""
KL base files: llama.cpp's files of a model's log-probabilities, the base for comparing other models (llama-perplexity
--kl-divergence-base). Format: https://github.com/ggml-org/llama.cpp, tools/perplexity, at 2026-08.

All numbers are little-endian. A file begins with "_logits_", int32 n_ctx, n_vocab, n_chunk, and int32 n_ctx * n_chunk
token ids. Each chunk then has a record for each of its positions n_ctx / 2 .. n_ctx - 2. A record is a float32 scale,
the float32 least log-probability, and a uint16 code per token, plus one code of padding if n_vocab is odd. A
log-probability is least + scale * code. Log-probabilities more than 16 below the largest have code 0.
"""
from __future__ import annotations
import os, struct
from pathlib import Path
from types import TracebackType
import numpy as np
from tinygrad_llm.errors import InputError

MAGIC, HEAD = b"_logits_", struct.Struct("<8s3i")
CUT, CODES = np.float32(16), np.float32(65535)  # range below the largest logit that is kept; the largest code

def counted(context: int) -> int:
  """How many positions of a chunk of `context` tokens have a record."""
  return context - context // 2 - 1

def _codes(vocab_size: int) -> int: return 4 + (vocab_size + 1) // 2 * 2  # uint16 numbers per record

def _begins(path: Path) -> bool:
  with path.open("rb") as file: return file.read(len(MAGIC)) == MAGIC

class Writer:
  """
  Writes a KL base file, as a context manager. InputError if it cannot be written. After an exception it is removed.
  """
  def __init__(self, path: Path, tokens: np.ndarray, vocab_size: int):
    """tokens: (chunks, context) token ids."""
    self.path, self.vocab_size = path, vocab_size
    try:
      if path.is_file() and path.stat().st_size and not _begins(path):
        raise InputError(f"{path}: it is there and no KL base file; choose another name")
      self._file = path.open("wb")
      self._file.write(HEAD.pack(MAGIC, tokens.shape[1], vocab_size, tokens.shape[0]))
      self._file.write(tokens.astype("<i4").tobytes())
    except OSError as e: raise self._error(e) from e

  def write(self, logits: np.ndarray, log_sum: np.ndarray) -> None:
    """Writes the next n positions. logits: (n, vocab_size) float32; log_sum: (n,), the log-sum-exp of each row."""
    top = logits.max(1)
    least = np.maximum(logits.min(1), top - CUT)
    scale = (top - least) / CODES
    record = np.zeros((len(logits), _codes(self.vocab_size)), "<u2")
    record[:, :4] = np.stack([scale, least - log_sum], 1).astype("<f4").view("<u2")
    with np.errstate(divide="ignore"): inverse = np.where(scale > 0, np.float32(1) / scale, np.float32(0))
    for row, x, low, by in zip(record[:, 4:], logits, least, inverse):
      row[:self.vocab_size] = np.rint((np.maximum(x, low) - low) * by)
    try: self._file.write(record.tobytes())
    except OSError as e: raise self._error(e) from e

  def __enter__(self) -> Writer: return self

  def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
               trace: TracebackType | None) -> None:
    try: self._file.close()
    except OSError as e: raise self._error(e) from e
    finally:
      if kind is not None and self.path.is_file(): self.path.unlink(missing_ok=True)

  def _error(self, e: OSError) -> InputError:
    return InputError(f"{self.path}: it cannot be written ({e.strerror or e}); give a file on a disk with room")

class Reader:
  """
  Reads a KL base file. Attributes: context, vocab_size, chunks, and tokens (chunks, context).

  InputError if it is another kind of file, damaged, or cannot be read.
  """
  def __init__(self, path: Path):
    self.path = path
    try:
      with open(path, "rb") as file: head, size = file.read(HEAD.size), os.fstat(file.fileno()).st_size
      if not path.is_file() or len(head) < HEAD.size or not head.startswith(MAGIC):
        raise InputError(f"{path}: it does not begin as a KL base file does; give one of --kl-base, or of llama.cpp")
      _, self.context, self.vocab_size, self.chunks = HEAD.unpack(head)
      if self.context < 4 or self.vocab_size < 1 or self.chunks < 1: raise InputError(
        f"{path}: {self.chunks} chunks of {self.context} tokens of {self.vocab_size}; it is damaged, write it again")
      count, width = counted(self.context), _codes(self.vocab_size)
      first = HEAD.size + 4 * self.context * self.chunks
      if size != (wanted := first + 2 * self.chunks * count * width):
        raise InputError(f"{path}: {size} bytes where {wanted} are due; the file is damaged, write it again")
      self.tokens = np.fromfile(path, "<i4", self.context * self.chunks, offset=HEAD.size).reshape(self.chunks, -1)
      if self.tokens.min() < 0 or self.tokens.max() >= self.vocab_size:
        raise InputError(f"{path}: token ids outside of its vocabulary; the file is damaged, write it again")
      self._records = np.memmap(path, "<u2", "r", first, (self.chunks, count, width))
    except OSError as e: raise InputError(f"{path}: it cannot be read ({e.strerror or e}); check the path") from e

  def log_probabilities(self, chunk: int, first: int, last: int) -> np.ndarray:
    """Log-probabilities, float32 (last - first, vocab_size), of a chunk's counted positions first .. last - 1."""
    records = np.array(self._records[chunk, first:last])
    scale, least = np.ascontiguousarray(records[:, :4]).view("<f4").T
    found = records[:, 4:4 + self.vocab_size].astype(np.float32)
    found *= scale[:, None]
    found += least[:, None]
    return found

  def probabilities(self, chunk: int, logs: np.ndarray) -> np.ndarray:
    """exp of the log-probabilities of a chunk. InputError if a position's probabilities do not add up to 1."""
    with np.errstate(over="ignore", invalid="ignore"): found: np.ndarray = np.exp(logs)
    # 0.1: code 0 overstates unlikely tokens, which adds at most 0.03 for a vocabulary of 262,144
    if not (np.abs(found.sum(1) - 1) < 0.1).all(): raise InputError(
      f"{self.path}: chunk {chunk + 1}: its probabilities do not add up to 1; the file is damaged, write it again")
    return found
