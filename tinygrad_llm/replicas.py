"""
python -m tinygrad_llm.replicas: the server several times, on one machine or many, by Ray Serve.

`app` builds the same for Ray's own commands: serve run tinygrad_llm.replicas:app model=model.gguf replicas=2
"""
from __future__ import annotations
import argparse, importlib.util, logging, os, re, signal, sys, threading, time
from typing import Any
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.device.threads import use_threads
from tinygrad_llm.errors import InputError
from tinygrad_llm.serve import END, add_options, address, check, loaded, made, warn_of_strangers

NAME = "llm"          # of Ray's application and deployment
SPARE = 2             # requests beyond the slots that a replica may hold; all others wait in the proxy
HEALTH, LATE = 1, 30  # seconds between two questions for health, and until one without an answer counts as a failure
ENVIRONMENT = {
  "RAY_USAGE_STATS_ENABLED": "0",     # Ray reports what it runs unless it is told not to
  "RAY_AUTH_MODE": "token",           # its ports listen beyond this machine
  "RAY_DEDUP_LOGS": "0",              # else the access log lacks lines
  "GRPC_ENABLE_FORK_SUPPORT": "0"}    # forks that lower kernels do not talk to Ray
# the ways of a request to a replica: {how: Ray's router}
ROUTERS = {"session": "ray.serve.experimental.consistent_hash_router:ConsistentHashRouter", "load": None}

def _parser() -> argparse.ArgumentParser:
  parser = Parser(prog="python -m tinygrad_llm.replicas", epilog=END,
                  description="Serve a GGUF model by several processes, on one machine or many, through Ray Serve.")
  add = parser.add_argument
  add("--replicas", default="2", metavar="N", help="processes with the model, or MIN-MAX of them (default 2)")
  add("--scale-at", type=float, metavar="N",
      help="with MIN-MAX: requests for each replica, running and waiting, above which more start "
           "(default: --parallel)")
  add("--route", choices=ROUTERS, default="session",
      help="a session's requests go to one replica, or each to the less busy one of two (default session)")
  add("--gpus", type=float, default=0, metavar="N", help="GPUs of a replica, also a part of one (default 0)")
  add("--address", metavar="HOST:PORT", help="a Ray cluster that runs, or auto (default: one is started here)")
  add_options(parser)
  return parser

def _bounds(text: str) -> tuple[int, int]:
  """The least and the most replicas."""
  found = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", text)
  least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
  if not 1 <= least <= most: raise InputError(f"--replicas {text!r:.50}: give a number from 1, or two as in 1-4")
  return least, most

