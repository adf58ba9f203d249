// SPDX-License-Identifier: Apache-2.0
#include "pickle/zip_writer.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "base/units.hpp"
#include "pickle/crc32.hpp"
#include "pickle/zip_format.hpp"

namespace headrace::tools::pickle {
namespace {
constexpr std::uint64_t kAlignment = 64;
constexpr std::uint16_t kVersion = 20, kVersion64 = 45;
constexpr std::uint16_t kDate = 0x21;       // 1980-01-01: the same bytes at any time
constexpr std::uint16_t kPadding = 0x4246;  // "FB", as torch pads
constexpr std::uint16_t kNamesAreUtf8 = std::uint16_t{1} << 11;

void add(std::string& to, std::uint64_t value, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) to += static_cast<char>(value >> (8 * i));
}
std::uint64_t narrow(std::uint64_t value) { return std::min<std::uint64_t>(value, kIn64); }
bool is_long(std::uint64_t value) { return value >= kIn64; }

// What both headers of an entry have.
void add_common(std::string& to, std::uint32_t crc, std::uint64_t size, std::size_t name,
                std::size_t extra) {
  add(to, is_long(size) ? kVersion64 : kVersion, 2);
  add(to, kNamesAreUtf8, 2);
  add(to, 0, 4);  // stored; midnight
  add(to, kDate, 2);
  add(to, crc, 4);
  add(to, narrow(size), 4);
  add(to, narrow(size), 4);
  add(to, name, 2);
  add(to, extra, 2);
}

std::string extra64(const std::vector<std::uint64_t>& values) {
  std::string extra;
  if (values.empty()) return extra;
  add(extra, kExtra64, 2);
  add(extra, 8 * values.size(), 2);
  for (const std::uint64_t value : values) add(extra, value, 8);
  return extra;
}
}  // namespace

std::vector<ZipWriter::Placed> ZipWriter::placed(const std::vector<ZipPart>& parts) {
  std::vector<Placed> all;
  std::uint64_t at = 0;
  for (const ZipPart& part : parts) {
    Placed one{
        .name = part.name, .local_extra = {}, .header_at = at, .size_bytes = part.size_bytes};
    if (is_long(part.size_bytes)) one.local_extra = extra64({part.size_bytes, part.size_bytes});
    const std::uint64_t least =
        at + kLocalBytes + part.name.size() + one.local_extra.size() + kExtraHeadBytes;
    one.at = base::align_up(least, kAlignment);
    add(one.local_extra, kPadding, 2);
    add(one.local_extra, one.at - least, 2);
    one.local_extra.append(one.at - least, 'Z');
    at = one.at + part.size_bytes;
    all.push_back(std::move(one));
  }
  return all;
}

std::string ZipWriter::directory() const {
  std::string text;
  for (const Placed& part : parts_) {
    std::vector<std::uint64_t> longs;
    if (is_long(part.size_bytes)) longs.assign(2, part.size_bytes);
    if (is_long(part.header_at)) longs.push_back(part.header_at);
    const std::string extra = extra64(longs);
    add(text, kCentralMark, 4);
    add(text, longs.empty() ? kVersion : kVersion64, 2);
    add_common(text, part.crc, part.size_bytes, part.name.size(), extra.size());
    add(text, 0, 8);  // no comment, disk 0, no attributes
    add(text, 0, 2);
    add(text, narrow(part.header_at), 4);
    text += part.name + extra;
  }
  return text;
}

std::string ZipWriter::end_of(std::uint64_t at, std::uint64_t directory_bytes) const {
  std::string end;
  if (is_long(at) || parts_.size() >= kCountIn64) {
    add(end, kEnd64Mark, 4);
    add(end, kEnd64Bytes - 12, 8);
    add(end, kVersion64, 2);
    add(end, kVersion64, 2);
    add(end, 0, 8);  // disks
    add(end, parts_.size(), 8);
    add(end, parts_.size(), 8);
    add(end, directory_bytes, 8);
    add(end, at, 8);
    add(end, kLocator64Mark, 4);
    add(end, 0, 4);
    add(end, at + directory_bytes, 8);
    add(end, 1, 4);
  }
  const auto count = std::min<std::uint64_t>(parts_.size(), kCountIn64);
  add(end, kEndMark, 4);
  add(end, 0, 4);
  add(end, count, 2);
  add(end, count, 2);
  add(end, narrow(directory_bytes), 4);
  add(end, narrow(at), 4);
  add(end, 0, 2);
  return end;
}

ZipWriter::ZipWriter(const std::string& path, const std::vector<ZipPart>& parts,
                     const checkpoint::Caller& caller)
    : parts_(placed(parts)),
      file_(checkpoint::File::create(
          path, parts_.empty() ? 0 : parts_.back().at + parts_.back().size_bytes, caller)) {}

void ZipWriter::write(std::size_t part, std::span<const std::byte> bytes) {
  Placed& to = parts_[part];
  HEADRACE_CHECK(bytes.size() <= to.size_bytes - to.done_bytes, "an entry has a fixed size");
  file_.write(bytes, to.at + to.done_bytes);
  to.crc = crc32(bytes, to.crc);
  to.done_bytes += bytes.size();
}

void ZipWriter::finish() {
  std::uint64_t at = 0;
  for (const Placed& part : parts_) {
    HEADRACE_CHECK(part.done_bytes == part.size_bytes, "an entry is written whole");
    std::string head;
    add(head, kLocalMark, 4);
    add_common(head, part.crc, part.size_bytes, part.name.size(), part.local_extra.size());
    head += part.name + part.local_extra;
    file_.write(std::as_bytes(std::span(head)), part.header_at);
    at = part.at + part.size_bytes;
  }
  std::string text = directory();
  text += end_of(at, text.size());
  file_.write(std::as_bytes(std::span(text)), at);
  file_.sync();
}
}  // namespace headrace::tools::pickle
