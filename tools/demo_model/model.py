"""OLMoE's forward pass, made for training on a few CPU cores; equal to transformers' up to rounding.

The experts are where the time goes. Tokens are sorted by expert and padded within buckets of experts of similar
load, so that one batched bf16 matrix product serves a whole bucket; the backward pass is written by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

EXPERTS_PER_BUCKET = 8
# oneDNN compiles a kernel for every new number of rows; few distinct heights keep its cache warm.
ROW_STEP = 32


@dataclass(frozen=True)
class Shape:
    """The model's sizes, spelled as in config.json where the names differ from ours."""

    vocab_size: int = 4096
    hidden: int = 128
    expert_ffn: int = 64
    layers: int = 6
    heads: int = 4
    experts: int = 64
    top_k: int = 8
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    max_positions: int = 2048

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every trained tensor; experts are stacked, gate rows before up rows."""
        h, f, e = self.hidden, self.expert_ffn, self.experts
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab_size, h)}
        for layer in range(self.layers):
            p = f"model.layers.{layer}."
            shapes |= {p + f"self_attn.{name}_proj.weight": (h, h) for name in "qkvo"}
            shapes |= {p + f"self_attn.{name}_norm.weight": (h,) for name in "qk"}
            shapes |= {p + "input_layernorm.weight": (h,), p + "post_attention_layernorm.weight": (h,)}
            shapes |= {p + "mlp.gate.weight": (e, h)}
            shapes |= {p + "mlp.experts.gate_up_proj": (e, 2 * f, h), p + "mlp.experts.down_proj": (e, h, f)}
        shapes["model.norm.weight"] = (h,)
        return shapes

    def hf_config(self) -> dict[str, Any]:
        """config.json in the published spelling."""
        return {
            "architectures": ["OlmoeForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": None,
            "clip_qkv": None,
            "eos_token_id": 0,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "initializer_range": 0.05,
            "intermediate_size": self.expert_ffn,
            "max_position_embeddings": self.max_positions,
            "model_type": "olmoe",
            "norm_topk_prob": False,
            "num_attention_heads": self.heads,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.heads,
            "output_router_logits": False,
            "pad_token_id": 0,
            "rms_norm_eps": self.norm_eps,
            "rope_scaling": None,
            "rope_theta": self.rope_theta,
            "router_aux_loss_coef": 0.001,
            "tie_word_embeddings": True,
            "torch_dtype": "bfloat16",
            "use_cache": True,
            "vocab_size": self.vocab_size,
        }


@dataclass(frozen=True)
class Buckets:
    """Where each (token, expert) assignment lies among the padded rows.

    slot: [T*K] row of each assignment; token: [P] token of each row, T for padding;
    parts: (first expert, end expert, first row, end row) of each bucket, experts numbered in `order`.
    """

    slot: Tensor
    token: Tensor
    order: Tensor
    parts: list[tuple[int, int, int, int]]


def fill_buckets(expert: Tensor, num_experts: int) -> Buckets:
    """Lays out assignments `expert` [T, K] so that experts of similar load share a bucket."""
    num_tokens, top_k = expert.shape
    flat = expert.reshape(-1)
    counts = torch.bincount(flat, minlength=num_experts)
    order = torch.argsort(counts, descending=True, stable=True)
    sizes = counts[order].tolist()

    start = torch.empty(num_experts, dtype=torch.long)
    parts, rows = [], 0
    for first in range(0, num_experts, EXPERTS_PER_BUCKET):
        end = min(first + EXPERTS_PER_BUCKET, num_experts)
        height = max(1, -(-sizes[first] // ROW_STEP)) * ROW_STEP
        start[order[first:end]] = rows + height * torch.arange(end - first)
        parts.append((first, end, rows, rows + height * (end - first)))
        rows = parts[-1][3]

    by_expert = torch.argsort(flat, stable=True)
    before = torch.cumsum(counts, 0) - counts
    rank = torch.arange(flat.numel()) - before[flat[by_expert]]
    slot = torch.empty_like(flat)
    slot[by_expert] = start[flat[by_expert]] + rank
    token = torch.full((rows,), num_tokens, dtype=torch.long)
    token[slot] = torch.arange(num_tokens).repeat_interleave(top_k)
    return Buckets(slot, token, order, parts)


def _with_zero_row(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_zeros(1, x.shape[1])])


def _bucketed_product(parts: list[tuple[int, int, int, int]], x: Tensor, w: Tensor) -> Tensor:
    """x: [P, A], w: [E, A, B] in bucket order. Returns [P, B], each row times its expert's matrix."""
    out = x.new_empty(x.shape[0], w.shape[2])
    for first, end, row, end_row in parts:
        n = end - first
        torch.bmm(x[row:end_row].view(n, -1, x.shape[1]), w[first:end], out=out[row:end_row].view(n, -1, w.shape[2]))
    return out


