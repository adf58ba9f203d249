// SPDX-License-Identifier: Apache-2.0
#include "ranks/gradients.hpp"

#include <algorithm>

#include "headrace/error.hpp"

namespace headrace::ranks {
namespace {
// The streams that gradients of a step may arrive on before streams_ grows: more than a trainer
// uses, so that a step allocates nothing.
constexpr std::size_t kUsualStreams = 64;
}  // namespace

Gradients::Gradients(const GradientParts& parts, Order order, base::TraceRecorder* trace)
    : p_(parts),
      arrivals_(p_.partition.parameters.size()),
      last_stream_(p_.partition.parameters.size()) {
  streams_.reserve(kUsualStreams);
  if (p_.partition.world_size == 1) return;
  bucket_.emplace(p_, sums_, record_);
  runner_.emplace(SequenceRunner::Parts{p_.ranks, p_.device, *bucket_, record_, waits_,
                                        order.follows, order.ahead, trace});
}

void Gradients::begin() {
  if (runner_) runner_->start(p_.ranks.least(p_.plan.buckets));
}

Gradients::~Gradients() {
  runner_.reset();
  try {
    for (const Stream stream : streams_) p_.device.synchronize(stream);
  } catch (const std::exception&) {
    // A stream that its owner has destroyed has nothing left to read.
  }
}

std::uint64_t Gradients::bookkeeping_bytes(const partition::Partition& partition, bool in_nodes) {
  return GradientSums::bookkeeping_bytes(partition) +
         (partition.world_size > 1 ? GradientBucket::bookkeeping_bytes(
                                         partition, residency::Plan::kMostBuckets, in_nodes)
                                   : 0) +
         partition.parameters.size() * (sizeof(std::uint32_t) + sizeof(Stream)) +
         kUsualStreams * sizeof(Stream);
}

void Gradients::remember_stream(Stream stream) {
  const auto same = [&](Stream other) { return other.handle == stream.handle; };
  if (std::ranges::none_of(streams_, same)) streams_.push_back(stream);
}

void Gradients::refuse_undeclared_repeat(ParameterId id) const {
  const partition::RegisteredParameter& parameter = p_.registry.parameter(id);
  if (arrivals_[id.index] == 0 || p_.registry.group(parameter.group).repeated_gradients) return;
  throw Error(Code::kWrongState,
              "a second gradient of '" + parameter.full_name +
                  "' arrived before step(): it was not declared, and is refused rather than summed "
                  "in " +
                  name_of(parameter.spec.dtype) +
                  ". If a step was meant in between, call step(); to drop what came before (a pass "
                  "that failed), discard_gradients(). If they belong together, call "
                  "expect_repeated_gradients() for group '" +
                  p_.registry.group(parameter.group).name +
                  "' before freeze(), or set gradient_accumulation_steps to more than 1.");
}

void Gradients::add(ParameterId id, const void* gradient, DType dtype, Stream stream) {
  if (bucket_) {
    const auto one_at_a_time = p_.ranks.lock();
    const std::lock_guard lock(mutex_);
    refuse_undeclared_repeat(id);
    if (!runner_->take_gradient(id, p_.registry.parameter(id).group, gradient, dtype, stream)) {
      const auto attached = runner_->ended() ? sums_.pack() : std::span<const std::byte>{};
      const WaitedFor::Span span(waits_.gradient);
      bucket_->add(id, gradient, dtype, stream, runner_->position(), attached);
      runner_->met(/*in_step=*/false);
    }
    return count_arrival(id, stream);
  }
  const partition::Parameter& parameter = p_.partition.parameters[id.index];
  p_.until_taken(p_.registry.parameter(id).group);
  // Arrivals of one parameter one after another: the first writes what the others add to.
  const std::lock_guard one_parameter(stripes_[id.index % stripes_.size()]);
  {
    const std::lock_guard lock(mutex_);
    refuse_undeclared_repeat(id);
  }
  const bool first = arrivals_[id.index] == 0;
  if (!first && last_stream_[id.index].handle != stream.handle) {
    p_.device.wait(stream, p_.device.record(last_stream_[id.index]));
  }
  sums_.add(id, gradient, dtype, parameter.first_element, parameter.elements, first, stream);
  const std::lock_guard lock(mutex_);
  count_arrival(id, stream);
}

void Gradients::refuse_second_loan(ParameterId id) const {
  if (arrivals_[id.index] == 0) return;
  throw Error(Code::kWrongState,
              "lend_gradient: a second gradient of '" + p_.registry.parameter(id).full_name +
                  "' was lent before step(); the first one stands. Lend the sum of both, or call "
                  "discard_gradients() before.");
}

void Gradients::lend(ParameterId id, const void* gradient, DType dtype) {
  const std::lock_guard one_parameter(stripes_[id.index % stripes_.size()]);
  {
    const std::lock_guard lock(mutex_);
    refuse_second_loan(id);
  }
  sums_.measure(id, gradient, dtype);
  p_.lent.gradients[id.index] = {static_cast<const std::byte*>(gradient), dtype};
  const std::lock_guard lock(mutex_);
  count_arrival(id, {});
}

// Only what the device has taken counts: a call that threw leaves no trace.
void Gradients::count_arrival(ParameterId id, Stream stream) {
  totals_.reset();
  ++arrivals_[id.index];
  if (!bucket_) sums_.note(id);  // several ranks agree on that
  last_stream_[id.index] = stream;
  remember_stream(stream);
}

void Gradients::wait_for_arrivals() {
  for (const Stream stream : streams_) p_.device.synchronize(stream);
  streams_.clear();  // what follows may come on others, and these may end
}

// All ranks attach the same number of bytes: those of a step, where the order has ended.
RankAgreement Gradients::meet(const RankCall& call) {
  const auto attached = runner_->ended() ? sums_.pack() : std::span<const std::byte>{};
  const RankAgreement agreed = bucket_->meet(call, attached);
  runner_->met(call.kind == RankCall::Kind::kStep && agreed.attached);
  return agreed;
}

void Gradients::meet_for_others(const RankCall& call) {
  runner_->leave();
  const WaitedFor::Span span(waits_.others);
  meet(call);
}

RankAgreement Gradients::meet_for_gather(GroupId group, Join join) {
  return meet(runner_->gather_call(group, join, !any_arrived()));
}

GradientTotals Gradients::finish(const StepTerms& terms) {
  const auto one_at_a_time = p_.ranks.lock();
  const std::lock_guard lock(mutex_);
  if (totals_) {
    refuse_other_options(terms.options);
    wait_for_arrivals();
    // A step that is made again: a save may have begun since. Several ranks do not meet again.
    const bool held_before = bucket_.has_value() && totals_->holds_commits;
    totals_->holds_commits = terms.holds_commits || held_before;
    return *totals_;
  }
  RankAgreement agreed;
  agreed.holds_commits = terms.holds_commits;
  if (bucket_) {
    runner_->begin_step();
    const WaitedFor::Span span(waits_.step);
    StepTerms all = terms;
    all.gathers = record_.gathers;  // where joins came ahead, nothing else compares them
    agreed = meet({.kind = RankCall::Kind::kStep, .terms = all});
    bucket_->flush();
  }
  wait_for_arrivals();
  totals_ = sums_.total(agreed.attached);
  totals_->holds_commits = agreed.holds_commits;
  agreed_options_ = terms.options;
  return *totals_;
}

void Gradients::refuse_other_options(const StepOptions& options) const {
  if (!lacks_agreed_step() || options == agreed_options_) return;
  throw Error(Code::kWrongState,
              "step: the ranks have agreed on this step with other options, and it failed on this "
              "rank: nothing was updated here; repeat it with the options that it had, or call "
              "discard_gradients() on every rank");
}

void Gradients::leave_order() {
  if (!bucket_) return;
  const auto one_at_a_time = p_.ranks.lock();
  const std::lock_guard lock(mutex_);
  runner_->leave();
}

GradientPiece Gradients::statistics(ParameterId id) {
  if (bucket_) {
    throw Error(Code::kUnsupported,
                "gradient_statistics of '" + p_.registry.parameter(id).full_name +
                    "': several ranks add up their gradients only in step(), so there is no sum "
                    "yet. Use StepResult::gradient_norm, and clip with StepOptions::max_norm.");
  }
  const std::lock_guard lock(mutex_);
  wait_for_arrivals();
  return sums_.statistics(id);
}

bool Gradients::any_arrived() const {
  return std::ranges::any_of(arrivals_, [](std::uint32_t arrivals) { return arrivals > 0; });
}

bool Gradients::any() const {
  return totals_.has_value() || any_arrived() || (bucket_ && sums_.any_received());
}

void Gradients::discard() {
  const auto one_at_a_time = p_.ranks.lock();
  const std::lock_guard lock(mutex_);
  if (bucket_) meet_for_others({.kind = RankCall::Kind::kDiscard});
  forget(/*stepped=*/false);
}

std::unique_lock<std::mutex> Gradients::begin_together(RankCall::Kind kind, std::uint32_t bytes) {
  if (!bucket_) return {};
  auto one_at_a_time = p_.ranks.lock();
  const std::lock_guard lock(mutex_);
  meet_for_others({.kind = kind, .position = bytes});
  return one_at_a_time;
}

void Gradients::meet_alike(RankCall::Kind kind) {
  if (!bucket_) return;
  const auto one_at_a_time = p_.ranks.lock();
  const std::lock_guard lock(mutex_);
  meet_for_others({.kind = kind});
}

void Gradients::clear() {
  const auto one_at_a_time = p_.ranks.lock();
  const std::lock_guard lock(mutex_);
  forget(/*stepped=*/true);
}

void Gradients::forget(bool stepped) {
  wait_for_arrivals();
  totals_.reset();
  std::ranges::fill(arrivals_, 0);
  sums_.clear();
  std::ranges::fill(p_.lent.gradients, residency::LentGradient{});
  if (!bucket_) return;
  runner_->end_step(stepped);
  bucket_->forget();
}

void Gradients::add_stats(Stats& stats) const noexcept {
  if (!runner_) return;
  stats.rank_meetings = bucket_->meetings();
  runner_->add_stats(stats);
  waits_.add_stats(stats);
}
}  // namespace headrace::ranks
