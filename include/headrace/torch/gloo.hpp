// SPDX-License-Identifier: Apache-2.0
// headrace/torch/gloo.hpp: a transport over torch's Gloo for programs without Python, created from
// the launcher's variables.
//
//   const headrace::Launch launch = headrace::find_launch();
//   auto transport = headrace::torch::make_gloo_transport(launch);
//
// A torch wheel has Gloo, but not its headers. The folder gloo_declarations beside this file
// replaces them, and must be on the include path (the CMake target headrace::torch adds it).
#pragma once
#include <torch/version.h>
#if TORCH_VERSION_MAJOR != 2 || TORCH_VERSION_MINOR != 11
#error \
    "gloo.hpp was checked with torch 2.11 alone, and another may lay out ProcessGroupGloo \
otherwise: build with torch 2.11, or make the group yourself and give it to c10d.hpp"
#endif
#if !__has_include(<gloo/rendezvous/store.h>)
#error \
    "torch's ProcessGroupGloo.hpp needs Gloo's headers: link headrace::torch, or add \
include/headrace/torch/gloo_declarations to the include path"
#endif
#ifndef USE_C10D_GLOO
#define USE_C10D_GLOO
#endif
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "headrace/error.hpp"
#include "headrace/launch.hpp"
#include "headrace/torch/c10d.hpp"
#include "headrace/torch/rank_store.hpp"
#include "headrace/transport.hpp"

// With weak symbols, a program also links against a torch without Gloo; this file then reports that
// Gloo is missing.
// clang-format off
#define HEADRACE_GLOO "_ZN4c10d16ProcessGroupGloo"
#define HEADRACE_GLOO_NEW HEADRACE_GLOO "C1ERKN3c1013intrusive_ptrINS_5StoreENS1_6detail34" \
  "intrusive_target_default_null_typeIS3_EEEEiiNS2_INS0_7OptionsENS5_ISA_EEEE"
__asm__(".weak " HEADRACE_GLOO_NEW);
__asm__(".weak " HEADRACE_GLOO "7OptionsC1ENSt6chrono8durationIlSt5ratioILl1ELl1000EEEE");
__asm__(".weak " HEADRACE_GLOO "23createDeviceForHostnameERKNSt7__cxx1112basic_stringIcSt11"
        "char_traitsIcESaIcEEEb");
__asm__(".weak " HEADRACE_GLOO "24createDeviceForInterfaceERKNSt7__cxx1112basic_stringIcSt11"
        "char_traitsIcESaIcEEEb");
// clang-format on

namespace headrace::torch {
struct GlooOptions {
  // The network interface through which other ranks reach this one. If empty, it is the one in
  // GLOO_SOCKET_IFNAME, or else the one through which this rank reaches the launch's master
  // address.
  std::string interface = {};
  // How long ranks wait for each other at the start: until all have come, and then until all are
  // connected. After a quarter of that time, the calling thread passes `warn` one line, without a
  // newline, that names a missing rank. If `warn` is null, the line goes to stderr.
  std::chrono::milliseconds join_within = std::chrono::minutes(5);
  std::function<void(const std::string& line)> warn = nullptr;
  // Called about fifty times a second, on the thread that makes the transport. If the function
  // returns true, the wait ends with kInterrupted. Null: never.
  std::function<bool()> interrupted = nullptr;
  // Distinguishes transports of one launch if a process makes several.
  std::string name = "headrace";
};

namespace detail {
extern "C" __attribute__((weak)) void headrace_gloo_new() __asm__(HEADRACE_GLOO_NEW);
#undef HEADRACE_GLOO_NEW
#undef HEADRACE_GLOO

inline std::shared_ptr<gloo::transport::Device> gloo_device(const Launch& launch,
                                                            const GlooOptions& options) {
  std::string interface = options.interface;
  const char* const given = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface.empty() && given != nullptr) interface = given;
  interface = interface.substr(0, interface.find(','));
  const std::string address = interface.empty() ? headrace::own_address(launch) : "";
  try {
    if (!interface.empty()) return c10d::ProcessGroupGloo::createDeviceForInterface(interface);
    if (!address.empty()) return c10d::ProcessGroupGloo::createDeviceForHostname(address);
  } catch (const std::exception& error) {
    require_files("Gloo opened no socket", error);
    throw Error(Code::kInvalidArgument,
                "Gloo cannot use " +
                    (interface.empty() ? "address " + address : "interface '" + interface + "'") +
                    ": " + first_line(error) +
                    "; no transport was made; set GLOO_SOCKET_IFNAME to an interface that the "
                    "other ranks reach");
  }
  throw Error(Code::kInvalidArgument, "no way leads to MASTER_ADDR '" + launch.master_address +
                                          "'; no transport was made; set it to the name or address "
                                          "of rank 0's machine");
}

// How one rank comes to its transport.
class GlooJoin {
 public:
  GlooJoin(const Launch& launch, const GlooOptions& options)
      : launch_(launch),
        options_(options),
        wait_(options.join_within, options.warn, options.interrupted) {}
  std::shared_ptr<Transport> make() {
    try {
      open();
      meet();
      return connect();
    } catch (const Error& error) {
      leave(error);
      throw;
    } catch (const std::exception& error) {
      leave_lost_store(error);
    }
  }

