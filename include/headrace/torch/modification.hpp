// SPDX-License-Identifier: Apache-2.0
// headrace/torch/modification.hpp: a scope in which a group's values may be changed, written back
// at its end.
#pragma once
#include <exception>
#include <memory>
#include <utility>

#include "headrace/torch/offload_core.hpp"

namespace headrace::torch::detail {
class Modification {
 public:
  Modification(std::shared_ptr<OffloadCore> core, std::shared_ptr<OffloadedGroup> group)
      : core_(std::move(core)), group_(std::move(group)), unwinding_(std::uncaught_exceptions()) {
    core_->begin_changes(*group_);
  }
  Modification(Modification&&) noexcept = default;
  Modification& operator=(Modification&& other) noexcept {
    if (this != &other) {
      end();
      core_ = std::move(other.core_);
      group_ = std::move(other.group_);
      unwinding_ = other.unwinding_;
    }
    return *this;
  }
  ~Modification() { end(); }

  // Ends the scope where it succeeds.
  void write_back() {
    if (!core_) return;
    const Call call(core_);
    core_->write_changes(*group_);
    discard();
  }
  void discard() noexcept {
    if (!core_) return;
    core_->end_changes(*group_);
    core_.reset();
    group_.reset();
  }

 private:
  // A brace that an exception passes through drops what was begun before it.
  void end() noexcept {
    if (!core_) return;
    if (std::uncaught_exceptions() > unwinding_) return discard();
    try {
      write_back();
    } catch (const std::exception& error) {
      core_->report_lost_changes(*group_, error.what());
      discard();
    }
  }

  std::shared_ptr<OffloadCore> core_;
  std::shared_ptr<OffloadedGroup> group_;
  int unwinding_;
};
}  // namespace headrace::torch::detail
