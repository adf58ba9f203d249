// SPDX-License-Identifier: Apache-2.0
// float_mode.hpp: sets the default floating-point mode while a kernel runs, whatever mode the
// caller uses.
//
// Trainers turn on flush-to-zero (torch::set_flush_denormal, -ffast-math's start-up code), and
// results must not depend on it. Everything here has internal linkage on purpose: files compiled
// for newer instruction sets include this header, and the linker must not use their inline
// functions in the rest of the program. Keep the arithmetic in a function of its own, and do not
// inline that into the function that holds the mode.
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
