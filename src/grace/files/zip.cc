#include "grace/files/zip.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "grace/base/check.h"
#include "grace/files/json_file.h"

namespace grace {
namespace {

constexpr std::uint32_t kLocalSignature = 0x04034b50, kCentralSignature = 0x02014b50,
                        kEndSignature = 0x06054b50, kEnd64Signature = 0x06064b50,
                        kLocator64Signature = 0x07064b50;
constexpr std::size_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                      kLocator64Bytes = 20;
constexpr std::size_t kMaxCommentBytes = 65'535;
constexpr std::uint32_t kIn64 = 0xffffffff;  // the value stands in the zip64 extra field
constexpr std::uint16_t kExtra64 = 1;        // id of that field
constexpr std::uint16_t kStored = 0, kDeflated = 8;
constexpr std::uint16_t kEncrypted = 1;         // bit of the flags
constexpr std::uint16_t kUtf8Name = 1U << 11U;  // bit of the flags
constexpr std::uint64_t kMaxInflatedBytes = std::uint64_t{1} << 30;
constexpr std::uint16_t kExtraPadding = 0x4246;  // id of a field of no meaning, as torch pads with
constexpr std::size_t kAlignment = 64;
// The system maps some 64 KiB around each local header.
constexpr std::uint64_t kMembersHeld = 256;

// The number at `offset`. REQUIRES: it is inside.
template <typename T>
T number_at(std::span<const std::byte> bytes, std::size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

struct Directory {
  std::uint64_t offset = 0, bytes = 0, entries = 0;
};

// Where the end record begins: the last place where one can.
std::optional<std::size_t> find_end(std::span<const std::byte> file) {
  if (file.size() < kEndBytes) return std::nullopt;
  const std::size_t last = file.size() - kEndBytes;
  const std::size_t first = last > kMaxCommentBytes ? last - kMaxCommentBytes : 0;
  for (std::size_t at = last + 1; at-- > first;) {
    if (number_at<std::uint32_t>(file, at) != kEndSignature) continue;
    if (at + kEndBytes + number_at<std::uint16_t>(file, at + 20) == file.size()) return at;
  }
  return std::nullopt;
}

Result<Directory> find_directory(std::span<const std::byte> file, std::string_view place) {
  const std::optional<std::size_t> end = find_end(file);
  if (!end)
    return invalid_input(
        fmt::format("{}: no end of a zip archive in its {} bytes: cut short?", place, file.size()));
  Directory directory{number_at<std::uint32_t>(file, *end + 16), number_at<std::uint32_t>(file, *end + 12),
                      number_at<std::uint16_t>(file, *end + 10)};
  std::uint32_t disk = number_at<std::uint16_t>(file, *end + 4);
  const bool has_locator = *end >= kLocator64Bytes &&
                           number_at<std::uint32_t>(file, *end - kLocator64Bytes) == kLocator64Signature;
  if (has_locator) {
    const auto at = number_at<std::uint64_t>(file, *end - kLocator64Bytes + 8);
    if (file.size() < kEnd64Bytes || at > file.size() - kEnd64Bytes ||
        number_at<std::uint32_t>(file, at) != kEnd64Signature)
      return invalid_input(fmt::format("{}: no zip64 end record at byte {} of {}", place, at, file.size()));
    directory = {number_at<std::uint64_t>(file, at + 48), number_at<std::uint64_t>(file, at + 40),
                 number_at<std::uint64_t>(file, at + 32)};
    disk = number_at<std::uint32_t>(file, at + 16);
  }
  if (disk != 0) return unsupported(fmt::format("{}: a zip archive of several disks", place));
  if (directory.offset > *end || directory.bytes > *end - directory.offset)
    return invalid_input(fmt::format("{}: the zip directory has bytes [{}, {} + {}), outside [0, {})", place,
                                     directory.offset, directory.offset, directory.bytes, *end));
  if (directory.entries > directory.bytes / kCentralBytes)
    return invalid_input(fmt::format("{}: the zip directory says {} members, its {} bytes have room for {}",
                                     place, directory.entries, directory.bytes,
                                     directory.bytes / kCentralBytes));
  return directory;
}

// Sizes and offset of a member, out of the central directory.
struct Extent {
  std::uint64_t size = 0, stored = 0, offset = 0;
};

// Takes from the zip64 field what did not fit into 32 bits. False where it is not there.
bool widen(std::span<const std::byte> extra, Extent& extent) {
  std::vector<std::uint64_t*> wanted;
  for (std::uint64_t* value : {&extent.size, &extent.stored, &extent.offset})
    if (*value == kIn64) wanted.push_back(value);
  if (wanted.empty()) return true;
  while (extra.size() >= 4) {
    const auto id = number_at<std::uint16_t>(extra, 0);
    const std::size_t bytes = number_at<std::uint16_t>(extra, 2);
    if (bytes > extra.size() - 4) return false;
    if (id == kExtra64) {
      if (bytes < 8 * wanted.size()) return false;
      for (std::size_t i = 0; i < wanted.size(); ++i) *wanted[i] = number_at<std::uint64_t>(extra, 4 + 8 * i);
      return true;
    }
    extra = extra.subspan(4 + bytes);
  }
  return false;
}

// The member's bytes, which its local header precedes.
Result<std::span<const std::byte>> data_of(std::span<const std::byte> file, const Extent& extent,
                                           const std::string& place) {
  const auto outside = [&] {
    return invalid_input(fmt::format("{}: {} bytes at byte {} reach over the archive's {}", place,
                                     extent.stored, extent.offset, file.size()));
  };
  if (file.size() < kLocalBytes || extent.offset > file.size() - kLocalBytes) return outside();
  const auto at = static_cast<std::size_t>(extent.offset);
  if (number_at<std::uint32_t>(file, at) != kLocalSignature)
    return invalid_input(fmt::format("{}: no local header at byte {}", place, at));
  const std::size_t begin =
      at + kLocalBytes + number_at<std::uint16_t>(file, at + 26) + number_at<std::uint16_t>(file, at + 28);
  if (begin > file.size() || extent.stored > file.size() - begin) return outside();
  return file.subspan(begin, static_cast<std::size_t>(extent.stored));
}

// The member whose central record begins `record`, and the record's length.
Result<std::pair<ZipEntry, std::size_t>> read_entry(std::span<const std::byte> file,
                                                    std::span<const std::byte> record,
                                                    std::string_view place) {
  if (record.size() < kCentralBytes || number_at<std::uint32_t>(record, 0) != kCentralSignature)
    return invalid_input(fmt::format("{}: the zip directory is broken", place));
  const std::size_t name_bytes = number_at<std::uint16_t>(record, 28);
  const std::size_t extra_bytes = number_at<std::uint16_t>(record, 30);
  const std::size_t length = kCentralBytes + name_bytes + extra_bytes + number_at<std::uint16_t>(record, 32);
  if (length > record.size()) return invalid_input(fmt::format("{}: the zip directory is cut short", place));
  ZipEntry entry;
  // Chars may alias any bytes.
  entry.name.assign(reinterpret_cast<const char*>(record.data()) + kCentralBytes, name_bytes);
  const std::string where = fmt::format("{}: member {}", place, shown(Json(entry.name)));
  const auto flags = number_at<std::uint16_t>(record, 8);
  const auto method = number_at<std::uint16_t>(record, 10);
  if ((flags & kEncrypted) != 0) return unsupported(where + " is encrypted");
  if (method != kStored && method != kDeflated)
    return unsupported(
        fmt::format("{} is compressed by method {}, neither stored (0) nor deflated (8)", where, method));
  entry.deflated = method == kDeflated;
  entry.crc = number_at<std::uint32_t>(record, 16);
  Extent extent{number_at<std::uint32_t>(record, 24), number_at<std::uint32_t>(record, 20),
                number_at<std::uint32_t>(record, 42)};
  if (!widen(record.subspan(kCentralBytes + name_bytes, extra_bytes), extent))
    return invalid_input(where + ": the zip64 field is broken or absent");
  entry.size = extent.size;
  entry.data = GRACE_TRY(data_of(file, extent, where));
  if (!entry.deflated && entry.size != entry.data.size())
    return invalid_input(fmt::format("{}: stored in {} bytes, has {}", where, entry.data.size(), entry.size));
  return std::pair(std::move(entry), length);
}

// Members that share bytes let a small archive grow without bound when it is read.
Status check_apart(std::span<const ZipEntry> entries, std::string_view place) {
  std::vector<const ZipEntry*> order;
  for (const ZipEntry& entry : entries)
    if (!entry.data.empty()) order.push_back(&entry);
  std::ranges::sort(order, std::less<>(), [](const ZipEntry* entry) { return entry->data.data(); });
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->data.data() + order[i - 1]->data.size() > order[i]->data.data())
      return invalid_input(fmt::format("{}: members {} and {} overlap", place,
                                       shown(Json(order[i - 1]->name)), shown(Json(order[i]->name))));
  }
  return {};
}

template <typename T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

std::uint32_t crc_of(std::string_view bytes) {
  return static_cast<std::uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// What local and central headers have in common, from the version on.
void put_common(std::string& out, std::string_view content, std::uint32_t crc) {
  constexpr std::uint16_t kVersion = 20, kNoTime = 0, kFirstDate = 33;  // 1980-01-01
  put<std::uint16_t>(out, kVersion);
  put<std::uint16_t>(out, kUtf8Name);
  put<std::uint16_t>(out, kStored);
  put<std::uint16_t>(out, kNoTime);
  put<std::uint16_t>(out, kFirstDate);
  put<std::uint32_t>(out, crc);
  put<std::uint32_t>(out, static_cast<std::uint32_t>(content.size()));
  put<std::uint32_t>(out, static_cast<std::uint32_t>(content.size()));
}

}  // namespace

Result<std::vector<ZipEntry>> parse_zip(std::span<const std::byte> file, std::string_view place,
                                        const MappedFile* mapped) {
  const Directory directory = GRACE_TRY(find_directory(file, place));
  std::span<const std::byte> rest =
      file.subspan(static_cast<std::size_t>(directory.offset), static_cast<std::size_t>(directory.bytes));
  std::vector<ZipEntry> entries;
  std::set<std::string_view> names;
  entries.reserve(static_cast<std::size_t>(directory.entries));  // so that the views of names stay
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    auto [entry, length] = GRACE_TRY(read_entry(file, rest, place));
    entries.push_back(std::move(entry));
    if (!names.insert(entries.back().name).second)
      return invalid_input(
          fmt::format("{}: member {} occurs twice", place, shown(Json(entries.back().name))));
    rest = rest.subspan(length);
    if (mapped != nullptr && i % kMembersHeld == kMembersHeld - 1) mapped->give_back(file);
  }
  GRACE_TRY(check_apart(entries, place));
  return entries;
}

