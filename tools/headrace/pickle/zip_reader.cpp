// SPDX-License-Identifier: Apache-2.0
#include "pickle/zip_reader.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error_text.hpp"
#include "base/whole_transfers.hpp"
#include "pickle/crc32.hpp"
#include "pickle/fault.hpp"
#include "pickle/zip_format.hpp"
#include "program/signals.hpp"

namespace headrace::tools::pickle {
namespace {
constexpr std::uint64_t kMostDirectoryBytes = std::uint64_t{256} << 20, kMostComment = 65535;
constexpr std::size_t kPartBytes = std::size_t{1} << 20;
constexpr std::uint16_t kEncrypted = 1;

// Little-endian numbers out of a header, one after the other. Throws Fault where it ends.
class Numbers {
 public:
  explicit Numbers(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> take(std::uint64_t count) {
    if (count > bytes_.size()) throw Fault("its directory is cut off");
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  std::uint64_t number(std::size_t size) {
    std::uint64_t value = 0;
    const auto bytes = take(size);
    for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<std::uint64_t>(bytes[i]);
    return value;
  }
  std::uint16_t u16() { return static_cast<std::uint16_t>(number(2)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() { return number(8); }
  bool empty() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Sizes {
  std::uint64_t stored = 0, unpacked = 0, header_at = 0;
};
// Those that did not fit 32 bits, in this order.
void widen(Sizes& sizes, std::span<const std::byte> extra) {
  for (Numbers fields(extra); !fields.empty();) {
    const std::uint16_t id = fields.u16();
    Numbers field(fields.take(fields.u16()));
    if (id != kExtra64) continue;
    for (std::uint64_t* const size : {&sizes.unpacked, &sizes.stored, &sizes.header_at})
      if (*size == kIn64) *size = field.u64();
  }
}

std::string shown(const std::string& name) { return "'" + base::one_line(name, 200) + "'"; }

struct Listed {
  std::string name;
  ZipEntry entry;
};
Listed next_entry(Numbers& directory) {
  Numbers head(directory.take(kCentralBytes));
  if (head.u32() != kCentralMark) throw Fault("its directory is damaged");
  head.take(4);  // versions
  const std::uint16_t flags = head.u16(), method = head.u16();
  head.take(4);  // time and date
  Listed listed;
  listed.entry.crc = head.u32();
  Sizes sizes{.stored = head.u32(), .unpacked = head.u32()};
  const std::uint16_t name = head.u16(), extra = head.u16(), comment = head.u16();
  head.take(8);  // disk and attributes
  sizes.header_at = head.u32();
  listed.name = text_of(directory.take(name));
  widen(sizes, directory.take(extra));
  directory.take(comment);
  if ((flags & kEncrypted) != 0 || method != 0) {
    throw Fault("its entry " + shown(listed.name) + " is compressed or encrypted",
                Code::kUnsupported,
                "Write it with torch.save(), which stores entries as they are.");
  }
  if (sizes.stored != sizes.unpacked)
    throw Fault("its entry " + shown(listed.name) + " has two sizes");
  listed.entry.size_bytes = sizes.stored;
  listed.entry.header_at = sizes.header_at;
  return listed;
}
}  // namespace

ZipReader::ZipReader(std::string path)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat status {};
  if (!fd_ && errno == ENOENT) throw Fault(path_ + " is not there", Code::kNotFound);
  if (!fd_ || ::fstat(fd_.get(), &status) != 0) {
    const int error = errno;
    throw Fault("cannot open " + path_ + ": " + base::errno_text(error), Code::kIo, {}, error);
  }
  size_bytes_ = static_cast<std::uint64_t>(status.st_size);
  try {
    read_directory(find_directory());
    refuse_overlaps();
  } catch (const Fault& fault) {
    throw fault.in(path_);
  }
}

void ZipReader::read_at(std::uint64_t at, std::span<std::byte> out) const {
  const base::Moved moved = base::read_at(fd_.get(), at, out);
  if (moved.error != 0)
    throw Fault("cannot be read: " + base::errno_text(moved.error), Code::kIo, {}, moved.error);
  if (moved.size_bytes != out.size())
    throw Fault(fmt::format("it ends at byte {}", at + moved.size_bytes));
}

// The end has a comment of any length behind it; torch writes none.
std::uint64_t ZipReader::find_end() const {
  std::vector<std::byte> tail(std::min(size_bytes_, kEndBytes + kMostComment));
  read_at(size_bytes_ - tail.size(), tail);
  for (std::size_t at = tail.size() + 1; at-- > kEndBytes;) {
    Numbers end(std::span<const std::byte>(tail).subspan(at - kEndBytes));
    if (end.u32() != kEndMark) continue;
    end.take(kEndBytes - 6);
    if (end.u16() == tail.size() - at) return size_bytes_ - tail.size() + at - kEndBytes;
  }
  std::array<std::byte, 2> begin{};
  if (size_bytes_ >= begin.size()) read_at(0, begin);
  if (begin[0] == std::byte{0x80}) {
    throw Fault("it is a pickle without a zip file around it, torch's format before 1.6",
                Code::kUnsupported,
                "Load and save it with torch.save(); for DeepSpeed, with its setting "
                "checkpoint.checkpoint_serialization true.");
  }
  throw Fault(fmt::format("it is no zip file, or cut off: its {} bytes have no directory's end",
                          size_bytes_));
}

ZipReader::Directory ZipReader::find_directory() const {
  const std::uint64_t end_at = find_end();
  std::array<std::byte, kEndBytes> end_bytes{};
  read_at(end_at, end_bytes);
  Numbers end(end_bytes);
  end.take(10);  // its mark, disks, entries of this disk
  Directory found;
  found.entries = end.u16();
  found.size_bytes = end.u32();
  found.at = end.u32();
  std::uint64_t behind = end_at;
  if (found.entries == kCountIn64 || found.size_bytes == kIn64 || found.at == kIn64) {
    std::array<std::byte, kLocator64Bytes> locator_bytes{};
    if (end_at < locator_bytes.size()) throw Fault("its zip64 end is missing");
    read_at(end_at - locator_bytes.size(), locator_bytes);
    Numbers locator(locator_bytes);
    if (locator.u32() != kLocator64Mark) throw Fault("its zip64 end is missing");
    locator.take(4);
    behind = locator.u64();
    std::array<std::byte, kEnd64Bytes> long_bytes{};
    read_at(behind, long_bytes);
    Numbers longer(long_bytes);
    if (longer.u32() != kEnd64Mark) throw Fault("its zip64 end is damaged");
    longer.take(28);
    found.entries = longer.u64();
    found.size_bytes = longer.u64();
    found.at = longer.u64();
  }
  if (found.at > behind || found.size_bytes > behind - found.at ||
      found.size_bytes > kMostDirectoryBytes || found.entries > found.size_bytes / kCentralBytes)
    throw Fault("its directory has no place in it");
  return found;
}

void ZipReader::read_directory(const Directory& directory) {
  std::vector<std::byte> bytes(directory.size_bytes);
  read_at(directory.at, bytes);
  Numbers numbers(bytes);
  for (std::uint64_t i = 0; i < directory.entries; ++i) {
    Listed listed = next_entry(numbers);
    place(listed.name, listed.entry, directory);
    if (!entries_.emplace(listed.name, listed.entry).second)
      throw Fault("it has the entry " + shown(listed.name) + " twice");
  }
  if (!numbers.empty()) throw Fault("its directory is longer than its entries");
}

// Its data lies behind a second header, which repeats the name.
void ZipReader::place(const std::string& name, ZipEntry& entry, const Directory& directory) const {
  const auto wrong = [&] {
    throw Fault("its entry " + shown(name) + " is not where it should be");
  };
  if (directory.at < kLocalBytes || entry.header_at > directory.at - kLocalBytes) wrong();
  std::vector<std::byte> bytes(kLocalBytes + name.size());
  read_at(entry.header_at, bytes);
  Numbers head(bytes);
  if (head.u32() != kLocalMark) wrong();
  head.take(22);
  const std::uint16_t name_bytes = head.u16(), extra_bytes = head.u16();
  if (name_bytes != name.size() || text_of(head.take(name_bytes)) != name) wrong();
  entry.at = entry.header_at + bytes.size() + extra_bytes;
  if (entry.at > directory.at || entry.size_bytes > directory.at - entry.at) wrong();
}

void ZipReader::refuse_overlaps() const {
  std::vector<const ZipEntry*> by_place;
  for (const auto& [name, entry] : entries_) by_place.push_back(&entry);
  std::ranges::sort(by_place, {}, &ZipEntry::header_at);
  for (std::size_t i = 1; i < by_place.size(); ++i)
    if (by_place[i]->header_at < by_place[i - 1]->at + by_place[i - 1]->size_bytes)
      throw Fault("two of its entries overlap");
}

const ZipEntry& ZipReader::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw Fault(path_ + ": it has no entry " + shown(name));
  return found->second;
}

void ZipReader::read(const ZipEntry& entry, std::uint64_t at, std::span<std::byte> out) const {
  if (at > entry.size_bytes || out.size() > entry.size_bytes - at)
    throw Fault(path_ + ": one of its entries is too short");
  try {
    read_at(entry.at + at, out);
  } catch (const Fault& fault) {
    throw fault.in(path_);
  }
}

void ZipReader::verify(const std::string& name) const {
  const ZipEntry& entry = this->entry(name);
  std::vector<std::byte> part(std::min<std::uint64_t>(kPartBytes, entry.size_bytes));
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < entry.size_bytes; at += part.size()) {
    check_signal();
    const auto bytes =
        std::span(part).first(std::min<std::uint64_t>(part.size(), entry.size_bytes - at));
    read(entry, at, bytes);
    crc = crc32(bytes, crc);
  }
  if (crc != entry.crc)
    throw Fault(path_ + ": the checksum of its entry " + shown(name) + " differs");
}
}  // namespace headrace::tools::pickle
