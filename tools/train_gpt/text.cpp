// SPDX-License-Identifier: Apache-2.0
// text.cpp: finds the files, reads windows across them.
#include "text.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>

#include "failures.hpp"
#include "kernels/hash.hpp"

namespace fs = std::filesystem;
using headrace::Code;

namespace train_gpt {
namespace {
constexpr const char* kFix = " Name a file or folder that holds text with --text.";

// The first bytes of a text file hold no NUL.
bool looks_like_text(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const int number = errno;
    fail(Code::kIo,
         "cannot open '" + path + "': " + errno_text(number) +
             "; the text would differ from the folder's." +
             " Make it readable, or name another folder with --text.",
         number);
  }
  std::array<char, 4096> head{};
  const ssize_t got = ::read(descriptor, head.data(), head.size());
  ::close(descriptor);
  return got > 0 && std::find(head.begin(), head.begin() + got, '\0') == head.begin() + got;
}

bool is_passed_over(const std::string& name) {
  return name.starts_with('.') || name == "__pycache__" || name == "site-packages" ||
         name == "dist-packages";
}

}  // namespace

std::string python_library_folder(const std::string& search_path) {
  std::error_code error;
  std::stringstream folders(search_path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (folder.empty()) continue;
    const fs::path program = fs::canonical(fs::path(folder) / "python3", error);
    if (error) continue;
    const fs::path library = program.parent_path().parent_path() / "lib" / program.filename();
    if (fs::is_regular_file(library / "os.py", error)) return library.string();
  }
  return "";
}

Text::Text(Text&& other) noexcept
    : origin_(std::move(other.origin_)),
      size_bytes_(other.size_bytes_),
      files_(std::move(other.files_)),
      open_file_(std::exchange(other.open_file_, nullptr)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

Text::~Text() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void Text::add_file(const std::string& path, std::uint64_t size_bytes) {
  files_.push_back({path, size_bytes_, size_bytes});
  size_bytes_ += size_bytes;
}

void Text::add_folder(const std::string& path, bool python_only) {
  std::vector<std::pair<std::string, std::uint64_t>> found;
  std::error_code error;
  fs::recursive_directory_iterator it(path, error);
  for (const fs::recursive_directory_iterator end; !error && it != end; it.increment(error)) {
    const fs::directory_entry& entry = *it;
    const std::string name = entry.path().filename().string();
    std::error_code ignored;
    const bool is_link = entry.is_symlink(ignored);
    if (is_passed_over(name)) {
      it.disable_recursion_pending();
      continue;
    }
    if (is_link || !entry.is_regular_file(ignored)) continue;
    if (python_only && entry.path().extension() != ".py") continue;
    const std::uint64_t size = entry.file_size(ignored);
    if (!ignored && size > 0 && looks_like_text(entry.path().string())) {
      found.emplace_back(entry.path().string(), size);
    }
  }
  if (error) {
    fail(Code::kIo,
         "cannot list the folder '" + path + "': " + errno_text(error.value()) +
             "; the text would be incomplete. Make it readable, or name another with --text.",
         error.value());
  }
  std::sort(found.begin(), found.end());
  for (const auto& [file, size] : found) add_file(file, size);
}

void Text::add_python_library() {
  const char* search_path = std::getenv("PATH");
  origin_ = python_library_folder(search_path != nullptr ? search_path : "");
  if (origin_.empty()) {
    fail(Code::kNotFound, std::string("no Python standard library found beside python3 on PATH; "
                                      "there is nothing to train on.") +
                              kFix);
  }
  add_folder(origin_, true);
}

void Text::add_path(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    const int number = errno;
    fail(number == ENOENT ? Code::kNotFound : Code::kIo,
         "the text '" + path + "' cannot be opened: " + errno_text(number) +
             "; there is nothing to train on." + kFix,
         number);
  }
  origin_ = path;
  if (S_ISDIR(status.st_mode)) return add_folder(path, false);
  if (S_ISREG(status.st_mode)) return add_file(path, static_cast<std::uint64_t>(status.st_size));
  fail(Code::kInvalidArgument, "the text '" + path +
                                   "' is neither a file nor a folder, so it cannot be read at "
                                   "random places; there is nothing to train on." +
                                   kFix);
}

