// SPDX-License-Identifier: Apache-2.0
// float_mode.hpp: the default floating-point mode for the length of a kernel, whatever mode the
// caller runs in.
//
// Trainers turn on flush-to-zero (torch::set_flush_denormal, -ffast-math's start-up code); results
// here must not hang on it. Everything has internal linkage on purpose: this is included by files
// that are compiled for newer instruction sets, whose inline functions must not reach the rest of
// the program through the linker. Keep the arithmetic in a function of its own that is not inlined
// into the one that holds the mode.
#pragma once
#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace headrace::kernels {
namespace {  // NOLINT(google-build-namespaces): see above
#if defined(__x86_64__)
class DefaultFloatMode {
 public:
  DefaultFloatMode() noexcept : saved_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~DefaultFloatMode() { _mm_setcsr(saved_); }

 private:
  static constexpr unsigned kDefault = 0x1f80;  // all exceptions masked, nearest, no FTZ, no DAZ
  unsigned saved_;
#else
class DefaultFloatMode {
 public:
  DefaultFloatMode() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatMode() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif

 public:
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;
};
}  // namespace
}  // namespace headrace::kernels
