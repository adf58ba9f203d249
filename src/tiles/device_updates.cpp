// SPDX-License-Identifier: Apache-2.0
#include "tiles/device_updates.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "base/units.hpp"
#include "headrace/error.hpp"
#include "optimizer_cpu/masters.hpp"

namespace headrace::tiles {
namespace {
// Of a chunk: an array in host memory, and where it is on the device.
struct Array {
  void* host = nullptr;
  void* device = nullptr;
  std::uint64_t bytes = 0;
};
struct Arrays {
  Array of[2 + 2 * optimizer_cpu::kMaxMoments];
  std::uint32_t count = 0;

  // Takes the next bytes of the slot for it; null stays null.
  void* add(void* host, std::uint64_t bytes, std::byte*& free) {
    if (host == nullptr || bytes == 0) return host;
    of[count++] = {host, free, bytes};
    return std::exchange(free, free + base::align_up(bytes, residency::kDeviceAlignment));
  }
};
}  // namespace

void DeviceUpdates::require(Device& device) {
  if (device::updates_of(device) != nullptr) return;
  throw Error(Code::kUnsupported,
              std::string("headrace.update_on is \"device\", and ") + device.name() +
                  " does not update optimizer state; nothing was allocated. Set it to \"cpu\", or "
                  "train on an NVIDIA GPU (train_gpt: --device cuda).");
}

DeviceUpdates::DeviceUpdates(Device& device, async::Conductor& conductor,
                             const residency::Plan& plan)
    : device_(device),
      updates_(device::updates_of(device)),
      chunk_elements_(plan.device_update_elements),
      memory_(device, plan.device_update_slots * plan.device_update_slot_bytes,
              std::to_string(plan.device_update_slots) + " slots of " +
                  base::format_bytes(plan.device_update_slot_bytes) + " for updates",
              "Set headrace.update_on to \"cpu\", or leave more of the device free"),
      slots_({memory_.data(), memory_.size_bytes()}, plan.device_update_slots,
             plan.device_update_slot_bytes),
      tickets_({}, plan.device_update_slots, 0) {
  for (std::uint32_t slot = 0; slot < plan.device_update_slots; ++slot)
    streams_.emplace_back(device, conductor);
}

void DeviceUpdates::take_memory() {
  memory_.take();
  slots_.move_to({memory_.data(), memory_.size_bytes()});
}

async::Task<> DeviceUpdates::run(const TileLayout& tile, const TileUpdate& update) {
  async::TaskGroup chunks;
  for (std::uint64_t first = 0; first < tile.elements; first += chunk_elements_) {
    const std::uint64_t count = std::min(chunk_elements_, tile.elements - first);
    bool any = false;
    update.each(tile, first, count, [&](auto&&...) { any = true; });
    if (!any) continue;
    pinned::SlotLease slot = co_await slots_.acquire();
    chunks.spawn(update_chunk(tile, update, first, count, std::move(slot)));
  }
  co_await chunks.join();
}

async::Task<> DeviceUpdates::update_chunk(const TileLayout& tile, const TileUpdate& update,
                                          std::uint64_t first, std::uint64_t count,
                                          pinned::SlotLease slot) {
  DeviceStream& stream = streams_[slot.index()];
  try {
    queue_chunk(tile, update, first, count, slot.bytes().data(), stream);
    co_await stream.until_done();
    device_.throw_if_failed();  // of a failed device every wait ends, its work undone
  } catch (...) {
    // Some of it may be queued, and nothing may write to the tile when this has returned.
    stream.synchronize_quietly();
    throw;
  }
}

void DeviceUpdates::queue_chunk(const TileLayout& tile, const TileUpdate& update,
                                std::uint64_t first, std::uint64_t count, std::byte* memory,
                                DeviceStream& stream) {
  using namespace optimizer_cpu;
  const UpdateSpan host = update.span_of(tile, first, count);
  UpdateSpan there = host;
  Arrays state;
  there.weight = state.add(host.weight, count * weight_bytes(host.kind), memory);
  there.master = state.add(host.master, count * master_bytes(host.kind), memory);
  for (std::uint32_t k = 0; k < moments(tile.arithmetic); ++k) {
    there.moment[k] = state.add(host.moment[k], count * moment_bytes(host.codec), memory);
    there.moment_scale[k] = static_cast<std::uint8_t*>(
        state.add(host.moment_scale[k], base::ceil_div(count, base::kScaleElements), memory));
  }
  for (const Array& array : std::span(state.of, state.count))
    stream.copy(array.device, array.host, array.bytes);
  stream.copy(memory, host.gradient, count * size_bytes(host.gradient_dtype));
  there.gradient = memory;
  update.each(tile, first, count,
              [&](std::uint64_t begin, std::uint64_t elements, std::uint32_t parameter,
                  std::uint64_t in_parameter) {
                UpdateSpan part = part_of(there, begin - first, elements);
                part.first_element = in_parameter;
                updates_->update(stream.get(), part, update.steps[parameter]);
              });
  for (const Array& array : std::span(state.of, state.count))
    stream.copy(array.host, array.device, array.bytes);
}
}  // namespace headrace::tiles
