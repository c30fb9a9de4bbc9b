"""What a replay of a trace does by the default placement, counted from the trace alone."""

from dataclasses import dataclass

from labkit.exchange.trace import Trace

NOT_ROUTED = {"U8": 255, "U16": 65535}


@dataclass(frozen=True)
class Counted:
    """(token, expert) pairs of one pass through all layers."""

    pairs: int
    local: int  # whose expert is on the token's own device

    @property
    def local_share(self) -> float:
        return self.local / self.pairs if self.pairs else 0.0


def count(trace: Trace, batch: int, prefill: int, devices: int) -> Counted:
    """Prompt p is the trace's p-th sequence, both from the begin again where they end; device p mod D holds it.

    REQUIRES: `devices` divides the experts, which lie in blocks.
    """
    each, sequences = trace.experts // devices, len(trace.offsets) - 1
    pairs = local = 0
    for prompt in range(batch):
        own = prompt % devices
        first, end = trace.offsets[prompt % sequences], trace.offsets[prompt % sequences + 1]
        for position in range(prefill):
            for layer in range(len(trace.decoder_layers)):
                chosen = [expert for expert in trace.choices(first + position % (end - first), layer) if expert != NOT_ROUTED[trace.dtype]]
                pairs += len(chosen)
                local += sum(expert // each == own for expert in chosen)
    return Counted(pairs, local)
