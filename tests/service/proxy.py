"""A bad network: a TCP proxy that drops, delays, throttles, cuts, freezes and repeats bytes.

Real sockets, in a thread of its own. It knows nothing of what it carries.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, TypeAlias

#: Up is from those who dial to the controller.
Way: TypeAlias = Literal["up", "down"]

_READ = 1 << 14  # bytes
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with a reset, and lose what is under way


@dataclass(slots=True, eq=False)
class Link:
    """One connection through the proxy: both of its sockets."""

    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    is_frozen: bool = False

    def reset(self) -> None:
        for writer in self.writers:
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, _RESET
                )
            writer.transport.abort()

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


@dataclass(slots=True)
class Planned:
    """Something that happens when so many more bytes have gone one way."""

    kind: Literal["cut", "double"]
    way: Way
    num_bytes: int  # still to go
    length: int = 0  # of what is said twice


class Proxy:
    """Carries bytes to a port of this machine and back, as badly as it is told to."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._links: set[Link] = set()
        self._plans: list[Planned] = []
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._ready = threading.Event()
        self.port = 0
        self.delay_seconds = 0.0
        self.bytes_per_second: float | None = None
        self.refuses = False  # whoever dials now is reset at once
        self.num_connections = 0
        self.num_bytes: dict[Way, int] = {"up": 0, "down": 0}
        self.happened: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True, name="proxy")
        self._thread.start()
        self._ready.wait()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # ---- faults -------------------------------------------------------------------------------

    def drop(self) -> None:
        """Reset every connection there is."""

        def reset() -> None:
            for link in self._links:
                link.reset()
            self._note("drop", len(self._links))

        self._do(reset)

    def freeze(self) -> None:
        """Make every connection half-open for good: it stays, and nothing comes through it."""

        def freeze() -> None:
            for link in self._links:
                link.is_frozen = True
            self._note("freeze", len(self._links))

        self._do(freeze)

    def cut_after(self, num_bytes: int, way: Way) -> None:
        """Reset the connection that carries the so-many-th byte from now on."""
        self._do(lambda: self._plans.append(Planned("cut", way, num_bytes)))

    def double_after(self, num_bytes: int, way: Way, length: int = 64) -> None:
        """Say the last `length` bytes twice when so many have gone."""
        self._do(lambda: self._plans.append(Planned("double", way, num_bytes, length)))

    def calm(self) -> None:
        """Be a good network from now on; what is frozen stays so."""
        self.delay_seconds, self.bytes_per_second, self.refuses = 0.0, None, False
        self._do(self._plans.clear)

    def close(self) -> None:
        self._do(self._over.set)
        self._thread.join()

    # ---- inside -------------------------------------------------------------------------------

    def _do(self, work: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(work)

    def _note(self, kind: str, num_links: int) -> None:
        if num_links:
            self.happened.append(kind)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        for link in self._links:
            link.reset()
        await asyncio.sleep(0.01)  # for the sockets to be closed

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            self._note("refuse", 1)
            Link((writer, writer)).reset()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            writer.transport.abort()
            return
        self.num_connections += 1
        link = Link((writer, far_writer))
        self._links.add(link)
        try:
            await asyncio.gather(
                self._carry(link, reader, far_writer, "up"),
                self._carry(link, far_reader, writer, "down"),
            )
        finally:
            self._links.discard(link)
            link.close()

    async def _carry(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_READ):
                await self._hold_up(len(data))
                if link.is_frozen:
                    continue
                data, cut = self._altered(data, way)
                self.num_bytes[way] += len(data)
                writer.write(data)
                await writer.drain()
                if cut:
                    link.reset()
                    return
        if not link.is_frozen:
            link.close()

    async def _hold_up(self, num_bytes: int) -> None:
        seconds = self.delay_seconds
        if self.bytes_per_second is not None:
            seconds += num_bytes / self.bytes_per_second
        if seconds:
            self._note("delay", 1)
            await asyncio.sleep(seconds)

    def _altered(self, data: bytes, way: Way) -> tuple[bytes, bool]:
        """Return what of this goes on, and whether the connection is cut behind it."""
        for plan in [plan for plan in self._plans if plan.way == way]:
            if plan.num_bytes > len(data):
                plan.num_bytes -= len(data)
                continue
            self._plans.remove(plan)
            self.happened.append(plan.kind)
            before, after = data[: plan.num_bytes], data[plan.num_bytes :]
            if plan.kind == "cut":
                return before, True
            return before + before[-plan.length :] + after, False
        return data, False


class Storm:
    """Does one thing after another to some proxies, the same for the same seed, until `end`."""

    def __init__(self, proxies: Sequence[Proxy], seed: int, every_seconds: float) -> None:
        self._proxies = proxies
        self._chance = random.Random(seed)
        self._every_seconds = every_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._rage, daemon=True, name="storm")
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        for proxy in self._proxies:
            proxy.calm()

    def _rage(self) -> None:
        chance = self._chance
        while not self._over.wait(chance.uniform(0.5, 1.5) * self._every_seconds):
            proxy = chance.choice(self._proxies)
            way: Way = chance.choice(("up", "down"))
            num_bytes = chance.randrange(1, 300_000)
            proxy.calm()
            match chance.choice(("drop", "freeze", "cut", "double", "delay", "slow", "refuse")):
                case "drop":
                    proxy.drop()
                case "freeze":
                    proxy.freeze()
                case "cut":
                    proxy.cut_after(num_bytes, way)
                case "double":
                    proxy.double_after(num_bytes, way, chance.randrange(1, 2000))
                case "delay":
                    proxy.delay_seconds = chance.uniform(0.0, 0.05)
                case "slow":
                    proxy.bytes_per_second = chance.uniform(3e5, 3e6)
                case "refuse":
                    proxy.refuses = True
                    proxy.drop()
