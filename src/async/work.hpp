// SPDX-License-Identifier: Apache-2.0
// work.hpp: a unit of work for the conductor, as an intrusive list node, so posting it allocates
// nothing.
#pragma once

namespace headrace::async {
// Belongs to the caller that posts it, and must stay in place until `run` is called. Only then may
// it be posted again.
struct Work {
  Work* next = nullptr;
  void (*run)(Work* self) noexcept = nullptr;
};
}  // namespace headrace::async
