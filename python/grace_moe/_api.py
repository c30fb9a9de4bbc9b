"""Traces, clusters and plans, and what is asked of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core

Path = Union[str, "os.PathLike[str]"]

strategies: tuple[str, ...] = tuple(_core.strategies)
"""Names that `plan` and `compare` take."""
load_strategies: tuple[str, ...] = tuple(_core.load_strategies)
"""Those of them that a LoadProfile is enough for."""
known_shapes: tuple[str, ...] = tuple(_core.known_shapes)
"""Models whose sizes are built in; for others, `shape` is the path of a config.json."""
importers: dict[str, str] = dict(_core.importers)
"""Formats that `import_recording` reads, and what each is."""
exporters: dict[str, str] = dict(_core.exporters)
"""Engines that `export_placement` writes for, and what each gets."""


class Trace:
    """The experts that each token chose in each MoE layer.

    topk_ids: integers [T, M, K], -1 where a choice was not routed. sequence_offsets: the first token of each sequence and, last,
    T; None: one sequence. decoder_layers: of each MoE layer, dense layers counted; None: 0..M-1. Raises ValueError for an id
    outside [-1, E) and for an expert that one token chose twice.
    """

    def __init__(
        self, topk_ids: ArrayLike, num_experts: int, *, sequence_offsets: Sequence[int] | None = None,
        decoder_layers: Sequence[int] | None = None, model: str = "", source: str = "python", phase: str = "prefill",
        prompt_lengths: Sequence[int] | None = None, topk_weights: ArrayLike | None = None,
    ) -> None:
        ids = _whole("topk_ids", topk_ids)
        if ids.ndim != 3:
            raise ValueError(f"topk_ids: {ids.ndim} dimensions, not [tokens, layers, experts per token]")
        weights = None if topk_weights is None else np.ascontiguousarray(topk_weights, dtype=np.float32)
        if weights is not None and weights.shape != ids.shape:
            raise ValueError(f"topk_weights: shape {weights.shape}, not that of topk_ids, {ids.shape}")
        self._trace = _core.Trace(
            ids, num_experts, _list(decoder_layers, range(ids.shape[1])), _list(sequence_offsets, (0, ids.shape[0])), model, source,
            phase, _list(prompt_lengths, ()), weights)

    @classmethod
    def _of(cls, trace: Any) -> Trace:
        self = cls.__new__(cls)
        self._trace = trace
        return self

    @classmethod
    def read(cls, path: Path) -> Trace:
        """The trace in a file that `grace profile` or `import_recording` wrote."""
        return cls._of(_core.Trace.read(os.fspath(path)))

    def write(self, path: Path) -> None:
        """Writes it as a safetensors file, whole or not at all."""
        self._trace.write(os.fspath(path))

    @property
    def model(self) -> str:
        return self._trace.model

    @property
    def source(self) -> str:
        return self._trace.source

    @property
    def phase(self) -> str:
        return self._trace.phase

    @property
    def num_experts(self) -> int:
        return self._trace.num_experts

    @property
    def num_tokens(self) -> int:
        return self._trace.num_tokens

    @property
    def experts_per_token(self) -> int:
        return self._trace.experts_per_token

    @property
    def decoder_layers(self) -> list[int]:
        return self._trace.decoder_layers

    @property
    def prompt_lengths(self) -> list[int]:
        return self._trace.prompt_lengths

    @property
    def topk_ids(self) -> NDArray[np.int32]:
        """[T, M, K], -1 where a choice was not routed; a copy."""
        return np.asarray(self._trace.topk_ids())

    @property
    def topk_weights(self) -> NDArray[np.float32] | None:
        """[T, M, K] gate weights, where they were recorded; a copy."""
        weights = self._trace.topk_weights()
        return None if weights is None else np.asarray(weights)

    @property
    def sequence_offsets(self) -> NDArray[np.int64]:
        """[S + 1], from 0 to T."""
        return np.asarray(self._trace.sequence_offsets())

    def loads(self) -> LoadProfile:
        """How often each expert was chosen, co-activation left out."""
        return LoadProfile._of(_core.LoadProfile.of_trace(self._trace))

    def __repr__(self) -> str:
        return (f"Trace({self.model or 'unnamed'}: {self.num_tokens} tokens, {len(self.decoder_layers)} MoE layers of "
                f"{self.num_experts} experts, {self.experts_per_token} a token)")


class LoadProfile:
    """How often each expert was chosen, from a source that only counted.

    loads: whole numbers [M, E]. experts_per_token: 0 where it is not known.
    """

    def __init__(self, loads: ArrayLike, *, decoder_layers: Sequence[int] | None = None, experts_per_token: int = 0,
                 model: str = "", source: str = "python") -> None:
        counts = _whole("loads", loads)
        if counts.ndim != 2:
            raise ValueError(f"loads: {counts.ndim} dimensions, not [layers, experts]")
        self._profile = _core.LoadProfile(counts, _list(decoder_layers, range(counts.shape[0])), experts_per_token, model, source)

    @classmethod
    def _of(cls, profile: Any) -> LoadProfile:
        self = cls.__new__(cls)
        self._profile = profile
        return self

    @classmethod
    def read(cls, path: Path) -> LoadProfile:
        """The profile in a JSON file that `import_recording` wrote."""
        return cls._of(_core.LoadProfile.read(os.fspath(path)))

    def write(self, path: Path) -> None:
        """Writes it as JSON, whole or not at all."""
        self._profile.write(os.fspath(path))

    @property
    def model(self) -> str:
        return self._profile.model

    @property
    def source(self) -> str:
        return self._profile.source

    @property
    def num_experts(self) -> int:
        return self._profile.num_experts

    @property
    def experts_per_token(self) -> int:
        return self._profile.experts_per_token

    @property
    def decoder_layers(self) -> list[int]:
        return self._profile.decoder_layers

    @property
    def loads(self) -> NDArray[np.int64]:
        """[M, E]."""
        return np.asarray(self._profile.loads())

    def __repr__(self) -> str:
        return f"LoadProfile({self.model or 'unnamed'}: {len(self.decoder_layers)} MoE layers of {self.num_experts} experts)"


class Cluster:
    """Nodes, their devices and links: "2x4" (two nodes of four), a preset such as "h100:2x8", or a cluster file."""

    def __init__(self, spec: Path) -> None:
        self._cluster = _core.Cluster(os.fspath(spec))

    def write(self, path: Path) -> None:
        """Writes it as a cluster file."""
        self._cluster.write(os.fspath(path))

    @property
    def name(self) -> str:
        return self._cluster.name

    @property
    def num_devices(self) -> int:
        return self._cluster.num_devices

    @property
    def devices_per_node(self) -> list[int]:
        return self._cluster.devices_per_node

    def __repr__(self) -> str:
        return f"Cluster({self.name!r})"


class Plan:
    """Which device holds which experts, and copies of which."""

    def __init__(self, expert_of_slot: ArrayLike, num_experts: int, devices_per_node: Sequence[int], *,
                 decoder_layers: Sequence[int] | None = None, model: str = "") -> None:
        """From slots as engines have them: expert ids [M, P], slot p on device p // (P // D). A second copy on a device is left out."""
        slots = _whole("expert_of_slot", expert_of_slot)
        if slots.ndim != 2:
            raise ValueError(f"expert_of_slot: {slots.ndim} dimensions, not [layers, slots]")
        self._plan = _core.Plan.of_slots(slots, num_experts, list(devices_per_node),
                                         _list(decoder_layers, range(slots.shape[0])), model)

    @classmethod
    def _of(cls, plan: Any) -> Plan:
        self = cls.__new__(cls)
        self._plan = plan
        return self

    @classmethod
    def read(cls, path: Path) -> Plan:
        """The plan in a file that `grace plan` or `write` wrote."""
        return cls._of(_core.Plan.read(os.fspath(path)))

    def write(self, path: Path) -> None:
        """Writes it as JSON, which `grace run --plan` reads; the same plan gives the same bytes."""
        self._plan.write(os.fspath(path))

    @property
    def model(self) -> str:
        return self._plan.model

    @property
    def strategy(self) -> str:
        return self._plan.strategy

    @property
    def routing(self) -> str:
        return self._plan.routing

    @property
    def lossy(self) -> bool:
        return self._plan.lossy

    @property
    def num_experts(self) -> int:
        return self._plan.num_experts

    @property
    def decoder_layers(self) -> list[int]:
        return self._plan.decoder_layers

    @property
    def devices_per_node(self) -> list[int]:
        return self._plan.devices_per_node

    @property
    def provenance(self) -> dict[str, str]:
        return self._plan.provenance

    @property
    def figures(self) -> dict[str, float]:
        return self._plan.figures

    @property
    def copies(self) -> NDArray[np.bool_]:
        """[M, D, E]: whether a device holds a copy of an expert."""
        return np.asarray(self._plan.copies()) > 0

    @property
    def primaries(self) -> NDArray[np.int64]:
        """[M, E]: the device of each expert's first copy."""
        return np.argmax(np.asarray(self._plan.copies()) == 2, axis=1)

    @property
    def predicted_load(self) -> NDArray[np.float64]:
        """[M, D] assignments expected on each device."""
        return np.asarray(self._plan.predicted_load())

    def slots(self, slots_per_device: int = 0) -> NDArray[np.int64]:
        """[M, P] expert of each slot, as engines want it: as many slots on every device and in every layer.

        As many as the fullest device holds, or as asked; spare ones hold useful further copies.
        """
        return np.asarray(self._plan.slots(slots_per_device)[0])

    def __repr__(self) -> str:
        return (f"Plan({self.strategy or 'unnamed'} for {self.model or 'unnamed'}: {len(self.decoder_layers)} MoE layers of "
                f"{self.num_experts} experts on {self.devices_per_node})")


