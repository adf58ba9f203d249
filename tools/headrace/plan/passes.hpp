// SPDX-License-Identifier: Apache-2.0
// passes.hpp: forward and backward passes over a plan's groups, played on lanes.
#pragma once
#include <algorithm>
#include <deque>
#include <vector>

#include "plan/cost.hpp"

namespace headrace::tools {
// The cost of using a group once: seconds of each lane, except for bytes.
struct GroupCost {
  bool in_place = false;
  struct Fetch {
    double read = 0, verify = 0, copy = 0;
    double last_copy = 0;  // of the last tile, when all is read
    double network = 0;
    double carry = 0;  // the CPU's part of it, where the CPU computes
  };
  Fetch all;
  Fetch at_hand;  // after an update, which has read the trained part: the frozen rest
  Fetch again;    // from what a node keeps, if one does
  double forward = 0, backward = 0;
  double gradient_pass = 0;  // the CPU's over what backward leaves; 0 on a device of its own
  double gradient_copy = 0, gradient_network = 0;
  double saved_copy = 0;  // of activations, to the host in forward and back for backward
};

// Plays passes one after the other; time goes on from pass to pass.
class Passes {
 public:
  struct Slots {
    std::uint32_t slots = 0;
    std::uint32_t prefetch = 0;  // groups that are read, and copied, before they are used
    std::uint32_t ahead = 0;     // ... and joined by the ranks
    bool one_per_group = false;  // all are, as soon as they can be
    bool verify_on_device = false;
  };
  Passes(const std::vector<GroupCost>& groups, const Slots& slots, std::vector<Span>* spans);

  enum class Direction { kForward, kBackward };
  enum class Weights { kFetched, kAtHand };  // kAtHand: an update has just read them
  // Nodes keep what was fetched once: from then on it comes from there.
  void keep_in_node() { kept_in_node_.assign(groups_.size(), !first_); }
  // Groups that the pass before ended with are still there. The pass's own seconds.
  PhaseCost play(Direction direction, Weights weights = Weights::kFetched);
  // Until the gradients that are under way have left the device; seconds.
  double drain();
  void not_before(double seconds) noexcept { compute_free_ = std::max(compute_free_, seconds); }
  // As behind an earlier pass, whose last groups are still there.
  void begin_warm() noexcept { first_ = false; }
  void note_no_more() noexcept { spans_ = nullptr; }

 private:
  const GroupCost::Fetch& next_fetch(std::uint32_t group, Weights weights);
  struct Asked {
    double read = 0, join = 0;  // when
  };
  double fetch(std::uint32_t group, const GroupCost::Fetch& fetch, const Asked& asked,
               PhaseCost& cost);
  double bring_saved(std::uint32_t group, double there, PhaseCost& cost);
  void leave_saved(std::uint32_t group, PhaseCost& cost);
  // Gradients of which a group's use has left, and which wait for the network.
  struct Left {
    std::uint32_t group = 0;
    std::size_t use = 0;
    double ready = 0;
  };
  void leave_gradients(const Left& left, PhaseCost& cost);
  void send(const Left& left);
  // A group that is asked for before a use has ended comes before the gradients of that use.
  template <class Goes>
  void send_while(Goes goes);
  void note(StepLane lane, std::uint32_t group, double begin, double end);

  const std::vector<GroupCost>& groups_;
  std::uint32_t slots_, prefetch_, ahead_;
  bool verify_on_device_;
  std::vector<Span>* spans_;
  double compute_free_ = 0, drive_free_ = 0, copy_free_ = 0, network_free_ = 0, down_free_ = 0;
  bool first_ = true;
  std::vector<bool> kept_in_node_;  // per group; empty: nodes keep nothing
  std::vector<double> begins_;      // when each use was asked for
  std::vector<double> slot_ends_;   // of the uses that took a slot
  std::deque<Left> left_;
};
}  // namespace headrace::tools
