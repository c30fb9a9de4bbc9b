"""Nodes as network namespaces, each with one shaped link into a switch."""

import json
import re
from dataclasses import dataclass

from labkit.refusal import Refusal
from labkit.sealed import command
from labkit.units import rate_text

SUBNET = "10.77.0.0/24"
SWITCH = "switch"
MOST_NODES = 64
HEADER = 14  # Ethernet, which the shaper counts
CONGESTION_CONTROL = "cubic"  # the usual one, whatever this machine's own is
# The bucket is a free pass after a pause, so it is small: a frame, and what a late timer would lose.
TIMER_S = 200e-6
# Only a switch port where several nodes send to one ever fills its queue; TCP holds a sender's own link back before.
QUEUE_S = 50e-3
LEAST_QUEUE = 1 << 20


@dataclass(frozen=True)
class Link:
    rate: int  # bits per second, each direction
    mtu: int = 9000

    @property
    def burst(self) -> int:
        return self.mtu + HEADER + round(self.rate / 8 * TIMER_S)

    @property
    def largest_packet(self) -> int:
        """Bytes that TCP hands over at once: with less than the bucket to spare, every late timer costs rate."""
        return min(65536, max(self.mtu + HEADER, self.burst // 2))

    @property
    def queue(self) -> int:
        return max(LEAST_QUEUE, round(self.rate / 8 * QUEUE_S))


def node_name(node: int) -> str:
    return f"node{node}"


def address(node: int) -> str:
    return f"10.77.0.{node + 1}"


def build(nodes: int, link: Link) -> None:
    """REQUIRES: inside a sealed place, so that the names are free."""
    command("ip", "netns", "add", SWITCH)
    command("ip", "-n", SWITCH, "link", "add", "br0", "type", "bridge", "stp_state", 0, "mcast_snooping", 0)
    command("ip", "-n", SWITCH, "link", "set", "br0", "mtu", link.mtu, "up")
    for node in range(nodes):
        _plug_in(node, link)


def _plug_in(node: int, link: Link) -> None:
    name, port = node_name(node), f"port{node}"
    command("ip", "netns", "add", name)
    command("ip", "-n", SWITCH, "link", "add", port, "mtu", link.mtu, "type", "veth", "peer", "name", "eth0", "mtu", link.mtu, "netns", name)
    for where, device in ((SWITCH, port), (name, "eth0")):
        command("ip", "-n", where, "link", "set", device, "addrgenmode", "none", "gso_max_size", link.largest_packet)
        command("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate_text(link.rate), "burst", link.burst, "limit", link.queue)
    command("ip", "-n", SWITCH, "link", "set", port, "master", "br0", "up")
    command("ip", "-n", name, "address", "add", f"{address(node)}/24", "dev", "eth0")
    command("ip", "-n", name, "link", "set", "lo", "up")
    command("ip", "-n", name, "link", "set", "eth0", "up")
    command("ip", "-n", name, "route", "change", SUBNET, "dev", "eth0", "proto", "kernel", "scope", "link", "src", address(node), "congctl", CONGESTION_CONTROL)


def link_counters(nodes: int) -> list[dict]:
    """What went over each node's link since it was laid: bytes with all headers, packets, and what a full queue dropped."""
    found = []
    for node in range(nodes):
        sent, received = _shaper(node_name(node), "eth0"), _shaper(SWITCH, f"port{node}")
        found.append({"node": node_name(node), "sent_bytes": sent["bytes"], "received_bytes": received["bytes"],
                      "sent_frames": sent["packets"], "received_frames": received["packets"], "dropped": sent["drops"] + received["drops"]})
    return found


def set_link(node: str, up: bool) -> None:
    """Cuts a node off from the others, or joins it again."""
    if not re.fullmatch(r"node\d+", node):
        raise Refusal(f"'{node}' is no node such as node1")
    command("ip", "-n", SWITCH, "link", "set", node.replace("node", "port"), "up" if up else "down")


def _shaper(where: str, device: str) -> dict:
    return next(entry for entry in json.loads(command("tc", "-n", where, "-s", "-j", "qdisc", "show", "dev", device)) if entry["kind"] == "tbf")


def entering(node: str, words: list[str]) -> list[str]:
    """The command line that runs `words` as on that machine: its network, its host name and shared memory of its own."""
    settle = 'hostname "$0" && mount -t tmpfs tmpfs /dev/shm && exec "$@"'
    return ["ip", "netns", "exec", node, "unshare", "--uts", "--mount", "sh", "-c", settle, node, *words]
