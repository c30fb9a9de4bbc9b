"""Recordings made by the engines' own recorders, driven without the engines: for make_interop_fixtures.py.

`sources` is a folder with the engines' files, which are not part of this repository:
  expert_distribution.py   SGLang, python/sglang/srt/eplb
  router_trace.py          Megatron-LM, megatron/core/transformer/moe
  expert_statistic.py      TensorRT-LLM, tensorrt_llm/_torch/modules/fused_moe
"""

import contextlib
import importlib.util
import os
import pathlib
import sys
import types

import torch


def stand_in(**stubs) -> None:
    """Stands in for what a recorder imports, from now on: names with two underscores for dots."""
    for name, stub in stubs.items():
        parts = name.split("__")
        for i in range(1, len(parts)):
            sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
        sys.modules[".".join(parts)] = stub


def module(**attributes):
    made = types.ModuleType("stub")
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def load(path: pathlib.Path, name: str):
    spec = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def sglang_recorder(sources: pathlib.Path, mode: str, out: pathlib.Path, map_of_layers, num_logical: int, rank: int):
    """SGLang's recorder of one rank, recording."""
    namespace = types.SimpleNamespace
    moe = namespace(
        expert_distribution_recorder_mode=mode, moe_a2a_backend="none", deepep_mode="normal", elastic_ep_backend=None,
        expert_distribution_recorder_buffer_size=8, eplb_min_rebalancing_utilization_threshold=1.0,
        expert_balancedness_report_mode=None)
    execution = namespace(moe=moe, overlap=namespace(enable_two_batch_overlap=False))

    class Withable:
        value = None

        @contextlib.contextmanager
        def with_value(self, value):
            self.value, before = value, self.value
            try:
                yield
            finally:
                self.value = before

        def __class_getitem__(cls, _item):
            return cls

    def variable(value):
        return namespace(get=lambda: value)

    envs = namespace(SGLANG_EXPERT_DISTRIBUTION_RECORDER_DIR=variable(str(out)),
                     SGLANG_AITER_MEGA_EPLB_PREFILL_ONLY=variable(False), SGLANG_AITER_MEGA_RANK_SYNC=variable(False))
    resources = namespace(expert_distribution_recorder=None)
    stand_in(
        einops=module(reduce=None), sglang__srt__environ=module(envs=envs),
        sglang__srt__layers__moe=module(get_moe_a2a_backend=lambda: None),
        sglang__srt__model_executor__forward_batch_info=module(ForwardBatch=object, ForwardMode=object),
        sglang__srt__observability__metrics_collector=module(
            STAT_LOGGER_ROLE_EXPERT_DISPATCH="", ExpertDispatchCollector=object, resolve_collector_class=None),
        sglang__srt__runtime_context=module(
            get_device=lambda: namespace(device="cpu"), get_exec=lambda: execution,
            get_platform=lambda: namespace(is_hip=False), get_schedule=lambda: namespace(chunked_prefill_size=8),
            get_resources=lambda: resources, logs_expert_balancedness_to_server_log=lambda: False,
            reports_expert_balancedness=lambda: False),
        sglang__srt__utils=module(Withable=Withable, get_device=lambda: "cpu", get_int_env_var=lambda _n, d: d))
    code = load(sources / "expert_distribution.py", "sglang_expert_distribution")
    physical = torch.tensor(map_of_layers)
    metadata = namespace(num_layers=physical.shape[0], num_physical_experts=physical.shape[1], num_logical_experts=num_logical,
                         num_local_physical_experts=physical.shape[1], physical_to_logical_map=physical, ep_size=2)
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:29533", rank=0, world_size=1)
    torch.get_device_module = lambda: namespace(empty_cache=lambda: None, is_current_stream_capturing=lambda: False)
    recorder = code.ExpertDistributionRecorder.init_new(metadata, rank)
    recorder.start_record()
    return recorder


def sglang_pass(recorder, number: int, forward_mode: int, lengths, ids_of_layer) -> None:
    """One forward pass: ids_of_layer {layer: [tokens][k] physical ids}."""
    count = len(next(iter(ids_of_layer.values())))
    batch = types.SimpleNamespace(
        input_ids=torch.arange(100, 100 + count), positions=torch.arange(count), extend_seq_lens_cpu=lengths,
        forward_mode=types.SimpleNamespace(value=forward_mode))
    with recorder.with_forward_pass(number, batch):
        for layer, ids in ids_of_layer.items():
            with recorder.with_current_layer(layer):
                recorder.on_select_experts(torch.tensor(ids, dtype=torch.int32))


def megatron_tracer(sources: pathlib.Path, out: pathlib.Path, rank: int):
    code = load(sources / "router_trace.py", "megatron_router_trace")
    return code.RouterTracer(str(out), max_steps=100, rank=rank, training_mode=True)


def megatron_layer(tracer, block: str, mtp_idx, layer: int, ids, num_experts: int) -> None:
    """What the hook of one router records: a boolean map, as the router returns it."""
    chosen = torch.zeros(len(ids), num_experts, dtype=torch.bool)
    for token, row in enumerate(ids):
        chosen[token, row] = True
    router = types.SimpleNamespace(topk=len(ids[0]))
    tracer._record(router, (), (torch.zeros(0), chosen), (block, mtp_idx, layer))


def trtllm_statistic(sources: pathlib.Path, out: pathlib.Path, rank: int, span: str):
    import safetensors.torch  # noqa: F401 (the recorder counts on it)
    os.environ["EXPERT_STATISTIC_PATH"] = str(out)
    os.environ["EXPERT_STATISTIC_ITER_RANGE"] = span
    silent = types.SimpleNamespace(info=lambda _text: None)
    stand_in(tensorrt_llm__logger=module(logger=silent))
    code = load(sources / "expert_statistic.py", "trtllm_expert_statistic")
    code.ExpertStatistic.create(rank)
    return code.ExpertStatistic
