"""
Worker process that renders the chat templates of one model. chat_template.py starts it.

A template comes from an untrusted file. jinja2's sandbox keeps it from reaching Python's internals, but does not bound
time and memory: `{{ 'a' * 10**10 }}`, `{{ 9**9**9 }}`, nested loops, a parser stack overflow. The operating system
does: a timer's signal ends this process wherever it is, also inside a C function, and a limit bounds its address space.
The timer counts processor time, because on a busy machine an honest template takes long, too.

Protocol, one line of JSON each way. The first request is {"templates": {name: source}, "variables": {..}}; its answer
is {}. Each further request is {"name": .., "variables": {..}}; its answer is {"text": ..} or {"error": .., "failed":
..}. "failed" is "messages" if the template refuses the messages by raise_exception, "source" if it can render no
messages, and "" if that is not known. Without "variables" in the request, the text is the names of the variables that
the template reads. The worker ends with its input.

Only the standard library and jinja2 are imported, so that the worker starts in 0.1 s.
"""
import contextlib, datetime, functools, json, resource, signal, sys
from collections.abc import Callable
from typing import Any
import jinja2, jinja2.ext, jinja2.meta, jinja2.nodes, jinja2.parser, jinja2.sandbox

SECONDS, MEMORY, CHARACTERS = 1.5, 512 << 20, 16 << 20   # processor time, address space, characters of a result

class Generation(jinja2.ext.Extension):
  """`{% generation %}..{% endgeneration %}` marks an assistant's words for training. Here it yields the text inside."""
  tags = {"generation"}

  def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
    next(parser.stream)
    return parser.parse_statements(("name:endgeneration",), drop_needle=True)

class Refused(jinja2.TemplateError): pass

def raise_exception(message: str) -> None: raise Refused(message)

def strftime_now(form: str) -> str: return datetime.datetime.now().strftime(form)

def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None,
           sort_keys: bool = False) -> str:
  """JSON as in transformers: unlike jinja2's own filter, it leaves `<`, `>`, `&` and `'` as they are."""
  return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

def environment() -> jinja2.Environment:
  """The jinja2 environment that templates expect: the names and settings of transformers' `apply_chat_template`."""
  env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                     extensions=[Generation, jinja2.ext.loopcontrols])
  env.filters["tojson"] = tojson
  env.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
  return env

def answer(render: Callable[[dict[str, Any]], str], request: dict[str, Any]) -> dict[str, str]:
  """The answer to a request, whatever the template does: {"text": ..} or {"error": .., "failed": ..}."""
  def error(text: str, failed: str = "source") -> dict[str, str]: return {"error": text[:1000], "failed": failed}
  try:
    if len(text := render(request)) <= CHARACTERS: return {"text": text}
    return error(f"it made {len(text)} characters, more than {CHARACTERS}")
  except MemoryError:
    return error(f"it needs more than {MEMORY >> 20} MiB")
  except RecursionError:
    return error("it recurses too deeply")
  except jinja2.TemplateSyntaxError as e:
    return error(f"line {e.lineno}: {e.message}")
  except Refused as e:
    return error(str(e), "messages")
  except jinja2.TemplateError as e:
    return error(str(e), "")
  except Exception as e:
    return error(f"{type(e).__name__}: {e}", "")

def main() -> None:
  signal.signal(signal.SIGINT, signal.SIG_IGN)   # Ctrl-C is for the program that started this one
  signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the parent may have passed on another handling
  signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
  for limit, value in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0)):
    with contextlib.suppress(ValueError, OSError): resource.setrlimit(limit, (value, value))
  env, setup = environment(), json.loads(sys.stdin.readline())
  compiled = functools.cache(lambda name: env.from_string(setup["templates"][name]))
  def render(request: dict[str, Any]) -> str:
    if "variables" not in request:
      return " ".join(jinja2.meta.find_undeclared_variables(env.parse(setup["templates"][request["name"]])))
    return compiled(request["name"]).render(setup["variables"] | request["variables"])
  print("{}", flush=True)
  for line in sys.stdin:
    signal.setitimer(signal.ITIMER_PROF, SECONDS)   # SIGPROF has no handler: it ends the process
    reply = json.dumps(answer(render, json.loads(line)))
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(reply, flush=True)

if __name__ == "__main__": main()
