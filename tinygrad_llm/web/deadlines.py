"""HTTP connections with deadlines: uvicorn's own protocol waits for ever for headers, for bodies and for readers."""
from __future__ import annotations
import asyncio, socket
from typing import Any
import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS = 15.0  # seconds for a request's line and headers
BODY = 60.0     # seconds for its body
READER = 30.0   # seconds in which a client reads some of what waits for it

class DeadlineProtocol(H11Protocol):
  """Closes a connection whose client is too slow. The deadlines do not move with each byte that comes."""
  _timer: asyncio.TimerHandle | None = None
  _waits_for: object = None
  _reader: asyncio.TimerHandle | None = None

  def connection_made(self, transport: Any) -> None:
    super().connection_made(transport)
    # asyncio leaves this out where a listening socket does not say its protocol. Then a body, and each event of a
    # stream, waits 40 ms until the client has acknowledged what came before
    if (sock := transport.get_extra_info("socket")) is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
      sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    self._watch()

  def data_received(self, data: bytes) -> None:
    super().data_received(data)
    self._watch()

  def send_400_response(self, msg: str) -> None:
    """The rest of a body can be malformed, too, after its answer has begun. Then there is nothing left to answer."""
    if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE): super().send_400_response(msg)
    else: self.transport.close()

  def on_response_complete(self) -> None:
    super().on_response_complete()
    self._watch()

  def connection_lost(self, exc: Exception | None) -> None:
    super().connection_lost(exc)
    for timer in (self._timer, self._reader):
      if timer is not None: timer.cancel()
    self._timer = self._reader = None

  def pause_writing(self) -> None:
    super().pause_writing()
    if self._reader is None: self._reader = self.loop.call_later(READER, self.transport.abort)

  def resume_writing(self) -> None:
    super().resume_writing()
    if self._reader is not None: self._reader.cancel()
    self._reader = None

  def _watch(self) -> None:
    """Sets the deadline of what the client is to send now."""
    state = self.conn.their_state
    idle = self.timeout_keep_alive_task is not None  # between two requests: uvicorn's own timer counts
    waits_for = None if self.transport.is_closing() or idle else \
      HEADERS if state is h11.IDLE else BODY if state is h11.SEND_BODY else None
    if waits_for == self._waits_for and self._timer is not None: return
    if self._timer is not None: self._timer.cancel()
    self._waits_for, self._timer = waits_for, None
    if waits_for is not None: self._timer = self.loop.call_later(waits_for, self.transport.abort)
