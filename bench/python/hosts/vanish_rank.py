"""One rank that calls allreduce until it fails: vanish_rank.py FOLDER ADDRESS RANK RANKS TIMEOUT.

Prints "ready" when all ranks are connected, then one JSON line with the error and the time until it was
returned. Without "ready" the ranks did not connect.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

import isthmus


def main() -> None:
    folder, address = Path(sys.argv[1]), sys.argv[2]
    rank, ranks, timeout = int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    file = folder / "id"
    if rank == 0:
        file.with_suffix(".part").write_bytes(bytes(isthmus.UniqueId.create(address)))
        file.with_suffix(".part").rename(file)
    while not file.exists():
        time.sleep(0.01)
    begin = time.monotonic()
    try:
        comm = isthmus.Communicator.from_unique_id(file.read_bytes(), rank, ranks, timeout=timeout)
        values = np.ones(1 << 16, np.float32)
        comm.allreduce(values)
        print("ready", flush=True)
        while True:
            begin = time.monotonic()
            comm.allreduce(values)
            time.sleep(0.01)
    except isthmus.Error as failure:
        waited_s = time.monotonic() - begin
        print(json.dumps({"rank": rank, "waited_s": waited_s, "error": str(failure)}), flush=True)


if __name__ == "__main__":
    main()
