"""Plans where the experts of a Mixture-of-Experts model go, and where copies of the popular ones help.

    import grace_moe
    trace = grace_moe.Trace.read("out/en.trace")
    best = grace_moe.compare(trace, "2x4")
    print(best.recommendation)
    plan = grace_moe.plan(trace, "2x4", "joint-slow", slots=9)
    print(grace_moe.evaluate(plan, trace, "2x4")["load_max_over_mean"])
    grace_moe.export_placement(plan, "sglang", "placement.json")

Arrays go in and come out as numpy's. Letters in shapes: T tokens, M MoE layers, K experts a token chooses, E experts of a layer,
D devices, P slots of a layer. What is impossible raises ValueError, what the system refuses OSError, with one line that says
where, what and which bound. Calls let other threads run; `threads=0` takes all cores, and results do not depend on it.
"""

from ._api import (
    Cluster, Comparison, ComparisonRow, LoadProfile, Plan, Trace, compare, evaluate, exporters, importers, known_shapes,
    load_strategies, plan, simulate, strategies, vanilla_plan,
)
from ._files import Export, ImportSummary, export_placement, import_recording, read_placement
from ._core import __version__

__all__ = [
    "Cluster", "Comparison", "ComparisonRow", "Export", "ImportSummary", "LoadProfile", "Plan", "Trace", "__version__", "compare",
    "evaluate", "export_placement", "exporters", "import_recording", "importers", "known_shapes", "load_strategies", "plan",
    "read_placement", "simulate", "strategies", "vanilla_plan",
]
