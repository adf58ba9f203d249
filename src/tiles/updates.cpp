// SPDX-License-Identifier: Apache-2.0
#include "tiles/updates.hpp"

#include <algorithm>

namespace headrace::tiles {
namespace {
// Tiles in memory that are updated at the same time. When the last chunks of one are taken, there
// are chunks of the next for every thread, and one tile more hides the conductor's work between
// two. Example: 16 threads and tiles of 8 chunks make 4.
std::uint32_t resident_at_once(std::uint32_t threads, const partition::Partition& partition) {
  std::uint64_t chunks = 1;
  for (const partition::Tile& tile : partition.tiles)
    chunks = std::max(chunks, swap::chunks_of(tile.elements));
  return static_cast<std::uint32_t>(2 + threads / chunks);
}
}  // namespace

Updates::Updates(const Parts& parts)
    : p_(parts),
      received_(p_.partition.parameters.size()),
      steps_(p_.partition.parameters.size()),
      tiles_of_group_(p_.partition.group_sections.size()),
      resident_({}, resident_at_once(p_.threads, p_.partition), 0),
      place_(p_.plan.update_on) {}

std::uint64_t Updates::bookkeeping_bytes(const partition::Partition& partition) noexcept {
  return partition.parameters.size() * (sizeof(std::uint8_t) + sizeof(optimizer_cpu::UpdateStep)) +
         partition.group_sections.size() * sizeof(std::uint32_t);
}

GroupId Updates::group_of(std::uint32_t tile) const noexcept {
  return {p_.partition.section_of(tile).group};
}

bool Updates::has_gradient(std::uint32_t tile) const noexcept {
  return std::ranges::any_of(
      p_.partition.segments_of(p_.partition.tiles[tile]),
      [&](const partition::Segment& segment) { return received_[segment.parameter] != 0; });
}

void Updates::start(std::uint64_t deferred_step) {
  deferred_step_ = deferred_step;
  failed_ = stopping_ = ended_early_ = false;
  began_.store(false);
  std::copy_n(p_.gradients.received(), received_.size(), received_.begin());
  std::ranges::fill(tiles_of_group_, 0);
  choose_place();
  for (std::uint32_t t = 0; t < p_.partition.tiles.size(); ++t) {
    if (!has_gradient(t)) continue;
    ++tiles_of_group_[group_of(t).index];
    elements_ += p_.partition.tiles[t].elements;
  }
  p_.pending.begin(tiles_of_group_);
  if (deferred_step == 0) p_.pending.want_all();
  running_ = true;
  runner_.spawn(run());
}

void Updates::choose_place() {
  const std::uint64_t wall_ns = wall_ns_.load();
  const bool decided =
      place_.note(elements_, 1e-9 * static_cast<double>(wall_ns - wall_ns_before_));
  wall_ns_before_ = wall_ns;
  elements_ = 0;
  on_device_ = place_.on_device();
  if (on_device_) steps_on_device_.fetch_add(1, std::memory_order_relaxed);
  if (decided) p_.on_place(place_);
}

async::Task<> Updates::finish(const async::GiveUp* give_up) {
  p_.pending.want_all();
  while (give_up != nullptr && running_) {
    if (give_up->asked()) give_up->refuse();
    co_await p_.pending.changed();
  }
  co_await runner_.join();
}

async::Task<> Updates::stop() {
  stopping_ = true;
  p_.pending.wake();
  try {
    co_await runner_.join();
  } catch (const std::exception&) {
    // The call that waited for the updates has thrown it. If none did, close() logs it.
  }
}

async::Task<> Updates::run() {
  async::TaskGroup tiles;
  std::exception_ptr error;
  try {
    co_await tiles.keep_error_of(start_groups(tiles));
    co_await tiles.join();
  } catch (...) {
    error = std::current_exception();
  }
  if (error && deferred_step_ != 0) {
    error = p_.on_deferred_failure(std::make_exception_ptr(of_deferred_step(error)));
  }
  if (stopping_ && !error) {  // fills may wait for groups that are not, or not wholly, updated
    error = std::make_exception_ptr(
        Error(Code::kWrongState, "the engine was closed before all of a step was updated"));
  }
  if (error) end_early(error);
  running_ = false;
  p_.pending.wake();
  if (error) std::rethrow_exception(error);
}

async::Task<> Updates::start_groups(async::TaskGroup& tiles) {
  while (!p_.pending.all_started() && !failed_ && !stopping_) {
    if (const auto group = p_.pending.start_next()) {
      co_await start_group(*group, tiles);
    } else {
      co_await p_.pending.changed();
    }
  }
}

// Books that no more is done, and why.
//
// Example: tile 3 of a step fails to be read. Where step() waits and no pass has begun, the step
// was not made: nothing is pending any more, and it may be called again. Where the pass over tile 2
// has begun, or step() returned long ago, 2 may be a step ahead of 3: who asks for what is left
// gets the error, and the engine has failed.
void Updates::end_early(const std::exception_ptr& error) {
  ended_early_ = true;
  elements_ = 0;  // what it took says nothing of where updates are faster
  if (on_device_) steps_on_device_.fetch_sub(1, std::memory_order_relaxed);
  if (deferred_step_ != 0 || began()) {
    p_.pending.fail(error);
  } else {
    p_.pending.forget();
  }
}

// Names the step, which returned long ago.
Error Updates::of_deferred_step(const std::exception_ptr& error) const {
  const std::string step = "the deferred update of step " + std::to_string(deferred_step_) + ": ";
  try {
    std::rethrow_exception(error);
  } catch (const Error& cause) {
    return Error(cause.code(), step + cause.what(), cause.sys_errno());
  } catch (const std::exception& cause) {
    return Error(Code::kFailed, step + cause.what());
  }
}

async::Task<> Updates::start_group(GroupId group, async::TaskGroup& tiles) {
  for (const std::uint32_t s : p_.partition.group_sections[group.index]) {
    const partition::Section& section = p_.partition.sections[s];
    for (std::uint32_t t = section.first_tile; t < section.first_tile + section.tiles; ++t) {
      if (failed_ || stopping_) co_return;
      if (!has_gradient(t)) continue;  // left alone, state and step count too
      pinned::SlotLease slot = co_await places_for(t).acquire();
      if (failed_ || stopping_) co_return;
      tiles.spawn(update_tile(t, std::move(slot)));
    }
  }
}

pinned::SlotPool& Updates::places_for(std::uint32_t tile) noexcept {
  if (p_.tiles.needs_slot(tile)) return p_.tiles.slots();
  return on_device_ ? p_.device->tickets() : resident_;
}

void Updates::count_active(bool more) noexcept {
  const auto now = std::chrono::steady_clock::now();
  if (more) {
    if (active_++ == 0) active_since_ = now;
  } else if (--active_ == 0) {
    wall_ns_.fetch_add(static_cast<std::uint64_t>((now - active_since_).count()));
  }
}

async::Task<> Updates::update_tile(std::uint32_t tile, pinned::SlotLease slot) {
  const TileView view = p_.tiles.view(tile, slot ? slot.bytes() : std::span<std::byte>{});
  count_active(true);
  std::exception_ptr error;
  try {
    co_await read_pass_write(tile, view);
  } catch (...) {
    error = std::current_exception();
  }
  count_active(false);
  if (!error) co_return;
  failed_ = true;
  p_.pending.wake();  // so that start_groups() sees failed_ if it waits for the next group
  std::rethrow_exception(error);
}

async::Task<> Updates::read_pass_write(std::uint32_t tile, TileView view) {
  if (p_.interrupted.load()) throw Error(Code::kInterrupted, "step: interrupted");
  const GroupId group = group_of(tile);
  co_await p_.tiles.read(tile, view, kWholeTile, swap::Priority::kDemand);
  // After the read, so that a fill that began meanwhile is served; before the pass, which writes
  // there.
  const HandOver gathered = p_.hand_overs.place_of(tile);
  TileUpdate update = update_of(tile);
  update.weight_copy = gathered.by_pass;
  began_.store(true);
  {
    const base::TraceSpan span(p_.trace, TraceLane::kUpdate, "update", group.index, tile,
                               p_.plan.tiles[tile].bytes());
    co_await run_pass(update, tile, view);
  }
  async::TaskGroup ways_out;  // both read the update slot, so it is free when both have ended
  if (gathered) p_.hand_overs.hand_over(tile, gathered, view.weight);
  // May end the fill of the group and resume its gather: the trainer may have the new weights, and
  // the update slot still holds them, before their write starts.
  p_.pending.note_pass(group);
  if (gathered.by_device != nullptr) ways_out.spawn(p_.hand_overs.until_copied());
  ways_out.spawn(p_.tiles.write(tile, view, kWholeTile));
  co_await ways_out.join();
  p_.pending.note_write(group);
}

// On a device: the CPU verifies, the device updates, the CPU seals. Where no stream has checksums,
// both of the CPU's passes are left out.
async::Task<> Updates::run_pass(const TileUpdate& update, std::uint32_t tile, TileView view) {
  TilePass pass;
  p_.tiles.prepare(pass, tile, view, kWholeTile, true);
  pass.busy_ns = &compute_ns_;
  if (!on_device_) {
    pass.update = &update;
    co_await p_.tiles.run(pass, tile);
    co_return;
  }
  pass.seals = false;
  if (pass.any_verify()) co_await p_.tiles.run(pass, tile);
  co_await p_.device->run(pass.tile, update);
  pass.verifies = false;
  pass.seals = true;
  if (pass.any_seal()) co_await p_.tiles.run(pass, tile);
}

TileUpdate Updates::update_of(std::uint32_t tile) const {
  const partition::Tile& cut = p_.partition.tiles[tile];
  const std::uint64_t in_shard =
      cut.first_element - p_.partition.sections[cut.section].shard.first_element;
  TileUpdate update;
  update.segments = p_.partition.segments_of(cut);
  update.received = received_.data();
  update.steps = steps_.data();
  update.parameters = p_.partition.parameters.data();
  update.gradient_dtype = p_.plan.sections[cut.section].gradient_dtype;
  update.lent_gradients = p_.lent.gradients.data();
  if (const std::byte* const sums = p_.gradients.of_section(cut.section))
    update.gradient = sums + in_shard * size_bytes(update.gradient_dtype);
  update.update = p_.update;
  return update;
}
}  // namespace headrace::tiles
