"""Recordings made by the engines' own recorders, driven without the engines: for make_interop_fixtures.py.

`sources` is a folder with the engines' files, which are not part of this repository:
  expert_distribution.py   SGLang, python/sglang/srt/eplb
  router_trace.py          Megatron-LM, megatron/core/transformer/moe
  expert_statistic.py      TensorRT-LLM, tensorrt_llm/_torch/modules/fused_moe
  llama-imatrix            llama.cpp, tools/imatrix: the program
vLLM's must be importable: the `vllm` folder of its source distribution, and the packages that its serving classes import.
"""

import asyncio
import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types

import numpy
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


class VllmServer:
    """What vLLM does with routed experts between a layer's router and an answer's JSON, on a CPU: its capturer, its worker's and
    scheduler's ends of the auxiliary outputs, and its serving classes. Needs `vllm` importable; stood in for are the model's
    router, the configuration and the processes in between."""

    def __init__(self, layers: int, moe_layers, experts: int, k: int):
        from vllm.distributed.aux_output_connector import connector, worker
        from vllm.model_executor.layers.fused_moe import routed_experts_capturer
        from vllm.platforms import current_platform

        namespace = types.SimpleNamespace
        current_platform.device_type = "cpu"
        for place in (worker, routed_experts_capturer):
            place.get_tp_group = lambda: namespace(is_first_rank=True)

        class Router(torch.nn.Module):
            def __init__(self, layer_id):
                super().__init__()
                self.layer_id, self.capture_fn = layer_id, None

        self.routers = torch.nn.ModuleList(Router(layer) for layer in moe_layers)
        config = namespace(
            model_config=namespace(get_total_num_hidden_layers=lambda: layers, get_num_experts=lambda: experts,
                                   get_num_experts_per_tok=lambda: k, hf_text_config=namespace(model_type="toy")),
            scheduler_config=namespace(max_num_batched_tokens=64, max_num_seqs=4),
            parallel_config=namespace(data_parallel_rank=0, tensor_parallel_size=1, decode_context_parallel_size=1),
            cache_config=namespace(block_size=4, prefix_match_unit=None, enable_prefix_caching=True),
            aux_output_config=namespace(max_bytes=None), kv_transfer_config=None, max_concurrent_batches=1)
        self.worker = worker.get_aux_output_connector(self.routers, config, namespace(kv_cache_groups=[], num_blocks=64))
        self.connector, self.served = connector, 0

    def rows(self, choices, prompt: int, start: int = 0):
        """One request, prefilled in one step: choices [tokens][moe layers][k], its last generated token not among them."""
        from vllm.forward_context import override_forward_context

        namespace = types.SimpleNamespace
        self.served += 1
        name, done, chunks = f"request-{self.served}", 0, []
        while done < len(choices):
            count = prompt if done == 0 else 1
            self.worker.begin_step(self.connector.AuxOutputConnectorMetadata(0, {name: min(start, prompt) if done == 0 else done}, {}, ()))
            with override_forward_context(namespace(dp_metadata=None, batch_descriptor=None)):
                for m, router in enumerate(self.routers):
                    router.capture_fn(torch.tensor(choices[done:done + count, m]))
            step = self.worker.prepare_output(namespace(
                req_ids=[name], query_start_loc_np=numpy.array([0, count]), num_computed_tokens_np=numpy.array([done])))
            step.enqueue_cpu_copy(numpy.array([1]), numpy.array([0]))
            done += count
            request = namespace(request_id=name, num_tokens=done + 1, is_finished=lambda: True)
            chunks.append(self.connector.AuxOutputSchedulerConnector.take_output(None, request, step.process_output()))
        return numpy.concatenate(chunks, axis=0)

    def output(self, prompt: int, cached, answers):
        """One prompt's output, of answers (rows, generated tokens)."""
        from vllm.outputs import CompletionOutput, RequestOutput

        outputs = [CompletionOutput(index=i, text="x", token_ids=list(range(count)), cumulative_logprob=None, logprobs=None,
                                    routed_experts=rows, finish_reason="length") for i, (rows, count) in enumerate(answers)]
        return RequestOutput("r", "x", list(range(prompt)), None, outputs, True, num_cached_tokens=cached)

    @staticmethod
    def serving(kind):
        made = object.__new__(kind)
        for name, value in dict(enable_prompt_tokens_details=True, enable_per_request_metrics=False, system_fingerprint=None, parser_cls=None,
                                enable_log_outputs=False, request_logger=None, enable_auto_tools=False, response_role="assistant",
                                _include_reasoning_tokens_details=False).items():
            with contextlib.suppress(AttributeError):
                setattr(made, name, value)
        return made

    def completion(self, outputs, **fields) -> dict:
        """/v1/completions: one prompt, or several."""
        from vllm.entrypoints.openai.completion import protocol, serving

        request = protocol.CompletionRequest(model="toy", prompt="x", max_tokens=9, **fields)
        made = self.serving(serving.OpenAIServingCompletion)
        return made.request_output_to_completion_response(outputs, request, "cmpl-1", 1, "toy", None, types.SimpleNamespace()).model_dump()

    def chat(self, output, **fields) -> dict:
        """/v1/chat/completions."""
        from vllm.entrypoints.openai.chat_completion import protocol, serving

        request = protocol.ChatCompletionRequest(model="toy", messages=[{"role": "user", "content": "x"}], **fields)
        made = self.serving(serving.OpenAIServingChat)
        answer = made.chat_completion_full_generator(request, once(output), "chatcmpl-1", "toy", [], None, types.SimpleNamespace())
        return asyncio.run(answer).model_dump()

    def generate(self, output) -> dict:
        """/inference/v1/generate."""
        from vllm.entrypoints.scale_out.token_in_token_out import protocol, serving
        from vllm.sampling_params import SamplingParams

        kind = next(one for one in vars(serving).values() if hasattr(one, "serve_tokens_full_generator"))
        request = protocol.GenerateRequest(model="toy", token_ids=[1], sampling_params=SamplingParams(max_tokens=9))
        made = self.serving(kind)
        made._logprobs_tokenizer = lambda _text: None
        answer = made.serve_tokens_full_generator(request, once(output), "generate-1", "toy", types.SimpleNamespace())
        return asyncio.run(answer).model_dump()


