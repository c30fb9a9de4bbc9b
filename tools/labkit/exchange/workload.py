"""What a replay of a trace sends where, by the default placement: counted here from the trace alone."""

from dataclasses import dataclass

from labkit.exchange.trace import Trace


@dataclass(frozen=True)
class Counted:
    """(token, expert) pairs or (token, node) vectors of one pass through all layers, by where they go."""

    out_of_node: list[list[int]]  # [layer][node]
    local: int  # pairs whose expert is on the token's own device
    pairs: int

    @property
    def busier_share(self) -> float:
        """Of all that crosses two nodes' link in either direction, the part in the busier direction, exchange by exchange."""
        crossing = sum(map(sum, self.out_of_node))
        return sum(map(max, self.out_of_node)) / crossing if crossing else 1.0

    @property
    def local_share(self) -> float:
        return self.local / self.pairs if self.pairs else 0.0


def count(trace: Trace, batch: int, prefill: int, nodes: int, devices: int, once_a_node: bool) -> Counted:
    """Prompt p is the trace's p-th sequence, both from the begin again where they end; device p mod D holds it. `once_a_node`: a token goes to a node once."""
    num_devices = nodes * devices
    layers, sequences = len(trace.decoder_layers), len(trace.offsets) - 1
    device_of = [expert * num_devices // trace.experts for expert in range(trace.experts)] if trace.experts % num_devices == 0 else _uneven(trace.experts, num_devices)
    none = 255 if trace.dtype == "U8" else 65535
    out = [[0] * nodes for _ in range(layers)]
    local = pairs = 0
    for prompt in range(batch):
        own = prompt % num_devices
        first, end = trace.offsets[prompt % sequences], trace.offsets[prompt % sequences + 1]
        for position in range(prefill):
            for layer in range(layers):
                chosen = [device_of[expert] for expert in trace.choices(first + position % (end - first), layer) if expert != none]
                away = [device // devices for device in chosen if device // devices != own // devices]
                out[layer][own // devices] += len(set(away)) if once_a_node else len(away)
                local += chosen.count(own)
                pairs += len(chosen)
    return Counted(out, local, pairs)


def _uneven(experts: int, devices: int) -> list[int]:
    """As even as can be, the first devices one more."""
    least, more = divmod(experts, devices)
    return [device for device in range(devices) for _ in range(least + (device < more))]
