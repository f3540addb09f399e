"""Integers of a JSON schema get bounds where it has none: small models else write digits without end."""
from __future__ import annotations
from typing import Any

MOST = 2**53 - 1  # 16 digits, as llama.cpp's grammars allow; readers of JSON keep whole numbers up to it exactly
MAPS = ("properties", "patternProperties", "$defs", "definitions")  # keywords with schemas by name, in a list, alone
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
ALONE = ("items", "additionalProperties", "unevaluatedProperties", "contains")

def with_digits(schema: Any) -> Any:
  """A copy of the schema, where integers are below 2**53 in size unless it says how large they may be."""
  if not isinstance(schema, dict): return schema
  found = dict[str, Any](schema)
  for name, value in schema.items():
    if name in MAPS and isinstance(value, dict): found[name] = {key: with_digits(each) for key, each in value.items()}
    elif name in LISTS and isinstance(value, list): found[name] = [*map(with_digits, value)]
    elif name in ALONE: found[name] = with_digits(value)
  kind = schema.get("type")
  if not (kind == "integer" or isinstance(kind, list) and "integer" in kind) or {"enum", "const"} & {*schema}:
    return found
  low, high = (schema.get(f"m{name}", schema.get(f"exclusiveM{name}")) for name in ("inimum", "aximum"))
  if low is None and (high is None or high > -MOST): found["minimum"] = -MOST
  if high is None and (low is None or low < MOST): found["maximum"] = MOST
  return found
