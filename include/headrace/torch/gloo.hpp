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

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "headrace/error.hpp"
#include "headrace/launch.hpp"
#include "headrace/torch/c10d.hpp"
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
  // How long ranks wait for each other at the start. After a quarter of that time, the calling
  // thread passes `warn` one line, without a newline, that names a missing rank. If `warn` is null,
  // the line goes to stderr.
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

inline std::string place_of(const Launch& launch) {
  return launch.master_address + ":" + std::to_string(launch.master_port);
}

// Limits the time that ranks wait to meet.
class JoinWait {
 public:
  explicit JoinWait(const GlooOptions& options) : options_(options) {}
  bool is_over() const { return waited() > options_.join_within; }
  // Called between two checks. A warning includes the text of missing(), such as "rank 1 did not
  // come yet".
  template <class Missing>
  void pause(const Missing& missing) {
    if (options_.interrupted && options_.interrupted())
      throw Error(Code::kInterrupted, "joining the ranks: interrupted; no transport was made");
    if (!warned_ && waited() > options_.join_within / 4) {
      warned_ = true;
      warn(missing() + "; this rank waits up to " + limit());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::string limit() const {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options_.join_within);
    return std::to_string(seconds.count()) + " s";
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::duration waited() const { return Clock::now() - begin_; }
  void warn(const std::string& line) const {
    if (options_.warn) return options_.warn(line);
    std::fprintf(stderr, "headrace: warning: %s\n", line.c_str());
  }
  const GlooOptions& options_;
  const Clock::time_point begin_ = Clock::now();
  bool warned_ = false;
};

// Torch would wait for the store in a single call, which nothing could end.
inline void wait_for_the_store(const Launch& launch, JoinWait& wait) {
  while (!master_answers(launch)) {
    if (wait.is_over()) {
      throw Error(Code::kPeerLost,
                  "the ranks' store at " + place_of(launch) + " did not answer within " +
                      wait.limit() + "; no transport was made; see whether rank 0 runs, and " +
                      "whether MASTER_ADDR and MASTER_PORT are the same on every rank");
    }
    wait.pause([&] { return "the ranks' store at " + place_of(launch) + " does not answer yet"; });
  }
}

// Torch waits without a limit if the listener at that address says nothing. In that case, the
// thread that connects is left behind.
inline C10dStore connect(const Launch& launch, const c10d::TCPStoreOptions& options,
                         JoinWait& wait) {
  const auto promise = std::make_shared<std::promise<C10dStore>>();
  std::future<C10dStore> store = promise->get_future();
  std::thread([promise, address = launch.master_address, options] {
    try {
      promise->set_value(c10::make_intrusive<c10d::TCPStore>(address, options));
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  while (store.wait_for(std::chrono::milliseconds(5)) != std::future_status::ready) {
    if (wait.is_over()) {
      throw Error(Code::kPeerLost, "what listens at " + place_of(launch) +
                                       " is no store of ranks: it said nothing within " +
                                       wait.limit() +
                                       "; no transport was made; choose a free MASTER_PORT");
    }
    wait.pause([&] { return "what listens at " + place_of(launch) + " says nothing yet"; });
  }
  return store.get();
}

// Opens the store at which the ranks meet.
inline C10dStore open_store(const Launch& launch, const GlooOptions& options, JoinWait& wait) {
  const bool serves = launch.rank == 0 && !launch.agent_serves_store;
  if (!serves) wait_for_the_store(launch, wait);
  c10d::TCPStoreOptions store;
  store.port = launch.master_port;
  store.isServer = serves;
  store.waitWorkers = false;  // GlooMeeting waits for them
  store.timeout = options.join_within;
  try {
    return connect(launch, store, wait);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (serves) {
      throw Error(Code::kInvalidArgument, "rank 0 cannot serve the ranks' store at " +
                                              place_of(launch) + ": " + first_line(error) +
                                              "; no transport was made; choose a free MASTER_PORT");
    }
    throw Error(Code::kPeerLost,
                "the ranks' store at " + place_of(launch) + " did not answer: " +
                    first_line(error) + "; no transport was made; see whether rank 0 runs, and " +
                    "whether MASTER_ADDR and MASTER_PORT are the same on every rank");
  }
}

// Lets ranks meet before they connect, so that errors can name surplus and missing ranks.
class GlooMeeting {
 public:
  GlooMeeting(C10dStore store, const Launch& launch) : store_(std::move(store)), launch_(launch) {}
  void join(JoinWait& wait) try {
    if (store_->add(seat(launch_.rank), 1) != 1) {
      refuse("rank " + std::to_string(launch_.rank) + " is there already, at " + place_of(launch_),
             "give each process a RANK of its own, and each launch that runs a MASTER_PORT of its "
             "own");
    }
    const std::string world = std::to_string(launch_.world_size);
    const std::string others = store_->compareSet("world", "", world);
    if (others != world) {
      refuse("rank " + std::to_string(launch_.rank) + " has WORLD_SIZE " + world +
                 ", another rank at " + place_of(launch_) + " " + others,
             "set the same WORLD_SIZE for every rank");
    }
    store_->add("came", 1);
    wait_for_all(wait);
  } catch (const Error& error) {
    // The store ends with rank 0, but the other ranks read it only now and then.
    const bool serves = launch_.rank == 0 && !launch_.agent_serves_store;
    if (serves && error.code() != Code::kInterrupted)
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    throw;
  }

 private:
  static std::string seat(std::uint32_t rank) { return "rank/" + std::to_string(rank); }
  // Also rejects the ranks that are waiting.
  [[noreturn]] void refuse(const std::string& cause, const std::string& cure) {
    const std::string text = cause + "; no transport was made; " + cure;
    store_->set("refused", text);
    throw Error(Code::kInvalidArgument, text);
  }
  void wait_for_all(JoinWait& wait) {
    while (store_->add("came", 0) < launch_.world_size) {
      if (store_->check({"refused"}))
        throw Error(Code::kInvalidArgument, store_->get_to_str("refused"));
      // The first rank to give up also ends the others' wait, so that each names the missing ranks.
      if (wait.is_over() || store_->check({"given up"})) {
        const std::string missing = this->missing();
        store_->set("given up", "");
        throw Error(Code::kPeerLost, missing + " did not come to " + place_of(launch_) +
                                         " within " + wait.limit() +
                                         "; no transport was made; see whether each process was "
                                         "started and what it said");
      }
      wait.pause([&] { return missing() + " did not come to " + place_of(launch_) + " yet"; });
    }
  }
  // "rank 1 and 2 more"
  std::string missing() {
    std::uint32_t first = 0, count = 0;
    for (std::uint32_t r = launch_.world_size; r-- > 0;) {
      if (store_->check({seat(r)})) continue;
      first = r;
      ++count;
    }
    return "rank " + std::to_string(first) +
           (count > 1 ? " and " + std::to_string(count - 1) + " more" : "");
  }

  const C10dStore store_;
  const Launch& launch_;
};

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
}  // namespace detail

// Collective: every rank of the launch makes this call. Rank 0 serves the store at the master
// address and port, unless torchrun's agent does. The other ranks' posts need that store, so the
// destructor of rank 0's transport waits up to 2 seconds for those ranks, or up to half a second if
// the transport has failed.
// Throws headrace::Error with code
//   kInvalidArgument  the launch is not torch's, the port is taken, a rank exists twice, another
//                     rank has a different world size, or the interface does not exist.
//   kPeerLost         rank 0's store did not answer in time, or a rank did not come in time. The
//                     error says which.
//   kUnsupported      torch was built without Gloo.
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
  detail::JoinWait wait(options);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      options.name + "/" + launch.attempt, detail::open_store(launch, options, wait));
  try {
    detail::GlooMeeting(store, launch).join(wait);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(Code::kPeerLost, "the ranks' store at " + detail::place_of(launch) +
                                     " was lost: " + detail::first_line(error) +
                                     "; no transport was made; see why rank 0 ended");
  }
  const auto group = c10d::ProcessGroupGloo::Options::create(options.join_within);
  group->devices.push_back(detail::gloo_device(launch, options));
  group->threads = 1;  // this thread serves calls other than sends and receives
  const int rank = static_cast<int>(launch.rank), world_size = static_cast<int>(launch.world_size);
  const auto kind = launch.rank == 0 && !launch.agent_serves_store
                        ? detail::C10dPosts::Store::kServedHere
                        : detail::C10dPosts::Store::kOfOthers;
  const std::string keeper = launch.agent_serves_store ? "torchrun's agent" : "rank 0";
  return detail::make_c10d(store, kind, keeper, rank, world_size, [&](const auto& of_lane) {
    return c10::make_intrusive<c10d::ProcessGroupGloo>(of_lane, rank, world_size, group);
  });
}
}  // namespace headrace::torch
