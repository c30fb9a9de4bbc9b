// Any bytes as the pickle of a torch file with one storage: refused, or every tensor in it lies in the
// storage.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "grace/files/torch_file.h"
#include "grace/files/zip.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::pair<std::string, std::string>> members = {
      {"a/data.pkl", std::string(reinterpret_cast<const char*>(data), size)},
      {"a/data/0", std::string(64, '\1')}};
  const std::string file = grace::zip_bytes(members);
  const auto torch = grace::TorchFile::parse(std::as_bytes(std::span(file.data(), file.size())), "fuzz");
  if (!torch.ok()) return 0;
  const grace::PickleValue root = torch.value().root();
  const auto use = [&](const grace::PickleValue& value) {
    const auto tensor = torch.value().tensor(value, "fuzz");
    if (tensor.ok() && tensor.value().num_elements() < 4096)
      (void)grace::row_major_bytes(tensor.value()).size();
  };
  use(root);
  for (std::size_t i = 0; root.is(grace::PickleKind::kDict) && i < root.size(); ++i) use(root.value(i));
  return 0;
}
