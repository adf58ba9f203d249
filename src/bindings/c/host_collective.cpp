// SPDX-License-Identifier: Apache-2.0
// host_collective.cpp: a Collective whose every call goes to a host's function.
#include <cstddef>
#include <string>

#include "bindings/c/calls.hpp"
#include "bindings/c/host_tables.hpp"

namespace headrace::bindings {
namespace {
class HostCollective final : public Collective {
 public:
  explicit HostCollective(const headrace_collective& table) : table_(table) {}

  std::uint32_t rank() const noexcept override { return table_.rank; }
  std::uint32_t world_size() const noexcept override { return table_.world_size; }
  void all_gather(CollectiveTag tag, Stream stream, DeviceSpan whole) override {
    const std::string what(tag.what);
    answer(table_.all_gather(table_.context, tag.sequence, what.c_str(), stream.handle, whole.data,
                             whole.size_bytes),
           "all_gather", what);
  }
  void reduce_scatter(CollectiveTag tag, Stream stream, void* buffer, DType dtype,
                      std::uint64_t elements) override {
    const std::string what(tag.what);
    answer(table_.reduce_scatter(table_.context, tag.sequence, what.c_str(), stream.handle, buffer,
                                 dtype_to_c(dtype), elements),
           "reduce_scatter", what);
  }
  void all_reduce_sum(CollectiveTag tag, double* values, std::uint64_t count) override {
    const std::string what(tag.what);
    answer(table_.all_reduce_sum(table_.context, tag.sequence, what.c_str(), values, count),
           "all_reduce_sum", what);
  }
  void exchange(CollectiveTag tag, std::span<const std::byte> mine,
                std::span<std::byte> all) override {
    if (table_.exchange == nullptr) return Collective::exchange(tag, mine, all);
    const std::string what(tag.what);
    answer(table_.exchange(table_.context, tag.sequence, what.c_str(), mine.data(), mine.size(),
                           all.data()),
           "exchange", what);
  }
  void barrier(CollectiveTag tag) override {
    const std::string what(tag.what);
    answer(table_.barrier(table_.context, tag.sequence, what.c_str()), "barrier", what);
  }
  void abort(std::string_view why) noexcept override {
    try {
      table_.abort(table_.context, std::string(why).c_str());
    } catch (...) {  // no memory for the copy: the peers learn that something failed, not what
      table_.abort(table_.context, "a rank failed");
    }
  }

 private:
  void answer(headrace_code code, const char* call, const std::string& what) const {
    if (code == HEADRACE_OK) return;
    check_answer(
        code, "collective, rank " + std::to_string(table_.rank) + ": " + call + " '" + what + "'");
  }
  const headrace_collective table_;
};
}  // namespace

std::shared_ptr<Collective> make_host_collective(const headrace_collective* from) {
  constexpr std::size_t kFirstBytes = offsetof(headrace_collective, exchange);
  const headrace_collective table = taken(from, headrace_collective{}, "collective", kFirstBytes);
  const auto needed = [](auto* function, const char* name) {
    if (function == nullptr) refuse(std::string("collective.") + name + " is NULL; it is required");
  };
  needed(table.all_gather, "all_gather");
  needed(table.reduce_scatter, "reduce_scatter");
  needed(table.all_reduce_sum, "all_reduce_sum");
  needed(table.barrier, "barrier");
  needed(table.abort, "abort");
  if (table.world_size == 0 || table.rank >= table.world_size) {
    refuse("collective: rank " + std::to_string(table.rank) + " of world_size " +
           std::to_string(table.world_size) + "; ranks are 0 to world_size - 1");
  }
  return std::make_shared<HostCollective>(table);
}
}  // namespace headrace::bindings
