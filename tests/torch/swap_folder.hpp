// SPDX-License-Identifier: Apache-2.0
// swap_folder.hpp: a folder for swap files that goes with its test, and settings that use it.
#pragma once
#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

#include "headrace/settings.hpp"

namespace headrace_test {
class SwapFolder {
 public:
  SwapFolder() {
    std::string name = std::filesystem::current_path() / "torch_test_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name + " failed");
    path_ = name;
  }
  ~SwapFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  SwapFolder(const SwapFolder&) = delete;
  SwapFolder& operator=(const SwapFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline headrace::Settings all_on_nvme(const std::string& folder) {
  headrace::Settings settings;
  settings.offload_optimizer = headrace::OffloadDevice::kNvme;
  settings.offload_parameters = headrace::OffloadDevice::kNvme;
  settings.nvme_paths = {folder};
  settings.tile_elements = 65536;
  settings.update_threads = 2;
  settings.allow_memory_backed = true;  // wherever the tests are built
  return settings;
}
}  // namespace headrace_test