@dataclass(frozen=True)
class ComparisonRow:
    """One strategy under one budget: figures as means and sample deviations over the splits."""

    name: str
    slots: str
    lossy: bool
    mean: dict[str, float]
    deviation: dict[str, float]


@dataclass(frozen=True)
class Comparison:
    """Strategies side by side on tokens that had no part in making their plans."""

    rows: list[ComparisonRow]
    measure: str  # the figure that decides
    best: ComparisonRow
    recommended: ComparisonRow  # the cheapest in memory among those within a deviation of the best
    recommendation: str  # one sentence


def plan(recording: Trace | LoadProfile, cluster: Cluster | Path, strategy: str = "grace", *, slots: int | str | None = None,
         memory_bytes: float = 0, shape: Path = "", r: float | None = None, batch: int = 2048, effort: float = 1, partners: int = 0,
         seed: int = 0, threads: int = 0) -> Plan:
    """Plans which device holds which experts, and copies of which.

    slots: copies a device may hold in a layer, for eplb and joint: a number, or "grace" for what that method's fullest device
    takes; None: what the cluster says, else one more than it must. memory_bytes: in place of slots, on each device over all
    layers. shape: a known model or a config.json, for `joint`, which minimises seconds. r: the size bound of grace's groups; None:
    the knee of its curve. A LoadProfile is enough for the strategies in `load_strategies`. The same arguments give the same plan.
    """
    request = _request(_core.PlanRequest(), strategy=strategy, slots="" if slots is None else str(slots), memory_bytes=memory_bytes,
                       shape=os.fspath(shape), r=-1.0 if r is None else r, effort=effort, partners=partners, batch=batch, seed=seed)
    if isinstance(recording, LoadProfile):
        return Plan._of(_core.plan_loads(recording._profile, _cluster(cluster), request, threads))
    return Plan._of(_core.plan_trace(recording._trace, _cluster(cluster), request, threads))


