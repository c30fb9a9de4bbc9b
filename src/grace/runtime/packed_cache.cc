#include "grace/runtime/packed_cache.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "grace/base/hash.h"
#include "grace/files/mapped_file.h"

namespace grace {
namespace {

// A file: this header, padded to a page; panels; of int8 also scales and offsets. Numbers as this machine
// writes them: a cache does not travel.
struct Header {
  std::array<char, 16> mark;
  std::int32_t out, in;
  std::int64_t storage;
  std::uint64_t panel_bytes, columns;  // columns: of scales and offsets, 0 where there are none
};
constexpr std::array<char, 16> kMark = {'g', 'r', 'a', 'c', 'e', ' ', 'p', 'a',
                                        'c', 'k', 'e', 'd', ' ', '0', '0', '1'};
constexpr std::size_t kPage = 4096;

std::string_view name_of(kernels::Storage storage) {
  return storage == kernels::Storage::kF32 ? "f32" : storage == kernels::Storage::kBf16 ? "bf16" : "int8";
}

Status make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return io_error(fmt::format("{}: {}", folder.string(), error.message()));
  return {};
}

Header header_of(const PackedShape& shape) {
  const std::size_t columns = kernels::packed_columns(shape.out);
  return {kMark,
          shape.out,
          shape.in,
          static_cast<std::int64_t>(shape.storage),
          kernels::packed_bytes(shape.out, shape.in, shape.storage),
          shape.storage == kernels::Storage::kInt8 ? columns : 0};
}

}  // namespace

Result<PackedCache> PackedCache::open(const std::filesystem::path& folder, const Checkpoint& checkpoint) {
  Fnv1a hash;
  for (const std::filesystem::path& file : checkpoint.paths()) {
    std::error_code error;
    const std::filesystem::path whole = std::filesystem::canonical(file, error);
    const auto size = error ? 0 : std::filesystem::file_size(whole, error);
    const auto time =
        error ? std::filesystem::file_time_type() : std::filesystem::last_write_time(whole, error);
    if (error) return io_error(fmt::format("{}: {}", file.string(), error.message()));
    hash.add(whole.string())
        .add_int(size)
        .add_int(static_cast<std::uint64_t>(time.time_since_epoch().count()));
  }
  const std::string name = checkpoint.folder().filename().string();
  PackedCache cache(folder / fmt::format("{}-{}", name.empty() ? "model" : name, hash.text()));
  for (const auto storage : {kernels::Storage::kF32, kernels::Storage::kBf16, kernels::Storage::kInt8})
    GRACE_TRY(make_folder(cache.folder_ / name_of(storage)));
  return cache;
}

std::filesystem::path PackedCache::path_of(const std::string& name, kernels::Storage storage) const {
  return folder_ / name_of(storage) / name;
}

void PackedCache::note(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

std::optional<kernels::PackedMatrix> PackedCache::find(const std::string& name, const PackedShape& shape,
                                                       ThreadPool& pool) {
  const std::filesystem::path path = path_of(name, shape.storage);
  std::error_code error;
  if (!status_.ok() || !std::filesystem::exists(path, error)) return std::nullopt;
  Result<kernels::PackedMatrix> packed = read(path, shape, pool);
  if (packed.ok()) return std::move(packed).value();
  note(packed.error());
  return std::nullopt;
}

Result<kernels::PackedMatrix> PackedCache::read(const std::filesystem::path& path, const PackedShape& shape,
                                                ThreadPool& pool) const {
  auto file = std::make_shared<const MappedFile>(GRACE_TRY(MappedFile::open(path)));
  const std::span<const std::byte> bytes = file->bytes();
  const Header expected = header_of(shape);
  const std::size_t tail = expected.columns * (sizeof(float) + sizeof(std::int32_t));
  if (bytes.size() != kPage + expected.panel_bytes + tail ||
      std::memcmp(bytes.data(), &expected, sizeof expected) != 0)
    return invalid_input(fmt::format("{}: {} bytes are no packed weight of [{}, {}]; delete {}",
                                     path.string(), bytes.size(), shape.out, shape.in, folder_.string()));
  constexpr std::size_t kPart = MappedFile::kLargePage;
  pool.for_each((bytes.size() + kPart - 1) / kPart,
                [&](std::size_t part, int) { file->fetch(part * kPart, kPart); });
  kernels::PackedMatrix packed;
  packed.out = shape.out;
  packed.in = shape.in;
  packed.arithmetic = shape.arithmetic;
  packed.storage = shape.storage;
  packed.scales.resize(expected.columns);
  packed.offsets.resize(expected.columns);
  const std::byte* at = bytes.data() + kPage + expected.panel_bytes;
  if (expected.columns > 0) {
    std::memcpy(packed.scales.data(), at, expected.columns * sizeof(float));
    std::memcpy(packed.offsets.data(), at + expected.columns * sizeof(float),
                expected.columns * sizeof(std::int32_t));
  }
  packed.panels = kernels::Bytes(bytes.subspan(kPage, expected.panel_bytes), std::move(file));
  return packed;
}

void PackedCache::keep(const std::string& name, const kernels::PackedMatrix& packed) {
  if (!status_.ok()) return;
  const Header header = header_of({packed.out, packed.in, packed.storage, {}});
  std::vector<std::byte> first(kPage);
  std::memcpy(first.data(), &header, sizeof header);
  const std::array<std::span<const std::byte>, 4> pieces = {
      first, std::span(packed.panels.data(), packed.panels.size()), std::as_bytes(std::span(packed.scales)),
      std::as_bytes(std::span(packed.offsets))};
  note(write_pieces_atomically(path_of(name, packed.storage), pieces));
}

}  // namespace grace
