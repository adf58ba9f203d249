// SPDX-License-Identifier: Apache-2.0
#include "support/process_facts.hpp"

#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace headrace::testing {
namespace fs = std::filesystem;
namespace {
std::size_t entries_of(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder)) ++count;
  return count;
}

void count_mappings(Held& held) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    ++held.mappings;
    if (line.find("io_uring") != std::string::npos) ++held.ring_mappings;
    std::uint64_t from = 0, to = 0;
    char access[8] = "";
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %7s", &from, &to, access) == 3 &&
        access[1] == 'w')
      held.mapped_bytes += to - from;
  }
}

// "1: FLOCK  ADVISORY  WRITE 4711 08:01:123 0 EOF"
std::size_t count_locks() {
  std::ifstream locks("/proc/locks");
  std::size_t count = 0;
  for (std::string line; std::getline(locks, line);) {
    std::istringstream words(line);
    std::string number, kind, force, access;
    long process = 0;
    if (words >> number >> kind >> force >> access >> process && process == ::getpid()) ++count;
  }
  return count;
}
}  // namespace

Held what_is_held() {
  Held held;
  held.threads = entries_of("/proc/self/task");
  held.files = entries_of("/proc/self/fd") - 1;
  count_mappings(held);
  held.locks = count_locks();
  return held;
}

Held what_is_held_with(std::size_t threads) {
  for (int tries = 0; tries < 10000 && entries_of("/proc/self/task") > threads; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return what_is_held();
}

Held what_is_held_at_rest() {
  fs::path task = "/proc/self/task";
  std::thread([&] { task /= std::to_string(::gettid()); }).join();
  for (int tries = 0; tries < 10000 && (fs::exists(task) || !engine_threads().empty()); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return what_is_held();
}

std::vector<std::string> engine_threads() {
  std::vector<std::string> names;
  for (const auto& task : fs::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    if (std::getline(file, name) && name.starts_with("headrace-")) names.push_back(name);
  }
  return names;
}
}  // namespace headrace::testing