async def once(value):
    yield value


def llama_imatrix(program: pathlib.Path, tokenizer: pathlib.Path, text: str, out: pathlib.Path, context: int, chunks: int):
    """llama.cpp's imatrix tool on a made-up OLMoE of two layers of eight experts; counts [layer][expert] by transformers."""
    import gguf
    import tokenizers
    import transformers

    shape = dict(vocab_size=4096, hidden_size=32, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                 num_experts=8, num_experts_per_tok=2, norm_topk_prob=False, max_position_embeddings=256, rms_norm_eps=1e-5,
                 rope_theta=10000.0, initializer_range=0.5, tie_word_embeddings=False)
    torch.manual_seed(7)
    config = transformers.OlmoeConfig(**shape, dtype="float32", pad_token_id=0, eos_token_id=0, bos_token_id=None)
    model = transformers.OlmoeForCausalLM(config).eval()
    described = json.loads(tokenizer.read_text())["model"]
    writer = gguf.GGUFWriter(out.with_suffix(".model.gguf"), "olmoe")
    for add, value in (("context_length", 256), ("embedding_length", 32), ("block_count", 2), ("feed_forward_length", 16),
                       ("head_count", 2), ("head_count_kv", 2), ("layer_norm_rms_eps", 1e-5), ("expert_count", 8),
                       ("expert_used_count", 2), ("rope_freq_base", 10000.0), ("tokenizer_model", "gpt2"), ("tokenizer_pre", "gpt-2"),
                       ("add_bos_token", False), ("eos_token_id", 0)):
        getattr(writer, f"add_{add}")(value)
    words = sorted(described["vocab"], key=described["vocab"].get)
    writer.add_token_list(words + [f"<{i}>" for i in range(len(words), 4096)])
    writer.add_token_types([1] * 4096)
    writer.add_token_merges([" ".join(merge) if isinstance(merge, list) else merge for merge in described["merges"]])
    weights = {name: tensor.detach().float().numpy() for name, tensor in model.state_dict().items()}
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm",
             "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp"}
    for theirs, ours in (("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")):
        writer.add_tensor(f"{ours}.weight", weights[f"{theirs}.weight"])
    for layer in range(2):
        for theirs, ours in names.items():
            writer.add_tensor(f"blk.{layer}.{ours}.weight", weights[f"model.layers.{layer}.{theirs}.weight"])
        both = weights[f"model.layers.{layer}.mlp.experts.gate_up_proj"]
        writer.add_tensor(f"blk.{layer}.ffn_gate_exps.weight", both[:, :16].copy())
        writer.add_tensor(f"blk.{layer}.ffn_up_exps.weight", both[:, 16:].copy())
        writer.add_tensor(f"blk.{layer}.ffn_down_exps.weight", weights[f"model.layers.{layer}.mlp.experts.down_proj"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    prompt = out.with_suffix(".txt")
    prompt.write_text(text)
    made = [str(program), "-m", str(out.with_suffix(".model.gguf")), "-f", prompt.name, "-c", str(context), "-b", str(context),
            "--chunks", str(chunks), "--no-ppl", "-t", "1", "-o", out.name]
    subprocess.run(made, cwd=out.parent, check=True, capture_output=True)
    ids = tokenizers.Tokenizer.from_file(str(tokenizer)).encode(text, add_special_tokens=False).ids
    counts = [[0] * 8 for _ in range(2)]
    for chunk in range(chunks):
        with torch.no_grad():
            answer = model(torch.tensor([ids[chunk * context:(chunk + 1) * context]]), output_router_logits=True)
        for layer, logits in enumerate(answer.router_logits):
            for expert in logits.topk(2, dim=-1).indices.ravel().tolist():
                counts[layer][expert] += 1
    return counts
