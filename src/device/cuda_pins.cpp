// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_pins.hpp"

#include <algorithm>

#include "base/units.hpp"
#include "headrace/error.hpp"

namespace headrace::device::cuda {
namespace {
std::uintptr_t address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }
}  // namespace

void Pins::pin(void* data, std::size_t size_bytes) {
  context_.throw_if_failed();
  auto* const begin = static_cast<std::byte*>(data);
  for (std::size_t done = 0; done < size_bytes;) {
    // Cut at whole pages: a driver registers those, and may refuse to register one twice.
    const std::size_t piece = piece_bytes_ - address_of(begin + done) % piece_bytes_;
    const std::size_t bytes = std::min(piece, size_bytes - done);
    const cudaError_t result =
        cudaHostRegister(begin + done, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (result != cudaSuccess) {
      (void)cudaGetLastError();
      unpin(data, done);
      if (context_.fails(result, "pinning host memory")) context_.throw_if_failed();
      throw Error(Code::kUnsupported,
                  context_.name() + ": " + base::format_bytes(size_bytes) +
                      " of host memory cannot be pinned (" + cudaGetErrorName(result) + ", " +
                      cudaGetErrorString(result) +
                      "): copies go through the driver's own buffers, at a fraction of the speed. "
                      "Raise the memory limit of this container or user, or lower "
                      "headrace.host_budget_bytes.");
    }
    const std::lock_guard lock(mutex_);
    pieces_[address_of(begin + done)] = bytes;
    done += bytes;
  }
}

void Pins::unpin(void* data, std::size_t size_bytes) noexcept {
  const std::uintptr_t begin = address_of(data);
  const std::lock_guard lock(mutex_);
  for (auto piece = pieces_.lower_bound(begin);
       piece != pieces_.end() && piece->first < begin + size_bytes;) {
    (void)cudaHostUnregister(reinterpret_cast<void*>(piece->first));
    piece = pieces_.erase(piece);
  }
  (void)cudaGetLastError();
}

std::size_t Pins::stretch(const void* address, std::size_t size_bytes) {
  const std::uintptr_t begin = address_of(address);
  const std::lock_guard lock(mutex_);
  auto next = pieces_.upper_bound(begin);
  if (next != pieces_.begin()) {
    const auto& [start, bytes] = *std::prev(next);
    if (begin < start + bytes) return std::min<std::size_t>(size_bytes, start + bytes - begin);
  }
  return next == pieces_.end() ? size_bytes
                               : std::min<std::size_t>(size_bytes, next->first - begin);
}

void Pins::copy(cudaStream_t stream, void* target, const void* source, std::size_t size_bytes) {
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  while (size_bytes != 0) {
    const std::size_t bytes = std::min(stretch(to, size_bytes), stretch(from, size_bytes));
    context_.check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copying");
    to += bytes;
    from += bytes;
    size_bytes -= bytes;
  }
}
}  // namespace headrace::device::cuda
