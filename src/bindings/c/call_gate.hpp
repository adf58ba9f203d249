// SPDX-License-Identifier: Apache-2.0
// call_gate.hpp: decides which calls of one engine may run at the same time (headrace/engine.hpp,
// "Threads"). It rejects a call at a wrong time, from another thread or out of a callback, before
// the call begins.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "headrace/error.hpp"

namespace headrace::bindings {
enum class CallKind : std::uint8_t {
  kLook,   // registration's results, plan, statistics, leases: together with all but kShape
  kFeed,   // gather, add_gradient: together with each other and kLook
  kRun,    // load, store, hashes, discard, step: together with kLook
  kShape,  // registration, freeze, close: alone
};

class CallGate {
 public:
  void enter(CallKind kind) {
    std::uint64_t word = word_.load();
    do {
      if ((word & conflicts(kind)) != 0) refuse(word);
    } while (!word_.compare_exchange_weak(word, word + one(kind)));
  }
  // For holders of a lease. Waits while a kShape call is inside: the lease soon makes it fail.
  void enter_to_look() noexcept {
    std::uint64_t word = word_.load();
    do {
      while ((word & all(CallKind::kShape)) != 0) {
        std::this_thread::yield();
        word = word_.load();
      }
    } while (!word_.compare_exchange_weak(word, word + one(CallKind::kLook)));
  }
  void leave(CallKind kind) noexcept { word_.fetch_sub(one(kind)); }

 private:
  // 16 bits per kind: the number of calls inside.
  static constexpr std::uint64_t one(CallKind kind) noexcept {
    return std::uint64_t{1} << 16 * static_cast<int>(kind);
  }
  static constexpr std::uint64_t all(CallKind kind) noexcept { return 0xffff * one(kind); }
  static constexpr std::uint64_t conflicts(CallKind kind) noexcept {
    switch (kind) {
      case CallKind::kLook:
        return all(CallKind::kShape);
      case CallKind::kFeed:
        return all(CallKind::kRun) | all(CallKind::kShape);
      case CallKind::kRun:
        return ~all(CallKind::kLook);
      case CallKind::kShape:
        break;
    }
    return ~std::uint64_t{0};
  }
  [[noreturn]] static void refuse(std::uint64_t word) {
    const char* const other = (word & all(CallKind::kShape)) != 0 ? "registration, freeze or close"
                              : (word & all(CallKind::kRun)) != 0
                                  ? "load, store, hash, discard or step"
                              : (word & all(CallKind::kFeed)) != 0 ? "gather or add_gradient"
                                                                   : "question";
    throw Error(Code::kWrongState,
                std::string("a ") + other +
                    " of this engine is under way, in another thread or below this call; nothing "
                    "was done. Make the call when that has returned (headrace/c.h, convention 8).");
  }
  std::atomic<std::uint64_t> word_{0};
};

// Inside the gate until the end of the scope.
class InGate {
 public:
  InGate(CallGate& gate, CallKind kind) : gate_(&gate), kind_(kind) { gate.enter(kind); }
  InGate(const InGate&) = delete;
  InGate& operator=(const InGate&) = delete;
  ~InGate() { gate_->leave(kind_); }

 private:
  CallGate* gate_;
  CallKind kind_;
};
}  // namespace headrace::bindings
