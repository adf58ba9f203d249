// SPDX-License-Identifier: Apache-2.0
#include "engine/failure.hpp"

#include <utility>

#include "headrace/error.hpp"

namespace headrace::engine {
void Failure::throw_if_ended(const char* call) {
  const bool failed = failed_.load(), interrupted = interrupted_.load();
  if (!failed && !interrupted) return;
  const std::lock_guard lock(mutex_);
  if (deferred_) std::rethrow_exception(std::exchange(deferred_, nullptr));
  if (interrupted) {
    throw Error(Code::kInterrupted,
                std::string(call) + ": interrupted; the engine can only be closed");
  }
  throw Error(
      Code::kFailed,
      std::string(call) + ": the engine failed earlier and can only be closed: " + first_cause_);
}

std::string Failure::untold() {
  const std::lock_guard lock(mutex_);
  if (!deferred_) return {};
  try {
    std::rethrow_exception(std::exchange(deferred_, nullptr));
  } catch (const Error& error) {
    return error.code() == Code::kInterrupted ? "" : error.what();
  } catch (const std::exception& error) {
    return error.what();
  }
}

void Failure::told(const std::exception_ptr& error) noexcept {
  const std::lock_guard lock(mutex_);
  if (error == deferred_) deferred_ = nullptr;
}

void Failure::fail(const std::string& cause) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (first_cause_.empty()) first_cause_ = cause;
  }
  failed_.store(true);
  collective_.abort(cause);
}

void Failure::fail_deferred(const std::exception_ptr& error) noexcept {
  {
    const std::lock_guard lock(mutex_);
    deferred_ = error;
  }
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& cause) {
    fail(cause.what());
  }
}
}  // namespace headrace::engine
