"""Connections to Redis, with the standard library only."""

import hashlib
import socket
import threading


class RedisFailure(Exception):
    """The server does not answer, or refuses a command."""


class RedisRefusal(RedisFailure):
    """The server refuses a command; the first word says why."""

    REMEDIES = {
        "NOAUTH": "this client sends no password, and its `Connection` has to send AUTH",
        "NOPERM": 'the user needs the rights on the page "Operating Redis"',
        "MOVED": "this is a node of a cluster: this client needs one server",
    }

    def __init__(self, said):
        remedy = self.REMEDIES.get(said.split(" ")[0])
        super().__init__(f"{said}; {remedy}" if remedy else said)


class ConnectionLost(RedisFailure):
    """The connection has ended, or leads to a replica: a new one may lead to the primary."""


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
            reply = self.reply()
        except ConnectionError as error:
            raise ConnectionLost(str(error)) from error
        except OSError as error:
            raise RedisFailure(str(error)) from error
        if isinstance(reply, RedisRefusal) and "READONLY" in str(reply):
            raise ConnectionLost(f"the address must lead to the primary: {reply}")
        return reply

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
            raise ConnectionLost("the server has closed the connection")
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
            raise ConnectionLost("the server has closed the connection")
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
        """Sends a command; a second time, over a new connection, if the first one was closed.

        Servers and proxies close idle connections. Whether the closed one still ran the command
        is not known. Running twice is safe for each of them; the reasons are on the page "The
        protocol for other languages", section "A closed connection".
        """
        with self.lock:
            connection = self.idle.pop() if self.idle else None
        connection = connection or Connection(self.address)
        try:
            reply = connection.call(*command)
        except ConnectionLost:
            # Not an idle one: what has closed this connection has closed those too.
            connection = Connection(self.address)
            reply = connection.call(*command)
        with self.lock:
            self.idle.append(connection)
        if isinstance(reply, RedisRefusal):
            raise reply
        return reply
