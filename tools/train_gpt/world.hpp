// SPDX-License-Identifier: Apache-2.0
// world.hpp: the ranks of a run as the training loop sees them. Rank r of W computes micro-batches
// r, W + r, 2W + r and so on of a step.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headrace/collective.hpp"
#include "headrace/launch.hpp"
#include "headrace/transport.hpp"
#include "options.hpp"

namespace train_gpt {
class World {
 public:
  World() = default;  // one rank, which meets nobody
  // Joins the ranks of `launch` through `join`, if there are several. Throws what joining throws.
  // It waits for them as long as `ranks` says, and warns as it says.
  using Join = std::shared_ptr<headrace::Transport> (*)(const headrace::Launch& launch,
                                                        const headrace::CollectiveOptions& ranks);
  World(const headrace::Launch& launch, Join join, const Options& options);

  std::uint32_t rank() const noexcept { return rank_; }
  std::uint32_t size() const noexcept { return size_; }
  bool speaks() const noexcept { return rank_ == 0; }  // for all of them
  // "[rank 2] " before what another than rank 0 says.
  static std::string prefix_of(std::uint32_t rank);
  std::string prefix() const { return prefix_of(rank_); }
  // "4 ranks by Open MPI, over mpi"; empty: one rank.
  std::string words() const;
  // The engine's; null: one rank.
  const std::shared_ptr<headrace::Collective>& collective() const noexcept { return collective_; }

  // While an engine has the collective, the calls below go through Engine::exchange(); null: no
  // longer.
  using Exchange = std::function<void(std::span<const std::byte> mine, std::span<std::byte> all)>;
  void exchange_through(Exchange exchange) { through_ = std::move(exchange); }

  // Collective calls, named by `what`. With one rank they give back what they were given.
  // One after the other of `mine`, in the order of micro-batches: mine[a] is number a * W + rank.
  std::vector<double> in_order(const std::string& what, std::span<const double> mine);
  // Every rank's value, by rank.
  std::vector<double> of_all(const std::string& what, double mine);
  // Bytes that lie on one rank each, and are zero on the others: on every rank, all of them.
  void join(const std::string& what, std::span<std::byte> bytes);
  // Throws kInvalidArgument, naming the rank and the first line in which its `facts` differ from
  // rank 0's. Every rank has the same number of lines.
  void compare(const std::vector<std::string>& facts);

  // This rank goes on no more: the others end with `why`.
  void abort(const std::string& why) noexcept;
  void leave() noexcept { collective_.reset(); }

 private:
  void exchange(const std::string& what, std::span<const std::byte> mine, std::span<std::byte> all);
  std::uint32_t rank_ = 0, size_ = 1;
  std::string words_;
  std::uint64_t sequence_ = 0;
  std::shared_ptr<headrace::Collective> collective_;
  Exchange through_;
};
}  // namespace train_gpt
