// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "failures.hpp"
#include "program/signals.hpp"

namespace train_gpt {
using headrace::Code;
constexpr std::size_t kFactBytes = 96;
using Fact = std::array<char, kFactBytes>;

World::World(const headrace::Launch& launch, Join join, const Options& options) {
  if (launch.kind == headrace::Launch::Kind::kNone) return;
  if (options.plain) {
    fail(Code::kInvalidArgument,
         "--plain trains in one process, and " + launch.launcher +
             " started several ranks; the run was not started. Start one, or leave --plain out.");
  }
  rank_ = launch.rank;
  headrace::CollectiveOptions ranks;
  ranks.deadline = std::chrono::seconds(options.rank_deadline_seconds);
  ranks.warn = [speaker = prefix()](const std::string& line) {
    std::fprintf(stderr, "train_gpt: %swarning: %s\n", speaker.c_str(), line.c_str());
  };
  ranks.interrupted = [] { return headrace::tools::signal_received() != 0; };
  ranks.transport = join(launch, ranks);
  rank_ = ranks.transport->rank();
  size_ = ranks.transport->world_size();
  words_ = std::to_string(size_) + (size_ == 1 ? " rank by " : " ranks by ") + launch.launcher +
           ", over " + std::string(ranks.transport->name());
  collective_ = headrace::make_collective(ranks);
}

std::string World::prefix_of(std::uint32_t rank) {
  return rank == 0 ? "" : "[rank " + std::to_string(rank) + "] ";
}

std::string World::words() const { return words_; }

void World::exchange(const std::string& what, std::span<const std::byte> mine,
                     std::span<std::byte> all) {
  if (through_) return through_(mine, all);
  collective_->exchange({sequence_++, what}, mine, all);
}

std::vector<double> World::in_order(const std::string& what, std::span<const double> mine) {
  std::vector<double> all(mine.begin(), mine.end());
  if (!collective_) return all;
  all.resize(mine.size() * size_);
  exchange(what, std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
  std::vector<double> ordered;
  for (std::size_t a = 0; a < mine.size(); ++a) {
    for (std::uint32_t r = 0; r < size_; ++r) ordered.push_back(all[r * mine.size() + a]);
  }
  return ordered;
}

std::vector<double> World::of_all(const std::string& what, double mine) {
  return in_order(what, std::span(&mine, 1));
}

void World::join(const std::string& what, std::span<std::byte> bytes) {
  if (!collective_) return;
  constexpr std::size_t kPart = 1 << 20;
  std::vector<std::byte> all;
  for (std::size_t at = 0; at < bytes.size(); at += kPart) {
    const auto part = bytes.subspan(at, std::min(kPart, bytes.size() - at));
    all.resize(part.size() * size_);
    exchange(what, part, all);
    for (std::uint32_t r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      for (std::size_t i = 0; i < part.size(); ++i) part[i] |= all[r * part.size() + i];
    }
  }
}

void World::compare(const std::vector<std::string>& facts) {
  if (!collective_) return;
  std::vector<Fact> mine(facts.size()), all(facts.size() * size_);
  for (std::size_t i = 0; i < facts.size(); ++i) facts[i].copy(mine[i].data(), kFactBytes - 1);
  exchange("options", std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  for (std::size_t at = facts.size(); at < all.size(); ++at) {
    const Fact& other = all[at % facts.size()];
    if (all[at] == other) continue;
    const std::string rank = "rank " + std::to_string(at / facts.size());
    fail(Code::kInvalidArgument, rank + " was started with " + all[at].data() + ", rank 0 with " +
                                     other.data() +
                                     "; no step was made. Give every rank the same line.");
  }
}

void World::abort(const std::string& why) noexcept {
  if (collective_) collective_->abort(why);
}
}  // namespace train_gpt
