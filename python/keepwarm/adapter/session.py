"""One namespace on one memory, for one engine: found in the background, found again by itself.

    construction ──► CONNECTING ──► ATTACHED ──node goes──► (calls miss) ──► ATTACHED
                        ▲  │ refused, unreachable: `problem` says why, tried again
                        └──┘
    move() ──► a private namespace of this process, and back to CONNECTING

Whatever waits for a network does so on one daemon thread. Everybody else reads one immutable
snapshot (`Now`), so that namespace, space and generation always belong together.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import keepwarm
from keepwarm.adapter.failed import FailedKeys
from keepwarm.adapter.reasons import Recomputed
from keepwarm.adapter.settings import Settings
from keepwarm.adapter.threads import Sayer, start, survives_fork
from keepwarm.client import Memory, Space
from keepwarm.config import find_credentials, parse_addresses
from keepwarm.errors import AttachError, ClosedError
from keepwarm.identity import Namespace, NamespaceFields

CONNECT_S = 1.0
RETRY_S = 0.5
RETRY_S_MAX = 15.0
LOOK_S = 1.0


class Now(NamedTuple):
    """What holds together: whose keys, where to, and since which move."""

    namespace: Namespace
    space: Space | None
    generation: int


class Session:
    """See the module. After construction nothing raises, and only `close` waits."""

    def __init__(
        self,
        settings: Settings,
        fields: NamespaceFields,
        *,
        connect: Callable[..., Memory] = keepwarm.connect,
        clock: Callable[[], float] = time.monotonic,
        retry_s: float = RETRY_S,
    ) -> None:
        """Raises `ConfigError` or `IdentityError` for what cannot be right; asks no node.

        The tenant is that of the settings, whatever `fields` say.
        """
        parse_addresses(settings.address)
        find_credentials(settings.credentials)
        self.settings = settings
        self._fields: dict[str, Any] = {**fields, "tenant": settings.tenant}
        self._now = Now(self._named(self._fields), None, 0)
        self._connect = connect
        self._retry_s = retry_s
        self._say = Sayer(clock)
        self.failed = FailedKeys(clock)
        """Keys of this namespace that nobody should be promised yet."""
        self.memory: Memory | None = None
        """What the thread has connected."""
        self.problem: str | None = "not connected yet"
        """Why calls miss, if they must; None: the node has accepted the namespace."""
        self.refused = False
        """Whether the node is there and does not want this namespace, or this client."""
        self.moves: list[str] = []
        self.left: list[str] = []
        """Fingerprints of the namespaces before this one, the latest of them."""
        self.about: dict[str, str] = {"connector": str(self._fields["connector"])}
        """What `keepwarm_connector_info` says; a connector adds its load_failure_policy."""
        self._closing = False
        self._birth()
        survives_fork(self)
        self.ensure()

    def _named(self, fields: dict[str, Any]) -> Namespace:
        return Namespace(secret=self.settings.secret, **fields)

    def _birth(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def after_fork(self) -> None:
        """In a child: a thread of its own when it is needed; the memory finds its own way."""
        self._birth()

    @property
    def now(self) -> Now:
        """Namespace, space and generation, as they belong together."""
        return self._now

    @property
    def namespace(self) -> Namespace:
        """Whose keys to ask for and to store."""
        return self._now.namespace

    @property
    def space(self) -> Space | None:
        """None until a memory has been connected and the namespace attached."""
        return self._now.space

    @property
    def generation(self) -> int:
        """Grows with each move; work of an older one is shed."""
        return self._now.generation

    def space_of(self, generation: int) -> Space | None:
        """The space, if it is still that of this generation and known."""
        now = self._now
        return now.space if now.generation == generation else None

    def unready(self) -> Recomputed:
        """Why there is no space: the reason of a miss without asking."""
        return Recomputed.IDENTITY if self.refused else Recomputed.STORE_DOWN

    def ensure(self) -> None:
        """Starts the thread, if this process has none."""
        if self._thread is None and not self._closing:
            with self._lock:
                if self._thread is None:
                    self._thread = start("session", self._run)

    def move(self, why: str, private: str | None = None, generation: int | None = None) -> str:
        """To a private namespace: what was stored may not be what this engine now computes.

        Nothing is restored but what this engine stores from now on. An operator who names the
        weights' version, or bumps the epoch, and starts the engine again gets back to the others.
        An engine of several processes moves all of them to what the first move returned, and to its
        generation.
        """
        with self._lock:
            self.left = [*self.left[-15:], self.namespace.fingerprint.hex()]
            private = private or f"private:{os.getpid()}:{secrets.token_hex(16)}"
            self._fields = {**self._fields, "weights": private}
            generation = self._now.generation + 1 if generation is None else generation
            self._now = Now(self._named(self._fields), None, generation)
            self.failed.clear()
            self.moves = [*self.moves[-15:], why]
        self._say.say(
            "move",
            f"{why}: this engine now keeps a private namespace (move "
            f"{generation}); name the weights' version and start it again to share",
        )
        self._wake.set()
        self.ensure()
        return private

    def close(self, within_s: float = 1.0) -> None:
        """Ends thread and memory; waits for them at most this long. Twice is harmless."""
        self._closing = True
        self._now = self._now._replace(space=None)
        self.problem = "closed"
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(within_s)

    # Below this line everything runs on the session's own thread.

    def _run(self) -> None:
        pause_s = self._retry_s
        while not self._closing:
            self._wake.clear()
            try:
                ready = self._step()
            except Exception as error:  # whatever it is, the engine must not see it
                ready = False
                self._trouble(f"{type(error).__name__}: {error}", refused=False)
            pause_s = self._retry_s if ready else min(2 * pause_s, RETRY_S_MAX)
            self._wake.wait(LOOK_S if ready else pause_s)
        memory, self.memory = self.memory, None
        if memory is not None:
            memory.close()

    def _step(self) -> bool:
        """One look: connects, attaches, or sees how it stands. True: nothing more to do now."""
        if self.memory is None:
            try:
                self.memory = self._connect(
                    self.settings.address,
                    connections_max=self.settings.connections_max,
                    deadline_s=CONNECT_S,
                    transport=self.settings.transport,
                    credentials=self.settings.credentials,
                )
            except keepwarm.NodeError as error:
                self._trouble(str(error), refused=True)
                return False
        now = self._now
        if now.space is None and not self._attach(self.memory, now):
            return False
        return self._look()

    def _attach(self, memory: Memory, now: Now) -> bool:
        try:
            space = memory.attach(
                now.namespace,
                # A private namespace has no history: an epoch of another one says nothing there.
                self.settings.epoch if not now.generation else None,
                CONNECT_S,
                ttl=self.settings.ttl,
                priority=self.settings.priority,
            )
        except AttachError as error:
            self._trouble(str(error), refused=True)
            return False
        with self._lock:
            if self._now is now and not self._closing:
                self._now = now._replace(space=space)
        return True

    def _look(self) -> bool:
        memory, space = self.memory, self._now.space
        if memory is None or space is None:
            return False
        try:
            health = memory.health()
        except ClosedError:
            return False
        if space.problem:
            self._trouble(space.problem, refused=True)
        elif health["state"] != "up":
            why = health.get("last_error") or "no node answers"
            self._trouble(f"the node is {health['state']}: {why}", refused=False)
        elif self.problem is not None and not self._closing:
            self.problem, self.refused = None, False
            self._say.say(
                "state", f"joined {health.get('node')} by {health['transport']}", logging.INFO
            )
        return True

    def _trouble(self, text: str, refused: bool) -> None:
        if self._closing:
            return
        self.problem, self.refused = text, refused
        self._say.say("state", f"nothing is restored for now: {text}")
