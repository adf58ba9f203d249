// SPDX-License-Identifier: Apache-2.0
// host_collective.cpp: a Collective whose every call goes to a host's function.
#include <cstddef>
#include <string>
#include <vector>

#include "bindings/c/calls.hpp"
#include "bindings/c/host_tables.hpp"

namespace headrace::bindings {
namespace {
class HostCollective final : public Collective {
 public:
  explicit HostCollective(const headrace_collective& table) : table_(table) {}

  std::uint32_t rank() const noexcept override { return table_.rank; }
  std::uint32_t world_size() const noexcept override { return table_.world_size; }
  void all_gather(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> whole) override {
    const std::string what(tag.what);
    answer(table_.all_gather(table_.context, tag.sequence, what.c_str(), stream.handle,
                             pieces_of(whole)),
           "all_gather", what);
  }
  void all_to_all(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> give,
                  void* take) override {
    const std::string what(tag.what);
    answer(table_.all_to_all(table_.context, tag.sequence, what.c_str(), stream.handle,
                             pieces_of(give), take),
           "all_to_all", what);
  }
  bool has_all_to_all_v() const noexcept override { return table_.all_to_all_v != nullptr; }
  void all_to_all_v(CollectiveTag tag, Stream stream, std::span<const DeviceSpan> give,
                    std::span<const DeviceSpan> take, std::uint64_t largest_bytes) override {
    if (!has_all_to_all_v())
      return Collective::all_to_all_v(tag, stream, give, take, largest_bytes);
    const std::string what(tag.what);
    answer(table_.all_to_all_v(table_.context, tag.sequence, what.c_str(), stream.handle,
                               pieces_of(give), pieces_of(take, taken_), largest_bytes),
           "all_to_all_v", what);
  }
  void exchange(CollectiveTag tag, std::span<const std::byte> mine,
                std::span<std::byte> all) override {
    const std::string what(tag.what);
    answer(table_.exchange(table_.context, tag.sequence, what.c_str(), mine.data(), mine.size(),
                           all.data()),
           "exchange", what);
  }
  bool takes_any_thread() const noexcept override { return table_.takes_any_thread != 0; }
  void abort(std::string_view why) noexcept override {
    try {
      table_.abort(table_.context, std::string(why).c_str());
    } catch (...) {  // no memory for the copy: the peers learn that something failed, not what
      table_.abort(table_.context, "a rank failed");
    }
  }

 private:
  const headrace_piece* pieces_of(std::span<const DeviceSpan> spans) {
    return pieces_of(spans, pieces_);
  }
  static const headrace_piece* pieces_of(std::span<const DeviceSpan> spans,
                                         std::vector<headrace_piece>& into) {
    into.clear();
    for (const DeviceSpan& piece : spans) into.push_back({piece.data, piece.size_bytes});
    return into.data();
  }
  void answer(headrace_code code, const char* call, const std::string& what) const {
    if (code == HEADRACE_OK) return;
    check_answer(
        code, "collective, rank " + std::to_string(table_.rank) + ": " + call + " '" + what + "'");
  }
  const headrace_collective table_;
  std::vector<headrace_piece> pieces_, taken_;  // of one call
};
}  // namespace

std::shared_ptr<Collective> make_host_collective(const headrace_collective* from) {
  const headrace_collective table = taken(from, headrace_collective{}, "collective",
                                          offsetof(headrace_collective, takes_any_thread));
  const auto needed = [](auto* function, const char* name) {
    if (function == nullptr) refuse(std::string("collective.") + name + " is NULL; it is required");
  };
  needed(table.all_gather, "all_gather");
  needed(table.all_to_all, "all_to_all");
  needed(table.exchange, "exchange");
  needed(table.abort, "abort");
  if (table.world_size == 0 || table.rank >= table.world_size) {
    refuse("collective: rank " + std::to_string(table.rank) + " of world_size " +
           std::to_string(table.world_size) + "; ranks are 0 to world_size - 1");
  }
  return std::make_shared<HostCollective>(table);
}
}  // namespace headrace::bindings
