// SPDX-License-Identifier: Apache-2.0
#include "bench/fio.hpp"

#include "base/units.hpp"
#include "bench/as_fio.hpp"
#include "bench/stretch.hpp"
#include "headrace/error.hpp"
#include "program/child.hpp"

namespace headrace::tools {
std::string fio_version() {
  try {
    const ChildResult child = run_child({"fio", "--version"}, {});
    if (child.exit_code == 0) return child.out.substr(0, child.out.find('\n'));
  } catch (const Error& error) {
    if (error.code() != Code::kNotFound) throw;
  }
  throw Error(Code::kUnsupported,
              "--compare fio needs fio, which is not in PATH; nothing was measured. Install it "
              "(Debian: apt install fio)");
}

const std::vector<std::string>& fio_engines() {
  static const std::vector<std::string> engines{"io_uring", "libaio"};
  return engines;
}

TimedSample take_by_fio(Target& target, const Workload& workload, std::uint64_t bytes,
                        std::uint32_t turn, std::uint32_t seed) {
  // Each job has a part of its own, as with Runner; fio's jobs lie side by side.
  const std::uint64_t part =
      base::align_down(target.size_bytes() / workload.jobs, workload.block_bytes);
  const BlockOrder order(workload, 0, part, bytes / workload.jobs, turn);
  const std::uint64_t all = order.blocks() * workload.block_bytes * workload.jobs;
  const std::vector<std::string> words =
      fio_arguments(workload, target.file_path(), order.begin_bytes(), all, seed);
  if (writes(workload.pattern)) target.pages().set(order.begin_bytes(), all, PageMap::kUnknown);
  const ChildResult child = run_child(words, {std::string(kFioTunables) + "=" + kFioTunablesValue});
  return sample_of_fio(fio_json(child.out, child.err, child.exit_code), 0);
}
}  // namespace headrace::tools
