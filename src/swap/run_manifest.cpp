// SPDX-License-Identifier: Apache-2.0
#include "swap/run_manifest.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/error_text.hpp"
#include "base/unique_fd.hpp"
#include "headrace/error.hpp"
#include "swap/refusal.hpp"

namespace headrace::swap {
namespace {
constexpr const char* kFormat = "headrace-run";
constexpr int kVersion = 1;
constexpr const char* kName = "manifest.json";

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

std::string host_name() {
  std::array<char, 256> text{};
  ::gethostname(text.data(), text.size() - 1);
  return text.data();
}
}  // namespace

void write_manifest(int directory_fd, const std::string& directory_path,
                    const std::string& run_id) {
  // The pid is for people: whether the run lives is the lock's to say (a pid means nothing across
  // containers).
  const nlohmann::ordered_json manifest = {
      {"format", kFormat}, {"version", kVersion}, {"run", run_id},        {"uid", ::geteuid()},
      {"pid", ::getpid()}, {"host", host_name()}, {"started", now_utc()},
  };
  const std::string text =
      manifest.dump(2, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
  const base::UniqueFd file(TEMP_FAILURE_RETRY(
      ::openat(directory_fd, kName, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600)));
  const ssize_t written =
      file ? TEMP_FAILURE_RETRY(::write(file.get(), text.data(), text.size())) : -1;
  // Synced, since a power failure may leave a run's files, and nothing that tells whose they are.
  const bool whole = written == static_cast<ssize_t>(text.size());
  if (whole && (::fdatasync(file.get()) == 0 || errno == EINVAL)) return;
  const int error = whole || written < 0 ? errno : ENOSPC;
  throw Error(code_of(error),
              "could not write " + directory_path + "/" + kName + ": " + base::errno_text(error) +
                  "; the run cannot start there; " + what_helps(error),
              error);
}

std::optional<int> pid_of_our_manifest(int directory_fd, const std::string& run_id) noexcept {
  const base::UniqueFd file(
      ::openat(directory_fd, kName, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0) return std::nullopt;
  if (!S_ISREG(status.st_mode) || status.st_uid != ::geteuid()) return std::nullopt;
  std::array<char, 4096> text{};  // ten times what we write
  const ssize_t got = ::pread(file.get(), text.data(), text.size(), 0);
  if (got <= 0 || got == static_cast<ssize_t>(text.size())) return std::nullopt;
  const auto manifest = nlohmann::json::parse(text.data(), text.data() + got, nullptr, false);
  if (!manifest.is_object()) return std::nullopt;
  const auto holds = [&manifest](const char* key, const nlohmann::json& value) {
    const auto found = manifest.find(key);
    return found != manifest.end() && *found == value;
  };
  const bool ours = holds("format", kFormat) && holds("version", kVersion) &&
                    holds("run", run_id) && holds("uid", ::geteuid());
  if (!ours) return std::nullopt;
  const auto pid = manifest.find("pid");
  return pid != manifest.end() && pid->is_number_integer() ? pid->get<int>() : 0;
}
}  // namespace headrace::swap
