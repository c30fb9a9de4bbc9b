#include "grace/files/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "grace/base/check.h"

namespace grace {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;  // small writes are gathered up to this

Error system_error_at(const std::filesystem::path& path, int code) {
  return io_error(
      fmt::format("{}: {}", path.string(), std::error_code(code, std::generic_category()).message()));
}

// 0 or errno.
int write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return 0;
}

int write_all_at(int fd, std::int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += written;
  }
  return 0;
}

std::filesystem::path name_beside(const std::filesystem::path& path) {
  static std::atomic<unsigned> counter{0};
  std::filesystem::path beside = path;
  beside += fmt::format(".{}.{}.tmp", ::getpid(), counter++);
  return beside;
}

}  // namespace

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& path) {
  std::filesystem::path target = path;
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) return system_error_at(path, EISDIR);
    if (!S_ISREG(status.st_mode)) {
      const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
      if (fd < 0) return system_error_at(path, errno);
      return AtomicFile(path, {}, fd);
    }
    // A link stays a link: what it points to is replaced.
    std::error_code error;
    target = std::filesystem::canonical(path, error);
    if (error) return system_error_at(path, error.value());
  }
  std::filesystem::path beside = name_beside(target);
  const int fd = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return system_error_at(path, errno);
  return AtomicFile(std::move(target), std::move(beside), fd);
}

AtomicFile::AtomicFile(std::filesystem::path target, std::filesystem::path beside, int fd)
    : target_(std::move(target)), beside_(std::move(beside)), fd_(fd) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : target_(std::move(other.target_)),
      beside_(std::exchange(other.beside_, {})),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      pending_(std::move(other.pending_)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  std::swap(target_, other.target_);
  std::swap(beside_, other.beside_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(pending_, other.pending_);
  return *this;
}

AtomicFile::~AtomicFile() { abandon(); }

void AtomicFile::abandon() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  if (!beside_.empty()) ::unlink(std::exchange(beside_, {}).c_str());
}

Status AtomicFile::fail(int code) {
  abandon();
  return system_error_at(target_, code);
}

int AtomicFile::flush() {
  const int code = write_all(fd_, pending_);
  pending_.clear();
  return code;
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  GRACE_CHECK(fd_ >= 0, "the file is open");
  size_ += std::ssize(bytes);
  if (pending_.size() + bytes.size() <= kBufferBytes) {
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
    return {};
  }
  if (const int code = flush(); code != 0) return fail(code);
  if (bytes.size() < kBufferBytes) {
    pending_.assign(bytes.begin(), bytes.end());
    return {};
  }
  if (const int code = write_all(fd_, bytes); code != 0) return fail(code);
  return {};
}

Status AtomicFile::write_at(std::int64_t offset, std::span<const std::byte> bytes) {
  GRACE_CHECK(fd_ >= 0 && offset >= 0 && offset + std::ssize(bytes) <= size_, "these bytes were appended");
  if (const int code = flush(); code != 0) return fail(code);
  if (const int code = write_all_at(fd_, offset, bytes); code != 0) return fail(code);
  return {};
}

Status AtomicFile::commit() {
  GRACE_CHECK(fd_ >= 0, "the file is open");
  if (const int code = flush(); code != 0) return fail(code);
  // A full disk may only be told by close().
  if (::close(std::exchange(fd_, -1)) != 0) return fail(errno);
  if (beside_.empty()) return {};
  if (::rename(beside_.c_str(), target_.c_str()) != 0) return fail(errno);
  beside_.clear();
  return {};
}

}  // namespace grace
