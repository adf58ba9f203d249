// SPDX-License-Identifier: Apache-2.0
// Streams and events of the CPU only keep their rules.
#include "device/device_host.hpp"

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>

#include "device/device_rules.hpp"
#include "device/host_memory.hpp"
#include "kernels/gradient_pass.hpp"

namespace headrace::device {
namespace {
class DeviceHost final : public Device {
 public:
  const char* name() const noexcept override { return "cpu"; }
  bool shares_host_memory() const noexcept override { return true; }

  void* allocate(std::size_t size_bytes) noexcept override {
    return allocate_host_memory(size_bytes);
  }
  void deallocate(void* data, std::size_t size_bytes) noexcept override {
    free_host_memory(data, size_bytes);
  }

  Stream create_stream() override {
    const std::lock_guard lock(mutex_);
    streams_.insert(++last_stream_);
    return {last_stream_};
  }
  void destroy_stream(Stream stream) noexcept override {
    const std::lock_guard lock(mutex_);
    if (stream.handle != 0) streams_.erase(stream.handle);
  }

  void copy(Stream stream, void* target, const void* source, std::size_t size_bytes) override {
    check(stream);
    if (size_bytes != 0) std::memmove(target, source, size_bytes);
  }
  void fill_zero(Stream stream, void* target, std::size_t size_bytes) override {
    check(stream);
    if (size_bytes != 0) std::memset(target, 0, size_bytes);
  }
  void accumulate(Stream stream, const Accumulation& work) override {
    check(stream);
    kernels::accumulate_on_host(work);
  }
  void notify(Stream stream, void (*function)(void* context) noexcept, void* context) override {
    check(stream);
    function(context);
  }

  Event record(Stream stream) override {
    check(stream);
    return {last_event_.fetch_add(1) + 1};
  }
  void wait(Stream stream, Event event) override {
    check(stream);
    const std::uint64_t last = last_event_.load();
    if (event.id == 0 || event.id > last) throw_unrecorded_event(event, last);
  }
  void synchronize(Stream stream) override { check(stream); }

 private:
  void check(Stream stream) {
    if (stream.handle == 0) return;
    const std::lock_guard lock(mutex_);
    if (!streams_.contains(stream.handle)) throw_unknown_stream(stream);
  }

  std::mutex mutex_;  // the two below
  std::set<std::uintptr_t> streams_;
  std::uintptr_t last_stream_ = 0;
  std::atomic<std::uint64_t> last_event_ = 0;
};
}  // namespace

std::shared_ptr<Device> make_device_host() { return std::make_shared<DeviceHost>(); }
}  // namespace headrace::device
