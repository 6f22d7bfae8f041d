# SPDX-License-Identifier: Apache-2.0
"""Relays between ranks on the loopback, whose traffic can be stopped for a time, or ended. Programs find them by faults.cpp: it asks for a
relay to a port before it connects to that port."""

import contextlib
import selectors
import socket
import struct
import threading


class Proxy:
    """A thread that relays. `place`: the path of the socket on which programs ask."""

    def __init__(self, place):
        self.doors, self.bytes, self._stalled, self._ended = {}, 0, threading.Event(), False
        self._selector = selectors.DefaultSelector()
        self._asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._asking.bind(str(place))
        self._asking.listen(64)
        self._selector.register(self._asking, selectors.EVENT_READ, self._answer)
        self._pairs = {}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stall(self):
        self._stalled.set()

    def go_on(self):
        self._stalled.clear()

    def cut(self):
        """Ends every connection there is."""
        for one in list(self._pairs):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._ended = True
        self._thread.join()
        for one in [self._asking, *self._pairs, *(door for door, _ in self.doors.values())]:
            one.close()

    def _run(self):
        while not self._ended:
            if self._stalled.is_set():
                threading.Event().wait(0.005)
                continue
            for key, _ in self._selector.select(0.02):
                key.data(key.fileobj)

    def _answer(self, asking):
        one, _ = asking.accept()
        with one:
            one.settimeout(5)
            (port,) = struct.unpack("H", one.recv(2, socket.MSG_WAITALL))
            if port not in self.doors:
                door = socket.create_server(("127.0.0.1", 0))
                self.doors[port] = (door, door.getsockname()[1])
                self._selector.register(door, selectors.EVENT_READ, lambda door, to=port: self._connect(door, to))
            one.sendall(struct.pack("H", self.doors[port][1]))

    def _connect(self, door, port):
        near, _ = door.accept()
        try:
            far = socket.create_connection(("127.0.0.1", port), 5)
        except OSError:
            near.close()  # nobody listens there yet: the program tries again
            return
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._pairs[one] = other
            self._selector.register(one, selectors.EVENT_READ, self._move)

    def _move(self, one):
        other = self._pairs[one]
        try:
            data = one.recv(1 << 16)
            if data:
                other.sendall(data)
                self.bytes += len(data)
                return
            other.shutdown(socket.SHUT_WR)
        except OSError:
            with contextlib.suppress(OSError):
                other.shutdown(socket.SHUT_RDWR)
        self._selector.unregister(one)
