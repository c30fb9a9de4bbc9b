// Zip archives, as .npz and torch's .pt files are: read as views, written stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grace/base/result.h"
#include "grace/files/mapped_file.h"

namespace grace {

// A member; `data` is as it lies in the archive, valid while the archive's bytes live.
struct ZipEntry {
  std::string name;
  bool deflated = false;
  std::uint64_t size = 0;  // of its content, as the archive says; checked by inflate
  std::uint32_t crc = 0;   // of its content, as the archive says
  std::span<const std::byte> data;
};

// The members in the order of the central directory, zip64 included; `place` stands for the path in messages.
// Errors: invalid_input for an archive that is cut short, whose records point outside it, that names a member
// twice or whose members overlap; unsupported for encryption, several disks and methods other than stored and
// deflated.
// mapped: where the bytes are a mapped file's, it, so that going through a large one holds little of it.
Result<std::vector<ZipEntry>> parse_zip(std::span<const std::byte> file, std::string_view place,
                                        const MappedFile* mapped = nullptr);

// The content of a member, of at most 1 GiB where it is deflated. Errors: invalid_input where its length or
// checksum is another than the archive says, or a deflated stream is broken.
Result<std::vector<std::byte>> inflate(const ZipEntry& entry, std::string_view place);

// An archive of stored members in the given order, without times: the same members give the same bytes, each
// member's content at a multiple of 64 (as numpy and torch map them). REQUIRES: names are distinct and
// shorter than 65,536 bytes; all together less than 4 GiB.
std::string zip_bytes(std::span<const std::pair<std::string, std::string>> members);

}  // namespace grace
