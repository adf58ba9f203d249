// SPDX-License-Identifier: Apache-2.0
#include "swap/store_registration.hpp"

#include <cstring>
#include <string_view>

#include "base/units.hpp"
#include "kernels/hash.hpp"

namespace headrace::swap {
namespace {
struct Head {
  char magic[8];
  std::uint64_t total_bytes;  // without the padding
  RunBytes store;
  std::uint64_t tile_elements;
  std::uint32_t groups, parameters;
  std::uint64_t checksum;  // of all other bytes before the padding
};
static_assert(sizeof(Head) == 56);

// Of a parameter; its sizes and its full name follow.
struct Entry {
  std::uint32_t group, section;
  std::uint64_t first_element;
  std::uint32_t dtype, frozen, sizes, name_bytes;
};
static_assert(sizeof(Entry) == 32);

// The head up to its checksum is the seed of the rest.
std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  const std::uint64_t of_head = kernels::xxh3_64(bytes.first(offsetof(Head, checksum)), 0);
  return kernels::xxh3_64(bytes.subspan(sizeof(Head)), of_head);
}

void add(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}
template <class T>
void add_value(std::vector<std::byte>& bytes, const T& value) {
  add(bytes, std::as_bytes(std::span(&value, 1)));
}

// Takes values off the front, and remembers whether there was one too few.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  template <class T>
  T value() {
    T out{};
    const auto from = take(sizeof(T));
    if (!from.empty()) std::memcpy(&out, from.data(), sizeof(T));
    return out;
  }
  std::string text(std::uint64_t size_bytes) {
    const auto from = take(size_bytes);
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }
  bool whole() const noexcept { return whole_; }
  bool at_end() const noexcept { return left_.empty(); }

 private:
  std::span<const std::byte> take(std::uint64_t size_bytes) {
    whole_ &= size_bytes <= left_.size();
    if (!whole_) return {};
    const auto out = left_.first(static_cast<std::size_t>(size_bytes));
    left_ = left_.subspan(out.size());
    return out;
  }
  std::span<const std::byte> left_;
  bool whole_ = true;
};

StoredParameter parameter_of(Reader& reader) {
  const auto entry = reader.value<Entry>();
  StoredParameter out;
  out.group = entry.group;
  out.section = entry.section;
  out.first_element = entry.first_element;
  out.dtype = static_cast<DType>(entry.dtype);
  out.frozen = entry.frozen != 0;
  for (std::uint32_t i = 0; i < entry.sizes && reader.whole(); ++i)
    out.shape.push_back(reader.value<std::int64_t>());
  out.full_name = reader.text(entry.name_bytes);
  return out;
}

// Of the bytes before anything in them is believed.
std::string fault_of(std::span<const std::byte> bytes, const Head& head, const RunBytes& store) {
  if (std::memcmp(head.magic, kRegistrationMagic, sizeof head.magic) != 0)
    return "it does not begin as a registration";
  if (head.total_bytes < sizeof(Head) || head.total_bytes > bytes.size())
    return "its size is impossible";
  if (head.checksum != checksum_of(bytes.first(head.total_bytes))) return "its checksum differs";
  if (head.store != store) return "it is of another store";
  return {};
}
}  // namespace

std::vector<std::byte> packed(const StoreRegistration& registration, const RunBytes& store) {
  std::vector<std::byte> bytes(sizeof(Head));
  for (const std::string& name : registration.groups) {
    add_value(bytes, static_cast<std::uint32_t>(name.size()));
    add(bytes, std::as_bytes(std::span(name)));
  }
  for (const StoredParameter& p : registration.parameters) {
    add_value(bytes, Entry{p.group, p.section, p.first_element, static_cast<std::uint32_t>(p.dtype),
                           p.frozen ? 1u : 0u, static_cast<std::uint32_t>(p.shape.size()),
                           static_cast<std::uint32_t>(p.full_name.size())});
    add(bytes, std::as_bytes(std::span(p.shape)));
    add(bytes, std::as_bytes(std::span(p.full_name)));
  }
  Head head{};
  std::memcpy(head.magic, kRegistrationMagic, sizeof head.magic);
  head.total_bytes = bytes.size();
  head.store = store;
  head.tile_elements = registration.tile_elements;
  head.groups = static_cast<std::uint32_t>(registration.groups.size());
  head.parameters = static_cast<std::uint32_t>(registration.parameters.size());
  std::memcpy(bytes.data(), &head, sizeof head);
  head.checksum = checksum_of(bytes);
  std::memcpy(bytes.data(), &head, sizeof head);
  bytes.resize(base::align_up(bytes.size(), base::kIoAlignment));
  return bytes;
}

StoreRegistration unpacked(std::span<const std::byte> bytes, const RunBytes& store,
                           std::string& fault) {
  Reader reader(bytes);
  const auto head = reader.value<Head>();
  fault = fault_of(bytes, head, store);
  if (!fault.empty()) return {};
  reader = Reader(bytes.first(head.total_bytes).subspan(sizeof(Head)));
  StoreRegistration out{head.tile_elements, {}, {}};
  for (std::uint32_t g = 0; g < head.groups && reader.whole(); ++g)
    out.groups.push_back(reader.text(reader.value<std::uint32_t>()));
  for (std::uint32_t p = 0; p < head.parameters && reader.whole(); ++p)
    out.parameters.push_back(parameter_of(reader));
  if (reader.whole() && reader.at_end()) return out;
  fault = "its sizes contradict each other";
  return {};
}
}  // namespace headrace::swap
