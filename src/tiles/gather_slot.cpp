// SPDX-License-Identifier: Apache-2.0
#include "tiles/gather_slot.hpp"

#include <algorithm>

#include "tiles/device_stream.hpp"

namespace headrace::tiles {
// One event per stream: a later one covers what came before. Where there are too many streams, this
// one also waits for another's work and stands for both.
void Readers::note(Stream stream) {
  const std::lock_guard lock(mutex_);
  Reader* const end = readers_.data() + count_;
  Reader* reader = std::find_if(readers_.data(), end, [&](const Reader& other) {
    return other.stream.handle == stream.handle;
  });
  if (reader == readers_.data() + kMost) {
    reader = readers_.data();
    device_.wait(stream, reader->event);
  }
  *reader = {stream, device_.record(stream)};
  if (reader == end) ++count_;
}

void Readers::wait(Stream stream) {
  const std::lock_guard lock(mutex_);
  for (std::size_t r = 0; r < count_; ++r) device_.wait(stream, readers_[r].event);
}

void Readers::forget() {
  const std::lock_guard lock(mutex_);
  count_ = 0;
}

void GatherSlot::wait_until_there(Stream stream) {
  if (there_.id != 0) device_.wait(stream, there_);
}

void GatherSlot::set_joined(Stream stream) {
  there_ = device_.record(stream);
  joined_ = true;
}

void GatherSlot::release(Stream stream) noexcept {
  if (!device_.shares_host_memory()) {
    // Where a stream cannot be marked it is waited for: it may be gone, and its work with it; a
    // device that has failed says so at the next fill.
    try {
      readers_.note(stream);
    } catch (const std::exception&) {
      synchronize_quietly(device_, stream);
    }
  }
  give_back();
}

void GatherSlot::lease_empty(GroupId group) noexcept {
  group_ = group;
  lease();
}

void GatherSlot::begin_fill(GroupId group) noexcept {
  state_ = State::kFilling;
  group_ = group;
  joined_ = has_node_shard_ = false;
  there_ = {};
  error_ = nullptr;
}

void GatherSlot::fill_from(Stream stream) {
  readers_.wait(stream);
  readers_.forget();
}

void GatherSlot::end_fill(Event there, const std::exception_ptr& error) noexcept {
  there_ = there;
  error_ = error;
  state_ = error ? State::kFree : State::kReady;
  filled_.wake();
}

async::Task<> GatherSlot::until_filled(const async::GiveUp* give_up) {
  while (filling() && !async::given_up(give_up)) co_await filled_.changed();
}
}  // namespace headrace::tiles
