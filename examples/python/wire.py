"""The bytes that Rust processes read and write: a value, its envelope, and BLAKE3."""

import json
import struct

# The part of every name in Redis that changes with the format.
VERSION = 2
HEAD = struct.Struct(">7Q3I1Q8s1Q")
MASK = 0xFFFFFFFF
IV = (
    0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19,
)
QUARTERS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)
ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)


def to_json(value):
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def from_json(data):
    """Reads a value. Raises ValueError for what is no JSON."""
    return json.loads(data)


def encode(key, payload, version, started, took, ttl, tags, stamp, schema):
    """Writes an envelope. `stamp` is epoch and position; `ttl` is fresh and stale, in seconds."""
    fresh, stale = took + int(ttl[0] * 1000), max(0, int((ttl[1] - ttl[0]) * 1000))
    rest = HEAD.pack(
        started, fresh, stale, 0, took, 0, 0, schema, len(key), len(tags), len(payload),
        bytes.fromhex(stamp[0].decode()), stamp[1],
    )
    rest += b"".join(struct.pack(">I", len(tag)) + tag for tag in tags) + key + payload
    return b"ts\x03\x00" + version + hash8(b"ts\x03\x00" + rest) + rest


class Unreadable(ValueError):
    """A whole value in a form that this client does not know."""


def decode(key, data, schema):
    """Reads an envelope. Returns None if it is damaged, or of another key or schema.

    Raises Unreadable for a value that only Rust processes read: this client must not replace it.
    """
    if len(data) < 120 or data[:3] != b"ts\x03":
        return None
    if hash8(data[:4] + data[28:]) != data[20:28]:
        return None
    (born, fresh, stale, _, _, age, _, found, key_length, count, length, epoch, position) = (
        HEAD.unpack_from(data, 28)
    )
    if found != schema:
        # Rust computes numbers from 2**31 on. Those below are schemas of all sides.
        if found >> 31:
            raise Unreadable(f"number {found} of a Rust type")
        return None
    if data[3] > 1:
        raise Unreadable(f"flags {data[3]}")
    at, tags = 120, []
    while len(tags) < count and at + 4 <= len(data):
        (size,) = struct.unpack_from(">I", data, at)
        tags.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    if at + key_length + length != len(data):
        return None
    if len(tags) < count or data[at : at + key_length] != key:
        return None
    return {
        # Only says that each caller computes for itself.
        "is_marker": data[3] == 1,
        "stamp": (epoch.hex().encode(), position) if any(epoch) else None,
        "born": born - age,
        "fresh": fresh,
        "stale": fresh + stale,
        "tags": tags,
        "payload": data[at + key_length :],
    }


def hash8(data):
    """Returns the first eight bytes of BLAKE3."""
    return struct.pack("<2I", *tree(data, 0, 8)[:2])


def tree(data, chunk, root):
    if len(data) > 1024:
        left = 1024
        while left * 2 < len(data):
            left *= 2
        words = tree(data[:left], chunk, 0) + tree(data[left:], chunk + left // 1024, 0)
        return compress(IV, words, 0, 64, 4 | root)
    chain, last = IV, max(0, len(data) - 1) // 64
    for i in range(last + 1):
        block = data[i * 64 : i * 64 + 64]
        flags = (1 if i == 0 else 0) | (2 | root if i == last else 0)
        words = struct.unpack("<16I", block.ljust(64, b"\0"))
        chain = compress(chain, words, chunk, len(block), flags)
    return chain


def compress(chain, m, counter, length, flags):
    v = [*chain, *IV[:4], counter & MASK, counter >> 32, length, flags]
    for _ in range(7):
        for i, (a, b, c, d) in enumerate(QUARTERS):
            for first, second, word in ((16, 12, m[2 * i]), (8, 7, m[2 * i + 1])):
                v[a] = (v[a] + v[b] + word) & MASK
                x = v[d] ^ v[a]
                v[d] = (x >> first | x << 32 - first) & MASK
                v[c] = (v[c] + v[d]) & MASK
                x = v[b] ^ v[c]
                v[b] = (x >> second | x << 32 - second) & MASK
        m = [m[at] for at in ORDER]
    return tuple(v[i] ^ v[i + 8] for i in range(8))
