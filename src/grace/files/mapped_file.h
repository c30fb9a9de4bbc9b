// A file's bytes, mapped read-only: pages are read when touched, so opening a checkpoint costs nothing.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "grace/base/result.h"

namespace grace {

// Owner of the mapping; moving keeps the bytes' address. Immutable, thread-safe.
class MappedFile {
 public:
  // Errors: io, with the path and the system's reason.
  static Result<MappedFile> open(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  // Valid while this object (or the one it was moved to) lives.
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Where in the file these bytes begin; nothing for bytes of another file.
  std::optional<std::size_t> offset_of(std::span<const std::byte> part) const;
  // Lets go of the memory that reading these bytes took; reading them again fetches them again. Whether they
  // are of this file.
  bool give_back(std::span<const std::byte> part) const;
  // Fetches these of its bytes, in large pages where the file system has them; what it cannot fetch is
  // fetched when it is read.
  void fetch(std::size_t offset, std::size_t size) const;
  // The size of those pages; to fetch by parts that begin on them.
  static constexpr std::size_t kLargePage = std::size_t{2} << 20;

 private:
  MappedFile(const std::byte* data, std::size_t size) : data_(data), size_(size) {}
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// The whole file as a string. Errors: io.
Result<std::string> read_text(const std::filesystem::path& path);

// The first bytes of a file, at most `count`, to tell what it is; empty where it cannot be read.
std::string first_bytes(const std::filesystem::path& path, std::size_t count);

// Writes `text` beside `path` and renames it into place, so that a reader finds the old file or the new one,
// never half. What cannot be replaced (a pipe, a device) is written to directly. Errors: io; nothing is left
// behind then.
Status write_text_atomically(const std::filesystem::path& path, std::string_view text);
// The same for a file in pieces, one after the other.
Status write_pieces_atomically(const std::filesystem::path& path,
                               std::span<const std::span<const std::byte>> pieces);

}  // namespace grace
