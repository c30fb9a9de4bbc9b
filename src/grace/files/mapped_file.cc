#include "grace/files/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <functional>
#include <system_error>
#include <utility>

#include "grace/files/atomic_file.h"

namespace grace {
namespace {

Error system_error_at(const std::filesystem::path& path, int code) {
  return io_error(
      fmt::format("{}: {}", path.string(), std::error_code(code, std::generic_category()).message()));
}

// Owner of a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) return system_error_at(path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return system_error_at(path, errno);
  if (S_ISDIR(status.st_mode)) return system_error_at(path, EISDIR);
  if (!S_ISREG(status.st_mode)) return io_error(fmt::format("{}: is not a regular file", path.string()));
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return MappedFile(nullptr, 0);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return system_error_at(path, errno);
  return MappedFile(static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

std::optional<std::size_t> MappedFile::offset_of(std::span<const std::byte> part) const {
  const std::less_equal<> before;
  if (data_ == nullptr || !before(data_, part.data()) || !before(part.data() + part.size(), data_ + size_))
    return std::nullopt;
  return static_cast<std::size_t>(part.data() - data_);
}

bool MappedFile::give_back(std::span<const std::byte> part) const {
  const std::optional<std::size_t> offset = offset_of(part);
  if (!offset) return false;
  // Whole pages: what a neighbour still needs of them is fetched again.
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t first = *offset / page * page;
  ::madvise(const_cast<std::byte*>(data_ + first), *offset + part.size() - first, MADV_DONTNEED);
  return true;
}

void MappedFile::fetch(std::size_t offset, std::size_t size) const {
#ifdef MADV_POPULATE_READ
  if (data_ == nullptr || offset >= size_) return;
  std::byte* begin = const_cast<std::byte*>(data_) + offset / kLargePage * kLargePage;
  const auto length = static_cast<std::size_t>(data_ + std::min(offset + size, size_) - begin);
  // Told first: pages then enter the system's cache large, and a product runs over them as over its own
  // memory.
  ::madvise(begin, length, MADV_HUGEPAGE);
  ::madvise(begin, length, MADV_POPULATE_READ);
#endif
}

Result<std::string> read_text(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.ok()) return system_error_at(path, errno);
  std::string text;
  struct stat status {};
  if (::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode)) {
    text.reserve(static_cast<std::size_t>(status.st_size) + 1);
  }
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = ::read(file.get(), buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error_at(path, errno);
    if (got == 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

std::string first_bytes(const std::filesystem::path& path, std::size_t count) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return "";
  std::ifstream file(path, std::ios::binary);
  std::string text(count, '\0');
  file.read(text.data(), static_cast<std::streamsize>(count));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return text;
}

Status write_text_atomically(const std::filesystem::path& path, std::string_view text) {
  const std::span<const std::byte> piece = std::as_bytes(std::span(text.data(), text.size()));
  return write_pieces_atomically(path, std::span(&piece, 1));
}

Status write_pieces_atomically(const std::filesystem::path& path,
                               std::span<const std::span<const std::byte>> pieces) {
  AtomicFile file = GRACE_TRY(AtomicFile::create(path));
  for (const std::span<const std::byte> piece : pieces) GRACE_TRY(file.write(piece));
  return file.commit();
}

}  // namespace grace