def parsed(argv: list[str] | None = None) -> argparse.Namespace:
  """The options, checked. InputError for a wrong one."""
  args = _parser().parse_args(argv)
  check(args)
  _, most = _bounds(args.replicas)
  if args.scale_at is not None and not args.scale_at > 0: raise InputError(f"--scale-at {args.scale_at}: give more")
  if not args.gpus >= 0: raise InputError(f"--gpus {args.gpus}: give 0 or more")
  if not args.port and args.address: raise InputError("--port 0: on a cluster give a number from 1")
  if args.threads is None: args.threads = max(1, (os.cpu_count() or 1) // most)
  if args.threads < 1: raise InputError(f"--threads {args.threads}: give 1 or more threads")
  if importlib.util.find_spec("ray") is None:
    raise InputError('replicas: ray is not installed; pip install "tinygrad_llm[ray]"')
  return args

class Served:
  """Made in each replica's process: the server's application and its model."""
  def __init__(self, args: argparse.Namespace):
    from ray import serve
    from tinygrad_llm.web.replica import Replica
    use_threads(args.threads)
    self._args, (self._service, application) = args, made(args)
    self._replica = Replica(self._service, application, serve.get_replica_context().replica_id.unique_id)

  async def __serve_build_asgi_app__(self) -> Any:
    await self._replica.load(lambda: loaded(self._args, self._service, progress=False))
    return self._replica

  async def check_health(self) -> None: self._replica.check()

  def __del__(self) -> None:
    if (replica := getattr(self, "_replica", None)) is not None: replica.close()

def deployment(args: argparse.Namespace, served: type = Served) -> Any:
  """The application of Ray Serve. served: makes the server's in a replica."""
  from ray import serve
  from ray.serve.config import AutoscalingConfig, BackpressureConfig, RequestRouterConfig
  (least, most), router = _bounds(args.replicas), ROUTERS[args.route]
  count: dict[str, Any] = {"num_replicas": least} if least == most else {"autoscaling_config": AutoscalingConfig(
    min_replicas=least, max_replicas=most, target_ongoing_requests=args.scale_at or args.parallel)}
  return serve.deployment(
    name=NAME, **count, ray_actor_options={"num_cpus": args.threads, "num_gpus": args.gpus},
    max_ongoing_requests=args.parallel + SPARE, max_queued_requests=args.queue,
    backpressure_config=BackpressureConfig(retry_after_s=1),
    request_router_config=RequestRouterConfig(request_router_class=router) if router else RequestRouterConfig(),
    graceful_shutdown_timeout_s=args.drain, graceful_shutdown_wait_loop_s=0.2, health_check_period_s=HEALTH,
    health_check_timeout_s=LATE, logging_config={"enable_access_log": False, "log_level": "WARNING"},
  )(serve.ingress()(served)).bind(args)

def app(options: dict[str, Any]) -> Any:
  """For `serve run`, `serve build` and `serve deploy`. options: this command's, such as {"max-context": 2048}."""
  argv = list[str]()
  for name, value in options.items():
    for one in value if isinstance(value, list) else [value]:
      if one is not False: argv += [f"--{name.replace('_', '-')}", *([] if one in (True, "true") else [str(one)])]
  return deployment(parsed(argv))

def _why() -> str:
  """Why no replica could be started: the last line of its error; "" if Ray does not know it."""
  from ray import serve
  found = [one.message.strip() for each in serve.status().applications.values() for one in each.deployments.values()]
  return next((re.sub(r"^[\w.]*(Error|Exception): ", "", text.splitlines()[-1]) for text in found if text), "")

class Signals:
  """SIGTERM and SIGINT: the first one is noted, once there is something to drain; any other ends the process."""
  def __init__(self) -> None:
    self.drains, self.given = False, threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, self._take)

  def _take(self, *_: Any) -> None:
    if not self.drains or self.given.is_set(): sys.exit(0)
    self.given.set()

def _say(text: str) -> None: print(text, file=sys.stderr, flush=True)

def run(args: argparse.Namespace, served: type = Served) -> int:
  """Starts Ray, or joins it, and runs until a signal; the exit code. served: see deployment."""
  for name, value in ENVIRONMENT.items(): os.environ.setdefault(name, value)
  import ray
  from ray import serve
  from tinygrad_llm.web.lifecycle import TICK, listen
  service, most = made(args)[0], _bounds(args.replicas)[1]
  if args.address is None:
    with listen(args.host, args.port) as sock: args.port = sock.getsockname()[1]
    _say(f"loading {service.name}, {args.replicas} times, with {args.threads} threads each")
    # one more than there are: a sick replica's place is taken while it still drains
    ray.init("local", include_dashboard=False, num_cpus=max(os.cpu_count() or 1, (most + 1) * args.threads),
             object_store_memory=256 << 20, logging_level=logging.ERROR)
  else: ray.init(args.address, logging_level=logging.ERROR)
  warn_of_strangers(args)
  try:
    signals = Signals()  # after Ray's own
    serve.start(http_options={"host": args.host, "port": args.port}, logging_config={"log_level": "WARNING"})
    try: serve.run(deployment(args, served), name=NAME)
    except RuntimeError as e: raise InputError(f"replicas: {_why() or e}") from e
    _say(f"{service.name} at {address(args.host, args.port)} ({args.replicas} replicas, {args.parallel} at a time in "
         "each)")
    signals.drains = True
    signals.given.wait()
    serve.delete(NAME, _blocking=False)
    while NAME in serve.status().applications: time.sleep(TICK)  # answers that run need the proxy, so it ends later
    if args.address is None: serve.shutdown()
  finally: ray.shutdown()
  return 0

def _main() -> int:
  from tinygrad_llm import replicas  # not __main__: the replicas' processes find Served by its module's name
  return replicas.run(parsed())

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
