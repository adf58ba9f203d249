// SPDX-License-Identifier: Apache-2.0
// export_store.hpp: writes the tensors of a store as a safetensors file, a few chunks at a time.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "store/open_store.hpp"

namespace headrace::tools {
struct ExportOptions {
  std::string name, path;       // the store's, and the file's
  bool with_state = false;      // masters and moments too
  void (*between)() = nullptr;  // called between chunks; may throw
};
struct Exported {
  std::uint64_t steps = 0, bytes = 0, tensors = 0;
};

// `parts`: of all ranks, in order. Exports the newest step that all of them have, after comparing
// the checksum of everything that it reads. Throws
//   kInvalidArgument  there is something at the path, or a name is none for safetensors
//   kNotFound         no step was committed
//   kCorrupt          the parts do not belong together, or bytes are damaged: names rank and tile
// and what ExportFile throws; then there is no file.
Exported export_store(std::span<const std::unique_ptr<OpenStore>> parts,
                      const ExportOptions& options);
}  // namespace headrace::tools
