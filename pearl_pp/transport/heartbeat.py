"""Signs of life between all ranks, so that a wait may be long without hanging.

A rank that ends breaks its connections, and who waits for it hears of it. One that is stopped, or whose machine is
cut off, breaks nothing. A wait for its next message ends at its deadline, and may blame a rank that waited itself;
and some waits (for the next prompt, for weights) have none worth the name. Here a thread on every rank says
regularly that its process runs, whatever the main thread does, and listens for the same from all others.
"""

import threading
import time
from collections.abc import Callable

import torch

from pearl_pp.transport.base import Channel, SilentPeer, Transport, TransportError, TransportTimeout

_ALIVE, _BYE = 1, 0

# Shares of the run's timeout: a silent rank is found before a message to or from it is given up.
_INTERVAL = 0.125
_LIMIT = 0.75
_LONGEST_INTERVAL_S = 5.0


class Heartbeat:
    """Sends and expects signs of life until `stop`; the first failure goes to `on_silence`, in a thread of its own.

    Args:
        beats: connects the same ranks apart from all other messages; this thread alone uses it.
        timeout_s: a rank that is silent is found within this time.
    """

    def __init__(self, beats: Transport, timeout_s: float, on_silence: Callable[[TransportError], None]) -> None:
        self._beats = beats
        self._interval_s = min(timeout_s * _INTERVAL, _LONGEST_INTERVAL_S)
        self._limit_s = timeout_s * _LIMIT
        self._timeout_s = timeout_s
        self._on_silence = on_silence
        self._ending = threading.Event()
        self._abandoned = False
        self._heard = {rank for rank in range(beats.world_size) if rank != beats.rank}
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Collective: say goodbye, and hear all others say it."""
        self._ending.set()
        self._thread.join(self._timeout_s)

    def abandon(self) -> None:
        """Leave at once, without the others; also after `stop`, when all others have stopped."""
        self._abandoned = True
        self._ending.set()
        self._beats.abort()

    def _run(self) -> None:
        try:
            while not self._ending.wait(self._interval_s):
                self._say(_ALIVE)
                self._listen()
            if not self._abandoned:
                self._say(_BYE)
                while self._heard:
                    self._listen()
        except Exception as error:
            if self._abandoned:
                return  # whatever comes of connections that are gone
            if not isinstance(error, TransportError):
                raise
            self._on_silence(error)

    def _say(self, sign: int) -> None:
        for dst in range(self._beats.world_size):
            if dst != self._beats.rank:
                self._beats.isend(Channel.CONTROL, dst, torch.tensor([sign]))

    def _listen(self) -> None:
        """The next sign of every rank that has not said goodbye."""
        coming = {src: self._beats.irecv(Channel.CONTROL, src, (1,), torch.int64) for src in self._heard}
        for src, pending in coming.items():
            started = time.monotonic()
            try:
                if int(pending.wait(self._limit_s)) == _BYE:
                    self._heard.remove(src)
            except TransportTimeout:
                # A rank that has been stopped itself finds its deadline long past when it goes on.
                overslept = time.monotonic() - started > self._limit_s + max(1.0, self._interval_s)
                silent = self._beats.rank if overslept else src
                raise SilentPeer(self._beats.rank, silent, Channel.CONTROL, self._limit_s) from None
