#include "grace/runtime/messages.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "grace/base/check.h"

namespace grace {
namespace {

static_assert(kBytesPerVectorHeader == 2 * sizeof(std::int32_t) &&
                  kBytesPerAssignmentHeader == sizeof(std::int32_t),
              "the layout below has these sizes");

// Cells of [T, K] by destination, in wire order.
std::vector<std::vector<std::size_t>> sort_cells(const RoutedTokens& tokens, int num_devices) {
  const auto top = static_cast<std::size_t>(tokens.experts_per_token);
  std::vector<std::vector<std::size_t>> cells_of_rank(static_cast<std::size_t>(num_devices));
  std::vector<std::size_t> cells(top);
  for (std::size_t first = 0; first < tokens.experts.size(); first += top) {
    for (std::size_t k = 0; k < top; ++k) cells[k] = first + k;
    std::ranges::sort(cells,
                      [&](std::size_t a, std::size_t b) { return tokens.experts[a] < tokens.experts[b]; });
    for (const std::size_t cell : cells) {
      const std::int32_t device = tokens.device_of_choice[cell];
      if (device != kNoDevice.value) cells_of_rank[static_cast<std::size_t>(device)].push_back(cell);
    }
  }
  return cells_of_rank;
}

void append(std::vector<std::byte>& bytes, const void* data, std::size_t size) {
  const std::size_t at = bytes.size();
  bytes.resize(at + size);
  std::memcpy(bytes.data() + at, data, size);
}

// One vector with its header; its cells are all of one token.
void append_vector(std::vector<std::byte>& bytes, const RoutedTokens& tokens,
                   std::span<const std::size_t> cells) {
  const auto hidden = static_cast<std::size_t>(tokens.hidden_size);
  const std::size_t token = cells[0] / static_cast<std::size_t>(tokens.experts_per_token);
  const std::int32_t header[2] = {static_cast<std::int32_t>(token), static_cast<std::int32_t>(cells.size())};
  append(bytes, header, sizeof header);
  for (const std::size_t cell : cells) {
    const std::int32_t expert = tokens.experts[cell];
    append(bytes, &expert, sizeof expert);
  }
  append(bytes, tokens.x.data() + token * hidden, hidden * sizeof(float));
}

}  // namespace

Outgoing pack_dispatch(const RoutedTokens& tokens, Dispatch dispatch, int num_devices, DeviceId own) {
  const auto top = static_cast<std::size_t>(tokens.experts_per_token);
  Outgoing out;
  out.cells_of_rank = sort_cells(tokens, num_devices);
  out.offsets.push_back(0);
  for (std::size_t rank = 0; rank < out.cells_of_rank.size(); ++rank) {
    const std::span<const std::size_t> cells = out.cells_of_rank[rank];
    std::int64_t vectors = 0;
    for (std::size_t first = 0; first < cells.size(); ++vectors) {
      std::size_t last = first + 1;
      if (dispatch == Dispatch::kPerDevice) {
        while (last < cells.size() && cells[last] / top == cells[first] / top) ++last;
      }
      if (rank != own.idx()) append_vector(out.bytes, tokens, cells.subspan(first, last - first));
      first = last;
    }
    out.offsets.push_back(out.bytes.size());
    out.counts.vectors.push_back(vectors);
    out.counts.assignments.push_back(static_cast<std::int64_t>(cells.size()));
  }
  return out;
}

Status unpack_dispatch(std::span<const std::byte> message, int source, int hidden_size, int num_experts,
                       std::vector<IncomingAssignment>& assignments) {
  GRACE_CHECK(reinterpret_cast<std::uintptr_t>(message.data()) % alignof(float) == 0,
              "a message that is not aligned");
  std::size_t at = 0;
  const auto fault = [&](std::size_t byte, const std::string& what) {
    return peer_lost("rank " + std::to_string(source) + ": byte " + std::to_string(byte) +
                     " of its dispatch message: " + what);
  };
  const auto read_i32 = [&] {
    std::int32_t value = 0;
    std::memcpy(&value, message.data() + at, sizeof value);
    at += sizeof value;
    return value;
  };
  const std::size_t vector_bytes = static_cast<std::size_t>(hidden_size) * sizeof(float);
  while (at < message.size()) {
    const std::size_t start = at;
    if (message.size() - at < static_cast<std::size_t>(kBytesPerVectorHeader))
      return fault(start, "a header that is cut short");
    const std::int32_t row = read_i32();
    const std::int32_t count = read_i32();
    if (row < 0) return fault(start, "row " + std::to_string(row) + " is below 0");
    if (count < 1 || count > num_experts)
      return fault(start,
                   std::to_string(count) + " experts are outside [1, " + std::to_string(num_experts) + "]");
    const std::size_t rest =
        static_cast<std::size_t>(count) * static_cast<std::size_t>(kBytesPerAssignmentHeader) + vector_bytes;
    if (message.size() - at < rest)
      return fault(start, std::to_string(message.size() - at) + " bytes are left of " + std::to_string(rest));
    const float* x = reinterpret_cast<const float*>(message.data() + at + rest - vector_bytes);
    for (std::int32_t i = 0; i < count; ++i) {
      const std::size_t byte = at;
      const std::int32_t expert = read_i32();
      if (expert < 0 || expert >= num_experts)
        return fault(byte, "expert " + std::to_string(expert) + " is outside [0, " +
                               std::to_string(num_experts) + ")");
      assignments.push_back({ExpertId{expert}, x});
    }
    at += vector_bytes;
  }
  return {};
}

}  // namespace grace
