// SPDX-License-Identifier: Apache-2.0
// work.hpp: a unit of work, as an intrusive list node, so posting it allocates nothing; and the
// seam to what runs it.
#pragma once

namespace headrace::async {
// Belongs to the caller that posts it, and must stay in place until `run` is called. Only then may
// it be posted again.
struct Work {
  Work* next = nullptr;
  void (*run)(Work* self) noexcept = nullptr;
};

class Executor {
 public:
  virtual ~Executor() = default;
  // From any thread. Runs the work once.
  virtual void post(Work& work) noexcept = 0;
};
}  // namespace headrace::async
