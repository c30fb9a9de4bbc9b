#include "grace/comm/mpi/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <new>

namespace grace::comm {

std::string place_of_this_process() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) return "";
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> processes{};
  if (readlink("/proc/self/ns/pid", processes.data(), processes.size() - 1) < 0) return "";
  return std::string(host.data()) + " " + boot + " " + processes.data();
}

SharedBuffer::~SharedBuffer() {
  if (data_ != nullptr) munmap(data_, capacity_);
  if (descriptor_ >= 0) close(descriptor_);
}

// Where the system has no more, it is as with any other memory.
void SharedBuffer::grow(std::size_t capacity) {
  if (descriptor_ < 0) descriptor_ = memfd_create("grace", MFD_CLOEXEC);
  if (descriptor_ < 0 || ftruncate(descriptor_, static_cast<off_t>(capacity)) != 0) throw std::bad_alloc();
  void* memory = data_ == nullptr
                     ? mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0)
                     : mremap(data_, capacity_, capacity, MREMAP_MAYMOVE);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(memory);
  capacity_ = capacity;
}

SharedView::~SharedView() { drop(); }

void SharedView::drop() {
  if (data_ != nullptr) munmap(data_, capacity_);
  data_ = nullptr;
}

std::span<const std::byte> SharedView::look(int process, int descriptor, std::size_t capacity,
                                            std::size_t bytes) {
  if (bytes == 0 || bytes > capacity) return {};
  if (data_ == nullptr || process != process_ || descriptor != descriptor_ || capacity != capacity_) {
    drop();
    const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return {};
    void* memory = mmap(nullptr, capacity, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return {};
    data_ = static_cast<std::byte*>(memory);
    process_ = process;
    descriptor_ = descriptor;
    capacity_ = capacity;
  }
  return {data_, bytes};
}

}  // namespace grace::comm
