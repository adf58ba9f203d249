// SPDX-License-Identifier: Apache-2.0
#include "collective/nccl_library.hpp"

#include <dlfcn.h>

#include "headrace/error.hpp"

namespace headrace::collective {
namespace {
constexpr int kOldestVersion = 21800, kOldestThatRegisters = 21900;

const char* const kWhatHelps =
    "install it (pip: nvidia-nccl-cu13 or nvidia-nccl-cu12; Debian: libnccl2), put its folder into "
    "LD_LIBRARY_PATH, or give its path as NcclOptions::library";

[[noreturn]] void refuse(const std::string& cause, const std::string& help) {
  throw Error(Code::kUnsupported, cause + ": ranks cannot talk over NCCL; " + help);
}

std::string version_text(int code) {
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
         std::to_string(code % 100);
}

class Symbols {
 public:
  Symbols(void* handle, const std::string& name) : handle_(handle), name_(name) {}
  template <class Function>
  void find(Function*& function, const char* symbol) const {
    void* const found = ::dlsym(handle_, symbol);
    if (found == nullptr) refuse("'" + name_ + "' has no " + symbol, kWhatHelps);
    function = reinterpret_cast<Function*>(found);
  }

 private:
  void* handle_;
  const std::string& name_;
};
}  // namespace

std::string NcclLibrary::describe(NcclResult result) const {
  std::string text = get_error_string(result);
  const char* const detail = get_last_error(nullptr);
  if (detail != nullptr && *detail != 0) text += std::string(" (") + detail + ")";
  return text;
}

NcclLibrary load_nccl(const std::string& path) {
  const std::string name = path.empty() ? "libnccl.so.2" : path;
  void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    refuse("NCCL could not be loaded (" + std::string(why != nullptr ? why : name) + ")",
           kWhatHelps);
  }
  const Symbols symbols(handle, name);
  NcclLibrary library = {};
  symbols.find(library.get_version, "ncclGetVersion");
  int version = 0;
  if (library.get_version(&version) != kNcclSuccess || version < kOldestVersion) {
    refuse("'" + name + "' is NCCL " + version_text(version) + ", older than " +
               version_text(kOldestVersion),
           "update it, or give the path of a newer one as NcclOptions::library");
  }
  symbols.find(library.get_unique_id, "ncclGetUniqueId");
  symbols.find(library.comm_init_rank_config, "ncclCommInitRankConfig");
  symbols.find(library.comm_get_async_error, "ncclCommGetAsyncError");
  symbols.find(library.comm_cu_device, "ncclCommCuDevice");
  symbols.find(library.comm_abort, "ncclCommAbort");
  symbols.find(library.comm_finalize, "ncclCommFinalize");
  symbols.find(library.comm_destroy, "ncclCommDestroy");
  symbols.find(library.all_gather, "ncclAllGather");
  symbols.find(library.broadcast, "ncclBroadcast");
  symbols.find(library.send, "ncclSend");
  symbols.find(library.recv, "ncclRecv");
  if (version >= kOldestThatRegisters) {
    symbols.find(library.comm_register, "ncclCommRegister");
    symbols.find(library.comm_deregister, "ncclCommDeregister");
  }
  symbols.find(library.group_start, "ncclGroupStart");
  symbols.find(library.group_end, "ncclGroupEnd");
  symbols.find(library.get_error_string, "ncclGetErrorString");
  symbols.find(library.get_last_error, "ncclGetLastError");
  return library;
}
}  // namespace headrace::collective
