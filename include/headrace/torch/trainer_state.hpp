// SPDX-License-Identifier: Apache-2.0
// headrace/torch/trainer_state.hpp: torch's part of the state of a training run, as bytes that a
// durable engine keeps with each step: the states of torch's generators, the modules' buffers, and
// bytes of the trainer's own.
//
// The bytes are one dictionary of CPU tensors, written by torch::pickle_save(), so torch.load() can
// read them in Python:
//
//   "generator 0"      the state of the CPU's generator; "generator 1": the device's
//   "buffer <name>"    a buffer, by full name
//   "own"              the trainer's bytes
#pragma once
#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headrace/torch/module_parameters.hpp"
#include "headrace/torch/random_state.hpp"

namespace headrace::torch::detail {
class TrainerState {
 public:
  TrainerState(const Place& place, const NamedTensors& buffers, std::span<const std::byte> own) {
    const std::vector<at::Tensor> generators = RandomState(place).states();
    for (std::size_t i = 0; i < generators.size(); ++i)
      tensors_.insert("generator " + std::to_string(i), generators[i]);
    for (const auto& [name, tensor] : buffers) tensors_.insert("buffer " + name, plain(tensor));
    at::Tensor bytes = at::empty({static_cast<std::int64_t>(own.size())}, at::kByte);
    if (!own.empty()) std::memcpy(bytes.mutable_data_ptr(), own.data(), own.size());
    tensors_.insert("own", bytes);
  }
  // Throws kWrongState for bytes that pack() did not make.
  explicit TrainerState(std::span<const std::byte> packed) {
    refuse_nothing(packed);
    const auto* first = reinterpret_cast<const char*>(packed.data());
    try {
      const at::IValue value =
          ::torch::jit::pickle_load(std::vector<char>(first, first + packed.size()));
      tensors_ = c10::impl::toTypedDict<std::string, at::Tensor>(value.toGenericDict());
    } catch (const c10::Error&) {
      throw Error(Code::kWrongState,
                  "the store's " + std::to_string(packed.size()) +
                      " bytes of its trainer's state are not what keep_trainer_state() keeps: "
                      "torch's generators and the buffers would begin anew. Take these bytes from "
                      "Engine::resumed() instead, as the trainer that wrote them does.");
    }
  }

  std::vector<std::byte> pack() const {
    const std::vector<char> packed = ::torch::jit::pickle_save(tensors_);
    const auto* first = reinterpret_cast<const std::byte*>(packed.data());
    return {first, first + packed.size()};
  }
  std::vector<std::byte> own() const {
    const at::Tensor bytes = at("own", "the trainer's own bytes");
    const auto* first = static_cast<const std::byte*>(bytes.const_data_ptr());
    return {first, first + bytes.numel()};
  }
  // Gives torch's generators and `buffers` the values in these bytes. Throws kWrongState, before it
  // changes any value, if one is missing, a buffer has another type or shape, or an expanded buffer
  // would have to be given different values in one place.
  void set(const Place& place, const NamedTensors& buffers) const {
    RandomState random_state(place);
    std::vector<at::Tensor> generators;
    for (std::size_t i = 0; i < random_state.states().size(); ++i)
      generators.push_back(at("generator " + std::to_string(i), "the state of a generator"));
    std::vector<at::Tensor> values;
    for (const auto& [name, tensor] : buffers) {
      values.push_back(at("buffer " + name, "buffer '" + name + "'"));
      const bool alike = values.back().sizes() == tensor.sizes() &&
                         values.back().scalar_type() == tensor.scalar_type();
      if (!alike) refuse_buffer(name, "has another type or shape than in the store");
      const at::Tensor once = stored_once(tensor, values.back());
      if (!once.is_same_size(tensor) && !same_bytes(once.expand_as(tensor), values.back()))
        refuse_buffer(name, "is expanded, and has different values in the store where it has one");
      values.back() = once;
    }
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < values.size(); ++i)
      stored_once(buffers[i].second, buffers[i].second).copy_(values[i]);
    random_state.set(generators);
  }

 private:
  [[noreturn]] static void refuse_buffer(const std::string& name, const char* what) {
    throw Error(Code::kWrongState, "buffer '" + name + "' " + what +
                                       ": the run cannot go on with the same bits. Build the "
                                       "modules as the run before did.");
  }
  // `values`, which has the shape of `tensor`, without what an expanded `tensor` has only once in
  // memory. torch writes to no tensor whose elements share a place.
  static at::Tensor stored_once(const at::Tensor& tensor, at::Tensor values) {
    for (std::int64_t d = 0; d < tensor.dim(); ++d)
      if (tensor.stride(d) == 0 && tensor.size(d) > 1) values = values.narrow(d, 0, 1);
    return values;
  }
  // Of one type and shape, in CPU memory. NaNs too are the same if their bits are.
  static bool same_bytes(const at::Tensor& one, const at::Tensor& other) {
    const at::Tensor a = one.contiguous(), b = other.contiguous();
    return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
  }
  static void refuse_nothing(std::span<const std::byte> packed) {
    if (!packed.empty()) return;
    throw Error(Code::kWrongState,
                "no trainer's state was kept with the store's step: torch's generators and the "
                "buffers would begin anew. Call Offload::keep_trainer_state() before each step() "
                "of a run; to go on without it, take the step from Engine::resumed() instead.");
  }
  // A contiguous copy that is not a view. For a view, pickle_save() would write the whole storage
  // behind it.
  static at::Tensor plain(const at::Tensor& tensor) {
    return tensor.detach().to(at::kCPU).clone(at::MemoryFormat::Contiguous);
  }
  at::Tensor at(const std::string& key, const std::string& what) const {
    const auto found = tensors_.find(key);
    if (found != tensors_.end()) return found->value();
    throw Error(Code::kWrongState, "the store does not have " + what +
                                       ": the run cannot go on with the same bits. Build the "
                                       "modules, choose the device, and select buffers (the "
                                       "argument `which`) as the run before did.");
  }

  c10::Dict<std::string, at::Tensor> tensors_;
};
}  // namespace headrace::torch::detail
