"""DeepSeek's EPLB, to be used in its place: `from grace_moe import eplb`."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core


def rebalance_experts(weight: Any, num_replicas: int, num_groups: int, num_nodes: int, num_gpus: int, coactivation: Any = None, *,
                      threads: int = 0) -> tuple[Any, Any, Any]:
    """Places `num_replicas` copies of a layer's experts on `num_gpus`, as github.com/deepseek-ai/EPLB does, only sooner.

    weight: [layers, experts] loads. num_groups: of experts that stay on one node, where num_nodes divides it. Returns
    physical_to_logical [layers, replicas], logical_to_physical [layers, experts, X] padded with -1, and the number of copies
    [layers, experts], int64: torch tensors where weight is one, else numpy arrays. Equal to the original where it has no ties;
    ties go to the lower index. Like the original it may put an expert twice on a GPU; the strategies `eplb` of `grace_moe.plan` do not.

    coactivation: [layers, experts, experts] tokens that chose both; then copies also change places until experts that are chosen
    together share GPUs and nodes, and no GPU has more to do than the fullest had.

    Raises AssertionError where the original asserts (num_replicas % num_gpus, num_gpus % num_nodes, experts % num_groups), ValueError
    for what is no weight.
    """
    torch = _torch_of(weight)
    loads = _numbers("weight", weight)
    if loads.ndim != 2:
        raise ValueError(f"weight: {loads.ndim} dimensions, not [layers, experts]")
    together = None if coactivation is None else _numbers("coactivation", coactivation)
    for name, many, few in (("num_logical_experts % num_groups", loads.shape[1], num_groups), ("num_gpus % num_nodes", num_gpus, num_nodes),
                            ("num_physical_experts % num_gpus", num_replicas, num_gpus)):
        assert few > 0 and many % few == 0, f"{name}: {many} % {few}"
    assert num_replicas >= loads.shape[1], f"num_replicas: {num_replicas} is less than {loads.shape[1]}"
    maps = _core.rebalance(loads, num_replicas, num_groups, num_nodes, num_gpus, together, threads)
    arrays = tuple(np.asarray(one) for one in maps)
    if torch is None:
        return arrays[0], arrays[1], arrays[2]
    return torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1]), torch.from_numpy(arrays[2])


def _torch_of(values: Any) -> Any:
    """torch, where the values are one of its tensors; it is not imported for others."""
    if type(values).__module__.split(".")[0] != "torch":
        return None
    import torch

    return torch


def _numbers(name: str, values: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    if _torch_of(values) is not None:
        values = values.detach().cpu().double().numpy()
    array = np.asarray(values)
    if array.dtype.kind not in "iufb":
        raise ValueError(f"{name}: {array.dtype}, not numbers")
    return np.ascontiguousarray(array, dtype=np.float64)
