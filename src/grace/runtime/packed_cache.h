// Packed weights kept on disk, so that a second start maps them in place of packing again: nothing is copied,
// and the ranks of one machine share the pages.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "grace/base/result.h"
#include "grace/base/thread_pool.h"
#include "grace/kernels/packed.h"
#include "grace/model/model.h"

namespace grace {

// The shape of a packed weight, and what will calculate with it.
struct PackedShape {
  int out = 0;
  int in = 0;
  kernels::Storage storage = kernels::Storage::kF32;
  kernels::Arithmetic arithmetic = {};  // not kept: one packed weight serves all that take its storage
};

// A file for each packed weight, in a folder for each checkpoint and storage; written beside and renamed into
// place, so that several ranks may keep the same one at once. A checkpoint of which a file has another name,
// size or time is another checkpoint. The first fault is remembered, since weights are packed where errors
// cannot be returned; after it nothing is kept any more. Thread-compatible.
class PackedCache {
 public:
  // Makes the checkpoint's folder inside `folder`. Errors: io.
  static Result<PackedCache> open(const std::filesystem::path& folder, const Checkpoint& checkpoint);

  // The weight kept as `name`, mapped and fetched; nothing where there is none.
  std::optional<kernels::PackedMatrix> find(const std::string& name, const PackedShape& shape,
                                            ThreadPool& pool);
  void keep(const std::string& name, const kernels::PackedMatrix& packed);

  // Errors: io; invalid_input for a file that is cut short or of another shape, with what to delete.
  Status status() const { return status_; }

 private:
  explicit PackedCache(std::filesystem::path folder) : folder_(std::move(folder)) {}
  Result<kernels::PackedMatrix> read(const std::filesystem::path& path, const PackedShape& shape,
                                     ThreadPool& pool) const;
  std::filesystem::path path_of(const std::string& name, kernels::Storage storage) const;
  void note(Status status);

  std::filesystem::path folder_;
  Status status_;
};

}  // namespace grace
