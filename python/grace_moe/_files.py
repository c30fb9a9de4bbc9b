"""Other engines' files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from . import _core
from ._api import Path, Plan


@dataclass(frozen=True)
class ImportSummary:
    """What was read. has_tokens: a trace was written, else a load profile."""

    format: str
    has_tokens: bool
    num_experts: int
    experts_per_token: int
    moe_layers: int
    tokens: int
    sequences: int
    assignments: int
    not_routed: int
    tokens_left_out: int
    warnings: list[str]


@dataclass(frozen=True)
class Export:
    """What a person must know of an exported placement: flags to start the engine with, notes, and what evening out cost."""

    start_with: list[str]
    notes: list[str]
    slots_per_device: int
    copies_added: int
    memory_factor: float


def import_recording(files: Path | Sequence[Path], out: Path, *, format: str = "", model: str = "", num_experts: int = 0,
                     experts_per_token: int = 0, decoder_layers: Sequence[int] = (), dense_layers: int = -1,
                     same_tokens: int = 1, phase: str = "prefill") -> ImportSummary:
    """Reads what another engine recorded into a trace or, where it only counted, a load profile at `out`.

    format: one of `importers`; "": detected. num_experts: where the source does not say; 0: the largest id + 1, with a warning.
    decoder_layers: of the MoE layers; or dense_layers: how many come before the first; neither: what the source says. same_tokens:
    consecutive ranks that recorded the same tokens. phase: prefill or decode, where the source does not say. Memory does not grow
    with the recording.
    """
    paths = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    return ImportSummary(**_core.import_recording([os.fspath(path) for path in paths], os.fspath(out), format, model, num_experts,
                                                  experts_per_token, list(decoder_layers), dense_layers, same_tokens, phase))


def export_placement(plan: Plan, to: str, out: Path, *, slots_per_device: int = 0, num_decoder_layers: int = 0,
                     mtp_layers: int = 0) -> Export:
    """Writes the plan as the placement file of an engine, one of `exporters`."""
    return Export(**_core.export_placement(plan._plan, to, os.fspath(out), slots_per_device, num_decoder_layers, mtp_layers))


def read_placement(path: Path, *, format: str = "", devices_per_node: Sequence[int] = (), model: str = "", num_experts: int = 0,
                   decoder_layers: Sequence[int] = ()) -> Plan:
    """The placement in another engine's file, as a plan; devices_per_node where the file does not say, else one node."""
    return Plan._of(_core.read_placement(os.fspath(path), format, list(devices_per_node), model, num_experts, list(decoder_layers)))
