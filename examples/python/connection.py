"""Connections to Redis, with the standard library only."""

import hashlib
import socket
import threading


class RedisFailure(Exception):
    """The server does not answer, or refuses a command."""


class RedisRefusal(RedisFailure):
    """The server refuses a command; the first word says why."""


class Connection:
    def __init__(self, address, timeout=1.0):
        host, port = address.rsplit(":", 1)
        try:
            self.socket = socket.create_connection((host, int(port)), timeout)
        except OSError as error:
            raise RedisFailure(f"{address}: {error}") from error
        self.file = self.socket.makefile("rb")

    def call(self, *command):
        """Sends a command. An error reply is returned, not raised: the connection is good."""
        parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
        head = b"*%d\r\n" % len(parts)
        try:
            self.socket.sendall(head + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
            return self.reply()
        except OSError as error:
            raise RedisFailure(str(error)) from error

    def wait(self):
        """Waits for a message, however long."""
        self.socket.settimeout(None)
        try:
            return self.reply()
        except OSError as error:
            raise RedisFailure(str(error)) from error

    def reply(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise RedisFailure("the server does not answer")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            return RedisRefusal(rest.decode())
        if kind == b":":
            return int(rest)
        if int(rest) < 0:
            return None
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))]
        data = self.file.read(int(rest) + 2)
        if len(data) < int(rest) + 2:
            raise RedisFailure("the server does not answer")
        return data[:-2]


class Server:
    """Idle connections for the threads of a process, and the Lua files."""

    NAMES = ("acquire", "renew", "fill", "abandon", "invalidate", "announce", "positions")

    def __init__(self, address, folder):
        self.address, self.lock, self.idle = address, threading.Lock(), []
        self.scripts = {name: (folder / f"{name}.lua").read_bytes() for name in self.NAMES}

    def script(self, name, names, *arguments):
        source = self.scripts[name]
        rest = (len(names), *names, *arguments)
        try:
            return self.call(b"EVALSHA", hashlib.sha1(source).hexdigest(), *rest)
        except RedisRefusal as failure:
            if not str(failure).startswith("NOSCRIPT"):
                raise
        return self.call(b"EVAL", source, *rest)

    def call(self, *command):
        with self.lock:
            connection = self.idle.pop() if self.idle else None
        connection = connection or Connection(self.address)
        reply = connection.call(*command)
        with self.lock:
            self.idle.append(connection)
        if isinstance(reply, RedisRefusal):
            raise reply
        return reply
