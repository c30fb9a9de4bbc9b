"""What `grace bench --json` says of one strategy, in seconds and bytes."""

from dataclasses import dataclass

from labkit.refusal import Refusal

SCALE = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "MB": 1e6, "B": 1.0, "%": 1e-2, "1/s": 1.0, "": 1.0}


@dataclass(frozen=True)
class Phase:
    """Prefill or decode, over all its steps and layers."""

    exchange_s: float  # from the first byte sent to the last one taken, dispatch and combine
    experts_s: float  # processor time of the slowest rank
    moe_s: float  # critical path of the MoE layers: the slowest rank's processor time and the exchanges
    wall_s: float
    moe_wall_s: float  # of the MoE layers, by the clock
    cross_bytes: float
    intra_bytes: float
    busiest_bytes: float  # the most that one node sends in each exchange, added up

    @property
    def ratio(self) -> float:
        return self.exchange_s / self.experts_s


@dataclass(frozen=True)
class Outcome:
    strategy: str
    dispatch: str
    prefill: Phase
    decode: Phase
    idle_s: float
    load_deviation: float  # of its mean
    tokens_per_s: float
    outputs: str  # a hash of the text

    @property
    def moe_s(self) -> float:
        return self.prefill.moe_s + self.decode.moe_s

    @property
    def exchange_s(self) -> float:
        return self.prefill.exchange_s + self.decode.exchange_s

    @property
    def wall_s(self) -> float:
        return self.prefill.wall_s + self.decode.wall_s


def outcome_of(told: dict, at: int = 0) -> Outcome:
    """Of the at-th strategy; medians where there are several rounds."""
    try:
        entry = told["strategies"][at]
        return Outcome(entry["strategy"], entry["dispatch"], _phase(entry, "prefill"), _phase(entry, "decode"), _value(entry, "idle"),
                       _value(entry, "load_deviation"), _value(entry, "tokens_per_s"), entry["outputs_hash"])
    except (KeyError, IndexError, TypeError) as error:
        raise Refusal(f"grace bench: its JSON has no {error}") from error


def _value(entry: dict, name: str) -> float:
    return entry[name]["median"] * SCALE[entry[name]["unit"]]


def _phase(entry: dict, name: str) -> Phase:
    def of_phase(figure: str) -> float:
        return _value(entry, f"{name}_{figure}")

    return Phase(of_phase("exchange"), of_phase("experts"), of_phase("moe_critical_path"), _value(entry, name), of_phase("moe_layers"), of_phase("cross_node_bytes"),
                 of_phase("intra_node_bytes"), of_phase("busiest_node_bytes"))
