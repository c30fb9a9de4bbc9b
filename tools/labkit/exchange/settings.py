"""What is measured: shapes, workloads, ratios and strategies."""

import pathlib
import re
from dataclasses import dataclass, replace

from labkit.refusal import Refusal

SIZES = {"deepseek-v2-lite": (2048, 1408, 6), "olmoe": (2048, 1024, 8)}  # H, F, K: for a first guess of the time
QUICK = ("vanilla", "occult", "grace", "joint@grace")
LAYERS = 2
# How the paper's exchange ratios are reached, and the one larger workload.
PUBLISHED = ((2.3, "128/64/16"), (7.5, "128/64/16"), (34.0, "128/64/16"), (7.5, "256/128/16"))


@dataclass(frozen=True)
class Setting:
    shape: str
    ratio: float  # all-to-all over expert compute of plain expert parallelism, in prefill
    batch: int
    prefill: int
    decode: int
    layers: int = LAYERS
    quick: bool = False
    nodes: int = 2
    devices: int = 2  # of a node

    @property
    def shape_name(self) -> str:
        """Of a config.json, its folder's."""
        return pathlib.Path(self.shape).parent.name if self.shape.endswith(".json") else self.shape

    @property
    def work_name(self) -> str:
        """Of all but the link."""
        return f"{self.shape_name}-{self.batch}-{self.prefill}-{self.decode}{'-quick' if self.quick else ''}"

    @property
    def name(self) -> str:
        return f"{self.shape_name}-{self.ratio:g}-{self.batch}-{self.prefill}-{self.decode}{'-quick' if self.quick else ''}"

    @property
    def num_devices(self) -> int:
        return self.nodes * self.devices


@dataclass(frozen=True)
class Row:
    """One strategy. slots: copies that a device may hold in a layer, as `grace plan` takes it."""

    name: str
    strategy: str
    slots: str = ""
    planned: bool = True


def setting_of(shape: str, ratio: float, workload: str, quick: bool, layers: int = LAYERS) -> Setting:
    match = re.fullmatch(r"(\d+)/(\d+)/(\d+)", workload)
    if not match or 0 in map(int, match.groups()):
        raise Refusal(f"--workload: '{workload}' is no BATCH/PREFILL/DECODE such as 128/64/16")
    if ratio <= 0:
        raise Refusal(f"--ratio: {ratio:g} must be above 0")
    batch, prefill, decode = map(int, match.groups())
    setting = Setting(shape, ratio, batch, prefill, decode, layers)
    return replace(setting, batch=max(1, batch // 4), quick=True) if quick else setting


def rows_of(setting: Setting, experts: int, known: list[str]) -> list[Row]:
    """Every strategy that the program knows. Budgets of joint: grace's own, one more than a device must hold, and every expert on every node."""
    least, whole_node = -(-experts // setting.num_devices), -(-experts // setting.devices)
    rows = [Row("vanilla", "vanilla", planned=False), Row("padded", "padded", planned=False), Row("allgather", "allgather", planned=False), Row("occult", "occult"),
            Row("c2r", "c2r"), Row("eplb@grace", "eplb", "grace"), Row("grace", "grace"), Row("joint@grace", "joint", "grace"),
            Row(f"joint@{least + 1}", "joint", str(least + 1)), Row(f"joint@{whole_node}", "joint", str(whole_node))]
    rows = [row for row in rows if not row.planned or row.strategy in known]
    return [row for row in rows if row.name in QUICK] if setting.quick else rows