 private:
  using Clock = std::chrono::steady_clock;
  // A call that asks the store. It must own what it uses.
  template <class Call>
  std::invoke_result_t<Call> ask(Call call) {
    return wait_.result_of(calls_.make(std::move(call)), store_of(launch_));
  }
  void open();
  void meet();
  std::shared_ptr<Transport> connect();
  std::future<std::shared_ptr<Transport>> begin_to_connect(PatientCalls& connecting);
  void wait_for_a_cause();
  [[noreturn]] void refuse_silent_ranks();
  void leave(const Error& error) noexcept;
  void let_the_others_leave(std::chrono::milliseconds most);
  [[noreturn]] void leave_lost_store(const std::exception& error);

  const Launch& launch_;
  const GlooOptions& options_;
  JoinWait wait_;
  PatientCalls calls_;
  C10dStore store_;  // serves the others, on rank 0
  std::shared_ptr<GlooMeeting> meeting_;
};

// The meeting has a connection of its own: where torch waits for other ranks, it keeps a connection
// to itself.
inline void GlooJoin::open() {
  const C10dStore whole = open_store(launch_, calls_, wait_, options_.join_within);
  const std::string prefix = options_.name + "/" + launch_.attempt;
  store_ = c10::make_intrusive<c10d::PrefixStore>(prefix, whole);
  meeting_ = ask([whole, prefix, launch = launch_] {
    return std::make_shared<GlooMeeting>(
        c10::make_intrusive<c10d::PrefixStore>(prefix, whole->clone()), launch);
  });
}

inline void GlooJoin::meet() {
  ask([meeting = meeting_] { meeting->come(); });
  const auto all_came = [this] {
    return ask([meeting = meeting_, over = wait_.is_over(), limit = wait_.limit()] {
      return meeting->all_came(over, limit);
    });
  };
  while (!all_came()) {
    wait_.pause([&] {
      return ask([meeting = meeting_] { return meeting->missing(); }) + " did not come to " +
             place_of(launch_) + " yet";
    });
  }
}

inline std::future<std::shared_ptr<Transport>> GlooJoin::begin_to_connect(
    PatientCalls& connecting) {
  constexpr std::size_t kFilesOfGloo = 8;  // a listener and the like, and the posts' connection
  const std::size_t others = launch_.world_size - 1;
  require_files("connecting to the other ranks",
                kFilesOfGloo + (serves_store(launch_) ? kLanes + 1 : kLanes) * others);
  // Longer than this rank waits, which names the ranks that it waits for.
  const auto group = c10d::ProcessGroupGloo::Options::create(2 * options_.join_within);
  group->devices.push_back(gloo_device(launch_, options_));
  group->threads = 1;  // this thread serves calls other than sends and receives
  const auto kind =
      serves_store(launch_) ? C10dPosts::Store::kServedHere : C10dPosts::Store::kOfOthers;
  return connecting.make([store = store_, kind, group, launch = launch_] {
    const int rank = static_cast<int>(launch.rank), size = static_cast<int>(launch.world_size);
    return make_c10d(store, kind, keeper_of(launch), rank, size, [&](const auto& of_lane) {
      return c10::make_intrusive<c10d::ProcessGroupGloo>(of_lane, rank, size, group);
    });
  });
}

inline std::shared_ptr<Transport> GlooJoin::connect() {
  constexpr std::chrono::milliseconds kBetweenSigns(100);
  PatientCalls connecting;
  wait_.begin_anew();
  auto made = begin_to_connect(connecting);
  Clock::time_point next_sign;
  while (made.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    if (Clock::now() >= next_sign) {
      ask([meeting = meeting_] { meeting->show_life(); });
      next_sign = Clock::now() + kBetweenSigns;
    }
    if (wait_.is_over()) refuse_silent_ranks();
    wait_.pause([] { return std::string("the ranks have met, but are not connected yet"); });
  }
  try {
    std::shared_ptr<Transport> transport = made.get();
    (void)calls_.make([meeting = meeting_] { meeting->show_connected(); });
    return transport;
  } catch (const Error& error) {
    if (error.code() == Code::kPeerLost) wait_for_a_cause();
    throw;
  }
}

// Connections to a rank that has failed close before, or while, it leaves its cause.
inline void GlooJoin::wait_for_a_cause() {
  for (int i = 0; i < 10; ++i) {
    ask([meeting = meeting_] { meeting->show_life(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

inline void GlooJoin::refuse_silent_ranks() {
  const auto lives = [this] { return ask([meeting = meeting_] { return meeting->lives(); }); };
  const std::vector<std::int64_t> before = lives();
  wait_for_a_cause();
  ask([meeting = meeting_] { meeting->show_life(); });
  const std::string silent = GlooMeeting::silent_ranks(before, lives());
  throw Error(Code::kPeerLost,
              "the ranks did not connect within " + wait_.limit() +
                  (silent.empty() ? ", although all are there; no transport was made; see whether "
                                    "they reach each other (GLOO_SOCKET_IFNAME)"
                                  : ": " + silent +
                                        " shows no sign of life; no transport was made; see why it "
                                        "ended or stands still"));
}

// An error that is about other ranks is as true for them.
inline void GlooJoin::leave(const Error& error) noexcept try {
  constexpr std::chrono::milliseconds kSoon(300);
  if (!meeting_) return;
  const std::string own = "rank " + std::to_string(launch_.rank) +
                          " failed before the ranks were connected: " + error.what();
  const std::string text = error.code() == Code::kPeerLost ? error.what() : own;
  const auto said = calls_.make([meeting = meeting_, text] { meeting->leave(text); });
  if (said.wait_for(kSoon) != std::future_status::ready || !serves_store(launch_)) return;
  let_the_others_leave(error.code() == Code::kInterrupted ? kSoon : std::chrono::seconds(1));
} catch (...) {  // the store is lost, or there is no memory: the others see that this rank ends
}

// The store ends with rank 0, but the other ranks read it only now and then.
inline void GlooJoin::let_the_others_leave(std::chrono::milliseconds most) {
  constexpr std::chrono::milliseconds kLeast(200);  // for those that have not come yet
  for (const Clock::time_point begin = Clock::now(); Clock::now() - begin < most;) {
    auto all = calls_.make([meeting = meeting_] { return meeting->all_left(); });
    if (all.wait_for(most) != std::future_status::ready) return;
    if (all.get() && Clock::now() - begin >= std::min(kLeast, most)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

inline void GlooJoin::leave_lost_store(const std::exception& error) {
  require_files("the ranks' store at " + place_of(launch_), error);
  throw Error(Code::kPeerLost,
              "the ranks' store at " + place_of(launch_) + " was lost: " + first_line(error) +
                  "; no transport was made; see why " + keeper_of(launch_) + " ended");
}
}  // namespace detail

// Collective: every rank of the launch makes this call. Rank 0 serves the store at the master
// address and port, unless torchrun's agent does. The other ranks' posts need that store, so the
// destructor of rank 0's transport waits up to 2 seconds for those ranks, or up to half a second if
// the transport has failed.
// Throws headrace::Error with code
//   kInvalidArgument  the launch is not torch's, the master's address cannot be resolved, the port
//                     is taken, a rank exists twice, another rank has a different world size, or
//                     the interface does not exist.
//   kPeerLost         rank 0's store did not answer in time, a rank did not come in time, or failed
//                     before all were connected. The error says which, and why.
//   kInterrupted      GlooOptions::interrupted returned true. The other ranks throw kPeerLost.
//   kIo               this process may open no more files.
//   kUnsupported      torch was built without Gloo, or no thread could be started.
// If SIGPIPE has its default action, the process ignores it from now on (c10d.hpp says why).
// A thread is left behind if the store stands still, or if another rank ends the wait.
inline std::shared_ptr<Transport> make_gloo_transport(const Launch& launch,
                                                      const GlooOptions& options = {}) {
  if (launch.kind != Launch::Kind::kTorch) {
    throw Error(Code::kInvalidArgument,
                "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are not set; no transport was made; "
                "start the ranks with torchrun, or set them for each rank");
  }
  if (&detail::headrace_gloo_new == nullptr) {
    throw Error(Code::kUnsupported,
                "this torch was built without Gloo; no transport was made; use a torch whose "
                "torch.distributed.is_gloo_available() is true, or start the ranks with mpirun");
  }
  return detail::GlooJoin(launch, options).make();
}
}  // namespace headrace::torch
