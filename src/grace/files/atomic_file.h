// A file written piece by piece that appears whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "grace/base/result.h"

namespace grace {

// Written beside `path` and renamed into place by commit(); without commit() nothing is left behind. What
// cannot be replaced (a pipe, a device) is written to directly. Thread-compatible.
class AtomicFile {
 public:
  // Errors: io, with the path and the system's reason.
  static Result<AtomicFile> create(const std::filesystem::path& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  ~AtomicFile();

  // Appends. Errors: io.
  Status write(std::span<const std::byte> bytes);
  // Writes over what was appended before, at `offset` from the file's begin. REQUIRES: it was appended
  // before. Errors: io, also for what has no positions, such as a pipe.
  Status write_at(std::int64_t offset, std::span<const std::byte> bytes);
  std::int64_t size() const { return size_; }
  // Errors: io; nothing is left behind then.
  Status commit();

 private:
  AtomicFile(std::filesystem::path target, std::filesystem::path beside, int fd);
  Status fail(int code);
  int flush();  // 0 or errno
  void abandon();

  std::filesystem::path target_;
  std::filesystem::path beside_;  // empty: written in place
  int fd_ = -1;
  std::int64_t size_ = 0;
  std::vector<std::byte> pending_;
};

}  // namespace grace
