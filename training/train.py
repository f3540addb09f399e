"""Trains the default model from generated text and writes it as a quantised GGUF.

python training/train.py --out tinygrad_llm/models/stories.gguf
"""
import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import distributed, multiprocessing

from model import Llama, Shape
from stories import Turn, conversations

BEGIN, USER, ASSISTANT, END = SPECIAL = ["<|begin|>", "<|user|>", "<|assistant|>", "<|end|>"]
# the word pattern that tokenizer.ggml.pre = llama-bpe stands for
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
           r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEMPLATE = ("{{ bos_token }}{% for m in messages %}{% if m['role'] in ['user', 'assistant'] %}"
            "{{ '<|' + m['role'] + '|>' + m['content'] | trim + '<|end|>' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")
Document = tuple[np.ndarray, np.ndarray]
Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def train_tokenizer(vocab: int, seed: int) -> Tokenizer:
  """Byte-level BPE over generated chats; the special tokens take the last ids."""
  tokenizer = Tokenizer(models.BPE(ignore_merges=True))
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Split(Regex(PATTERN), "isolated"),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
  tokenizer.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(vocab_size=vocab - len(SPECIAL), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                special_tokens=[], show_progress=False)
  texts = (m["content"] for chat in islice(conversations(seed), 12000) for m in chat)
  tokenizer.train_from_iterator(texts, trainer)
  tokenizer.add_special_tokens(SPECIAL)
  if tokenizer.get_vocab_size() != vocab:
    raise ValueError(f"tokenizer has {tokenizer.get_vocab_size()} tokens, not {vocab}")
  return tokenizer


def encode_chats(tokenizer: Tokenizer, chats: list[list[Turn]], context: int) -> Iterator[Document]:
  """Each chat's token ids, and whether each is learnt (the assistant's are). Exchanges that do not fit are left out."""
  encoded = iter(tokenizer.encode_batch([m["content"] for chat in chats for m in chat], add_special_tokens=False))
  begin, user, assistant, end = (tokenizer.token_to_id(t) for t in SPECIAL)
  for chat in chats:
    ids, learn, full = [begin], [False], False
    turns = [next(encoded).ids for _ in chat]
    for question, answer in zip(turns[::2], turns[1::2], strict=True):
      full = full or len(ids) + len(question) + len(answer) + 4 > context
      if not full:
        ids += [user, *question, end, assistant, *answer, end]
        learn += [False] * (len(question) + 3) + [True] * (len(answer) + 1)
    if len(ids) > 1:
      yield np.array(ids), np.array(learn)