def vanilla_plan(num_experts: int, decoder_layers: Sequence[int], cluster: Cluster | Path, model: str = "") -> Plan:
    """Plain expert parallelism: contiguous blocks of experts, no copies."""
    return Plan._of(_core.vanilla_plan(model, num_experts, list(decoder_layers), _cluster(cluster)))


def evaluate(plan: Plan, recording: Trace | LoadProfile, cluster: Cluster | Path | None = None, *, batch: int = 2048,
             dispatch: str = "two_stage", shape: Path = "", seed: int = 0, threads: int = 0) -> dict[str, NDArray[np.float64]]:
    """What a plan does, layer by layer: each value is an array [M].

    Of a trace: remote_nodes_per_token, devices_per_token, load_max_over_mean, judge_slow, judge_fast, vectors a batch, and seconds
    where the model's sizes are known. Of a LoadProfile, which says nothing of where tokens travel: load_max_over_mean, load_std and
    load_of_device [M, D], an expert's load shared equally by its copies.
    """
    if isinstance(recording, LoadProfile):
        return _arrays(_core.evaluate_loads(plan._plan, recording._profile))
    where = _of_plan(plan) if cluster is None else _cluster(cluster)
    return _arrays(_core.evaluate_trace(plan._plan, recording._trace, where, batch, dispatch, os.fspath(shape), seed, threads))


