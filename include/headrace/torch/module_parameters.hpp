// SPDX-License-Identifier: Apache-2.0
// headrace/torch/module_parameters.hpp: the parameters of modules: their names, the engine's
// description of each, and the group that owns it.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "headrace/tensor.hpp"
#include "headrace/torch/place.hpp"

namespace headrace::torch::detail {
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

inline std::string quoted_group(const std::string& name) {
  return name.empty() ? "the unnamed group" : "group '" + name + "'";
}
inline std::string full_name(const std::string& group, const std::string& parameter) {
  return group.empty() ? parameter : group + "." + parameter;
}

inline DType dtype_of(const at::Tensor& tensor, const std::string& name) {
  const at::ScalarType type = tensor.scalar_type();
  if (type == at::kFloat) return DType::kF32;
  if (type == at::kBFloat16) return DType::kBf16;
  if (type == at::kHalf) return DType::kF16;
  throw Error(Code::kUnsupported,
              "parameter '" + name + "' is " + c10::toString(type) +
                  ": only Float, BFloat16 and Half parameters can be offloaded, and frozen ones of "
                  "one byte per element. Convert it before add_group(), e.g. "
                  "module->to(torch::kBFloat16).");
}

// A module's parameters, each once. A tensor registered under two names is one parameter, listed
// under its first name.
inline NamedTensors parameters_of(const ::torch::nn::Module& module) {
  NamedTensors found;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : module.named_parameters(/*recurse=*/true)) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      found.emplace_back(item.key(), item.value());
    }
  }
  return found;
}

// The engine's description of a parameter, without its hyperparameters.
inline ParameterSpec spec_of(const Place& place, const std::string& group, const std::string& name,
                             const at::Tensor& tensor) {
  const std::string full = full_name(group, name);
  if (tensor.layout() != at::kStrided || !(tensor.device().is_cpu() || place.has(tensor))) {
    throw Error(Code::kUnsupported,
                "parameter '" + full + "' is a " + tensor.toString() + " tensor on " +
                    tensor.device().str() + ": only dense parameters in CPU memory" +
                    (place.is_cpu() ? "" : ", or on " + place.device().str() + ",") +
                    " can be offloaded. Move it with module->to(torch::kCPU) before add_group().");
  }
  // Such as int8 and float8: bytes to the engine.
  const bool is_bytes = tensor.element_size() == 1 && !tensor.requires_grad();
  const DType dtype = is_bytes ? DType::kU8 : dtype_of(tensor, full);
  if (!tensor.is_contiguous()) {
    throw Error(Code::kUnsupported,
                "parameter '" + full +
                    "' is not row-major (channels_last, transposed or a slice): "
                    "offloaded, it would lose its strides. Give it memory of its own, before "
                    "add_group(), with weight.set_data(weight.contiguous()).");
  }
  return {name, dtype, tensor.sizes().vec(), {}, !tensor.requires_grad()};
}

// Records which group owns each tensor, and the memory that its values came from.
//
// A parameter has one owner. A shared parameter belongs to the group that declared it as shared.
// One tensor under two names within a group is one parameter. Any other tensor on the same memory
// (a view, a slice, another tensor on the same storage) is refused, because it would become a
// separate parameter that is no longer tied. Tensors that only seem to overlap, such as interleaved
// columns of one matrix, are refused too.
class ParameterOwners {
 public:
  bool owned(const at::Tensor& tensor) const {
    return owners_.count(tensor.unsafeGetTensorImpl()) != 0;
  }

  // Declares that modules of other groups register `tensors` too. The tensors must be owned
  // already.
  void share(const NamedTensors& tensors) {
    for (const auto& item : tensors) shared_.insert(item.second.unsafeGetTensorImpl());
  }
  NamedTensors without_shared(NamedTensors tensors) const {
    std::erase_if(tensors, [this](const auto& item) {
      return shared_.count(item.second.unsafeGetTensorImpl()) != 0;
    });
    return tensors;
  }

  // Throws kInvalidArgument, naming both parameters and their groups, if one of `tensors` is owned
  // already, or shares memory with an owned tensor or another of `tensors`.
  void refuse_owned(const std::string& group, const NamedTensors& tensors) const {
    Memory among_them;
    for (const auto& [name, tensor] : tensors) {
      const Owner now{group, full_name(group, name)};
      if (const auto found = owners_.find(tensor.unsafeGetTensorImpl()); found != owners_.end())
        refuse_same(now, found->second);
      if (!tensor.has_storage() || tensor.numel() == 0) continue;
      if (const Owner* other = overlapping(memory_, tensor)) refuse_shared(now, *other);
      if (const Owner* other = overlapping(among_them, tensor)) refuse_shared(now, *other);
      among_them.emplace(key_of(tensor), stretch_of(tensor, now));
    }
  }
  void own(const std::string& group, const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) {
      const Owner owner{group, full_name(group, name)};
      owners_.emplace(tensor.unsafeGetTensorImpl(), owner);
      if (tensor.has_storage() && tensor.numel() != 0)
        memory_.emplace(key_of(tensor), stretch_of(tensor, owner));
    }
  }

 private:
  struct Owner {
    std::string group, full_name;
  };
  // The bytes from a tensor's first element to its last. Keeps the storage object alive (but not
  // its memory), so that no other storage gets the object's address.
  struct Stretch {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::size_t begin_bytes, end_bytes;
    Owner owner;
  };
  using Memory = std::unordered_multimap<const c10::StorageImpl*, Stretch>;

  static const c10::StorageImpl* key_of(const at::Tensor& tensor) {
    return tensor.storage().unsafeGetStorageImpl();
  }
  static Stretch stretch_of(const at::Tensor& tensor, const Owner& owner) {
    std::int64_t last = 0;
    for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    const auto begin = static_cast<std::size_t>(tensor.storage_offset());
    return {tensor.storage().getWeakStorageImpl(), begin * tensor.element_size(),
            (begin + static_cast<std::size_t>(last) + 1) * tensor.element_size(), owner};
  }
  static const Owner* overlapping(const Memory& memory, const at::Tensor& tensor) {
    const auto [first, end] = memory.equal_range(key_of(tensor));
    if (first == end) return nullptr;
    const Stretch mine = stretch_of(tensor, {});
    for (auto other = first; other != end; ++other) {
      if (mine.begin_bytes < other->second.end_bytes && other->second.begin_bytes < mine.end_bytes)
        return &other->second.owner;
    }
    return nullptr;
  }

  static std::string named(const Owner& owner) {
    return "'" + owner.full_name + "' of " + quoted_group(owner.group);
  }
  [[noreturn]] static void refuse_same(const Owner& now, const Owner& other) {
    throw Error(Code::kInvalidArgument,
                "parameter " + named(now) + " is also " + named(other) +
                    ": it would be stored and trained twice. Declare it with add_shared() before "
                    "the groups, or put the modules that share it into one group.");
  }
  [[noreturn]] static void refuse_shared(const Owner& now, const Owner& other) {
    throw Error(Code::kInvalidArgument,
                "parameter " + named(now) + " lies in the memory of " + named(other) +
                    " (a view or a slice of it): offloaded, each would have values of its own and "
                    "they would drift apart. Register the same tensor in both places, or give one "
                    "of them memory of its own with clone().");
  }

  std::unordered_map<const c10::TensorImpl*, Owner> owners_;
  std::unordered_set<const c10::TensorImpl*> shared_;
  Memory memory_;
};
}  // namespace headrace::torch::detail
