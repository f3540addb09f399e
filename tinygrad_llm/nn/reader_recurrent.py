"""Reads which layers are recurrent, and the configuration of their mixers."""
from __future__ import annotations
import numpy as np
from tinygrad_llm.nn.keys import Keys
from tinygrad_llm.nn.layers import DeltaConfig, Mamba2Config

def intervals(keys: Keys, n: int) -> list[bool]:
  """Which of n layers are recurrent: the file's list says it, or it is all but each p-th."""
  key, period = "attention.recurrent_layers", keys.size("full_attention_interval", 4)
  if (listed := keys.file.kv.get(f"{keys.prefix}.{key}")) is None: return [(i + 1) % period != 0 for i in range(n)]
  if not isinstance(listed, np.ndarray) or listed.dtype.kind not in "biu" or len(listed) < n:
    keys.fail(key, f"it should say of each of {n} layers whether it is recurrent")
  return [bool(x) for x in listed[:n]]

def delta(keys: Keys, grouped: bool) -> DeltaConfig:
  k_heads, v_heads, head_dim = (keys.size(f"ssm.{x}") for x in ("group_count", "time_step_rank", "state_size"))
  if v_heads % k_heads: keys.fail("ssm.time_step_rank", f"{k_heads} key heads do not divide {v_heads} value heads")
  if (inner := keys.size("ssm.inner_size", v_heads * head_dim)) != v_heads * head_dim:
    keys.fail("ssm.inner_size", f"{inner} is not {v_heads} heads of ssm.state_size {head_dim}")
  return DeltaConfig(k_heads, v_heads, head_dim, _taps(keys), grouped)

def kda(keys: Keys, heads: int) -> DeltaConfig:
  """Kimi Delta Attention, which has as many heads as attention."""
  return DeltaConfig(heads, heads, keys.size("kda.head_dim"), _taps(keys), per_channel=True)

def mamba2(keys: Keys) -> Mamba2Config:
  inner, heads, groups = (keys.size(f"ssm.{x}") for x in ("inner_size", "time_step_rank", "group_count"))
  if inner % heads: keys.fail("ssm.time_step_rank", f"{heads} heads do not divide ssm.inner_size {inner}")
  if heads % groups: keys.fail("ssm.group_count", f"{groups} does not divide {heads} heads")
  return Mamba2Config(heads, inner // heads, groups, keys.size("ssm.state_size"), _taps(keys))

def _taps(keys: Keys) -> int: return keys.size("ssm.conv_kernel", low=2, high=64)