def simulate(plan: Plan, trace: Trace, cluster: Cluster | Path, *, shape: Path = "", batch: int = 0, prefill: int = 0, decode: int = 1,
             dispatch: str = "two_stage", combine: str = "reduced", threads: int = 0) -> dict[str, Any]:
    """Seconds of the whole trace on the cluster: `prefill`, `decode` and `whole` by part, arrays [M] and [M, D] by layer.

    batch: sequences that run together over all devices, 0: all. prefill and decode: in place of the trace's own lengths, `batch`
    prompts of `prefill` tokens and `decode` new ones of each.
    """
    return _arrays(_core.simulate(plan._plan, trace._trace, _cluster(cluster), os.fspath(shape), batch, prefill, decode, dispatch,
                                  combine, threads))


def compare(recording: Trace | LoadProfile, cluster: Cluster | Path, strategies: Sequence[str] = (), *, slots: int | str | None = None,
            splits: int = 5, batch: int = 2048, shape: Path = "", effort: float = 1, seed: int = 0, threads: int = 0) -> Comparison:
    """Every strategy side by side: plans are made on half of the sequences and judged on the other, `splits` times.

    strategies: () takes all that are published, and joint. slots: as in `plan`; several after commas ("9,grace"). Of a LoadProfile
    only how evenly load is shared, on the very loads that plans were made from: no splits, and no deviations.
    """
    request = _request(_core.CompareRequest(), strategies=",".join(strategies), slots="" if slots is None else str(slots), splits=splits,
                       batch=batch, shape=os.fspath(shape), effort=effort, seed=seed)
    if isinstance(recording, LoadProfile):
        found = _core.compare_loads(recording._profile, _cluster(cluster), request, threads)
    else:
        found = _core.compare_trace(recording._trace, _cluster(cluster), request, threads)
    rows = [ComparisonRow(**row) for row in found["rows"]]
    return Comparison(rows, found["measure"], rows[found["best"]], rows[found["recommended"]], found["recommendation"])


def _request(request: Any, **fields: Any) -> Any:
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def _whole(name: str, values: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name}: {array.dtype}, not whole numbers")
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name}: {array.max()} is more than {np.iinfo(np.int64).max}")
    return np.ascontiguousarray(array, dtype=np.int64)


def _list(values: Any, default: Any) -> list[int]:
    return [int(value) for value in (default if values is None else values)]


def _cluster(cluster: Cluster | Path) -> Any:
    return cluster._cluster if isinstance(cluster, Cluster) else _core.Cluster(os.fspath(cluster))


def _of_plan(plan: Plan) -> Any:
    sizes = set(plan.devices_per_node)
    if len(sizes) != 1:
        raise ValueError(f"cluster: nodes of {plan.devices_per_node} devices have no short name; pass a cluster file")
    return _core.Cluster(f"{len(plan.devices_per_node)}x{sizes.pop()}")


def _arrays(values: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value) if isinstance(value, _core.Array) else value for name, value in values.items()}
