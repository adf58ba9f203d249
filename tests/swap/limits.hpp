// SPDX-License-Identifier: Apache-2.0
// How tests take things away from a child process: a system call, descriptors, file size.
#pragma once
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

namespace headrace::swap::test {
inline constexpr uid_t kNobody = 65534;

// Lets every system call through but `number`, which fails with `error`. False: not to be had here.
inline bool forbid(long number, int error) {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<__u32>(number), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<__u32>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog filter{4, program};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

// Holds every descriptor that the process may have but `spare` of them.
class FewDescriptors {
 public:
  explicit FewDescriptors(std::size_t spare) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = 256;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) held_.push_back(fd);
    for (; spare > 0 && !held_.empty(); --spare) {
      ::close(held_.back());
      held_.pop_back();
    }
  }
  ~FewDescriptors() {
    for (const int fd : held_) ::close(fd);
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
  std::vector<int> held_;
};

// Files may grow to `bytes`; what passes that raises SIGXFSZ, and nothing catches it.
inline bool limit_file_size(rlim_t bytes) {
  const rlimit limit{bytes, bytes};
  return ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
}
}  // namespace headrace::swap::test
