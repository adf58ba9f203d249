// SPDX-License-Identifier: Apache-2.0
// pickle_writer.hpp: writes pickles of protocol 2 that torch.load() reads, with weights_only too.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::tools::pickle {
// Each call adds one value; what a container holds is added by the function it is given.
class PickleWriter {
 public:
  using Fill = std::function<void()>;

  PickleWriter();
  void none();
  void boolean(bool value);
  void integer(std::int64_t value);
  void text(std::string_view value);  // UTF-8
  void list(const Fill& fill);
  void dict(const Fill& fill);  // keys and values by turns
  void ordered_dict(const Fill& fill);
  void size(std::span<const std::int64_t> sizes);  // a torch.Size
  // Contiguous, at the begin of the storage with this number. `dtype`: "F32", "BF16" or "F16".
  void tensor(std::string_view dtype, std::size_t storage, std::span<const std::int64_t> shape);
  // The pickle. Nothing may be added afterwards.
  std::string finish();

 private:
  void global(std::string_view module, std::string_view name);
  void number(std::uint64_t value, std::size_t size);
  void tuple(std::span<const std::int64_t> numbers);
  void items(const Fill& fill);

  std::string bytes_;
};
}  // namespace headrace::tools::pickle