Result<std::vector<std::byte>> inflate(const ZipEntry& entry, std::string_view place) {
  const std::string where = fmt::format("{}: member {}", place, shown(Json(entry.name)));
  if (!entry.deflated) return std::vector<std::byte>(entry.data.begin(), entry.data.end());
  // Deflate makes at most 1,032 bytes of one.
  const std::uint64_t bound = std::min<std::uint64_t>(kMaxInflatedBytes, (entry.data.size() + 1) * 1032);
  if (entry.size > bound || entry.data.size() > kIn64)
    return invalid_input(fmt::format("{}: says {} bytes, at most {} can come out of {}", where, entry.size,
                                     bound, entry.data.size()));
  std::vector<std::byte> content(static_cast<std::size_t>(entry.size));
  z_stream stream{};
  GRACE_CHECK(inflateInit2(&stream, -MAX_WBITS) == Z_OK, "zlib starts");
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(entry.data.data()));
  stream.avail_in = static_cast<uInt>(entry.data.size());
  std::byte none{};
  stream.next_out = reinterpret_cast<Bytef*>(content.empty() ? &none : content.data());
  stream.avail_out = static_cast<uInt>(content.size());
  const int code = ::inflate(&stream, Z_FINISH);
  const bool whole = code == Z_STREAM_END && stream.avail_out == 0 && stream.avail_in == 0;
  inflateEnd(&stream);
  if (!whole)
    return invalid_input(fmt::format("{}: its deflated stream does not give {} bytes", where, entry.size));
  const auto crc = crc32_z(0, reinterpret_cast<const Bytef*>(content.data()), content.size());
  if (crc != entry.crc)
    return invalid_input(fmt::format("{}: its checksum is {:08x}, must be {:08x}", where, crc, entry.crc));
  return content;
}

