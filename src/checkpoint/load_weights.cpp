// SPDX-License-Identifier: Apache-2.0
// load_weights.cpp: load_weights(): another program's model, its files and their dtypes.
#include <algorithm>
#include <cstring>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/error_text.hpp"
#include "checkpoint/load_together.hpp"
#include "checkpoint/model_tensors.hpp"
#include "checkpoint/safetensors_parse.hpp"
#include "checkpoint/some_of.hpp"
#include "headrace/checkpoint.hpp"
#include "headrace/error.hpp"
#include "kernels/hash.hpp"
#include "kernels/number_formats.hpp"

namespace headrace {
namespace {
using namespace checkpoint;
using nlohmann::json;
constexpr const char* kCall = "load_weights";
constexpr const char* kHelp = "Fetch or write the model again.";

[[noreturn]] void refuse(const std::string& path, const std::string& cause,
                         const std::string& help) {
  throw Error(Code::kInvalidArgument,
              std::string(kCall) + " of " + path + ": " + cause + "; nothing was changed. " + help);
}

// A model's tensors as an engine takes them.
class Tensors {
 public:
  explicit Tensors(const std::string& path) : model_(path, kCall, kHelp) {}

  // Throws unless it is there with this shape, in a dtype that the parameter can take.
  void require(const std::string& name, const std::string& of, const ParameterSpec& spec) const {
    const TensorEntry* const found = model_.find(name);
    if (found == nullptr) {
      refuse(model_.path(),
             "it has no tensor " + base::quoted_name(name) + ", which " + of + " needs",
             "Load the model that was registered, or map the names (tensor_name).");
    }
    const TensorEntry& entry = *found;
    if (entry.shape != spec.shape) {
      refuse(model_.path(),
             base::quoted_name(name) + " is " + shape_text(entry.dtype, entry.shape) + ", but " +
                 of + " has the shape " + json(spec.shape).dump(),
             "Register the shapes of this model.");
    }
    if (spec.dtype == DType::kU8) {
      if (dtype_size_bytes(entry.dtype) == 1) return;
      refuse(model_.path(),
             base::quoted_name(name) + " is " + base::one_line(entry.dtype) + ", but " + of +
                 " is U8, whose values are copied as they are",
             "Register the dtype of this model.");
    }
    if (!dtypes().contains(entry.dtype)) {
      refuse(model_.path(),
             base::quoted_name(name) + " has the dtype " + base::one_line(entry.dtype) +
                 ", not F32, BF16 or F16",
             "Convert the model to one of these.");
    }
  }
  void refuse_unused(const std::set<std::string>& used) const {
    std::set<std::string> unused;
    for (const auto& [name, file] : model_.names())
      if (!used.contains(name)) unused.insert(name);
    if (unused.empty()) return;
    refuse(model_.path(), "no parameter takes its " + some_of(unused),
           "Register them, or set WeightOptions::allow_unused to leave them out.");
  }

  std::string fingerprint() const { return model_.fingerprint(); }

  // Elements from `first` on, converted to `to`.
  void read(const std::string& name, std::uint64_t first, DType to, std::span<std::byte> out) {
    if (to == DType::kU8) return model_.read(name, first, out);
    const std::string& dtype = model_.find(name)->dtype;
    const DType from = dtypes().at(dtype);
    const std::uint64_t elements = out.size() / size_bytes(to);
    const auto stored = from == to ? out : raw(elements * size_bytes(from));
    model_.read(name, first * size_bytes(from), stored);
    if (from == to) return;
    convert(from, stored, to, out);
    const std::string fault = non_finite_text(name_of(to), out, first * size_bytes(to));
    if (fault.empty()) return;
    throw Error(Code::kInvalidArgument, std::string(kCall) + " of " + model_.path() + ": " +
                                            base::quoted_name(name) + " is " + dtype +
                                            ", and does not fit into " + name_of(to) + ": " +
                                            fault + " there. Register it as BF16 or F32.");
  }

