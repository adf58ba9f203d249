// SPDX-License-Identifier: Apache-2.0
// file_size_limit.hpp: while it lives, files of this process may have at most so many bytes. It
// stands for a disk that fills: both end a write on the way, or the reservation before it.
#pragma once
#include <sys/resource.h>

#include <csignal>

namespace headrace::tools {
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  sighandler_t handler_;
};
}  // namespace headrace::tools
