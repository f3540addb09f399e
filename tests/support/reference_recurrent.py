"""
Recurrent mixers in float64, one token at a time: a short convolution (https://arxiv.org/abs/2511.23404), the gated
delta rule (https://arxiv.org/abs/2412.06464), Kimi Delta Attention (https://arxiv.org/abs/2510.26692) and Mamba-2
(https://arxiv.org/abs/2405.21060). Every mixer maps x (T, dim), normalised, to (T, dim).
"""
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING: from tests.support.reference import Reference


def sigmoid(x: np.ndarray) -> np.ndarray: return 1 / (1 + np.exp(-x))

def silu(x: np.ndarray) -> np.ndarray: return x * sigmoid(x)

def softplus(x: np.ndarray) -> np.ndarray: return np.logaddexp(x, 0)

def unit(ref: "Reference", x: np.ndarray) -> np.ndarray:
  """Vectors of length 1 along the last axis, but for epsilon."""
  return x / np.sqrt((x * x).sum(-1, keepdims=True) + ref.eps)

def convolve(ref: "Reference", rows: np.ndarray, name: str) -> np.ndarray:
  """rows (T, channels) -> (T, channels): each channel's filter over this and the last positions, oldest first."""
  filters = ref.w[name + ".weight"]
  filters = filters.reshape(-1, filters.shape[-1])  # (channels, taps)
  seen, out = np.zeros((filters.shape[1] - 1, len(filters))), []
  for row in rows:
    seen = np.concatenate([seen, row[None]])  # (taps, channels)
    out.append((seen * filters.T).sum(0))
    seen = seen[1:]
  return np.stack(out) + ref.w.get(name + ".bias", 0)

def delta_rule(q: np.ndarray, k: np.ndarray, v: np.ndarray, decay: np.ndarray, beta: np.ndarray) -> np.ndarray:
  """q, k (T, H, n), v (T, H, m), decay (T, H, n) or (T, H, 1), beta (T, H) -> (T, H, m)."""
  state, out = np.zeros((q.shape[1], q.shape[2], v.shape[2])), []
  for t in range(len(q)):
    state = state * decay[t][..., None]
    change = beta[t][:, None] * (v[t] - np.einsum("hnm,hn->hm", state, k[t]))
    state = state + np.einsum("hn,hm->hnm", k[t], change)
    out.append(np.einsum("hnm,hn->hm", state, q[t]) / np.sqrt(q.shape[2]))
  return np.stack(out)

def shortconv(ref: "Reference", x: np.ndarray, layer: int) -> np.ndarray:
  name = f"blk.{layer}.shortconv."
  before, after, rows = np.split(ref.linear(x, name + "in_proj"), 3, -1)
  return ref.linear(after * convolve(ref, before * rows, name + "conv"), name + "out_proj")

def delta(ref: "Reference", x: np.ndarray, layer: int) -> np.ndarray:
  name, T, size = f"blk.{layer}.", len(x), int(ref.param("ssm.state_size"))
  keys, values = int(ref.param("ssm.group_count")), int(ref.param("ssm.time_step_rank"))
  ratio = values // keys
  if name + "ssm_in.weight" in ref.w:  # by key head: query, key, its values, their gates
    rows = ref.linear(x, name + "ssm_in").reshape(T, keys, -1)
    parts = np.split(rows, np.cumsum([size, size, ratio * size]), -1)
    *qkv, z = (part.reshape(T, -1) for part in parts)
    rows = np.concatenate(qkv, -1)
  else: rows, z = ref.linear(x, name + "attn_qkv"), ref.linear(x, name + "attn_gate")
  rows = silu(convolve(ref, rows, name + "ssm_conv1d"))
  q, k, v = (part.reshape(T, -1, size) for part in np.split(rows, [keys * size, 2 * keys * size], -1))
  if ref.arch == "qwen3next":  # by key head: beta and alpha of its values
    beta, alpha = (part.reshape(T, -1) for part in np.split(ref.linear(x, name + "ssm_ba").reshape(T, keys, -1), 2, -1))
    key_of = np.arange(values) // ratio
  else:
    beta, alpha = ref.linear(x, name + "ssm_beta"), ref.linear(x, name + "ssm_alpha")
    key_of = np.arange(values) % keys
  decay = np.exp(ref.w[name + "ssm_a"] * softplus(alpha + ref.w[name + "ssm_dt.bias"]))
  y = delta_rule(unit(ref, q)[:, key_of], unit(ref, k)[:, key_of], v, decay[..., None], sigmoid(beta))
  y = ref.norm(y, name + "ssm_norm.weight").reshape(T, -1) * silu(z)
  return ref.linear(y, name + "ssm_out")

def kda(ref: "Reference", x: np.ndarray, layer: int) -> np.ndarray:
  name, T, size = f"blk.{layer}.", len(x), int(ref.param("kda.head_dim"))
  q, k, v = (silu(convolve(ref, ref.linear(x, f"{name}attn_{part}"), f"{name}ssm_conv1d_{part}")).reshape(T, -1, size)
             for part in "qkv")
  f, gate = (ref.linear(ref.linear(x, f"{name}ssm_{part}_a"), f"{name}ssm_{part}_b") for part in "fg")
  rate = ref.w[name + "ssm_a"].reshape(-1, 1)  # (heads, 1)
  decay = np.exp(rate * softplus(f + ref.w[name + "ssm_dt.bias"]).reshape(T, -1, size))
  y = delta_rule(unit(ref, q), unit(ref, k), v, decay, sigmoid(ref.linear(x, name + "ssm_beta")))
  y = ref.norm(y, name + "ssm_norm.weight").reshape(T, -1) * sigmoid(gate)
  return ref.linear(y, name + "attn_output")

def mamba2(ref: "Reference", x: np.ndarray, layer: int) -> np.ndarray:
  name, T = f"blk.{layer}.ssm_", len(x)
  inner, heads, groups, size = (int(ref.param(f"ssm.{key}")) for key in
                                ("inner_size", "time_step_rank", "group_count", "state_size"))
  z, rows, dt = np.split(ref.linear(x, name + "in"), [inner, 2 * inner + 2 * groups * size], -1)
  rows = silu(convolve(ref, rows, name + "conv1d"))
  u, b, c = np.split(rows, [inner, inner + groups * size], -1)
  u, group_of = u.reshape(T, heads, -1), np.arange(heads) // (heads // groups)
  b, c = (part.reshape(T, groups, size)[:, group_of] for part in (b, c))  # (T, heads, size)
  dt = softplus(dt + ref.w[name + "dt.bias"])
  decay = np.exp(dt * ref.w[name + "a"][:, 0])
  state, y = np.zeros((heads, u.shape[2], size)), np.zeros_like(u)
  for t in range(T):
    state = state * decay[t][:, None, None] + np.einsum("hm,hn->hmn", u[t] * dt[t][:, None], b[t])
    y[t] = np.einsum("hmn,hn->hm", state, c[t]) + ref.w[name + "d"] * u[t]
  y = y.reshape(T, -1) * silu(z)
  if name + "norm.weight" in ref.w: y = ref.norm(y.reshape(T, groups, -1), name + "norm.weight").reshape(T, -1)
  return ref.linear(y, name + "out")