def rows(tokenizer: Tokenizer, seed: int, length: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """Endless packed rows: tokens, targets (-100: none) and document numbers (-1: padding), each (length,)."""
  stream, pool = conversations(seed), []
  while True:
    pool += list(encode_chats(tokenizer, list(islice(stream, 512)), length))
    while len(pool) > 256:
      tokens, targets, owner = np.zeros(length, np.int64), np.full(length, -100), np.full(length, -1)
      used, number, fit = 0, 0, 0
      while fit >= 0:
        ids, learn = pool.pop(fit)
        tokens[used:used + len(ids)] = ids
        targets[used:used + len(ids) - 1] = np.where(learn[1:], ids[1:], -100)
        owner[used:used + len(ids)] = number
        used, number = used + len(ids), number + 1
        room = length - used  # next: the longest document that fits
        fit = max((i for i, doc in enumerate(pool) if len(doc[0]) <= room), key=lambda i: len(pool[i][0]), default=-1)
      yield tokens, targets, owner


def batches(tokenizer: Tokenizer, seed: int, size: int, length: int) -> Iterator[Batch]:
  """tokens, targets (size, length), mask (size, 1, length, length): a token sees its own chat up to itself."""
  stream = rows(tokenizer, seed, length)
  causal = torch.ones(length, length, dtype=torch.bool).tril()
  while True:
    tokens, targets, owner = (torch.from_numpy(np.stack(x)) for x in zip(*islice(stream, size), strict=True))
    yield tokens, targets, ((owner[:, :, None] == owner[:, None, :]) & causal)[:, None]


def export(path: Path, model: Llama, tokenizer: Tokenizer) -> None:
  """Writes a GGUF with float32 weights. q and k rows already have the order of interleaved rotary embeddings."""
  shape = model.shape
  out = gguf.GGUFWriter(path, "llama")
  out.add_name("stories")
  out.add_description("A tiny model trained on generated short stories and simple questions.")
  out.add_context_length(shape.context)
  out.add_embedding_length(shape.dim)
  out.add_block_count(shape.layers)
  out.add_feed_forward_length(shape.ffn)
  out.add_head_count(shape.heads)
  out.add_head_count_kv(shape.kv_heads)
  out.add_layer_norm_rms_eps(shape.eps)
  out.add_rope_dimension_count(shape.head_dim)
  out.add_rope_freq_base(shape.rope_base)
  out.add_vocab_size(shape.vocab)
  out.add_file_type(gguf.LlamaFileType.ALL_F32)
  ids = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
  out.add_tokenizer_model("gpt2")
  out.add_tokenizer_pre("llama-bpe")
  out.add_token_list([token for token, _ in ids])
  out.add_token_types([gguf.TokenType.CONTROL if token in SPECIAL else gguf.TokenType.NORMAL for token, _ in ids])
  out.add_token_merges([" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]])
  out.add_bos_token_id(tokenizer.token_to_id(BEGIN))
  out.add_eos_token_id(tokenizer.token_to_id(END))
  out.add_eot_token_id(tokenizer.token_to_id(END))
  out.add_add_bos_token(True)
  out.add_chat_template(TEMPLATE)
  for name, tensor in model.state_dict().items():
    out.add_tensor(name, tensor.detach().float().contiguous().numpy())
  out.write_header_to_file()
  out.write_kv_data_to_file()
  out.write_tensors_to_file()
  out.close()


def optimizers(model: Llama) -> list[torch.optim.Optimizer]:
  """Muon for the matrices of the layers, AdamW for the token table and the norms."""
  matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("blk")]
  others = [p for n, p in model.named_parameters() if p.ndim == 1 or not n.startswith("blk")]
  return [torch.optim.Muon(matrices, lr=0.002, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
          torch.optim.AdamW(others, lr=0.004, betas=(0.9, 0.98), weight_decay=0.0)]


def rate(progress: float, step: int) -> float:
  """Factor of the full learning rate: linear warm-up over 40 steps, a flat part, then half a cosine down to zero."""
  fall = min(1.0, max(0.0, (progress - 0.3) / 0.7))
  return min(1.0, (step + 1) / 40) * 0.5 * (1 + math.cos(math.pi * fall))


def loss_of(model: Llama, forward: Callable[..., torch.Tensor], batch: Batch) -> torch.Tensor:
  """Mean cross entropy in nats a learnt token."""
  tokens, targets, mask = batch
  with torch.autocast("cpu", torch.bfloat16):
    hidden = forward(tokens, mask).flatten(0, 1)
    keep = (targets.flatten() >= 0).nonzero().squeeze(1)
    logits = hidden[keep] @ model.token_embd.weight.t()
  return torch.nn.functional.cross_entropy(logits.float(), targets.flatten()[keep])


def average(model: Llama, *numbers: float) -> list[float]:
  """Averages the gradients over the workers, in place, and returns the averages of the numbers."""
  grads = [p.grad for p in model.parameters() if p.grad is not None]
  flat = torch.cat([g.flatten() for g in grads] + [torch.tensor(numbers)])
  distributed.all_reduce(flat)
  flat /= distributed.get_world_size()
  for grad, part in zip(grads, flat.split([g.numel() for g in grads] + [len(numbers)])[:-1], strict=True):
    grad.copy_(part.view_as(grad))
  return flat[-len(numbers):].tolist()


def work(rank: int, args: argparse.Namespace, rendezvous: str) -> None:
  """One worker with one thread: trains on its own stream of text, and averages gradients with the others each step."""
  distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=args.workers)
  torch.manual_seed(args.seed)
  torch.set_num_threads(1)
  shape = Shape()
  tokenizer = train_tokenizer(shape.vocab, 1001)
  model = Llama(shape)
  forward = torch.compile(model)
  optims = optimizers(model)
  full = [[g["lr"] for g in o.param_groups] for o in optims]
  stream = batches(tokenizer, args.seed + rank * 100, args.rows, shape.context)
  held = list(islice(batches(tokenizer, args.seed + 2000, args.rows, shape.context), 4))
  if rank == 0:
    print(f"{sum(p.numel() for p in model.parameters())} weights", flush=True)
  start, step, saved, progress = time.monotonic(), 0, 0.0, 0.0
  while progress < 1:
    loss = loss_of(model, forward, next(stream))
    loss.backward()
    mean, elapsed = average(model, loss.item(), time.monotonic() - start)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optim, rates in zip(optims, full, strict=True):
      for group, lr in zip(optim.param_groups, rates, strict=True):
        group["lr"] = lr * rate(progress, step)
      optim.step()
      optim.zero_grad()
    step += 1
    progress = max(step / args.steps, elapsed / 60 / args.minutes)
    if rank > 0:
      continue
    if step % 10 == 0:
      tokens = step * args.workers * args.rows * shape.context
      print(f"step {step} tokens {tokens} loss {mean:.3f} seconds {elapsed:.0f} done {progress:.3f}", flush=True)
    if step % 250 == 0 or progress >= 1:
      with torch.no_grad():
        losses = [loss_of(model, model, batch).item() for batch in held]
      print(f"step {step} held-out loss {sum(losses) / len(losses):.4f}", flush=True)
    if elapsed - saved > 240 or progress >= 1:
      export(args.out.with_suffix(".f32.gguf"), model, tokenizer)
      saved = elapsed


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--out", type=Path, required=True)
  parser.add_argument("--steps", type=int, default=1600)
  parser.add_argument("--minutes", type=float, default=math.inf, help="end after this time instead, if it comes first")
  parser.add_argument("--workers", type=int, default=2, help="processes; the result depends on their number")
  parser.add_argument("--rows", type=int, default=5, help="rows of one context length in a worker's batch")
  parser.add_argument("--seed", type=int, default=1)
  args = parser.parse_args()
  args.out.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory() as folder:
    multiprocessing.spawn(work, (args, f"{folder}/rendezvous"), args.workers)
  plain = args.out.with_suffix(".f32.gguf")
  subprocess.run([sys.executable, "-m", "tinygrad_llm.quantize", plain, args.out, "Q4_K_M"], check=True)
  plain.unlink()
  print(f"{args.out}: {args.out.stat().st_size} bytes", flush=True)


if __name__ == "__main__":
  main()
