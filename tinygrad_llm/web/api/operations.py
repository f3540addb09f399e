"""Facts about the server itself, for operators and clients: health, models, metrics, version."""
from __future__ import annotations
from typing import Any
from starlette.responses import Response
from tinygrad_llm.web.errors import ApiError
from tinygrad_llm.web.replies import Json
from tinygrad_llm.web.service import Service

async def health(service: Service) -> Response:
  """200 if answers can be asked for, else 503; the status is ok, loading, draining, stuck or dead."""
  status = service.health()
  body: dict[str, Any] = {"status": status, "running": service.running, "waiting": service.waiting}
  if status == "ok": return Json(body)
  if status == "loading": body["loading"] = service.loading.told()
  text = {"loading": "Loading model", "draining": "The server is about to end",
          "stuck": "The engine makes no progress"}.get(status, f"The engine has failed: {service.error}")
  error = ApiError(503, text, status, retry=status != "dead")
  return Json(body | error.body(), 503, error.headers)

async def models(service: Service) -> Response:
  """The one model that there is."""
  return Json({"object": "list", "data": [model_of(service)]})

async def model(service: Service, name: str) -> Response:
  """The model, if that is its name."""
  if name != service.name: raise ApiError(404, f"The model {name!r:.100} does not exist; this server has "
                                          f"{service.name!r}", "model_not_found", "model")
  return Json(model_of(service))

def model_of(service: Service) -> dict[str, Any]:
  found = {"id": service.name, "object": "model", "created": service.created, "owned_by": "tinygrad_llm"}
  if (llm := service.llm) is None: return found
  return found | {"max_model_len": llm.max_context, "meta": {
    "n_vocab": llm.config.vocab_size, "n_ctx": llm.max_context, "n_ctx_train": llm.config.context_length,
    "n_embd": llm.config.dim, "n_layer": llm.config.n_layers, "size": llm.memory()["weights"],
    "architecture": llm.config.arch}}

async def metrics(service: Service) -> Response:
  """Counts and times, as Prometheus reads them."""
  return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8",
                  headers={"Process-Start-Time-Unix": str(service.created)})

async def version(service: Service) -> Response:
  """The version of this server."""
  return Json({"version": service.version})
