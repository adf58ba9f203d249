// SPDX-License-Identifier: Apache-2.0
#include "collective/nccl_communicator.hpp"

#include <thread>

namespace headrace::collective {
NcclResult NcclCommunicator::start(std::uint32_t world_size, const NcclId& id, std::uint32_t rank) {
  const std::lock_guard lock(mutex_);
  NcclConfig config;
  return library_.comm_init_rank_config(&comm_, static_cast<int>(world_size), id,
                                        static_cast<int>(rank), &config);
}

NcclResult NcclCommunicator::state() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return kNcclEnded;
  NcclResult state = kNcclSuccess;
  const NcclResult asked = library_.comm_get_async_error(comm_, &state);
  return is_error(asked) ? asked : state;
}

NcclResult NcclCommunicator::until_done(NcclResult result,
                                        std::chrono::steady_clock::time_point end) {
  for (int asked = 0; result == kNcclInProgress && std::chrono::steady_clock::now() < end;
       ++asked) {
    if (asked < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    result = state();
  }
  return result;
}

NcclResult NcclCommunicator::register_memory(void* data, std::size_t bytes, void** handle) {
  const std::lock_guard lock(mutex_);
  *handle = nullptr;
  return comm_ == nullptr ? kNcclEnded : library_.comm_register(comm_, data, bytes, handle);
}

NcclResult NcclCommunicator::deregister(void* handle) noexcept {
  const std::lock_guard lock(mutex_);
  return comm_ == nullptr ? kNcclEnded : library_.comm_deregister(comm_, handle);
}

int NcclCommunicator::cuda_ordinal() {
  const std::lock_guard lock(mutex_);
  int ordinal = -1;
  if (comm_ == nullptr || library_.comm_cu_device(comm_, &ordinal) != kNcclSuccess) return -1;
  return ordinal;
}

void NcclCommunicator::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) library_.comm_abort(comm_);
  comm_ = nullptr;
}

void NcclCommunicator::finish(std::chrono::steady_clock::time_point end) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return;
    if (is_error(library_.comm_finalize(comm_))) end = {};
  }
  if (until_done(kNcclInProgress, end) != kNcclSuccess) return abort();
  const std::lock_guard lock(mutex_);
  library_.comm_destroy(comm_);
  comm_ = nullptr;
}
}  // namespace headrace::collective
