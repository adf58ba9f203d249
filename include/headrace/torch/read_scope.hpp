// SPDX-License-Identifier: Apache-2.0
// headrace/torch/read_scope.hpp: a scope in which a group's values may be read, and in which writes
// are noticed that torch does not count (data_ptr(), accessor(), memcpy).
#pragma once
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "headrace/torch/offload_core.hpp"

namespace headrace::torch::detail {
class ReadScope {
 public:
  ReadScope(std::shared_ptr<OffloadCore> core, std::shared_ptr<OffloadedGroup> group)
      : binding_(core, group), core_(std::move(core)), group_(std::move(group)) {
    changes_ = core_->engine().weight_changes(group_->id);
    before_ = group_->fingerprints();
  }
  ReadScope(ReadScope&&) noexcept = default;
  ReadScope& operator=(ReadScope&& other) noexcept {
    if (this != &other) {
      release();
      binding_ = std::move(other.binding_);
      core_ = std::move(other.core_);
      group_ = std::move(other.group_);
      before_ = std::move(other.before_);
      changes_ = other.changes_;
    }
    return *this;
  }
  ~ReadScope() { release(); }

  void release() noexcept {
    if (core_) core_->report_if_changed(*group_, before_, changes_);
    binding_.release();
    core_.reset();
    group_.reset();
  }

 private:
  Binding binding_;
  std::shared_ptr<OffloadCore> core_;
  std::shared_ptr<OffloadedGroup> group_;
  std::vector<std::uint64_t> before_;
  std::uint64_t changes_ = 0;
};
}  // namespace headrace::torch::detail
