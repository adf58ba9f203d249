// SPDX-License-Identifier: Apache-2.0
// headrace/torch/gathered_scopes.hpp: scopes in which a group's values may be read, or changed and
// written back at the end.
//
// While the values may be changed, the parameters lie on a copy. So the engine's weights never
// differ from its masters.
//
//   auto scope = gathered(g, kModify)  binds g, copies its values, puts the parameters on the copy,
//                                      and gives the engine's bytes back
//   w.normal_(); torch::load(m, file)  change the copy, or give a parameter other memory (a stray)
//   scope.release()                    strays return to the copy with their values; the engine
//                                      takes in each element whose bits changed; g is parked
//
// discard() instead drops the copy and the strays, and the next binding has the engine's values
// again.
#pragma once
#include <c10/util/StringUtil.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headrace/torch/offload_core.hpp"

namespace headrace::torch::detail {
// The scope of a GatheredModule. It ends when release() succeeds, at discard(), or at its
// destruction.
class GatheredScope {
 public:
  virtual ~GatheredScope() = default;
  // Ends the scope and writes the changes back. If that throws, the scope is still open.
  virtual void release() = 0;
  virtual void discard() noexcept = 0;
};

// A scope in which a group's values may be read. Fingerprints of the bytes reveal writes that torch
// does not count (data_ptr(), accessor(), memcpy).
class ReadScope final : public GatheredScope {
 public:
  ReadScope(std::shared_ptr<OffloadCore> core, std::shared_ptr<OffloadedGroup> group)
      : binding_(std::move(core), std::move(group)),
        before_(binding_.group().fingerprints()),
        changes_(binding_.core()->engine().weight_changes(binding_.group().id)) {}
  ~ReadScope() override { discard(); }

  void release() override {
    if (!binding_.core()) return;
    const Call call(binding_.core());
    discard();
  }
  void discard() noexcept override {
    if (const auto& core = binding_.core())
      core->bound().while_none_binds([&] { report_writes(core->writes()); });
    binding_.release();
  }

 private:
  void report_writes(WriteWatch& writes) const {
    const OffloadedGroup& group = binding_.group();
    if (writes.changes_of(group) != changes_) return;  // by the engine's own load()
    if (const OffloadedParameter* written = group.changed_since(before_))
      writes.spoil(group, *written);
  }

  Binding binding_;
  std::vector<std::uint64_t> before_;  // fingerprints when the scope began
  std::uint64_t changes_;              // how often weights had changed when the scope began
};

// Memory for a group's parameters while the user changes them. It must live until the parameters
// are parked.
class EditableCopy {
 public:
  // Moves the group's parameters onto the copy, and gives the group's leases back.
  explicit EditableCopy(OffloadedGroup& group) {
    for (const OffloadedParameter& parameter : group.parameters())
      values_.push_back(parameter.storage().whole().clone());
    for (std::size_t i = 0; i < values_.size(); ++i)
      group.parameters()[i].bind(values_[i].mutable_data_ptr());
    group.give_back();
  }

  // torch::load() and Module::to() give a parameter other memory. This function copies the values
  // from that memory to the copy.
  static void keep_strays(const OffloadedGroup& group) {
    for (const OffloadedParameter& parameter : group.parameters()) {
      const at::Tensor home = parameter.home(), values = parameter.tensor().detach();
      if (parameter.storage().holds(values)) continue;
      if (values.scalar_type() != home.scalar_type() || values.sizes() != home.sizes()) {
        throw Error(Code::kWrongState,
                    "parameter '" + parameter.full_name() + "' of " + quoted_group(group.name) +
                        " became " + c10::str(values.scalar_type(), ' ', values.sizes()) +
                        " while it was being changed, and was " +
                        c10::str(home.scalar_type(), ' ', home.sizes()) +
                        ": only values can change, not type or shape. Bring those back before the "
                        "scope ends, or discard() the changes.");
      }
      home.copy_(values);
    }
  }
  // Loads the copy's values into the engine.
  void load_into(Engine& engine, const OffloadedGroup& group) const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      const at::Tensor copy = values_[i].cpu();  // so that the CPU can read it
      const auto* values = static_cast<const std::byte*>(copy.const_data_ptr());
      const std::size_t size = copy.element_size();
      engine.load(group.parameters()[i].id(), Content::kWeight,
                  [values, size](std::uint64_t first, std::span<std::byte> stretch) {
                    std::memcpy(stretch.data(), values + first * size, stretch.size());
                  });
    }
  }

 private:
  std::vector<at::Tensor> values_;  // of each parameter
};

// A scope in which a group's values may be changed. Nobody else can bind the group meanwhile.
class Modification final : public GatheredScope {
 public:
  Modification(std::shared_ptr<OffloadCore> core, std::shared_ptr<OffloadedGroup> group)
      : core_(std::move(core)), group_(std::move(group)), unwinding_(std::uncaught_exceptions()) {
    core_->bound().begin_changes(core_->usable(*group_));
    try {
      copy_ = std::make_unique<EditableCopy>(*group_);
    } catch (...) {
      core_->bound().end_changes(*group_);
      throw;
    }
  }
  ~Modification() override { end(); }

  void release() override {
    if (!core_) return;
    const Call call(core_);
    core_->registration().require_registered(*group_);
    EditableCopy::keep_strays(*group_);
    core_->bound().while_none_binds([this] {
      copy_->load_into(core_->engine(), *group_);
      group_->mark_changed();
    });
    discard();
  }
  void discard() noexcept override {
    if (!core_) return;
    try {
      for (const OffloadedParameter& parameter : group_->parameters()) parameter.come_home();
    } catch (const std::exception&) {  // the next use of the group names the parameter
    }
    core_->bound().end_changes(*group_);
    copy_.reset();
    group_.reset();
    core_.reset();
  }

 private:
  // If an exception leaves the scope, this drops the scope's changes.
  void end() noexcept {
    if (!core_) return;
    if (std::uncaught_exceptions() > unwinding_) return discard();
    try {
      release();
    } catch (const std::exception& error) {
      core_->writes().report(
          "the changes made to " + quoted_group(group_->name) +
          " in a gathered() scope were not written back, and are lost: " + error.what());
      discard();
    }
  }

  std::shared_ptr<OffloadCore> core_;
  std::shared_ptr<OffloadedGroup> group_;
  std::unique_ptr<EditableCopy> copy_;
  int unwinding_;
};
}  // namespace headrace::torch::detail
