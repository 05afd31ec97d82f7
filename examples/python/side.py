"""The Python side of one Redis that several languages share.

side.py HOST:PORT CALLERS TAKE_MS LEASE_MS, and the commands of examples/other_languages.rs.
Each caller is a thread.
"""

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from connection import RedisFailure
from stampede import StampedeCache

try:
    address, callers, take, lease = sys.argv[1], *map(int, sys.argv[2:5])
    host, port = address.rsplit(":", 1)
except (IndexError, ValueError):
    sys.exit("side.py: needs HOST:PORT CALLERS TAKE_MS LEASE_MS; the last three are whole numbers")
cache = StampedeCache(address, "languages", "demo", lease, schema=1)
counting, computations = threading.Lock(), 0


def compute():
    global computations
    with counting:
        computations += 1
        number = computations
    print("computing", flush=True)
    time.sleep(take / 1000)
    return {
        "by": "python",
        "process": os.getpid(),
        "number": number,
        "title": 'Zoë / "☕"\n',
        "large": 9_007_199_254_740_993,
        "ratio": 0.1,
        "note": None,
        "parts": [{"name": "first", "count": -1}],
        "limits": {},
    }


def fail():
    compute()
    raise ValueError("the computation failed")


print("ready", flush=True)
for line in sys.stdin:
    command, name = line.split(maxsplit=1)
    name = name.strip()
    if command == "get":
        before = computations
        with ThreadPoolExecutor(callers) as pool:
            ask = [pool.submit(cache.flexible, name, (60, 120), compute, ["reports"]) for _ in range(callers)]
            values = [each.result() for each in ask]
        counts = {"answered": len(values), "computations": computations - before}
        distinct = {json.dumps(value): value for value in values}
        print(json.dumps(counts | {"values": [*distinct.values()]}), flush=True)
    elif command == "fail":
        try:
            cache.flexible(name, (60, 120), fail)
        except ValueError:
            print("failed", flush=True)
    else:
        try:
            (cache.invalidate_tag if command == "tag" else cache.invalidate)(name)
        except RedisFailure as failure:
            remedy = "no process may have been told: repeat it until it succeeds"
            sys.exit(f"side.py: {command} {name}: {address}: {failure}; {remedy}")
        print("done", flush=True)