def _bucketed_outer(buckets: Buckets, a: Tensor, b: Tensor) -> Tensor:
    """a: [P, A], b: [P, B]. Returns [E, A, B] in f32, the sum of outer products over each expert's rows."""
    out = torch.empty(len(buckets.order), a.shape[1], b.shape[1])
    for first, end, row, end_row in buckets.parts:
        n = end - first
        rows_a, rows_b = a[row:end_row].view(n, -1, a.shape[1]), b[row:end_row].view(n, -1, b.shape[1])
        out[buckets.order[first:end]] = torch.bmm(rows_a.transpose(1, 2), rows_b).float()
    return out


class Experts(torch.autograd.Function):
    """SwiGLU experts over bucketed tokens: (x [T, H], weight [T, K], expert [T, K]) -> [T, H]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, expert: Tensor, gate_up: Tensor, down: Tensor,
                dtype: torch.dtype) -> Tensor:
        buckets = fill_buckets(expert, gate_up.shape[0])
        w1 = gate_up.to(dtype)[buckets.order]  # [E, 2F, H]
        w2 = down.to(dtype)[buckets.order]  # [E, H, F]
        rows = _with_zero_row(x.to(dtype)).index_select(0, buckets.token)
        gate, up = _bucketed_product(buckets.parts, rows, w1.transpose(1, 2)).chunk(2, dim=1)
        out = _bucketed_product(buckets.parts, F.silu(gate) * up, w2.transpose(1, 2))
        chosen = out.index_select(0, buckets.slot).view(*expert.shape, -1)
        ctx.save_for_backward(weight, rows, gate, up, out, w1, w2)
        ctx.buckets, ctx.dtype = buckets, dtype
        return torch.bmm(weight.to(dtype).unsqueeze(1), chosen).squeeze(1).float()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        weight, rows, gate, up, out, w1, w2 = ctx.saved_tensors
        buckets, dtype, (grad,) = ctx.buckets, ctx.dtype, grads
        row_weight = torch.zeros(rows.shape[0], dtype=dtype)
        row_weight[buckets.slot] = weight.reshape(-1).to(dtype)
        grad_rows = _with_zero_row(grad.to(dtype)).index_select(0, buckets.token)
        d_weight = (grad_rows * out).sum(1, dtype=torch.float32).index_select(0, buckets.slot).view(weight.shape)

        d_out = grad_rows * row_weight.unsqueeze(1)
        d_act = _bucketed_product(buckets.parts, d_out, w2)
        act = F.silu(gate)
        d_gate = torch.ops.aten.silu_backward(d_act * up, gate)
        d_gate_up = torch.cat([d_gate, d_act * act], dim=1)
        d_down = _bucketed_outer(buckets, d_out, act * up)
        d_rows = _bucketed_product(buckets.parts, d_gate_up, w1)
        d_x = d_rows.index_select(0, buckets.slot).view(*weight.shape, -1).sum(1, dtype=torch.float32)
        return d_x, d_weight, None, _bucketed_outer(buckets, d_gate_up, rows), d_down, None


class TokenLoss(torch.autograd.Function):
    """Mean cross-entropy of `hidden` [T, H] against `target` [T] with the head's gradient taken at once."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, target: Tensor, dtype: torch.dtype) -> Tensor:
        h, w = hidden.to(dtype), head.to(dtype)
        log_p = torch.log_softmax(F.linear(h, w).float(), dim=1)
        loss = F.nll_loss(log_p, target)
        d_logits = log_p.exp_()
        d_logits[torch.arange(len(target)), target] -= 1.0
        d_logits = (d_logits / len(target)).to(dtype)
        ctx.save_for_backward((d_logits @ w).float(), (d_logits.t() @ h).float())
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden, d_head = ctx.saved_tensors
        return d_hidden * grads[0], d_head * grads[0], None, None


