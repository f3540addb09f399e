"""
BEAM's results are cached per set of patches: what was found is only replayed under the patches it was found with.

Why: the key of BEAM's results on disk has the kernel and the device, but neither the actions that were searched nor
  any patch, so a search under other patches silently replays old winners.
How: the key carries the enabled patches and their code, in a table of its own: stock tinygrad's has no column for them,
  and would find what was searched under any patches.
Numbers: none, it is a matter of being right.
Upstream: not sent; the list of actions would belong into the key there.
"""
from typing import Any
from tinygrad.codegen.opt import search
from tinygrad_llm.patches import patch_set

SEAMS = {
  "tinygrad.codegen.opt.search:beam_search": "eb7e87ae833b",
}

_get, _put = search.diskcache_get, search.diskcache_put

def _key(key: dict[str, Any]) -> dict[str, Any]: return {**key, "patches": patch_set()}
def diskcache_get(table: str, key: dict[str, Any]) -> Any: return _get(f"{table}_patched", _key(key))
def diskcache_put(table: str, key: dict[str, Any], value: Any, prepickled: bool = False) -> Any:
  return _put(f"{table}_patched", _key(key), value, prepickled)

def install() -> None:
  search.diskcache_get, search.diskcache_put = diskcache_get, diskcache_put  # type: ignore[assignment]