std::string zip_bytes(std::span<const std::pair<std::string, std::string>> members) {
  std::string out, directory;
  for (const auto& [name, content] : members) {
    GRACE_CHECK(name.size() < 65'536 && content.size() < kIn64 && out.size() < kIn64, "fits into 32 bits");
    const std::uint32_t crc = crc_of(content);
    const auto offset = static_cast<std::uint32_t>(out.size());
    const std::size_t begin = out.size() + kLocalBytes + name.size() + 4;
    const std::size_t padding = (kAlignment - begin % kAlignment) % kAlignment;
    put(out, kLocalSignature);
    put_common(out, content, crc);
    put<std::uint16_t>(out, static_cast<std::uint16_t>(name.size()));
    put<std::uint16_t>(out, static_cast<std::uint16_t>(4 + padding));
    out += name;
    put<std::uint16_t>(out, kExtraPadding);
    put<std::uint16_t>(out, static_cast<std::uint16_t>(padding));
    out.append(padding, '\0');
    out += content;
    put(directory, kCentralSignature);
    put<std::uint16_t>(directory, 20);  // made by
    put_common(directory, content, crc);
    put<std::uint16_t>(directory, static_cast<std::uint16_t>(name.size()));
    directory.append(12, '\0');  // extra, comment, disk, attributes
    put<std::uint32_t>(directory, offset);
    directory += name;
  }
  const auto offset = static_cast<std::uint32_t>(out.size());
  const auto count = static_cast<std::uint16_t>(members.size());
  GRACE_CHECK(out.size() + directory.size() < kIn64 && members.size() < 65'535, "fits into 32 bits");
  out += directory;
  put(out, kEndSignature);
  put<std::uint32_t>(out, 0);
  put(out, count);
  put(out, count);
  put<std::uint32_t>(out, static_cast<std::uint32_t>(directory.size()));
  put(out, offset);
  put<std::uint16_t>(out, 0);
  return out;
}

}  // namespace grace