 private:
  static const std::map<std::string, DType>& dtypes() {
    static const std::map<std::string, DType> all = {
        {"F32", DType::kF32}, {"BF16", DType::kBf16}, {"F16", DType::kF16}};
    return all;
  }
  static float widened(DType dtype, const std::byte* from) {
    float value = 0;
    std::uint16_t word = 0;
    if (dtype == DType::kF32) {
      std::memcpy(&value, from, sizeof value);
      return value;
    }
    std::memcpy(&word, from, sizeof word);
    return dtype == DType::kBf16 ? kernels::bf16_to_f32(word) : kernels::f16_to_f32(word);
  }
  static void put(float value, DType dtype, std::byte* to) {
    if (dtype == DType::kF32) {
      std::memcpy(to, &value, sizeof value);
      return;
    }
    const std::uint16_t word = dtype == DType::kBf16
                                   ? kernels::f32_to_bf16(value)
                                   : kernels::canonical_to_f16(kernels::canonical(value));
    std::memcpy(to, &word, sizeof word);
  }
  static void convert(DType from, std::span<const std::byte> in, DType to,
                      std::span<std::byte> out) {
    const std::size_t step = size_bytes(from), width = size_bytes(to);
    for (std::size_t i = 0; i < out.size() / width; ++i)
      put(widened(from, in.data() + i * step), to, out.data() + i * width);
  }

  std::span<std::byte> raw(std::uint64_t bytes) {
    if (raw_.size() < bytes) raw_.resize(bytes);
    return std::span(raw_).first(bytes);
  }

  ModelTensors model_;
  std::vector<std::byte> raw_;
};

class Weights {
 public:
  Weights(Engine& engine, const std::string& path, const WeightOptions& options)
      : engine_(engine), path_(path), options_(options) {}

  // Before the ranks meet: tensor_name is the program's, and may call the engine.
  void name_tensors() {
    try {
      for (std::uint32_t i = 0; i < engine_.parameter_count(); ++i) {
        const std::string full = engine_.full_name({i});
        names_.push_back(options_.tensor_name ? options_.tensor_name(full) : full);
      }
    } catch (...) {
      naming_failed_ = std::current_exception();
    }
  }
  NewValues prepare() {
    if (naming_failed_) std::rethrow_exception(naming_failed_);
    tensors_.emplace(path_);
    for (std::uint32_t i = 0; i < engine_.parameter_count(); ++i) {
      tensors_->require(names_[i], "parameter " + base::quoted_name(engine_.full_name({i})),
                        engine_.spec({i}));
    }
    const std::set<std::string> used(names_.begin(), names_.end());
    if (!options_.allow_unused) tensors_->refuse_unused(used);
    return {identity(),
            [this](const engine::ValueRange& range, std::span<std::byte> values) {
              read(range, values);
            },
            std::vector<std::uint64_t>(names_.size())};
  }

 private:
  // Of the files, and of which tensor each parameter takes.
  std::uint64_t identity() const {
    std::string text = tensors_->fingerprint();
    for (const std::string& name : names_) text += '\n' + name;
    return kernels::xxh3_64(std::as_bytes(std::span(text)), 0);
  }
  void read(const engine::ValueRange& range, std::span<std::byte> values) {
    if (range.content == Content::kExpAvg || range.content == Content::kExpAvgSq) {
      std::ranges::fill(values, std::byte{0});
      return;
    }
    const DType dtype =
        range.content == Content::kWeight ? engine_.spec(range.id).dtype : DType::kF32;
    tensors_->read(names_[range.id.index], range.first_byte / size_bytes(dtype), dtype, values);
  }

  Engine& engine_;
  const std::string path_;
  const WeightOptions& options_;
  std::optional<Tensors> tensors_;
  std::vector<std::string> names_;  // by parameter: of its tensor
  std::exception_ptr naming_failed_;
};
}  // namespace

void load_weights(Engine& engine, const std::string& path, const WeightOptions& options) {
  Weights weights(engine, path, options);
  weights.name_tensors();
  load_together(engine, ranks::RankCall::Kind::kLoadWeights, kCall, path,
                [&](const engine::Running&) { return weights.prepare(); });
}
}  // namespace headrace