def balance_loss(probabilities: Tensor, expert: Tensor) -> Tensor:
    """transformers' load-balancing loss of one layer: E * sum over e of share(e) * mean probability(e)."""
    num_tokens, num_experts = probabilities.shape
    share = torch.bincount(expert.reshape(-1), minlength=num_experts) / num_tokens
    return num_experts * (share * probabilities.mean(0)).sum()


class Model:
    """The forward pass over parameters held by the caller. Products run in `dtype`, sums and norms in f32."""

    def __init__(self, shape: Shape, parameters: dict[str, Tensor], dtype: torch.dtype) -> None:
        self.shape = shape
        self.parameters = parameters
        self.dtype = dtype
        head_dim = shape.hidden // shape.heads
        frequency = shape.rope_theta ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        angle = torch.outer(torch.arange(shape.max_positions).float(), frequency).repeat(1, 2)
        self._cos, self._sin = angle.cos(), angle.sin()

    def hidden(self, tokens: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """tokens: [B, S]. Returns the last hidden states [B*S, H], normed, the balance loss averaged over layers,
        and each layer's chosen experts [B*S, K]."""
        batch, length = tokens.shape
        x = F.embedding(tokens.reshape(-1), self.parameters["model.embed_tokens.weight"])
        balance = torch.zeros(())
        routed = []
        for layer in range(self.shape.layers):
            p = f"model.layers.{layer}."
            x = x + self._attention(p + "self_attn.", self._norm(x, p + "input_layernorm"), batch, length)
            mixed, layer_balance, expert = self._moe(p + "mlp.", self._norm(x, p + "post_attention_layernorm"))
            x = x + mixed
            balance = balance + layer_balance / self.shape.layers
            routed.append(expert)
        return self._norm(x, "model.norm"), balance, routed

    def logits(self, tokens: Tensor) -> Tensor:
        """tokens: [B, S]. Returns [B, S, V]."""
        hidden, _, _ = self.hidden(tokens)
        return self._linear(hidden, "model.embed_tokens").view(*tokens.shape, -1)

    def loss(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """tokens: [B, S+1]. Returns the mean loss of the S predictions, and the balance loss."""
        hidden, balance, _ = self.hidden(tokens[:, :-1])
        head = self.parameters["model.embed_tokens.weight"]
        return TokenLoss.apply(hidden, head, tokens[:, 1:].reshape(-1), self.dtype), balance

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.parameters[name + ".weight"], self.shape.norm_eps)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x.to(self.dtype), self.parameters[name + ".weight"].to(self.dtype)).float()

    def _attention(self, p: str, x: Tensor, batch: int, length: int) -> Tensor:
        def by_head(y: Tensor) -> Tensor:
            return y.view(batch, length, self.shape.heads, -1).transpose(1, 2).flatten(0, 1)

        q = self._rotate(by_head(self._norm(self._linear(x, p + "q_proj"), p + "q_norm"))).to(self.dtype)
        k = self._rotate(by_head(self._norm(self._linear(x, p + "k_proj"), p + "k_norm"))).to(self.dtype)
        v = by_head(self._linear(x, p + "v_proj")).to(self.dtype)
        # Faster here than scaled_dot_product_attention, whose CPU kernels are slow at head sizes this small.
        future = torch.full((length, length), float("-inf"), dtype=self.dtype).triu(1)
        scores = torch.baddbmm(future, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
        mixed = torch.bmm(scores.softmax(dim=-1), v).view(batch, self.shape.heads, length, -1)
        return self._linear(mixed.transpose(1, 2).reshape(batch * length, -1), p + "o_proj")

    def _rotate(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        low, high = x.chunk(2, dim=-1)
        return x * self._cos[:length] + torch.cat([-high, low], dim=-1) * self._sin[:length]

    def _moe(self, p: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probabilities = F.linear(x, self.parameters[p + "gate.weight"]).softmax(dim=-1)
        weight, expert = probabilities.topk(self.shape.top_k, dim=-1)
        mixed = Experts.apply(x, weight, expert, self.parameters[p + "experts.gate_up_proj"],
                              self.parameters[p + "experts.down_proj"], self.dtype)
        return mixed, balance_loss(probabilities, expert), expert
