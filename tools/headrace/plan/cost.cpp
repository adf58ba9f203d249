// SPDX-License-Identifier: Apache-2.0
#include "plan/cost.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "plan/passes.hpp"
#include "residency/layout.hpp"
#include "swap/store_format.hpp"
#include "tiles/update_place.hpp"

namespace headrace::tools {
namespace {
// Of more micro-batches than this, the rest takes as long as these on average.
constexpr std::uint32_t kMicroBatchesPlayed = 16;

double seconds_for(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

void add_phase(PhaseCost& to, const PhaseCost& one, double times) {
  to.seconds += times * one.seconds;
  to.host_memory += times * one.host_memory;
  for (std::size_t l = 0; l < kStepLanes; ++l) to.busy[l] += times * one.busy[l];
}

class Predictor {
 public:
  Predictor(const residency::Plan& plan, const partition::Partition& partition,
            const StepWork& work, const Rates& rates, Spans spans, bool on_device)
      : plan_(plan), part_(partition), work_(work), rates_(rates), spans_(spans) {
    out_.updates_on_device = on_device;
    HEADRACE_CHECK(work.groups.size() == part_.group_sections.size(), "work for every group");
    for (std::uint32_t g = 0; g < work.groups.size(); ++g) groups_.push_back(cost_of(g));
  }

  Prediction run() {
    update();
    play_passes();
    commit();
    combine();
    free_batch();
    if (spans_ != Spans::kSeconds) count_bytes();
    return std::move(out_);
  }

 private:
  GroupCost::Fetch reading(std::uint32_t section) const;
  double summing_seconds(const GroupWork& work) const;
  double carrying_seconds(double joined) const;
  double within_node_seconds(double joined) const;
  double gathered_seconds(const partition::Section& section) const;
  double packing_seconds(const partition::Section& section) const;
  void add_gradients(GroupCost& to, std::uint32_t section) const;
  struct Reduction {
    double here = 0, beyond = 0;  // bytes into a rank from its own machine, and from others
    double seconds = 0;
    double memory = 0;  // bytes that the rank reads and writes, where the device is the CPU
  };
  Reduction reduction_of(const partition::Section& section) const;
  Reduction in_nodes(const partition::Section& section) const;
  void add_again(GroupCost::Fetch& to, const partition::Section& section) const;
  GroupCost cost_of(std::uint32_t group) const;
  void play_passes();
  struct Stretch {
    std::uint32_t micro_batches = 1;
    double times = 1;       // that it is counted
    bool deferred = false;  // beside its first forward there is an update
    bool warm = false;      // another stretch went before
  };
  void play(const Stretch& stretch, std::vector<Span>* spans);
  double beside_update(const PhaseCost& forward) const;
  struct OnDevice {
    double there = 0, back = 0;  // seconds of the link
    double both = 0;             // of the host's memory
  };
  OnDevice on_device(std::size_t tile) const;
  double checking(double bytes) const;
  double resident_bytes(std::size_t tile) const;
  double own_work(std::size_t tile, double bytes) const;
  double share_drives(PhaseCost& cost, double read, double written) const;
  void update();
  void commit();
  void combine();
  void free_batch();
  void count_bytes();
  double machines() const { return work_.machines; }
  // Of a section that is gathered, the share that comes into this rank from other machines. Over
  // NCCL, and with nodes, each shard comes to a machine once, for all of its ranks. Other
  // transports send it to each of them.
  double gathered_share() const {
    const bool once = plan_.node_ranks > 0 || !work_.device_shares_host_memory;
    return (machines() - 1) / (once ? part_.world_size : machines());
  }
  // A call, and the exchange before it, by which the ranks agree to make it.
  double agreed_call() const { return 2 * rates_.call; }
  // Of a section's gather or reduction, of which a share comes from other machines. Those bytes
  // arrive beside those of this one.
  double collective_seconds(double joined, double share) const {
    if (part_.world_size == 1) return 0;
    const double here = part_.world_size / machines();
    const double from_here = joined * (here - 1) / part_.world_size;
    return agreed_call() + std::max(seconds_for(joined * share, rates_.network),
                                    seconds_for(from_here, rates_.peers));
  }
  std::vector<Span>* kept() { return spans_ == Spans::kKeep ? &out_.spans : nullptr; }

  const residency::Plan& plan_;
  const partition::Partition& part_;
  const StepWork& work_;
  const Rates& rates_;
  const Spans spans_;
  std::vector<GroupCost> groups_;
  Prediction out_;
};

void add_fetch(GroupCost::Fetch& to, const GroupCost::Fetch& one) {
  to.read += one.read;
  to.verify += one.verify;
  to.copy += one.copy;
  to.last_copy = std::max(to.last_copy, one.last_copy);
}

// A section's weights from the drives, if they are there; without what copies them on.
GroupCost::Fetch Predictor::reading(std::uint32_t s) const {
  GroupCost::Fetch fetch;
  if (plan_.sections[s].weight != Tier::kNvme) return fetch;
  const partition::Section& section = part_.sections[s];
  for (std::uint32_t t = section.first_tile; t < section.first_tile + section.tiles; ++t) {
    const auto bytes =
        static_cast<double>(base::align_up(plan_.tiles[t].weight_bytes, base::kIoAlignment));
    fetch.read += seconds_for(bytes, rates_.nvme_read);
    if (work_.checksums) fetch.verify += seconds_for(bytes, rates_.verify);
    if (!work_.device_shares_host_memory)
      fetch.last_copy = std::max(fetch.last_copy, seconds_for(bytes, rates_.link));
  }
  return fetch;
}

// A section of what this rank keeps for its node, and the rest of it from the node's other ranks.
void Predictor::add_again(GroupCost::Fetch& to, const partition::Section& section) const {
  if (plan_.node_ranks == 0) return;
  const auto bytes_each = static_cast<double>(size_bytes(section.dtype));
  const auto kept = static_cast<double>(
      part_.node_shard(section, part_.rank % plan_.node_ranks, plan_.node_ranks).elements);
  const double bytes = kept * bytes_each;
  to.carry += seconds_for(bytes * (plan_.node_ranks - 1), rates_.transport);
  to.copy += work_.device_shares_host_memory ? seconds_for(2 * bytes, rates_.memory)
                                             : seconds_for(bytes, rates_.link);
  to.network +=
      rates_.call + within_node_seconds(static_cast<double>(section.buffer_elements) * bytes_each);
}

// Into a rank, what the others of its node keep.
double Predictor::within_node_seconds(double joined) const {
  const double others = (plan_.node_ranks - 1.0) / plan_.node_ranks;
  return rates_.call + seconds_for(joined * others, rates_.peers);
}

// With nodes: into a rank, the shards that it keeps for its node, and then what the others of it
// keep, which is never quantised.
double Predictor::gathered_seconds(const partition::Section& section) const {
  const auto sent =
      static_cast<double>(plan_.wire.parameter_bytes(section, section.buffer_elements));
  if (plan_.node_ranks == 0) return collective_seconds(sent, gathered_share());
  const auto joined =
      static_cast<double>(section.buffer_elements) * static_cast<double>(size_bytes(section.dtype));
  return agreed_call() + seconds_for(sent * gathered_share(), rates_.network) +
         within_node_seconds(joined);
}

// Of a whole section, which is read as values and written as codes, or the other way round. The
// codes are at most half as many bytes. A GPU takes no time that counts.
double Predictor::packing_seconds(const partition::Section& section) const {
  const auto values =
      static_cast<double>(section.buffer_elements) * static_cast<double>(size_bytes(section.dtype));
  return work_.device_shares_host_memory ? seconds_for(1.5 * values, rates_.memory) : 0;
}

// Of a core, for what comes into this rank of a section that is gathered or reduced.
double Predictor::carrying_seconds(double joined) const {
  return seconds_for(joined * (part_.world_size - 1) / part_.world_size, rates_.transport);
}

// Compute waits for these sums. A ring brings each rank twice the bytes, but for its own part.
double Predictor::summing_seconds(const GroupWork& work) const {
  if (work.summed_bytes <= 0) return 0;
  const double others = (work_.tensor_parallel - 1.0) / work_.tensor_parallel;
  return 2 * rates_.call + seconds_for(2 * others * work.summed_bytes, rates_.peers);
}

GroupCost Predictor::cost_of(std::uint32_t group) const {
  GroupCost cost;
  const GroupWork& work = work_.groups[group];
  cost.in_place = plan_.group_in_place[group];
  if (work_.saved_in_host_memory) cost.saved_copy = seconds_for(work.saved_bytes, rates_.link);
  const double summing = summing_seconds(work);
  cost.forward = seconds_for(work.forward_flops, rates_.flops) + summing;
  cost.backward = seconds_for(work.backward_flops,
                              rates_.backward_flops > 0 ? rates_.backward_flops : rates_.flops) +
                  summing + (work_.checkpointing ? cost.forward : 0);
  const bool shares = work_.device_shares_host_memory;
  for (const std::uint32_t s : part_.group_sections[group]) {
    const partition::Section& section = part_.sections[s];
    const auto each = static_cast<double>(size_bytes(section.dtype));
    const auto shard = static_cast<double>(section.shard.elements) * each;
    const GroupCost::Fetch read = reading(s);
    add_fetch(cost.all, read);
    // Within memory it is read here and written there, but by a drive.
    const double copy =
        shares ? seconds_for(2 * shard, rates_.memory) : seconds_for(shard, rates_.link);
    if (!shares || plan_.sections[s].weight == Tier::kHost) cost.all.copy += copy;
    cost.at_hand.network = cost.all.network += gathered_seconds(section);
    const auto sent =
        static_cast<double>(plan_.wire.parameter_bytes(section, section.buffer_elements));
    cost.at_hand.carry = cost.all.carry += carrying_seconds(sent);
    const double packing = plan_.wire.packs(section) ? packing_seconds(section) : 0;
    cost.all.copy += packing;
    cost.at_hand.copy += packing;
    add_again(cost.again, section);
    if (section.frozen) {
      add_fetch(cost.at_hand, read);
      if (!shares || plan_.sections[s].weight == Tier::kHost) cost.at_hand.copy += copy;
      continue;
    }
    cost.at_hand.copy += copy;
    add_gradients(cost, s);
  }
  return cost;
}

void Predictor::add_gradients(GroupCost& to, std::uint32_t s) const {
  const partition::Section& section = part_.sections[s];
  const auto elements = static_cast<double>(section.shard.elements);
  const double shard = elements * static_cast<double>(size_bytes(section.dtype));
  const double slab = elements * static_cast<double>(size_bytes(plan_.sections[s].gradient_dtype));
  if (work_.device_shares_host_memory) {
    const double times = work_.micro_batches > 1 ? 2 : 1;  // added to: read as well
    to.gradient_pass += seconds_for(shard + times * slab, rates_.memory);
  } else {
    to.gradient_copy += seconds_for(shard, rates_.link);
  }
  if (part_.world_size == 1) return;
  const Reduction reduction = reduction_of(section);
  if (work_.device_shares_host_memory)
    to.gradient_pass += seconds_for(reduction.memory, rates_.memory);
  to.gradient_network += reduction.seconds;
  to.gradient_pass += seconds_for(reduction.here + reduction.beyond, rates_.transport);
  if (plan_.wire.packed_gradients) to.gradient_pass += 2 * packing_seconds(section);
}

// Every rank sends every other its shard.
Predictor::Reduction Predictor::reduction_of(const partition::Section& section) const {
  if (plan_.reduce_ranks > 0) return in_nodes(section);
  const auto sent =
      static_cast<double>(plan_.wire.gradient_bytes(section, section.buffer_elements));
  const double others = part_.world_size - 1, beyond = (machines() - 1) / machines();
  // All of it is copied into a bucket, and the ranks' parts of this rank's shard are read.
  const double shard = static_cast<double>(section.shard.elements * size_bytes(section.dtype));
  return {.here = sent * others / part_.world_size - sent * beyond,
          .beyond = sent * beyond,
          .seconds = collective_seconds(sent, beyond),
          .memory = 3 * shard * part_.world_size};
}

// Part by part: a call for what the ranks of each node own, within the node, and one for the sums.
// A machine may have several nodes, or a node several machines.
Predictor::Reduction Predictor::in_nodes(const partition::Section& section) const {
  const double ranks = plan_.reduce_ranks, nodes = part_.world_size / ranks;
  const double of_machine = part_.world_size / machines();
  const double mates = std::min(ranks, of_machine), nodes_here = std::max(1.0, of_machine / ranks);
  const auto elements = static_cast<double>(section.buffer_elements);
  const auto bytes =
      elements * static_cast<double>(size_bytes(section.dtype)) / ranks;  // of a rank
  const double sum = elements * sizeof(float) / part_.world_size;         // of what one rank owns
  Reduction of{.here = bytes * (mates - 1) + sum * (nodes_here - 1),
               .beyond = bytes * (ranks - mates) + sum * (nodes - nodes_here),
               // The copy into a bucket; then each part is added to a sum, and the sums are read.
               .memory = 3 * bytes * ranks + 2 * ranks * nodes * sum};
  const auto parts = static_cast<double>(
      base::ceil_div(part_.largest_shard_elements(section), plan_.exchange_elements));
  const double calls = parts * (nodes + (nodes > 1 ? 1 : 0));
  of.seconds = (1 + calls) * rates_.call + seconds_for(of.here, rates_.peers) +
               seconds_for(of.beyond, rates_.network);
  return of;
}

double busiest_mover(const PhaseCost& cost) {
  return std::max({cost.nvme_seconds(), cost.of(StepLane::kCopyToDevice),
                   cost.of(StepLane::kCopyToHost), cost.of(StepLane::kNetwork)});
}

// With the update ahead of the next forward, it goes on beside the first micro-batch's forward,
// which takes the weights from it. Where the device is the CPU they share its cores: of the threads
// that update one is the trainer's, which computes meanwhile, and its team waits for the core that
// an update has taken.
double Predictor::beside_update(const PhaseCost& forward) const {
  double both = std::max(forward.seconds, out_.update.seconds);
  if (work_.device_shares_host_memory) {
    const double threads = work_.update_threads;
    const double left = std::max(1.0, threads - 1);
    const double update = out_.update.of(StepLane::kUpdate) * threads / left;
    both = std::max(both, forward.of(StepLane::kCompute) + update);
  }
  for (const StepLane link : {StepLane::kCopyToDevice, StepLane::kCopyToHost})
    both = std::max(both, forward.of(link) + out_.update.of(link));
  return both;
}

void Predictor::play(const Stretch& stretch, std::vector<Span>* spans) {
  using enum Passes::Direction;
  Passes passes(
      groups_,
      {.slots = plan_.gather_slots,
       .prefetch = work_.prefetch_groups,
       .ahead = work_.ranks_ahead,
       .one_per_group = plan_.slot_per_group && part_.world_size > 1 && work_.ranks_ahead > 0,
       .verify_on_device = work_.device_shares_host_memory},
      spans);
  if (stretch.warm) passes.begin_warm();
  if (plan_.node_ranks > 0) passes.keep_in_node();
  PhaseCost forward, backward;
  for (std::uint32_t m = 0; m < stretch.micro_batches; ++m) {
    if (m == 0 && stretch.deferred) {
      const PhaseCost first = passes.play(kForward, Passes::Weights::kAtHand);
      const double both = beside_update(first);
      passes.not_before(both);
      out_.hidden_seconds = first.seconds + out_.update.seconds - both;
      add_phase(forward, first, 1);
    } else {
      add_phase(forward, passes.play(kForward), 1);
    }
    add_phase(backward, passes.play(kBackward), 1);
    passes.note_no_more();
  }
  backward.seconds += passes.drain();
  add_phase(out_.forward, forward, stretch.times);
  add_phase(out_.backward, backward, stretch.times);
}

void Predictor::play_passes() {
  const std::uint32_t played = std::min(work_.micro_batches, kMicroBatchesPlayed);
  play({.micro_batches = played, .deferred = plan_.deferred}, kept());
  if (played == work_.micro_batches) return;
  const double rest = work_.micro_batches - played;
  play({.micro_batches = played, .times = rest / played, .warm = true}, nullptr);
}

// Of what lies on NVMe and has checksums: verified, and sealed again.
double Predictor::checking(double bytes) const {
  return work_.checksums ? 2 * seconds_for(bytes, rates_.verify) : 0;
}

// Of a tile in a store: what lives in memory, and a commit writes.
double Predictor::resident_bytes(std::size_t tile) const {
  const auto [record, weight, slots] = residency::extents_of(plan_, part_, tile);
  const auto stored = residency::stored_extents(plan_, part_, tile);
  return static_cast<double>(stored.record_bytes + stored.weight_bytes - record - weight);
}

// The update threads' seconds for a tile of which `bytes` are on NVMe. What a commit writes from
// memory is sealed too, though not verified.
double Predictor::own_work(std::size_t tile, double bytes) const {
  if (out_.updates_on_device) return checking(bytes) + checking(resident_bytes(tile)) / 2;
  const auto elements = static_cast<double>(part_.tiles[tile].elements);
  const double bare = seconds_for(elements, rates_.update);
  if (!work_.checksums || rates_.update_checked <= 0) return bare;
  const double checked = seconds_for(elements, rates_.update_checked);
  return bytes > 0 ? checked : plan_.durable() ? (bare + checked) / 2 : bare;
}

// A tile's state goes to the device and comes back, both at once with others; the host's memory has
// both to carry.
Predictor::OnDevice Predictor::on_device(std::size_t tile) const {
  const residency::TilePlan& plan = plan_.tiles[tile];
  const std::uint32_t section = part_.tiles[tile].section;
  const auto elements = static_cast<double>(part_.tiles[tile].elements);
  double back = static_cast<double>(plan.weight_bytes);
  for (std::uint32_t s = 0; s < plan.layout.streams; ++s)
    back += static_cast<double>(plan.layout.stream_bytes[s]);
  const double there =
      back + elements * static_cast<double>(size_bytes(plan_.sections[section].gradient_dtype));
  const double both = seconds_for(there + back, rates_.memory);
  return {seconds_for(there, rates_.link), seconds_for(back, rates_.link), both};
}

// The drives' seconds, shared among reading and writing as each takes alone.
double Predictor::share_drives(PhaseCost& cost, double read, double written) const {
  const double drives = nvme_seconds(rates_, read, written);
  if (drives <= 0) return drives;
  const double reading = read > 0 ? read / rates_.nvme_read : 0;
  const double writing = written > 0 ? written / rates_.nvme_write : 0;
  cost.of(StepLane::kNvmeRead) = drives * reading / (reading + writing);
  cost.of(StepLane::kNvmeWrite) = drives * writing / (reading + writing);
  return drives;
}

// Tiles that lie in memory are updated while others are under way. A slot holds its tile from the
// first byte read to the last one written.
void Predictor::update() {
  double read = 0, written = 0, in_slots = 0, ramp = 0, compute = 0, carried = 0;
  PhaseCost& cost = out_.update;
  const bool device = out_.updates_on_device;
  for (std::size_t t = 0; t < plan_.tiles.size(); ++t) {
    if (part_.sections[part_.tiles[t].section].frozen) continue;
    const auto [record, weight, slots] = residency::extents_of(plan_, part_, t);
    const auto bytes = static_cast<double>(record + weight);
    const double own = own_work(t, bytes);
    compute += own;
    double passing = 0;
    if (device) {
      const OnDevice link = on_device(t);
      cost.of(StepLane::kCopyToDevice) += link.there;
      cost.of(StepLane::kCopyToHost) += link.back;
      carried += link.both;
      passing = link.there + link.back;
      ramp = std::max(ramp, passing);
    }
    if (bytes == 0) continue;
    read += bytes;
    written += bytes;
    const double moves = bytes / rates_.nvme_read + bytes / rates_.nvme_write;
    in_slots += moves + own + passing;
    ramp = std::max(ramp, moves + passing);
  }
  const double drives = share_drives(cost, read, written);
  cost.of(StepLane::kUpdate) = compute;
  cost.host_memory = carried;
  const double busiest = std::max(
      {compute, carried, cost.of(StepLane::kCopyToDevice), cost.of(StepLane::kCopyToHost)});
  cost.seconds = std::max(drives, busiest + ramp);
  if (plan_.update_slots > 0) cost.seconds = std::max(cost.seconds, in_slots / plan_.update_slots);
  out_.nvme_read_bytes = read;
  out_.nvme_written_bytes = written;
}

// It begins when the update has ended, deferred or not, and the passes' reads go first: it has what
// they leave of the drives until the next update.
void Predictor::commit() {
  if (!plan_.durable()) return;
  CommitCost& cost = out_.commit;
  for (std::size_t t = 0; t < plan_.tiles.size(); ++t)
    if (!part_.sections[part_.tiles[t].section].frozen) cost.written_bytes += resident_bytes(t);
  cost.written_bytes += static_cast<double>(swap::kCopies * plan_.drive_bytes.size() *
                                            plan_.commit_record.size_bytes);
  // Of what it writes, and of the record.
  const double flushes = 2 * rates_.flush;
  cost.seconds = nvme_seconds(rates_, 0, cost.written_bytes) + flushes;
  const double read = rates_.nvme_read * (out_.forward.of(StepLane::kNvmeRead) +
                                          out_.backward.of(StepLane::kNvmeRead));
  const double shared = nvme_seconds(rates_, read, cost.written_bytes) + flushes;
  const double passes = out_.forward.seconds + out_.backward.seconds - out_.hidden_seconds;
  const auto every = static_cast<double>(plan_.commit_every);
  cost.waited_seconds = std::max(0.0, shared - passes) / every;
  out_.nvme_written_bytes += cost.written_bytes / every;
}

void Predictor::combine() {
  out_.step_seconds = out_.forward.seconds + out_.backward.seconds + out_.update.seconds -
                      out_.hidden_seconds + out_.commit.waited_seconds;
  std::array<double, 7> by_bound{};
  for (const PhaseCost* phase : {&out_.forward, &out_.backward, &out_.update})
    by_bound[static_cast<std::size_t>(phase->bound())] += phase->seconds;
  by_bound[static_cast<std::size_t>(Bound::kNvme)] += out_.commit.waited_seconds;
  const auto most = std::ranges::max_element(by_bound);
  out_.bound = static_cast<Bound>(most - by_bound.begin());
}

// Compute of a pass grows with the tokens, and what is moved does not.
void Predictor::free_batch() {
  double forward = 0, backward = 0;
  for (const GroupCost& group : groups_) {
    forward += group.forward;
    backward += group.backward;
  }
  const auto tokens_to_hide = [&](double moving, double computing) {
    return moving > 0 && computing > 0 ? work_.tokens * moving / computing : 0;
  };
  const double passes = work_.micro_batches;
  double tokens = std::max(tokens_to_hide(busiest_mover(out_.forward), passes * forward),
                           tokens_to_hide(busiest_mover(out_.backward), passes * backward));
  if (plan_.deferred) {
    // On the CPU the update's own work is never free, but the drives may work meanwhile.
    const double cores = out_.update.of(StepLane::kUpdate);
    double hidden =
        work_.device_shares_host_memory ? out_.update.seconds - cores : out_.update.seconds;
    for (const StepLane link : {StepLane::kCopyToDevice, StepLane::kCopyToHost})
      hidden = std::max(hidden, out_.forward.of(link) / passes + out_.update.of(link));
    tokens = std::max(tokens, tokens_to_hide(hidden, forward));
  }
  out_.free_tokens = tokens;
}

void Predictor::count_bytes() {
  const double fetching =
      out_.forward.of(StepLane::kNvmeRead) + out_.backward.of(StepLane::kNvmeRead);
  out_.nvme_read_bytes += fetching * rates_.nvme_read;
  const auto gathers = residency::gathers_per_step(plan_, work_.micro_batches);
  for (const partition::Section& section : part_.sections) {
    const std::uint64_t elements = section.buffer_elements;
    const auto joined = static_cast<double>(plan_.wire.parameter_bytes(section, elements));
    const std::uint32_t gathered = residency::gathers_from_owners(plan_, gathers[section.group]);
    out_.network_bytes += joined * gathered * gathered_share();
    if (!section.frozen) out_.network_bytes += work_.micro_batches * reduction_of(section).beyond;
  }
  for (std::uint32_t r = 0; r < part_.world_size; ++r) {
    const residency::SentPerStep sent =
        residency::sent_per_step(plan_, part_, gathers, work_.micro_batches, r);
    out_.sent_bytes += sent.bytes / part_.world_size;
    out_.sent_to_other_nodes += sent.to_other_nodes / part_.world_size;
    out_.most_sent_bytes = std::max(out_.most_sent_bytes, sent.bytes);
  }
}
}  // namespace

double PhaseCost::nvme_seconds() const noexcept {
  return of(StepLane::kNvmeRead) + of(StepLane::kNvmeWrite);
}

Bound PhaseCost::bound() const noexcept {
  const std::array<double, 6> lanes{
      of(StepLane::kCompute), nvme_seconds(),
      of(StepLane::kUpdate),  std::max(of(StepLane::kCopyToDevice), of(StepLane::kCopyToHost)),
      of(StepLane::kNetwork), host_memory};
  const auto most = std::ranges::max_element(lanes);
  if (*most < seconds / 2) return Bound::kWaiting;
  return static_cast<Bound>(most - lanes.begin());
}

double nvme_seconds(const Rates& rates, double read_bytes, double written_bytes) {
  if (read_bytes + written_bytes <= 0) return 0;
  const double both = std::min(read_bytes, written_bytes);
  const double slower = std::min(rates.nvme_read, rates.nvme_write);
  const double alternating = 2 / (1 / rates.nvme_read + 1 / rates.nvme_write);
  // Twice the slower direction is the most that equal parts can give.
  const double mixed = rates.nvme_mixed > 0 ? std::min(rates.nvme_mixed, 2 * slower) : alternating;
  return 2 * both / mixed + (read_bytes - both) / rates.nvme_read +
         (written_bytes - both) / rates.nvme_write;
}

const char* name_of(StepLane lane) noexcept {
  constexpr std::array kNames{"compute",   "NVMe read", "NVMe write", "update",
                              "to device", "to host",   "network"};
  return kNames[static_cast<std::size_t>(lane)];
}

const char* name_of(Bound bound) noexcept {
  constexpr std::array kNames{"compute",
                              "NVMe",
                              "update on the CPU",
                              "copies",
                              "network",
                              "the host's memory",
                              "waiting of one lane for another"};
  return kNames[static_cast<std::size_t>(bound)];
}

Prediction predict(const residency::Plan& plan, const partition::Partition& partition,
                   const StepWork& work, const Rates& rates, Spans spans) {
  const auto with = [&](bool on_device) {
    return Predictor(plan, partition, work, rates, spans, on_device).run();
  };
  if (plan.update_on != UpdateOn::kAuto) return with(plan.update_on == UpdateOn::kDevice);
  Prediction by_cpu = with(false), on_device = with(true);
  const bool worth_it = on_device.update.seconds < tiles::kWorthMoving * by_cpu.update.seconds;
  return worth_it ? on_device : by_cpu;
}
}  // namespace headrace::tools
