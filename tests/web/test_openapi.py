"""/openapi.json: the app's routes and the structs that it decodes, and nothing else."""
import json
import re
from typing import Any

import jsonschema
import msgspec
import pytest
from starlette.testclient import TestClient
from tinygrad_llm.web.api import schemas
from tinygrad_llm.web.api.app import app
from tinygrad_llm.web.errors import ApiError
from tinygrad_llm.web.service import Service

LOCAL = "http://127.0.0.1:8080"

def client(**guard: Any) -> TestClient: return TestClient(app(Service("tiny", 2, 2, "1.2"), **guard), base_url=LOCAL)

def document(**guard: Any) -> dict[str, Any]:
  found: dict[str, Any] = client(**guard).get("/openapi.json").json()
  return found

def test_every_route_and_no_other():
  routes = {(re.sub(":path}", "}", r.path), method.lower()) for r in app(Service("tiny", 2, 2)).routes
            for method in (r.methods or ()) if method != "HEAD"}
  assert {(path, method) for path, found in document()["paths"].items() for method in found} == routes

def test_ids_differ_and_all_refs_are_there():
  found = document(keys=["k"])
  ids = [o["operationId"] for path in found["paths"].values() for o in path.values()]
  assert len({*ids}) == len(ids) and all(o["summary"] for path in found["paths"].values() for o in path.values())
  refs = {*re.findall(r'"#/components/schemas/(\w+)"', json.dumps(found))}
  assert refs == {*found["components"]["schemas"]}

@pytest.mark.parametrize("kind", [schemas.Chat, schemas.Completion, schemas.Native, schemas.Embeddings])
def test_bodies_are_what_is_decoded(kind):
  """A value of a type that the decoder refuses is refused by the schema, too, field by field, and the reverse."""
  found = document()
  schema = {"$ref": f"#/components/schemas/{kind.__name__}", "components": found["components"]}
  fields = msgspec.structs.fields(kind)
  assert {*found["components"]["schemas"][kind.__name__]["properties"]} == {f.encode_name for f in fields}
  good: dict[str, Any] = {"messages": [], "prompt": "x", "input": "x"}
  for field in fields:
    for value in (None, True, 3, 0.5, "x", [], [1], ["x"], {}, {"x": 1}, [[1, 2]], [["x"]]):
      body = good | {field.encode_name: value}
      try: schemas.decoded(json.dumps(body).encode(), kind)
      except ApiError: refused = True
      else: refused = False
      assert jsonschema.Draft202012Validator(schema).is_valid(body) != refused, (field.name, value)

@pytest.mark.parametrize("keys", [[], ["k"]])
def test_keys(keys):
  """The public paths, and no others, are without security."""
  found, asking = document(keys=keys), client(keys=keys)
  for path, methods in found["paths"].items():
    for method, operation in methods.items():
      status = asking.request(method, path.replace("{name}", "tiny"), json={}).status_code
      assert (status == 401) == ("security" in operation) == ("401" in operation["responses"]), path
      assert str(status) in operation["responses"], (path, status)

def test_streams_and_errors():
  found = document()["paths"]
  for path in ("/v1/chat/completions", "/v1/completions", "/completion"):
    answers = found[path]["post"]["responses"]
    assert {*answers["200"]["content"]} == {"application/json", "text/event-stream"}
    assert answers["400"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}
  assert [*found["/metrics"]["get"]["responses"]["200"]["content"]] == ["text/plain"]

def test_error_schema():
  found = document()["components"]
  schema = {"$ref": "#/components/schemas/Error", "components": found}
  for error in (ApiError(400, "x", "y", "z", {"n_ctx": 5}), ApiError(503, "x")):
    jsonschema.validate(error.body(), schema)
  assert not jsonschema.Draft202012Validator(schema).is_valid({"error": {"message": "x"}})

def test_other_methods_are_refused_with_the_right_ones():
  asking = client()
  for path, methods in document()["paths"].items():
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - {m.upper() for m in methods}:
      answer = asking.request(method, path, json={})
      allowed = {m.strip().lower() for m in answer.headers["allow"].split(",")} - {"head"}
      assert answer.status_code == 405 and allowed == {*methods}, (method, path)
