"""What plain TCP reaches through the lab's links, as a share of their rate."""

import json
import socket
import statistics
import subprocess
import sys
import time

from labkit import network

PORT = 7000
PINGS = 200
WARM_UP_S = 0.3  # TCP starts slowly, and the shaper's bucket is full at first
CHUNK = 1 << 18
REAL_TIME = ("chrt", "--rr", "1")  # the link is measured, not what else runs here


def measure(link: network.Link, seconds: float) -> dict:
    """One way, then both ways at once, between two nodes. REQUIRES: in a sealed place."""
    network.build(2, link)
    alone = _streams([(0, 1, PORT)], seconds)[0]
    both = _streams([(0, 1, PORT + 1), (1, 0, PORT + 2)], seconds)

    def share(end: dict) -> float:
        return 8 * end["bytes"] / end["seconds"] / link.rate

    return {"rate_bits_per_s": link.rate, "mtu": link.mtu, "burst_bytes": link.burst, "congestion_control": alone["congestion_control"],
            "round_trip_us": 1e6 * alone["round_trip_s"], "share_one_way": share(alone), "share_both_ways": [share(end) for end in both],
            "dropped": sum(entry["dropped"] for entry in network.link_counters(2))}


def _streams(pairs: list[tuple[int, int, int]], seconds: float) -> list[dict]:
    """For each (sender, receiver, port) at once: what the receiver counted and the sender's round trip."""
    receivers = [_end(to, "receive", port, seconds) for _, to, port in pairs]
    senders = [_end(source, "send", network.address(to), port) for source, to, port in pairs]
    return [json.loads(sender.communicate()[0]) | json.loads(receiver.communicate()[0]) for sender, receiver in zip(senders, receivers)]


def _end(node: int, *arguments: object) -> subprocess.Popen:
    words = [*REAL_TIME, sys.executable, sys.argv[0], "probe-end", *map(str, arguments)]
    return subprocess.Popen(network.entering(network.node_name(node), words), stdout=subprocess.PIPE, text=True)


def receive(port: int, seconds: float) -> dict:
    """Answers the pings, then counts what arrives between the warm-up and the end."""
    with socket.create_server(("", port)) as server:
        connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for _ in range(PINGS):
        connection.sendall(connection.recv(1))
    buffer = bytearray(CHUNK)
    connection.recv_into(buffer)
    started = begun = last = time.monotonic()
    counted = 0
    while last < started + WARM_UP_S + seconds:
        got = connection.recv_into(buffer)
        last = time.monotonic()
        if last < started + WARM_UP_S:
            begun = last
        else:
            counted += got
    connection.close()
    return {"bytes": counted, "seconds": last - begun}


def send(host: str, port: int) -> dict:
    """Pings, then sends until the other end has had enough."""
    connection = _connect(host, port)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    congestion = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
    times = []
    for _ in range(PINGS):
        began = time.monotonic()
        connection.sendall(b"x")
        connection.recv(1)
        times.append(time.monotonic() - began)
    chunk = bytes(CHUNK)
    try:
        while True:
            connection.sendall(chunk)
    except OSError:
        return {"round_trip_s": statistics.median(times), "congestion_control": congestion}


def _connect(host: str, port: int) -> socket.socket:
    deadline = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection((host, port), timeout=60)
        except ConnectionRefusedError:  # the other end is still starting
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
