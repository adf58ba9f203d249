// SPDX-License-Identifier: Apache-2.0
#include "bindings/c/calls.hpp"

#include <unistd.h>

#include <exception>
#include <new>

#include "base/utf8.hpp"

namespace headrace::bindings {
namespace {
constexpr headrace_code kLastCode = HEADRACE_FAILED;

// How much of `text` fits into `room` bytes without cutting a UTF-8 character.
std::size_t whole_characters(std::string_view text, std::size_t room) noexcept {
  if (text.size() <= room) return text.size();
  std::size_t size = room;
  while (size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) --size;
  return size;
}

void put(std::string_view text, char* buffer, std::size_t capacity) noexcept {
  if (buffer == nullptr || capacity == 0) return;
  const std::size_t size = whole_characters(text, capacity - 1);
  std::memcpy(buffer, text.data(), size);
  buffer[size] = 0;
}
}  // namespace

bool usable(const headrace_error* error) noexcept {
  return error == nullptr ||
         (error->struct_size >= sizeof(headrace_error) && error->struct_size <= kLargestStruct);
}

headrace_code succeed(headrace_error* error) noexcept {
  if (error != nullptr) {
    error->code = HEADRACE_OK;
    error->sys_errno = 0;
    error->message_needed = 0;
    put("", error->message, error->message_capacity);
  }
  return HEADRACE_OK;
}

headrace_code fail(headrace_error* error, Code code, int sys_errno,
                   std::string_view text) noexcept {
  const auto number = static_cast<headrace_code>(code);
  if (error != nullptr) {
    error->code = number;
    error->sys_errno = sys_errno;
    error->message_needed = text.size() + 1;
    put(text, error->message, error->message_capacity);
  }
  return number;
}

headrace_code fail_with_current_exception(headrace_error* error) noexcept {
  try {
    throw;
  } catch (const Error& e) {
    return fail(error, e.code(), e.sys_errno(), e.what());
  } catch (const std::bad_alloc&) {
    return fail(error, Code::kOutOfBudget, 0,
                "the process has no memory left for the engine's bookkeeping; give it more, or "
                "register less");
  } catch (const std::exception& e) {
    return fail(error, Code::kFailed, 0, e.what());
  } catch (...) {
    return fail(error, Code::kFailed, 0, "an exception that is no std::exception came from a call");
  }
}

std::string name_in(const char* name, const char* what, std::size_t longest) {
  require(name, what);
  if (strnlen(name, longest + 1) > longest) {
    refuse(std::string(what) + " is longer than " + std::to_string(longest) + " bytes");
  }
  const std::string_view text(name);
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t size = base::utf8_size(text.substr(i));
    if (size == 0) {
      refuse(std::string(what) + " is not UTF-8: byte " + std::to_string(i) +
             " begins no character");
    }
    i += size;
  }
  return name;
}

void refuse(const std::string& text) { throw Error(Code::kInvalidArgument, text); }

void give_text(const std::string& text, char* buffer, std::size_t capacity,
               std::size_t* out_needed) {
  required(out_needed, "out_needed") = text.size() + 1;
  if (capacity == 0) return;
  put(text, &required(buffer, "buffer"), capacity);
  if (capacity < text.size() + 1) {
    refuse("the text takes " + std::to_string(text.size() + 1) + " bytes, capacity is " +
           std::to_string(capacity) + ": it was cut; ask with capacity 0 for the size first");
  }
}

void refuse_in_child(pid_t owner, const char* what, const char* are) {
  if (owner == getpid()) return;
  throw Error(Code::kWrongState, std::string("called in a forked child; ") + are +
                                     " its parent's. Make an " + what +
                                     " of its own in the child.");
}

void check_answer(headrace_code code, const std::string& who) {
  if (code == HEADRACE_OK) return;
  if (code < 0 || code > kLastCode) {
    throw Error(Code::kInvalidArgument, who + " returned " + std::to_string(code) +
                                            ", which is no headrace_code; the call ended there");
  }
  throw Error(static_cast<Code>(code), who + " returned " + headrace_code_name(code) + " (" +
                                           std::to_string(code) + "); the call ended there");
}
}  // namespace headrace::bindings
