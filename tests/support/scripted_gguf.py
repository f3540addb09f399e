"""
Tiny GGUFs with a scripted answer: after token x comes next[x].

Embeddings are one-hot, attention and feed-forward add nothing, and the head's row y has a one for each x that y
follows. So a test of a command's output for "the model says X" needs no trained model.
"""
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gguf import GGUFWriter
from tests.support.synthetic_vocab import byte_chars

DIM = VOCAB = 512
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
BYTE_CHARS = byte_chars()
CHATML = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
GEMMA = ("{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
         "{{ m.content }}<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}")

Script = Iterable[str | bytes | tuple[str, str]]
Specials = Iterable[tuple[str, int]]
Tensors = list[tuple[str, np.ndarray]]

def encoded(text: str) -> str: return "".join(BYTE_CHARS[b] for b in text.encode())

def vocabulary(script: Script, specials: Specials, spm: bool) -> tuple[list[str], list[int], list[int]]:
  """The tokens, their types, and the script's token ids."""
  bytes_ = [f"<0x{b:02X}>" for b in range(256)] if spm else BYTE_CHARS
  before = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)] if spm else []
  types = dict([*before, *((t, BYTE if spm else NORMAL) for t in bytes_)]) | ({} if spm else {"ab": NORMAL})
  types |= dict(specials)
  said: list[str] = []
  for part in script:
    if isinstance(part, bytes): said += [bytes_[b] for b in part]
    elif isinstance(part, tuple): said.append(part[1])
    else: said.append(part.replace(" ", "\u2581") if spm else encoded(part))
  for text in said: types.setdefault(text, NORMAL)
  tokens = [*types]
  return tokens, [*types.values()], [tokens.index(text) for text in said]

def build(path: str | pathlib.Path, script: Script, specials: Specials = (), template: str | None = None,
          spm: bool = False, types: Mapping[str, int] | None = None,
          type_array: Callable[[GGUFWriter, list[int]], None] | None = None, token_type: bool = True,
          bos: str | int | None = None, eos: str | int | None = None, add_bos: bool | None = None,
          pre: str | None = "llama-bpe", merges: Sequence[str] = ("a b",), arch: str = "llama", ctx: int = 512,
          rows: int = VOCAB, vocab: int = VOCAB, skip: Sequence[str] = (), norm_dtype: Any = np.float32,
          head_type: Any = np.float32, kv: Callable[[GGUFWriter, dict[str, int]], None] | None = None,
          extra: Callable[[Tensors], Tensors] | None = None, alignment: int | None = None,
          ) -> tuple[list[str], list[int], dict[str, int], list[int]]:
  """
  Writes the file; returns its tokens, their types, the specials' ids and the script's ids.

  script: the model's answer, part by part: a text (one NORMAL token), bytes (a byte token each) or ("id", the text of a
  special). The script starts again after its last token, and after any token that is not in it.
  specials: (text, type) of further tokens. types: overrides types by text. token_type=False: the file has no types;
  type_array(writer, types) writes them instead. spm: SentencePiece, else byte-level BPE. bos, eos: a special's text or
  an id. skip: omitted keys. kv(writer, ids of the specials) adds metadata, extra(tensors) changes the tensors.
  ValueError if the vocabulary is too small.
  """
  tokens, kinds, said = vocabulary(script, specials := [*specials], spm)
  if len(tokens) > vocab: raise ValueError(f"vocab: {vocab} is less than the {len(tokens)} tokens")
  kinds += [UNUSED] * (vocab - len(tokens))
  tokens += [f"<unused{i}>" for i in range(len(tokens), vocab)]
  for text, kind in (types or {}).items(): kinds[tokens.index(text)] = kind
  ids = {text: tokens.index(text) for text, _ in specials}

  used = min(rows, DIM)
  following = dict(zip(said, said[1:]))
  embd, head = np.zeros((rows, DIM), np.float32), np.zeros((rows, DIM), np.float32)
  embd[range(used), range(used)] = 1
  for x in range(used): head[following.get(x, said[0]), x] = 1

  w = GGUFWriter(path, arch)
  if alignment: w.add_custom_alignment(alignment)
  for key, value in {"context_length": ctx, "embedding_length": DIM, "block_count": 1, "feed_forward_length": 512,
                     "attention.head_count": 8, "attention.head_count_kv": 2, "rope.dimension_count": 64}.items():
    if f"{arch}.{key}" not in skip: w.add_uint32(f"{arch}.{key}", value)
  if (key := f"{arch}.attention.layer_norm_rms_epsilon") not in skip: w.add_float32(key, 1e-5)
  w.add_tokenizer_model("llama" if spm else "gpt2")
  if not spm and pre is not None: w.add_tokenizer_pre(pre)
  w.add_token_list([text.encode("utf-8", "surrogateescape") for text in tokens])
  if spm: w.add_token_scores([-float(i) if kind == NORMAL else 0.0 for i, kind in enumerate(kinds)])
  if type_array: type_array(w, kinds)
  elif token_type: w.add_token_types(kinds)
  if not spm: w.add_token_merges([*merges])
  if bos is not None: w.add_bos_token_id(bos if isinstance(bos, int) else ids[bos])
  if eos is not None: w.add_eos_token_id(eos if isinstance(eos, int) else ids[eos])
  if add_bos is not None: w.add_add_bos_token(add_bos)
  if template is not None: w.add_chat_template(template)
  if kv: kv(w, ids)

  zeros, ones = lambda *shape: np.zeros(shape, np.float32), np.ones(DIM, norm_dtype)
  tensors: Tensors = [
    ("token_embd.weight", embd), ("output_norm.weight", ones), ("output.weight", head.astype(head_type)),
    ("blk.0.attn_norm.weight", ones), ("blk.0.ffn_norm.weight", ones), ("blk.0.attn_q.weight", zeros(512, DIM)),
    ("blk.0.attn_k.weight", zeros(128, DIM)), ("blk.0.attn_v.weight", zeros(128, DIM)),
    ("blk.0.attn_output.weight", zeros(DIM, 512)), ("blk.0.ffn_gate.weight", zeros(512, DIM)),
    ("blk.0.ffn_up.weight", zeros(512, DIM)), ("blk.0.ffn_down.weight", zeros(DIM, 512))]
  for name, tensor in extra(tensors) if extra else tensors: w.add_tensor(name, tensor)
  w.write_header_to_file()
  w.write_kv_data_to_file()
  w.write_tensors_to_file()
  w.close()
  return tokens, kinds, ids, said
