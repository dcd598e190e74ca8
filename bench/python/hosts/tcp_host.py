"""One host of an all-to-all over plain sockets: tcp_host.py HOST BLOCK SECONDS OUT ADDRESS..."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measured import time_us

PORT = 29600  # the host is new, so the port is free
MIN_SAMPLES, MAX_SAMPLES = 5, 100


def connect_all(host: int, addresses: list[str]) -> dict[int, socket.socket]:
    """Connects to every other host."""
    listener = socket.create_server((addresses[host], PORT), backlog=len(addresses))
    peers: dict[int, socket.socket] = {}
    for peer in range(host + 1, len(addresses)):
        while peer not in peers:
            try:
                peers[peer] = socket.create_connection((addresses[peer], PORT))
            except OSError:
                time.sleep(0.05)
        peers[peer].sendall(bytes([host]))
    for _ in range(host):
        connection = listener.accept()[0]
        peers[connection.recv(1)[0]] = connection
    return peers


def receive(peer: socket.socket, buffer: bytearray) -> None:
    view, received = memoryview(buffer), 0
    while received < len(buffer):
        received += peer.recv_into(view[received:], min(1 << 18, len(buffer) - received))


def exchange_byte(peers: dict[int, socket.socket], message: bytes) -> list[bytes]:
    for peer in peers.values():
        peer.sendall(message)
    return [peer.recv(1) for peer in peers.values()]


def exchange(peers: dict[int, socket.socket], block: bytes, buffers: list[bytearray]) -> float:
    """Exchanges one block with every peer and returns the seconds."""
    threads = [
        threading.Thread(target=receive, args=each) for each in zip(peers.values(), buffers, strict=True)
    ] + [threading.Thread(target=peer.sendall, args=(block,)) for peer in peers.values()]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin


def main() -> None:
    host, size, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    peers = connect_all(host, sys.argv[5:])
    block, buffers = bytes(size), [bytearray(size) for _ in peers]
    samples: list[float] = []
    begin = time.perf_counter()
    while True:
        enough = len(samples) >= MIN_SAMPLES and time.perf_counter() - begin > seconds
        is_last = host == 0 and (enough or len(samples) == MAX_SAMPLES)
        if b"e" in [*exchange_byte(peers, b"e" if is_last else b"g"), b"e" if is_last else b"g"]:
            break
        samples.append(exchange(peers, block, buffers) * 1e6)
    if host == 0:
        Path(sys.argv[4]).write_text(json.dumps(time_us(samples)))


if __name__ == "__main__":
    main()