Text Text::open(const std::string& path) {
  Text text;
  if (path.empty()) {
    text.add_python_library();
  } else {
    text.add_path(path);
  }
  if (text.size_bytes_ == 0) {
    fail(Code::kInvalidArgument,
         "the text '" + text.origin_ + "' is empty" +
             (text.files_.empty() ? " (no text file in it)" : " (0 bytes)") +
             "; there is nothing to train on." + kFix);
  }
  std::array<std::uint8_t, 1> first{};
  text.read(0, first);
  return text;
}

void Text::read_from(const File& file, std::uint64_t offset, std::span<std::uint8_t> out) const {
  if (open_file_ != &file) {
    if (descriptor_ >= 0) ::close(descriptor_);
    open_file_ = nullptr;
    descriptor_ = ::open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor_ < 0) {
      const int number = errno;
      fail(Code::kIo,
           "cannot open '" + file.path + "' of the text: " + errno_text(number) +
               "; the batch is incomplete. Make it readable, or name another text with --text.",
           number);
    }
    open_file_ = &file;
  }
  while (!out.empty()) {
    const ssize_t got = ::pread(descriptor_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      const int number = got < 0 ? errno : 0;
      fail(Code::kIo,
           "reading " + std::to_string(out.size()) + " bytes at " + std::to_string(offset) +
               " of '" + file.path +
               "': " + (got < 0 ? errno_text(number) : "the file became shorter") +
               "; the batch is incomplete. Train on a text that does not change.",
           number);
    }
    out = out.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
}

void Text::read(std::uint64_t offset, std::span<std::uint8_t> out) const {
  if (offset > size_bytes_ || out.size() > size_bytes_ - offset) {
    fail(Code::kInvalidArgument, "bytes " + std::to_string(offset) + " to " +
                                     std::to_string(offset + out.size()) + " asked of a text of " +
                                     std::to_string(size_bytes_));
  }
  auto file = std::upper_bound(files_.begin(), files_.end(), offset,
                               [](std::uint64_t at, const File& f) { return at < f.begin; });
  if (file == files_.begin()) return;
  for (--file; !out.empty(); ++file) {
    const std::uint64_t within = offset - file->begin;
    const std::size_t count = std::min<std::uint64_t>(out.size(), file->size_bytes - within);
    read_from(*file, within, out.first(count));
    out = out.subspan(count);
    offset += count;
  }
}

double Text::unigram_entropy_nats(std::string* checksum) const {
  constexpr std::uint64_t kChunk = 1 << 18;
  constexpr std::uint64_t kMostChunks = (1ull << 30) / kChunk;
  const std::uint64_t chunks = (size_bytes_ + kChunk - 1) / kChunk;
  const std::uint64_t taken = std::min(chunks, kMostChunks);
  std::array<std::uint64_t, 256> counts{};
  std::uint64_t total = 0;
  headrace::kernels::Hash128 hash;
  std::vector<std::uint8_t> buffer(kChunk);
  for (std::uint64_t i = 0; i < taken; ++i) {
    const std::uint64_t begin = i * chunks / taken * kChunk;
    const auto bytes = std::span(buffer).first(std::min(kChunk, size_bytes_ - begin));
    read(begin, bytes);
    for (const std::uint8_t byte : bytes) ++counts[byte];
    total += bytes.size();
    if (checksum != nullptr) hash.update(std::as_bytes(bytes));
  }
  if (checksum != nullptr) *checksum = hash.hex();
  double entropy = 0;
  for (const std::uint64_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(total);
    entropy -= share * std::log(share);
  }
  return entropy;
}
}  // namespace train_gpt
