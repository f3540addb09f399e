"""/v1/embeddings and /embedding: vectors of texts."""
from __future__ import annotations
import asyncio, base64, time
from typing import Any
import numpy as np
from starlette.responses import Response
from starlette.types import Receive
from tinygrad_llm.web.api.embedding_inputs import input_ids, inputs
from tinygrad_llm.web.errors import ApiError
from tinygrad_llm.web.replies import Json, while_there
from tinygrad_llm.web.api.schemas import Embeddings, NativeEmbedding
from tinygrad_llm.web.service import Service

MOST = 2048  # texts of a request, as OpenAI has it

async def embeddings(service: Service, asked: Embeddings, receive: Receive) -> Response:
  """Vectors of length 1, as lists of numbers or as base64 of little-endian float32."""
  ids, vectors = await _vectors(service, asked.input, receive)
  if asked.dimensions not in (None, width := vectors.shape[1]):
    raise ApiError(400, f"dimensions: this model's vectors have {width}", "unsupported_parameter", "dimensions")
  def shown(vector: np.ndarray) -> Any:
    if asked.encoding_format != "base64": return vector.tolist()
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
  data = [{"object": "embedding", "index": i, "embedding": shown(vector)} for i, vector in enumerate(vectors)]
  count = sum(map(len, ids))
  return Json({"object": "list", "data": data, "model": service.name,
               "usage": {"prompt_tokens": count, "total_tokens": count}})

async def native(service: Service, asked: NativeEmbedding, receive: Receive) -> Response:
  """llama-server's form: a list of {index, embedding}, where an embedding is a list of vectors."""
  if (given := asked.content if asked.content is not None else asked.input) is None:
    raise ApiError(400, "content: it is missing", "missing_required_parameter", "content")
  _, vectors = await _vectors(service, given, receive)
  return Json([{"index": i, "embedding": [vector.tolist()]} for i, vector in enumerate(vectors)])

async def _vectors(service: Service, given: Any, receive: Receive) -> tuple[list[list[int]], np.ndarray]:
  llm, texts = service.check(), inputs(given)
  if len(texts) > MOST:
    raise ApiError(400, f"input: it has {len(texts)} texts; give at most {MOST}", "invalid_value", "input")
  if any(text == "" or text == [] for text in texts):
    raise ApiError(400, "input: a text is empty", "invalid_value", "input")
  def tokenised(text: Any) -> list[int]:
    if isinstance(text, str): llm.check_size([text])
    return input_ids(llm, text)
  ids = await asyncio.to_thread(lambda: [*map(tokenised, texts)])
  async def made() -> np.ndarray:
    found = list[np.ndarray]()
    async with service.slot() as slot:
      for one in ids:
        slot.since = time.perf_counter()
        found.append(await asyncio.to_thread(llm.embed, [one]))
    return np.concatenate(found)
  return ids, await while_there(receive, made())
