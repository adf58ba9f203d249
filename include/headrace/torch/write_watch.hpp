// SPDX-License-Identifier: Apache-2.0
// headrace/torch/write_watch.hpp: remembers which groups were written to behind the engine's back,
// and throws until they are loaded again.
//
// Bound parameters lie on the engine's bytes. Nothing can stop a write to them, but such a write
// reaches neither the master weights nor the drive, and is lost at the next eviction. It is
// detected at the end of a binding: by torch's version counter, or, after a gathered() scope, by
// comparing the bytes' fingerprints.
//
//   { auto scope = offload.gathered(g); w.data_ptr<float>()[0] = 7; }   // seen here: spoil(g)
//   offload(h, x);                 // throws, though h is intact: the caller must learn about g
//   offload.engine().load(g, ...); // weight_changes(g) counts it
//   offload(h, x);                 // sees that g was loaded since, clears the mark, and runs
//
// The watch also informs the engine about g (Engine::mark_written()). The engine then refuses to
// store or hash g's values.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "headrace/engine.hpp"
#include "headrace/torch/offloaded_group.hpp"

namespace headrace::torch::detail {
// May be called from any thread. Takes no locks but its own and the engine's.
class WriteWatch {
 public:
  explicit WriteWatch(Engine& engine) : engine_(engine) {}

  // No value if the engine has failed or was interrupted. It can then only be closed.
  std::optional<std::uint64_t> changes_of(const OffloadedGroup& group) const noexcept {
    try {
      return engine_.weight_changes(group.id);
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  void spoil(const OffloadedGroup& group, const OffloadedParameter& written) {
    const std::optional<std::uint64_t> changes = changes_of(group);
    if (!changes) return;
    const std::string text =
        "parameter '" + written.full_name() + "' of " + quoted_group(group.name) +
        " was written while it was bound for reading, of which the engine does not know: its "
        "weights and their masters are at odds now, and nothing goes on with them. Write within "
        "gathered(group, Access::kModify). To go on here, load the group's values again with "
        "engine().load(), and drop the gradients that came of it with discard_gradients(). That "
        "load resets the group's moments and step counts: store() those first, and load them "
        "behind it.";
    const std::lock_guard lock(mutex_);
    spoilt_.insert_or_assign(group.id.index, Spoilt{*changes, text});
    try {
      engine_.mark_written(group.id, text);
    } catch (const Error&) {  // the engine can only be closed, and has reported that
    }
  }
  // Keeps the text of an error that cannot be thrown where it occurs. The next throw_if_written()
  // throws that error, once.
  void report(std::string text) {
    const std::lock_guard lock(mutex_);
    report_ = std::move(text);
  }
  void throw_if_written() {
    const std::lock_guard lock(mutex_);
    if (!report_.empty()) throw Error(Code::kWrongState, std::exchange(report_, {}));
    while (!spoilt_.empty()) {
      const auto first = spoilt_.begin();
      if (engine_.weight_changes({first->first}) == first->second.changes)
        throw Error(Code::kWrongState, first->second.text);
      spoilt_.erase(first);
    }
  }

 private:
  struct Spoilt {
    std::uint64_t changes;  // weight_changes() at the write; if higher now, the group is intact
    std::string text;
  };
  Engine& engine_;
  std::mutex mutex_;
  std::map<std::uint32_t, Spoilt> spoilt_;  // by GroupId::index
  std::string report_;
};
}  // namespace headrace::torch::detail
