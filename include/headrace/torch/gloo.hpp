// SPDX-License-Identifier: Apache-2.0
// headrace/torch/gloo.hpp: a transport of torch's Gloo for programs without Python, made from what
// the launcher said.
//
//   const headrace::Launch launch = headrace::find_launch();
//   auto transport = headrace::torch::make_gloo_transport(launch);
//
// A torch wheel has Gloo, but not its headers: the folder gloo_declarations beside this file stands
// in for them and has to be on the include path (the CMake target headrace::torch adds it).
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
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "headrace/error.hpp"
#include "headrace/launch.hpp"
#include "headrace/torch/c10d.hpp"
#include "headrace/transport.hpp"

// Weak: against a torch that was built without Gloo, a program links, and this file says so.
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
  // The network interface that ranks reach this one by. Empty: what GLOO_SOCKET_IFNAME says, else
  // the one by which this rank reaches the launch's master address.
  std::string interface = {};
  // How long ranks wait for each other to come.
  std::chrono::milliseconds join_within = std::chrono::minutes(5);
  // Tells transports of one launch apart, where a process makes several.
  std::string name = "headrace";
};

namespace detail {
extern "C" __attribute__((weak)) void headrace_gloo_new() __asm__(HEADRACE_GLOO_NEW);
#undef HEADRACE_GLOO_NEW
#undef HEADRACE_GLOO

inline std::string place_of(const Launch& launch) {
  return launch.master_address + ":" + std::to_string(launch.master_port);
}

// The store that the ranks meet at.
inline C10dStore open_store(const Launch& launch, const GlooOptions& options) {
  c10d::TCPStoreOptions store;
  store.port = launch.master_port;
  store.isServer = launch.rank == 0 && !launch.agent_serves_store;
  store.waitWorkers = false;  // GlooMeeting waits for them
  store.timeout = options.join_within;
  try {
    return c10::make_intrusive<c10d::TCPStore>(launch.master_address, store);
  } catch (const std::exception& error) {
    if (store.isServer) {
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

// Where ranks meet before they connect, so that one too many or too few is named.
class GlooMeeting {
 public:
  GlooMeeting(C10dStore store, const Launch& launch) : store_(std::move(store)), launch_(launch) {}
  void join(std::chrono::milliseconds within) {
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
    wait_for_all(std::chrono::steady_clock::now() + within);
  }

 private:
  static std::string seat(std::uint32_t rank) { return "rank/" + std::to_string(rank); }
  // For those that wait, too.
  [[noreturn]] void refuse(const std::string& cause, const std::string& cure) {
    const std::string text = cause + "; no transport was made; " + cure;
    store_->set("refused", text);
    throw Error(Code::kInvalidArgument, text);
  }
  void wait_for_all(std::chrono::steady_clock::time_point end) {
    while (store_->add("came", 0) < launch_.world_size) {
      if (store_->check({"refused"}))
        throw Error(Code::kInvalidArgument, store_->get_to_str("refused"));
      if (std::chrono::steady_clock::now() > end) say_who_is_missing();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  [[noreturn]] void say_who_is_missing() {
    std::uint32_t first = 0, count = 0;
    for (std::uint32_t r = launch_.world_size; r-- > 0;) {
      if (store_->check({seat(r)})) continue;
      first = r;
      ++count;
    }
    throw Error(Code::kPeerLost,
                "rank " + std::to_string(first) +
                    (count > 1 ? " and " + std::to_string(count - 1) + " more" : "") +
                    " did not come to " + place_of(launch_) +
                    " in time; no transport was made; see whether each process was started and "
                    "what it said");
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

// Collective: every rank of the launch calls it. Rank 0 serves the store at the master address and
// port, unless torchrun's agent does: its transport's end, unless it has failed, then waits up
// to 2 seconds for the others', whose posts stand still without it.
// Throws headrace::Error with code
//   kInvalidArgument  a launch that is none of torch's, a port that is taken, a rank that is there
//                     twice, a world of another size on another rank, an interface that is none.
//   kPeerLost         rank 0's store, or a rank, did not come in time; the text says which.
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
  const auto store = c10::make_intrusive<c10d::PrefixStore>(options.name + "/" + launch.attempt,
                                                            detail::open_store(launch, options));
  try {
    detail::GlooMeeting(store, launch).join(options.join_within);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(Code::kPeerLost, "the ranks' store at " + detail::place_of(launch) +
                                     " was lost: " + detail::first_line(error) +
                                     "; no transport was made; see why rank 0 ended");
  }
  const auto group = c10d::ProcessGroupGloo::Options::create(options.join_within);
  group->devices.push_back(detail::gloo_device(launch, options));
  group->threads = 1;  // they serve other calls than sends and receives
  const int rank = static_cast<int>(launch.rank), world_size = static_cast<int>(launch.world_size);
  const auto kind = launch.rank == 0 && !launch.agent_serves_store
                        ? detail::C10dPosts::Store::kServedHere
                        : detail::C10dPosts::Store::kOfOthers;
  return detail::make_c10d(store, kind, rank, world_size, [&](const auto& of_lane) {
    return c10::make_intrusive<c10d::ProcessGroupGloo>(of_lane, rank, world_size, group);
  });
}
}  // namespace headrace::torch
