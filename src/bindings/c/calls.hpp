// SPDX-License-Identifier: Apache-2.0
// calls.hpp: the common part of all C entry points: converts exceptions to codes, adapts structs of
// other versions, and copies text into the caller's buffer.
#pragma once
#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "headrace/c.h"
#include "headrace/error.hpp"

namespace headrace::bindings {
// Whether `error` can be written: it is null, or of a size that this library knows.
bool usable(const headrace_error* error) noexcept;
headrace_code succeed(headrace_error* error) noexcept;
headrace_code fail(headrace_error* error, Code code, int sys_errno, std::string_view text) noexcept;
// Converts the exception being handled to a code.
headrace_code fail_with_current_exception(headrace_error* error) noexcept;

template <class Work>
headrace_code guarded(headrace_error* error, Work&& work) noexcept {
  if (!usable(error)) return HEADRACE_INVALID_ARGUMENT;
  try {
    work();
    return succeed(error);
  } catch (...) {
    return fail_with_current_exception(error);
  }
}

[[noreturn]] void refuse(const std::string& text);

template <class T>
T* require(T* pointer, const char* name) {
  if (pointer == nullptr) refuse(std::string(name) + " is NULL; it is required");
  return pointer;
}
template <class T>
T& required(T* pointer, const char* name) {
  return *require(pointer, name);
}

// More than any struct will have: a larger struct_size means that nobody initialised the memory.
constexpr std::size_t kLargestStruct = 4096;

inline void check_struct_size(std::size_t size, std::size_t first_size, const char* name) {
  if (size >= first_size && size <= kLargestStruct) return;
  refuse(std::string(name) + ".struct_size is " + std::to_string(size) + "; it must be " +
         std::to_string(first_size) + " to 4096: set up " + name + " with its _init()");
}

// A caller's struct in this library's size. Fields that the caller's header lacks become
// `defaults`; fields that this library lacks must be zero. `first_size` is the size of the struct's
// first version; pass it when you add a field.
template <class T>
T taken(const T* from, T defaults, const char* name, std::size_t first_size = sizeof(T)) {
  const std::size_t size = required(from, name).struct_size;
  check_struct_size(size, first_size, name);
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  for (std::size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      throw Error(Code::kUnsupported, std::string(name) +
                                          " sets a field that this library does not have; link a "
                                          "newer one, or leave the field zero");
    }
  }
  std::memcpy(&defaults, from, std::min(size, sizeof(T)));
  return defaults;
}

// The same with the struct's _init() for the defaults.
template <class T>
T taken(const T* from, void (*init)(T*), const char* name, std::size_t first_size = sizeof(T)) {
  T defaults;
  init(&defaults);
  return taken(from, defaults, name, first_size);
}
// For options that a caller may leave out by NULL.
template <class T>
T taken_or_defaults(const T* from, void (*init)(T*), const char* name,
                    std::size_t first_size = sizeof(T)) {
  if (from != nullptr) return taken(from, init, name, first_size);
  T defaults;
  init(&defaults);
  return defaults;
}

// Calls visit(struct) for each of a caller's array. Its stride is the caller's size of the struct.
constexpr std::size_t kMostStructsOfACall = 1u << 24;
template <class T, class Visit>
void for_each_struct(T* first, std::size_t count, const char* name, const char* init, Visit visit) {
  if (count == 0) return;
  if (count > kMostStructsOfACall)
    refuse("count is " + std::to_string(count) + ", 16777216 is the most");
  const std::size_t stride = required(first, name).struct_size;
  if (stride % alignof(T) != 0) {
    refuse(std::string(name) + ".struct_size is " + std::to_string(stride) +
           ", no size a struct has; all are set up by " + init);
  }
  for (std::size_t i = 0; i < count; ++i) {
    T* const one = reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(first) + i * stride);
    if (one->struct_size != stride) {
      refuse(std::string(name) + ": entry " + std::to_string(i) + " has struct_size " +
             std::to_string(one->struct_size) + ", the first has " + std::to_string(stride) +
             "; all are set up by " + init);
    }
    visit(one);
  }
}

// Writes `value` to the caller's struct, as far as that reaches.
template <class T>
void give(T* to, const T& value, const char* name, std::size_t first_size = sizeof(T)) {
  const std::uint32_t size = required(to, name).struct_size;
  check_struct_size(size, first_size, name);
  std::memcpy(to, &value, std::min<std::size_t>(size, sizeof(T)));
  to->struct_size = size;
}

// Checks that a caller's name is not null, is UTF-8, and has at most `longest` bytes.
constexpr std::size_t kLongestName = 1024;
std::string name_in(const char* name, const char* what, std::size_t longest = kLongestName);
inline std::string path_in(const char* path, const char* what) { return name_in(path, what, 4096); }

// Implements convention 6 of headrace/c.h.
void give_text(const std::string& text, char* buffer, std::size_t capacity,
               std::size_t* out_needed);

// Convention 6 of headrace/c.h, for lists.
template <class List, class To, class Convert>
void give_list(const List& list, To* buffer, std::size_t capacity, std::size_t& out_count,
               Convert convert) {
  if (capacity > 0) require(buffer, "buffer");
  out_count = list.size();
  if (capacity == 0) return;
  std::transform(list.begin(), list.begin() + std::min(capacity, list.size()), buffer, convert);
  if (capacity < list.size()) {
    refuse("the list has " + std::to_string(list.size()) + " entries, capacity is " +
           std::to_string(capacity) + ": it was cut; ask with capacity 0 for the count first");
  }
}

// The same for bytes.
inline void give_bytes(std::span<const std::byte> bytes, void* buffer, std::size_t capacity,
                       std::size_t& out_size_bytes) {
  give_list(bytes, static_cast<std::byte*>(buffer), capacity, out_size_bytes,
            [](std::byte byte) { return byte; });
}
// A caller's bytes; `data` may be null if there are none.
inline std::span<const std::byte> bytes_in(const void* data, std::size_t size_bytes,
                                           const char* name) {
  if (size_bytes > 0) require(data, name);
  return {static_cast<const std::byte*>(data), size_bytes};
}
inline std::span<std::byte> bytes_in(void* data, std::size_t size_bytes, const char* name) {
  if (size_bytes > 0) require(data, name);
  return {static_cast<std::byte*>(data), size_bytes};
}

// Throws kWrongState unless this process is `owner`, where `what` lives with what belongs to it.
// Example: "engine", "the engine, its threads and files are".
void refuse_in_child(pid_t owner, const char* what, const char* are);

// Throws the error that a host's function returned, unless it is HEADRACE_OK.
void check_answer(headrace_code code, const std::string& who);
}  // namespace headrace::bindings
