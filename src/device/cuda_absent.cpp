// SPDX-License-Identifier: Apache-2.0
// cuda_absent.cpp: headrace/cuda.hpp in a build without HEADRACE_CUDA.
#include <exception>

#include "headrace/cuda.hpp"
#include "headrace/error.hpp"

namespace headrace {
namespace {
constexpr const char* kMissing =
    "this build has no CUDA part (HEADRACE_CUDA was off, or found no toolkit): the device is the "
    "CPU. Build with -DHEADRACE_CUDA=ON; the message it ends with names what it looks for.";
}  // namespace

std::shared_ptr<Device> make_cuda_device(const CudaOptions&) {
  throw Error(Code::kUnsupported, std::string("no GPU can be used: ") + kMissing);
}

CudaFacts cuda_facts(CudaLook) noexcept {
  CudaFacts facts;
  try {
    facts.missing = kMissing;
  } catch (const std::exception&) {
    // Out of memory: no GPU is listed either.
  }
  return facts;
}
}  // namespace headrace
