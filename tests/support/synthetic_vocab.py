"""
The tokenizers of synthetic models: byte-level BPE, or SentencePiece pieces with byte fallback for gemma, which
gemma4 reaches by merges.

Text tokens come before special tokens in byte-level vocabularies, and after them for both gemmas. All tokens differ,
and every vocabulary has exactly the requested size.
"""
from collections.abc import Iterator
from typing import NamedTuple

from gguf import GGUFWriter, TokenType

LLAMA3_TEMPLATE = """{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content | trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""
CHATML_TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TURNS_TEMPLATE = """{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>
{{ m.content }}{{ eos_token if m.role == 'assistant' }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""
DEEPSEEK_TEMPLATE = """{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}\
{% else %}<｜Assistant｜>{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"""
GPT_OSS_TEMPLATE = """{% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}\
{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
GEMMA_TEMPLATE = """{{ bos_token }}{% for m in messages %}<start_of_turn>\
{{ 'model' if m.role == 'assistant' else m.role }}
{{ m.content | trim }}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""
GEMMA4_TEMPLATE = """{{ bos_token }}{% for m in messages %}<|turn>\
{{ 'model' if m.role == 'assistant' else m.role }}
{{ m.content | trim }}<turn|>
{% endfor %}{% if add_generation_prompt %}<|turn>model
{% endif %}"""

class Vocab(NamedTuple):
  """A tokenizer's parameters. bos, eos, eot: indices into `specials`. add_bos: encoding puts bos first."""
  pre: str
  specials: list[str]
  bos: int
  eos: int
  eot: int
  add_bos: bool
  template: str

VOCABS = {
  "llama": Vocab("llama-bpe", ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                               "<|eot_id|>"], 0, 1, 4, True, LLAMA3_TEMPLATE),
  "qwen": Vocab("qwen2", ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], 0, 2, 2, False, CHATML_TEMPLATE),
  "olmo": Vocab("olmo", ["<|endoftext|>", "<|padding|>", "<|user|>", "<|assistant|>"], 0, 0, 0, False, TURNS_TEMPLATE),
  "deepseek": Vocab("deepseek-llm", ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>",
                                     "<｜Assistant｜>"], 0, 1, 1, True, DEEPSEEK_TEMPLATE),
  "gpt-oss": Vocab("gpt-4o", ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|channel|>", "<|start|>", "<|end|>",
                              "<|message|>", "<|call|>"], 0, 2, 5, False, GPT_OSS_TEMPLATE),
  "gemma": Vocab("", ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"],
                 2, 1, 5, True, GEMMA_TEMPLATE),
  "gemma4": Vocab("", ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"], 2, 1, 5, True, GEMMA4_TEMPLATE),
}

def byte_chars() -> list[str]:
  """The printable character that stands for each byte in a byte-level BPE vocabulary (GPT-2's)."""
  keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
  spare = iter(range(256, 512))
  return [chr(b if b in keep else next(spare)) for b in range(256)]

def bpe_merges() -> Iterator[tuple[str, str]]:
  """Merges of byte pairs, common ones first, then of triples as filler."""
  chars, letters = byte_chars(), b" etaoinshrdlu"
  common = [chars[b] for b in letters + bytes(b for b in range(256) if b not in letters)]
  order = ((i, j) for n in range(256) for i, j in [*((k, n) for k in range(n)), *((n, k) for k in range(n + 1))])
  pairs = [(common[i], common[j]) for i, j in order]
  yield from pairs
  for a, b in pairs: yield from ((a + b, c) for c in common[:32])

def pieces() -> Iterator[str]:
  """SentencePiece pieces: letters, then pairs, triples and quadruples, with and without the space mark."""
  letters = "▁etaoinshrdlucmfwypvbgkjqxz.,ETAOINSHRDLU0123456789"
  yield from letters
  for length in (2, 3, 4):
    tails = [""]
    for _ in range(length - 1): tails = [a + b for a in tails for b in letters[1:]]
    yield from (a + tail for tail in tails for a in letters)

def add_vocab(w: GGUFWriter, name: str, size: int) -> None:
  """Writes the vocabulary `name` of VOCABS with `size` tokens. ValueError if size is too small or too large."""
  v = VOCABS[name]
  if size < 256 + len(v.specials): raise ValueError(f"vocab: {size} is too small; use at least {256 + len(v.specials)}")
  text, first = size - 256 - len(v.specials), size - len(v.specials)
  types = [TokenType.NORMAL] * first + [TokenType.CONTROL] * len(v.specials)
  if name in ("gemma", "gemma4"):
    chosen = [piece for piece, _ in zip(pieces(), range(text))]
    first, types = 0, [TokenType.CONTROL] * 3 + [TokenType.UNKNOWN] + [TokenType.CONTROL] * 2 + \
      [TokenType.BYTE] * 256 + [TokenType.NORMAL] * text
    tokens = v.specials + [f"<0x{b:02X}>" for b in range(256)] + chosen
    w.add_tokenizer_model("llama" if name == "gemma" else name)
    if name == "gemma": w.add_tokenizer_pre("default")
    else: w.add_token_merges([f"{piece[0]} {piece[1:]}" for piece in chosen if len(piece) > 1])
    w.add_token_list(tokens)
    w.add_token_scores([-1000.0] * (size - text) + [-float(i) for i in range(text)])
    w.add_token_types(types)
  else:
    merges = [pair for pair, _ in zip(bpe_merges(), range(text))]
    tokens = byte_chars() + [a + b for a, b in merges] + v.specials
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(v.pre)
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges([f"{a} {b}" for a, b in merges])
  if len(tokens) != size or len(set(tokens)) != size: raise ValueError(f"vocab: cannot make {size} different tokens")
  w.add_bos_token_id(first + v.bos)
  w.add_eos_token_id(first + v.eos)
  w.add_eot_token_id(first + v.eot)
  if name in ("gemma", "gemma4"):
    w.add_unk_token_id(3)
    w.add_pad_token_id(0)
    w.add_add_space_prefix(False)
  w.add_add_bos_token(v.add_bos)
  w.add_chat_template(v.template)
