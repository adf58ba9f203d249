// SPDX-License-Identifier: Apache-2.0
// headrace/torch/parameter_storage.hpp: the torch storage of one parameter, parked or bound.
//
// The parameter and its views lie on this storage for as long as the model lives; only the address
// behind it changes. A parked storage keeps its size but has no memory, and torch throws the given
// text when anything asks for that address, such as print, save, an optimizer or any operator.
// Calls that need no values (sizes, views, detach) still work.
//
// This header does not depend on the engine.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "headrace/torch/place.hpp"

namespace headrace::torch::detail {
// Gives the function below access to one private member. (An explicit instantiation may name it.)
template <class Tag, typename Tag::type kMember>
struct Reveal {
  friend constexpr typename Tag::type reveal(Tag) { return kMember; }
};
struct RefusesAccess {
  using type = bool c10::StorageImpl::*;
  friend constexpr type reveal(RefusesAccess);
};
template struct Reveal<RefusesAccess, &c10::StorageImpl::throw_on_immutable_data_ptr_>;

// Removes the error text again. Only later versions of torch have a public call for this.
template <class Impl>
void allow_access(Impl& storage) {
  if constexpr (requires { storage.clear_data_ptr_access_error_msg_(); }) {
    storage.clear_data_ptr_access_error_msg_();
  } else {
    storage.*reveal(RefusesAccess{}) = false;
  }
}

class ParameterStorage {
 public:
  ParameterStorage(const Place& place, at::ScalarType type, std::size_t size_bytes,
                   const std::string& parked_text)
      : type_(type),
        keys_(place.keys(type)),
        storage_(c10::Storage::use_byte_size_t{}, size_bytes, c10::DataPtr(nullptr, place.device()),
                 /*allocator=*/nullptr, /*resizable=*/false) {
    park(parked_text);
  }

  // A row-major view from the start of the storage. The storage may be parked.
  at::Tensor view(at::IntArrayRef sizes) const {
    const auto meta = c10::scalarTypeToTypeMeta(type_);
    auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage_), keys_, meta);
    impl->set_sizes_contiguous(sizes);
    return at::Tensor(std::move(impl));
  }

  // The caller owns `data`, which must live until the next park().
  void bind(void* data) {
    c10::StorageImpl& impl = *storage_.unsafeGetStorageImpl();
    allow_access(impl);
    impl.set_data_ptr_noswap(c10::DataPtr(data, impl.device()));  // refreshes the access checks
  }
  void park(const std::string& text) {
    c10::StorageImpl& impl = *storage_.unsafeGetStorageImpl();
    impl.set_data_ptr_noswap(c10::DataPtr(nullptr, impl.device()));
    impl.release_data_and_set_meta_custom_data_ptr_error_msg_(text);
  }

  at::ScalarType type() const noexcept { return type_; }
  // The whole storage as a flat tensor, while it is bound.
  at::Tensor whole() const {
    const auto elements = size_bytes() / c10::elementSize(type_);
    return view({static_cast<std::int64_t>(elements)});
  }
  // The key of every tensor on this storage: the parameter, its views, and tensors that autograd
  // saved.
  const c10::StorageImpl* key() const { return storage_.unsafeGetStorageImpl(); }
  std::size_t size_bytes() const { return storage_.nbytes(); }
  // False for a tensor that torch moved elsewhere (Module::to, torch::load, set_data).
  bool holds(const at::Tensor& tensor) const {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    return impl->has_storage() &&
           impl->unsafe_storage().unsafeGetStorageImpl() == storage_.unsafeGetStorageImpl();
  }

 private:
  at::ScalarType type_;
  c10::DispatchKeySet keys_;
  c10::Storage storage_;
};
}  // namespace headrace::torch::detail
