// SPDX-License-Identifier: Apache-2.0
// intrusive_list.hpp: lists that link their members through a pointer inside them, so that a list
// allocates, moves and owns nothing. A member must stay in place until it is taken off. A pointer
// serves one list at a time. The lists do not lock.
#pragma once
#include <utility>

namespace headrace::base {
// First in, first out: IntrusiveQueue<&Node::next>.
template <auto Next>
class IntrusiveQueue;
template <class T, T* T::*Next>
class IntrusiveQueue<Next> {
 public:
  bool empty() const noexcept { return first_ == nullptr; }
  T* front() const noexcept { return first_; }  // null when empty

  void push(T& item) noexcept {
    item.*Next = nullptr;
    (last_ == nullptr ? first_ : last_->*Next) = &item;
    last_ = &item;
  }

  // Removes and returns the first one; null if there is none.
  T* pop() noexcept {
    T* const item = first_;
    if (item == nullptr) return nullptr;
    first_ = std::exchange(item->*Next, nullptr);
    if (first_ == nullptr) last_ = nullptr;
    return item;
  }

  // Removes all of them, and returns them as a list.
  IntrusiveQueue take_all() noexcept { return std::exchange(*this, {}); }

 private:
  T* first_ = nullptr;
  T* last_ = nullptr;
};

// Last in, first out: IntrusiveStack<&Node::next>.
template <auto Next>
class IntrusiveStack;
template <class T, T* T::*Next>
class IntrusiveStack<Next> {
 public:
  bool empty() const noexcept { return first_ == nullptr; }
  T* front() const noexcept { return first_; }  // null when empty

  void push(T& item) noexcept { item.*Next = std::exchange(first_, &item); }

  T* pop() noexcept {
    T* const item = first_;
    if (item != nullptr) first_ = std::exchange(item->*Next, nullptr);
    return item;
  }

  IntrusiveStack take_all() noexcept { return std::exchange(*this, {}); }

 private:
  T* first_ = nullptr;
};
}  // namespace headrace::base
