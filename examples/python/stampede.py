"""A cache that shares values and refresh locks with tower-stampede, for threads.

The protocol is on the page "The protocol for other languages". Needs the standard library only.
"""

import contextlib
import logging
import pathlib
import re
import secrets
import threading
import time

import wire
from connection import Connection, RedisFailure, RedisRefusal, Server

LOG = logging.getLogger("stampede")
SCRIPTS = pathlib.Path(__file__).parent / "../../src/remote/redis/scripts"


class Held(Exception):
    """The last computation failed, and no process computes for a while."""


class StampedeCache:
    """`lease` is in ms, and `schema` is that of the Rust cache.

    `scripts` is the crate's folder `src/remote/redis/scripts`, or a copy.
    """

    def __init__(self, address, namespace, name, lease=5_000, schema=0, scripts=SCRIPTS):
        self.address, self.lease, self.schema = address, lease, schema
        self.prefix = f"{namespace}:{wire.VERSION}:{name}".encode()
        self.log = b"%s:{#%s}" % (self.prefix, name.encode())
        self.process = secrets.token_bytes(8)
        self.inbox = b"%s:in:%s" % (self.prefix, self.process.hex().encode())
        self.server = Server(address, pathlib.Path(scripts))
        self.lock, self.flights = threading.Lock(), {}
        self.reported = set()
        self.messages, self.heard, self.listener = threading.Condition(), 0, None

    def flexible(self, key, ttl, compute, tags=()):
        """Returns the value of `key`: fresh for `ttl[0]` seconds, and stale until `ttl[1]`.

        A stale value is returned at once, and refreshed by a thread. Values are stored as JSON, and
        whoever computes one gets what the others read; a value without JSON raises an error.
        """
        return self.find(key.encode(), ttl, lambda: wire.to_json(compute()), [tag.encode() for tag in tags])

    def find(self, key, ttl, compute, tags):
        names = self.names(key)
        try:
            found = self.read(key, names)
            if found["state"] == "dead":
                # One thread of this process asks; the others look again after it.
                with self.flight(key):
                    found, grant = self.find_or_lead(key, names)
                    if grant:
                        return wire.from_json(self.run_lead(key, names, ttl, compute, tags, grant))
            elif found["state"] == "stale":
                arguments = (key, names, ttl, compute, tags, found["version"])
                threading.Thread(target=self.refresh, args=arguments, daemon=True).start()
            if not found["is_marker"]:
                return found["value"]
        except RedisFailure as failure:
            self.report(failure)
        # Without Redis, and where values may not be shared or read, the caller computes for itself.
        return wire.from_json(compute())

    def invalidate(self, key):
        """Removes a value, and revokes the right of a computation that runs.

        A `RedisFailure` says that no process may have been told. A process that ends cannot tell
        them later, so this client keeps no list: call it again until it returns, from an outbox
        for instance. Until then the old value is served, at most to the end of its lifetime.
        """
        key = key.encode()
        self.server.script("invalidate", self.names(key), b"", b"1I" + self.process + key)
        self.announce(b"k" + key)

    def invalidate_tag(self, tag):
        """Ends every value that carries the tag. A `RedisFailure` means what it means above."""
        self.announce(b"t" + tag.encode())

    def find_or_lead(self, key, names):
        """Returns a value that serves, or a grant."""
        registered = b""
        while True:
            found = self.read(key, names)
            if found["state"] != "dead":
                return found, None
            heard = self.heard
            grant = self.acquire(names, registered, found["version"])
            if grant[0] == b"A":
                return None, grant
            if grant[0] == b"B":
                raise Held(f"held for {grant[2]} ms")
            if grant[0] == b"L":
                registered = self.wait(registered, heard, grant[2] + 1)

    def wait(self, registered, heard, left):
        """Waits for the holder of a lease, and returns the inbox that the next acquire registers."""
        try:
            # The subscription stands before the next acquire registers it.
            is_new = self.listen()
        except RedisFailure as failure:
            self.report(failure, "a waiting process looks every 50 ms")
            time.sleep(min(left, 50) / 1000)
            return b""
        if registered and not is_new:
            # However many messages are lost, the end of the lease is looked at.
            with self.messages:
                self.messages.wait_for(lambda: self.heard != heard, min(left, 1000) / 1000)
        return self.inbox

    def refresh(self, key, names, ttl, compute, tags, seen):
        with self.redis_may_fail():
            grant = self.acquire(names, b"", seen)
            if grant[0] == b"A":
                self.run_lead(key, names, ttl, compute, tags, grant)

    def run_lead(self, key, names, ttl, compute, tags, grant):
        """Computes under a grant. The caller gets the value even where the fence refuses it."""
        _, now, version, _, token = grant
        stamp = None
        with self.redis_may_fail():
            # How far the log was when the computation began: a later invalidation ends the value.
            stamp = self.announce()
        done = threading.Event()
        renewal = threading.Thread(target=self.renew, args=(names, token, version, ttl, done))
        renewal.start()
        began = time.monotonic()
        try:
            payload = compute()
        except BaseException:
            with self.redis_may_fail():
                self.server.script("abandon", names[1:], token, 0, b"1A" + wire.hash8(key))
            raise
        finally:
            done.set()
        if stamp:
            took = int((time.monotonic() - began) * 1000)
            envelope = wire.encode(key, payload, version, now, took, ttl, tags, stamp, self.schema)
            message = b"1F" + wire.hash8(key) + version
            with self.redis_may_fail():
                self.server.script("fill", names, token, version, int(ttl[1] * 1000), envelope, message)
        return payload

    def renew(self, names, token, version, ttl, done):
        keep = self.lease + int(ttl[1] * 1000)
        while not done.wait(self.lease / 3000):
            with self.redis_may_fail():
                self.server.script("renew", names, token, self.lease, keep, version)

    def read(self, key, names):
        """Reads a value, and judges it by the invalidation log and the server's clock."""
        data = self.server.call(b"GET", names[0]) or b""
        dead = {"state": "dead", "version": data[4:20]}
        try:
            found = wire.decode(key, data, self.schema)
            if not found or not found["stamp"]:
                return dead
            found["value"] = None if found["is_marker"] else wire.from_json(found["payload"])
        except ValueError as error:
            # Rust processes read it: it stays, and each caller computes for itself.
            self.report_unreadable(key, error)
            return {"state": "unreadable", "is_marker": True}
        epoch, position = found["stamp"]
        # A tag, and the marks of tag and key that make values stale. Here all end the value.
        items = [start + tag for tag in found["tags"] for start in (b"t", b"t\0m")]
        items.append(b"t\0m\0e" + key)
        log = self.server.script("positions", [self.log + b":tags"], *items)
        if not log or log[0] != epoch or log[1] < position:
            return dead
        seconds, micros = map(int, self.server.call(b"TIME"))
        age = seconds * 1000 + micros // 1000 - found["born"]
        if max(log[2], log[3], *log[5]) > position or age >= found["stale"]:
            return dead
        return {**found, **dead, "state": "fresh" if age < found["fresh"] else "stale"}

    def acquire(self, names, inbox, seen):
        token = secrets.token_hex(16)
        keep = self.lease + 60_000
        return [*self.server.script("acquire", names, token, self.lease, keep, inbox, seen), token]

    def announce(self, *items):
        """Writes items to the log, and returns its epoch and last position before them."""
        fixed = (secrets.token_hex(8), b"", 0, self.prefix + b":inv", b"1L" + self.process, 100_000, 4096)
        names = [self.log + b":tags", self.log + b":keys"]
        reply = self.server.script("announce", names, *fixed, *items)
        return reply[0], reply[5]

    def names(self, key):
        if not re.fullmatch(rb"(?s:[^#{}\0][^{}]{0,199})", key):
            raise ValueError("a key has 1 to 200 bytes, without braces, and begins with no #")
        return [b"%s:{%s}:%s" % (self.prefix, key, end) for end in (b"v", b"l", b"r")]

    @contextlib.contextmanager
    def flight(self, key):
        with self.lock:
            flight = self.flights.setdefault(key, [threading.Lock(), 0])
            flight[1] += 1
        try:
            with flight[0]:
                yield
        finally:
            with self.lock:
                flight[1] -= 1
                if not flight[1]:
                    del self.flights[key]

    def listen(self):
        """Subscribes to the inbox; returns false if that was done before."""
        with self.lock:
            if self.listener:
                return False
            connection = Connection(self.address)
            reply = connection.call(b"SUBSCRIBE", self.inbox)
            if isinstance(reply, RedisRefusal):
                raise reply
            self.listener = threading.Thread(target=self.hear, args=(connection,), daemon=True)
            self.listener.start()
            return True

    @contextlib.contextmanager
    def redis_may_fail(self):
        """What fails here costs another process a computation, and its own caller nothing."""
        try:
            yield
        except RedisFailure as failure:
            self.report(failure)

    def report(self, failure, so="values are computed without it"):
        """Logs each kind of failure once. No request fails, so no error says it."""
        is_refusal = isinstance(failure, RedisRefusal)
        kind = str(failure).split(" ")[0] if is_refusal else "connection"
        what = "refuses a command" if is_refusal else "cannot be reached"
        self.warn_once(kind, f"Redis at {self.address} {what}: {failure}; {so}")

    def report_unreadable(self, key, error):
        self.warn_once("unreadable", (
            f"the value of {key} is not JSON that this client reads ({error}); it is not replaced, and each "
            "caller computes for itself: give the Rust cache Codec::json().fingerprint(N), without "
            "compress_above, encrypt and validators, and this client the schema N"
        ))

    def warn_once(self, kind, line):
        with self.lock:
            if kind in self.reported:
                return
            self.reported.add(kind)
        LOG.warning("%s", line)

    def hear(self, connection):
        try:
            while True:
                connection.wait()
                self.wake()
        except RedisFailure:
            # Whoever waits next subscribes again; not at once, where each subscription is cut.
            time.sleep(0.05)
        with self.lock:
            self.listener = None
        self.wake()

    def wake(self):
        with self.messages:
            self.heard += 1
            self.messages.notify_all()
