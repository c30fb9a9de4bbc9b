#include "grace/runtime/agreement.h"

#include <cstring>
#include <string>

namespace grace {

// A message is empty for ok, else one byte of kind and the text.
Status agree(Transport& transport, const Status& mine) {
  std::vector<std::byte> message;
  if (!mine.ok()) {
    const std::string& text = mine.error().message;
    message.resize(1 + text.size());
    message[0] = static_cast<std::byte>(mine.error().kind);
    std::memcpy(message.data() + 1, text.data(), text.size());
  }
  const auto messages = GRACE_TRY(transport.all_gather(message));
  for (const auto& theirs : messages) {
    if (theirs.empty()) continue;
    const auto kind = std::to_integer<int>(theirs[0]);
    if (kind > static_cast<int>(ErrorKind::kInternal))
      return peer_lost("a rank reports an error of kind " + std::to_string(kind) +
                       ", which is outside [0, 5]");
    std::string text(theirs.size() - 1, ' ');
    std::memcpy(text.data(), theirs.data() + 1, text.size());
    return Error{static_cast<ErrorKind>(kind), std::move(text)};
  }
  return {};
}

}  // namespace grace
