// Messages that processes of one machine read where they were written.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "grace/comm/channel.h"

namespace grace::comm {

// Names the machine and the view of its processes that this one has: two processes with the same one can look
// for each other's memory. Host names count, so that what stands for several machines is several.
std::string place_of_this_process();

// Memory without a name in any file system: it goes with the last process that holds it, however that ends.
class SharedBuffer final : public MessageBuffer {
 public:
  SharedBuffer() = default;
  ~SharedBuffer() override;
  SharedBuffer(const SharedBuffer&) = delete;
  SharedBuffer& operator=(const SharedBuffer&) = delete;

  // By which another process finds it; -1 before anything was written.
  int descriptor() const { return descriptor_; }
  std::size_t capacity() const { return capacity_; }

 private:
  void grow(std::size_t capacity) override;
  int descriptor_ = -1;
};

// A look at another process's SharedBuffer.
class SharedView {
 public:
  SharedView() = default;
  ~SharedView();
  SharedView(const SharedView&) = delete;
  SharedView& operator=(const SharedView&) = delete;

  // The first `bytes` of a buffer as its owner describes it; nothing where this process may not look.
  std::span<const std::byte> look(int process, int descriptor, std::size_t capacity, std::size_t bytes);

 private:
  void drop();
  int process_ = -1, descriptor_ = -1;
  std::byte* data_ = nullptr;
  std::size_t capacity_ = 0;
};

}  // namespace grace::comm
