// The dispatch's messages: which assignments go to which rank, and their bytes (docs/formats/messages.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "grace/base/ids.h"
#include "grace/base/result.h"
#include "grace/cost/cost.h"

namespace grace {

// The tokens of one rank in one layer, gated and routed.
struct RoutedTokens {
  std::span<const float> x;                        // [T, H]
  std::span<const std::uint16_t> experts;          // [T, K]
  std::span<const std::int32_t> device_of_choice;  // [T, K], kNoDevice.value where nothing was chosen
  int hidden_size = 0;
  int experts_per_token = 0;
};

// What one rank sends. Its own assignments are listed but have no bytes.
struct Outgoing {
  std::vector<std::byte> bytes;
  std::vector<std::size_t> offsets;  // [D + 1]
  std::vector<std::vector<std::size_t>>
      cells_of_rank;  // [D]: cells of [T, K] in the order in which their results come back
  SendCounts counts;  // the own device's included
};

// By destination, token after token, a token's experts by ascending id.
Outgoing pack_dispatch(const RoutedTokens& tokens, Dispatch dispatch, int num_devices, DeviceId own);

// One (token, expert) that came in. x: [H], a view into the received bytes.
struct IncomingAssignment {
  ExpertId expert;
  const float* x = nullptr;
};
// Reads the message of rank `source` and appends its assignments. Errors: peer_lost, with the byte, for a
// message that is cut short, has a negative row, no experts or more than `num_experts`, or an expert outside
// [0, num_experts). REQUIRES: message is aligned to 4 bytes.
Status unpack_dispatch(std::span<const std::byte> message, int source, int hidden_size, int num_experts,
                       std::vector<IncomingAssignment>& assignments);

}  // namespace grace
