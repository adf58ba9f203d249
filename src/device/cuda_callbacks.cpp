// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_callbacks.hpp"

#include <chrono>
#include <utility>

#include "async/thread.hpp"

namespace headrace::device::cuda {
using namespace std::chrono_literals;

Callbacks::Callbacks(Context& context) : context_(context) {
  probe_ = context_.make_stream();
  try {
    watcher_ = async::start_thread("headrace-cuda", [this] { watch(); });
  } catch (...) {
    (void)cudaStreamDestroy(probe_);
    throw;
  }
}

Callbacks::~Callbacks() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return to_come_ == 0; });
    closing_ = true;
  }
  changed_.notify_all();
  watcher_.join();
  (void)cudaStreamDestroy(probe_);
  // The driver of a failed GPU must not call these any more, and they must not be freed either.
  static auto* const kept = new std::vector<std::unique_ptr<Call>>;
  static std::mutex of_kept;
  const std::lock_guard lock(of_kept);
  for (auto& call : calls_) {
    if (call->state == Call::State::kTaken) kept->push_back(std::move(call));
  }
}

void Callbacks::queue(cudaStream_t stream, OnFailure on_failure, std::function<void()> work) {
  context_.throw_if_failed();
  Call* call = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      calls_.push_back(std::make_unique<Call>());
      idle_.push_back(calls_.back().get());
    }
    call = idle_.back();
    idle_.pop_back();
    call->owner = this;
    call->on_failure = on_failure;
    call->work = std::move(work);
    call->state = Call::State::kQueued;
    ++to_come_;
  }
  const cudaError_t result = cudaLaunchHostFunc(stream, &Callbacks::run, call);
  if (result == cudaSuccess) {
    changed_.notify_all();
    return;  // and it is called, whatever fails meanwhile
  }
  {
    const std::lock_guard lock(mutex_);
    if (call->state != Call::State::kQueued) return;  // the watcher was faster, and has called it
    finish(*call);
  }
  changed_.notify_all();
  context_.check(result, "queueing a host function");
}

void Callbacks::run(void* call) {
  auto* const self = static_cast<Call*>(call);
  self->owner->run(*self);
}

void Callbacks::run(Call& call) {
  {
    const std::lock_guard lock(mutex_);
    if (call.state != Call::State::kQueued) return;
    call.state = Call::State::kTaken;
  }
  call.work();
  const std::lock_guard lock(mutex_);
  finish(call);
}

void Callbacks::finish(Call& call) {
  call.work = nullptr;
  call.state = Call::State::kIdle;
  idle_.push_back(&call);
  if (--to_come_ == 0) changed_.notify_all();
}

void Callbacks::watch() {
  const Context::Use use(context_);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closing_ || to_come_ != 0; });
    if (closing_) return;
    changed_.wait_for(lock, 100ms, [&] { return to_come_ == 0; });
    if (to_come_ == 0) continue;
    lock.unlock();
    if (context_.fails(cudaStreamQuery(probe_), "a look at the GPU") || context_.failed())
      take_all_lost();
    lock.lock();
  }
}

void Callbacks::take_all_lost() {
  std::vector<Call*> lost;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& call : calls_) {
      if (call->state != Call::State::kQueued) continue;
      call->state = Call::State::kTaken;
      lost.push_back(call.get());
    }
  }
  for (Call* const call : lost) {
    if (call->on_failure == OnFailure::kCall) call->work();
    const std::lock_guard lock(mutex_);
    call->work = nullptr;  // never idle again: the driver may still have it
    if (--to_come_ == 0) changed_.notify_all();
  }
}
}  // namespace headrace::device::cuda
