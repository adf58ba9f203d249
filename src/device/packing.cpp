// SPDX-License-Identifier: Apache-2.0
#include "device/packing.hpp"

#include <string>

#include "headrace/error.hpp"
#include "kernels/packing.hpp"

namespace headrace::device {
Packer::Packer(Device& device) : own_(packing_of(device)) {
  if (own_ != nullptr || device.shares_host_memory()) return;
  throw Error(Code::kUnsupported,
              std::string("zero_optimization.zero_quantized_weights or zero_quantized_gradients is "
                          "true, and ") +
                  device.name() +
                  " does not quantise; nothing was allocated. Set both to false, or train on the "
                  "CPU or an NVIDIA GPU.");
}

// A device that shares the host's memory has finished all work before a call returns.
void Packer::pack(Stream stream, const PackWork& work) const {
  if (own_ != nullptr) return own_->pack(stream, work);
  kernels::pack_on_host(work);
}
void Packer::unpack(Stream stream, const PackWork& work) const {
  if (own_ != nullptr) return own_->unpack(stream, work);
  kernels::unpack_on_host(work);
}
}  // namespace headrace::device
