"""Errors as the API gives them: {"error": {message, type, code, param}}, as OpenAI's clients read it."""
from __future__ import annotations
import re
from typing import Any
import msgspec
from msgspec import Struct
from tinygrad_llm.errors import ContextError, DeviceError, InputError

TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
         405: "invalid_request_error", 408: "timeout_error", 413: "invalid_request_error", 415: "invalid_request_error",
         501: "not_supported_error", 503: "unavailable_error"}
RETRY = 2  # seconds, of Retry-After

class ErrorFields(Struct, kw_only=True):
  """code: a word for programs. param: the request's field, if one is wrong. Some errors have more keys."""
  message: str
  type: str
  code: str | None
  param: str | None

class Error(Struct, kw_only=True):
  """The body of an answer that is an error."""
  error: ErrorFields

class ApiError(Exception):
  """
  An answer that is an error. status: HTTP's. code: a word for programs. param: the request's field, if one is wrong.

  more: other keys of the error. The headers tell clients when to try again, or not to.
  """
  def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None,
               more: dict[str, Any] | None = None, retry: bool | None = None):
    super().__init__(message)
    self.status, self.message, self.code, self.param, self.more = status, message, code, param, more or {}
    self.headers: dict[str, str] = {}
    if status == 503 or retry is not None: self.headers["x-should-retry"] = "false" if retry is False else "true"
    if status == 503 and retry is not False: self.headers["retry-after"] = str(RETRY)
    if status == 401: self.headers["www-authenticate"] = "Bearer"

  def body(self) -> dict[str, Any]:
    fields = ErrorFields(message=self.message, type=TYPES.get(self.status, "server_error"), code=self.code,
                         param=self.param)
    return {"error": msgspec.to_builtins(fields) | self.more}

FIELD = re.compile(r"([a-z_]+(?:\[\d+\])?(?:\.[a-z_]+)*): ")
RENAMED = {"stop_ids": "stop_token_ids", "json_schema": "response_format",
           "template": "chat_template_kwargs"}

def as_api_error(e: BaseException) -> ApiError:
  """An error as the caller is told of it: a wrong input by its field, anything else as the server's."""
  if isinstance(e, ApiError): return e
  if isinstance(e, ContextError): return ApiError(
    400, f"This model's maximum context length is {e.context} tokens. However, your messages resulted in {e.count} "
    "tokens. Please reduce the length of the messages.", "context_length_exceeded", "messages",
    {"n_prompt_tokens": e.count, "n_ctx": e.context})
  if isinstance(e, InputError) and not isinstance(e, DeviceError) and not str(e).startswith("engine: "):
    if not (match := FIELD.match(str(e))): return ApiError(400, str(e), "invalid_value")
    field = RENAMED.get(match[1], match[1])
    return ApiError(400, f"{field}: {str(e)[match.end():]}", "invalid_value", field)
  return ApiError(500, str(e) or type(e).__name__, "engine_error", retry=False)
