// Which experts a token goes to, and with what weights.
#pragma once

#include <cstdint>
#include <span>

namespace grace::kernels {

// Softmax over E logits in f32, then the K largest (ties to the lower id), ids ascending by rank; weights
// renormalised to sum 1 when asked (OLMoE: not). logits: [T, E] -> ids [T, K], weights [T, K].
void gate(std::span<const float> logits, int num_experts, int experts_per_token, bool normalise,
          std::span<std::uint16_t> ids, std::span<float> weights);

// The same where a token may choose besides its best expert e only those whose allowed [E, E] in row e is not
// 0; weights are still of the softmax over all. REQUIRES: K - 1 of them in each row.
void gate_among(std::span<const float> logits, int num_experts, int experts_per_token, bool normalise,
                std::span<const char> allowed, std::span<std::uint16_t> ids, std::span<float> weights);

namespace reference {
void gate(std::span<const float> logits, int num_experts, int experts_per_token, bool normalise,
          std::span<std::uint16_t> ids, std::span<float> weights);
}  // namespace reference

}  // namespace grace::kernels
