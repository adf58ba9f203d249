// SPDX-License-Identifier: Apache-2.0
// work.hpp: one thing for the conductor to run, as an intrusive list node: posting it allocates
// nothing.
#pragma once

namespace headrace::async {
// Owned by whoever posts it; must stay in place until `run` was called. Posted again only after
// that.
struct Work {
  Work* next = nullptr;
  void (*run)(Work* self) noexcept = nullptr;
};
}  // namespace headrace::async
