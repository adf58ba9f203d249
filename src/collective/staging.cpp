// SPDX-License-Identifier: Apache-2.0
#include "collective/staging.hpp"

#include <cstdlib>
#include <string>
#include <utility>

#include "base/units.hpp"
#include "headrace/error.hpp"

namespace headrace::collective {
namespace {
constexpr std::uint64_t kPage = 4096, kPartAlignment = 256;
}

Staging::Staging(std::shared_ptr<Device> device, std::uint64_t size_bytes)
    : device_(std::move(device)), size_bytes_(base::align_up(size_bytes, kPage)) {
  if (size_bytes_ == 0) return;
  data_ = static_cast<std::byte*>(std::aligned_alloc(kPage, size_bytes_));
  if (data_ == nullptr) {
    throw Error(Code::kOutOfBudget,
                "the host has no " + base::format_bytes(size_bytes_) +
                    " left through which ranks could send the device's bytes: no collective was "
                    "made; lower CollectiveOptions::staging_bytes");
  }
  try {
    device_->pin(data_, size_bytes_);
  } catch (...) {
    std::free(data_);
    throw;
  }
}

Staging::~Staging() {
  if (data_ == nullptr) return;
  device_->unpin(data_, size_bytes_);
  std::free(data_);
}

std::uint64_t Staging::part_bytes(std::uint32_t parts) const noexcept {
  return size_bytes_ / parts / kPartAlignment * kPartAlignment;
}
}  // namespace headrace::collective
