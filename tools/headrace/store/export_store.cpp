// SPDX-License-Identifier: Apache-2.0
#include "store/export_store.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>
#include <vector>

#include "checkpoint/safetensors_header.hpp"
#include "headrace/engine.hpp"
#include "headrace/error.hpp"
#include "optimizer_cpu/masters.hpp"
#include "optimizer_cpu/moment_codecs.hpp"
#include "store/common_epoch.hpp"
#include "store/export_file.hpp"

namespace headrace::tools {
namespace {
using optimizer_cpu::MasterKind;
using optimizer_cpu::StoredMoment;
constexpr std::size_t kContents = 4;
constexpr std::array<const char*, kContents> kPrefixes = {"", "master.", "exp_avg.",
                                                          "exp_avg_sq."};  // by Content

// The streams of a tile by what they hold; null: it has none.
struct Roles {
  const StoredStream *weight = nullptr, *master = nullptr;
  std::array<const StoredStream*, 2> moment{}, scale{};
  std::uint32_t moments = 0;
  MasterKind kind = MasterKind::kWeightItself;
};

[[noreturn]] void refuse(const std::string& cause) {
  throw Error(Code::kCorrupt, cause + "; no file was written");
}

MomentCodec codec_of(const StoredStream& stream) {
  if (stream.codec == "f32") return MomentCodec::kF32;
  if (stream.codec == "bf16") return MomentCodec::kBf16;
  if (stream.codec == "e4m3" || stream.codec == "e5m3") return MomentCodec::kBlock8;
  throw Error(Code::kUnsupported, "its stream " + stream.name + " has the codec '" + stream.codec +
                                      "', which this build does not know");
}

Roles roles_of(const StoredTile& tile) {
  Roles roles;
  for (const StoredStream& stream : tile.streams) {
    if (stream.name == "weight") {
      roles.weight = &stream;
    } else if (stream.name == "residual" || stream.name == "master") {
      roles.master = &stream;
      roles.kind = stream.name == "master" ? MasterKind::kF32 : MasterKind::kSplitResidual;
    } else if (stream.name == "scale" || stream.name == "scale_sq") {
      roles.scale[stream.name == "scale" ? 0 : 1] = &stream;
    } else if (roles.moments < roles.moment.size()) {
      roles.moment[roles.moments++] = &stream;
    }
  }
  return roles;
}

// Of a tile of this type: else elements would be looked for where there are none.
void check_sizes(const StoredTile& tile, const Roles& roles, DType dtype, bool frozen) {
  const auto expect = [&](const StoredStream* stream, const char* what, std::uint64_t bytes) {
    if (stream != nullptr ? stream->size_bytes == bytes : bytes == 0) return;
    throw Error(Code::kCorrupt, std::string("its header names no ") + what + " of the size that " +
                                    name_of(dtype) + " needs");
  };
  expect(roles.weight, "weight", tile.elements * size_bytes(dtype));
  if (frozen) return;
  const bool has_master = dtype != DType::kF32;
  const std::uint64_t master_bytes = optimizer_cpu::master_bytes(roles.kind);
  expect(roles.master, "master",
         has_master ? tile.elements * std::max<std::uint64_t>(master_bytes, 2) : 0);
  for (std::uint32_t k = 0; k < roles.moments; ++k) {
    const MomentCodec codec = codec_of(*roles.moment[k]);
    expect(roles.moment[k], "moment", tile.elements * optimizer_cpu::moment_bytes(codec));
    expect(roles.scale[k], "scales",
           optimizer_cpu::has_scales(codec) ? tile.elements / base::kScaleElements : 0);
  }
}

class Export {
 public:
  Export(std::span<const std::unique_ptr<OpenStore>> parts, const ExportOptions& options)
      : parts_(parts), o_(options) {}
  Exported run();

 private:
  struct Tensor {
    std::string name;
    const char* dtype;
    std::uint32_t parameter;
    std::size_t content;
    std::uint64_t size_bytes;
  };
  // The bytes of one chunk, by role, as far as they are exported.
  struct Chunk {
    const std::byte *weight = nullptr, *master = nullptr;
    std::array<std::byte*, 2> moment{}, scale{};
  };
  // A parameter's elements in a chunk.
  struct Piece {
    std::uint32_t parameter = 0;
    std::uint64_t in_chunk = 0, in_parameter = 0, elements = 0;
  };

  const swap::StoreRegistration& registration() const { return *parts_[0]->registration(); }
  void agree();
  std::uint32_t moments();
  Roles checked_roles(const OpenStore& part, const StoredTile& tile) const;
  std::vector<Tensor> tensors();
  std::string place(const std::vector<Tensor>& tensors);
  void write_tile(OpenStore& part, std::uint32_t tile);
  void write_chunk(OpenStore& part, const StoredTile& tile, const Roles& roles,
                   std::uint32_t chunk);
  void write_piece(const Roles& roles, const Chunk& chunk, const Piece& piece);
  void put(std::size_t content, const Piece& piece, const void* values,
           std::uint64_t element_bytes);
  // What `read` returns; an error of it names rank and tile.
  template <class Read>
  auto read_of(const OpenStore& part, std::uint32_t tile, Read read) {
    try {
      return read();
    } catch (const Error& error) {
      if (error.code() == Code::kIoStalled) throw;
      throw Error(
          error.code(),
          fmt::format("store '{}', rank {}: tile {} on {}: {}; no file was written. Restore "
                      "the store from a copy.",
                      o_.name, part.head().rank, tile, part.place_of_tile(tile), error.what()),
          error.sys_errno());
    }
  }
  std::byte* read_stream(OpenStore& part, const StoredTile& tile, const StoredStream* stream,
                         std::uint32_t chunk);

  std::span<const std::unique_ptr<OpenStore>> parts_;
  const ExportOptions& o_;
  std::array<std::vector<std::uint64_t>, kContents> at_;  // of each parameter, in the file
  ExportFile* file_ = nullptr;
  std::uint64_t written_ = 0;
  std::uint32_t moments_ = 0;
  swap::IoBuffer windows_ =
      swap::make_io_buffer(swap::kMaxStreams * OpenStore::kWindowBytes);  // of one chunk
  std::uint32_t windows_used_ = 0;
  std::vector<float> values_ = std::vector<float>(base::kChunkElements);
};

// ---- what belongs together ----

void Export::agree() {
  if (go_to_common_epoch(o_.name, parts_) == 0) {
    throw Error(Code::kNotFound,
                fmt::format("store '{}' has no committed step that all ranks have; "
                            "no file was written. Export it after a step.",
                            o_.name));
  }
  for (std::size_t r = 0; r < parts_.size(); ++r) {
    const OpenStore& part = *parts_[r];
    const std::string rank = fmt::format("store '{}': rank {}", o_.name, r);
    if (!part.registration())
      refuse(rank + " has no names of its parameters: " + part.registration_fault());
    if (*part.registration() != registration())
      refuse(rank + " has another registration than rank 0");
  }
}

// ---- the file's tensors ----

// The same in all tiles that are trained.
std::uint32_t Export::moments() {
  for (const auto& part : parts_) {
    for (std::uint32_t t = 0; t < part->tiles(); ++t) {
      if (part->partition().section_of(t).frozen) continue;
      return read_of(*part, t, [&] { return roles_of(part->tile(t)).moments; });
    }
  }
  return 0;
}

std::vector<Export::Tensor> Export::tensors() {
  std::vector<Tensor> tensors;
  const auto& parameters = registration().parameters;
  if (o_.with_state) moments_ = moments();
  const std::size_t contents = o_.with_state ? 2 + moments_ : 1;
  for (std::size_t content = 0; content < contents; ++content) {
    for (std::uint32_t p = 0; p < parameters.size(); ++p) {
      const bool weight = content == static_cast<std::size_t>(Content::kWeight);
      if (parameters[p].frozen && !weight) continue;
      const DType dtype = weight ? parameters[p].dtype : DType::kF32;
      const std::uint64_t elements = parts_[0]->partition().parameters[p].elements;
      tensors.push_back({kPrefixes[content] + parameters[p].full_name, name_of(dtype), p, content,
                         elements * size_bytes(dtype)});
    }
  }
  std::set<std::string_view> names;
  for (const Tensor& tensor : tensors) {
    std::string fault = checkpoint::name_fault(tensor.name);
    if (fault.empty() && !names.insert(tensor.name).second)
      fault = "which two tensors of the file would have";
    if (fault.empty()) continue;
    throw Error(Code::kInvalidArgument,
                fmt::format("store '{}': a tensor is named {}, {}; no file was written.{}", o_.name,
                            checkpoint::shown_name(tensor.name), fault,
                            o_.with_state ? " Leave out --state." : ""));
  }
  return tensors;
}

// Gives each tensor its place, and returns the file's header.
std::string Export::place(const std::vector<Tensor>& tensors) {
  std::vector<checkpoint::TensorHeader> headers;
  for (const Tensor& tensor : tensors) {
    headers.push_back({tensor.name, tensor.dtype, registration().parameters[tensor.parameter].shape,
                       tensor.size_bytes});
  }
  std::string header = checkpoint::safetensors_header(headers);
  std::uint64_t at = header.size();
  for (auto& of_content : at_) of_content.assign(registration().parameters.size(), 0);
  for (const Tensor& tensor : tensors) {
    at_[tensor.content][tensor.parameter] = at;
    at += tensor.size_bytes;
  }
  return header;
}

// ---- the bytes ----

std::byte* Export::read_stream(OpenStore& part, const StoredTile& tile, const StoredStream* stream,
                               std::uint32_t chunk) {
  if (stream == nullptr) return nullptr;
  const std::span<std::byte> window{windows_.get() + windows_used_++ * OpenStore::kWindowBytes,
                                    static_cast<std::size_t>(OpenStore::kWindowBytes)};
  return read_of(part, tile.number, [&] {
    const auto bytes = part.read_chunk(tile, *stream, chunk, window);
    return window.data() + (bytes.data() - window.data());
  });
}

Roles Export::checked_roles(const OpenStore& part, const StoredTile& tile) const {
  const Roles roles = roles_of(tile);
  const partition::Section& section = part.partition().section_of(tile.number);
  check_sizes(tile, roles, section.dtype, section.frozen);
  if (o_.with_state && !section.frozen && roles.moments != moments_)
    throw Error(Code::kCorrupt, "its header names other moments than those of other tiles");
  return roles;
}

void Export::write_tile(OpenStore& part, std::uint32_t tile) {
  const StoredTile stored = read_of(part, tile, [&] { return part.tile(tile); });
  const Roles roles = read_of(part, tile, [&] { return checked_roles(part, stored); });
  for (std::uint32_t chunk = 0; chunk < swap::chunks_of(stored.elements); ++chunk) {
    if (o_.between != nullptr) o_.between();
    write_chunk(part, stored, roles, chunk);
  }
}

void Export::write_chunk(OpenStore& part, const StoredTile& tile, const Roles& roles,
                         std::uint32_t chunk) {
  windows_used_ = 0;
  Chunk bytes;
  bytes.weight = read_stream(part, tile, roles.weight, chunk);
  if (o_.with_state) {
    bytes.master = read_stream(part, tile, roles.master, chunk);
    for (std::uint32_t k = 0; k < roles.moments; ++k) {
      bytes.moment[k] = read_stream(part, tile, roles.moment[k], chunk);
      bytes.scale[k] = read_stream(part, tile, roles.scale[k], chunk);
    }
  }
  const partition::Partition& partition = part.partition();
  const partition::Tile& cut = partition.tiles[tile.number];
  const std::uint64_t begin = chunk * base::kChunkElements, end = begin + base::kChunkElements;
  for (const partition::Segment& segment : partition.segments_of(cut)) {
    const std::uint64_t first = std::max(segment.first_element, begin);
    const std::uint64_t last = std::min(segment.first_element + segment.elements, end);
    if (first >= last) continue;
    const std::uint64_t in_section = cut.first_element + first;
    write_piece(roles, bytes,
                {segment.parameter, first - begin,
                 in_section - partition.parameters[segment.parameter].first_element, last - first});
  }
}

void Export::write_piece(const Roles& roles, const Chunk& chunk, const Piece& piece) {
  const swap::StoredParameter& parameter = registration().parameters[piece.parameter];
  const std::uint64_t weight_bytes = size_bytes(parameter.dtype);
  const std::byte* const weight = chunk.weight + piece.in_chunk * weight_bytes;
  put(0, piece, weight, weight_bytes);
  if (!o_.with_state || parameter.frozen) return;
  const std::byte* master = chunk.master;
  if (master != nullptr) master += piece.in_chunk * optimizer_cpu::master_bytes(roles.kind);
  optimizer_cpu::read_master(roles.kind, weight, master, piece.elements, values_.data());
  put(1, piece, values_.data(), sizeof(float));
  for (std::uint32_t k = 0; k < roles.moments; ++k) {
    const MomentCodec codec = codec_of(*roles.moment[k]);
    StoredMoment moment;
    moment.codec = codec;
    moment.square = roles.moment[k]->codec == "e5m3";
    moment.index = k;
    moment.data = chunk.moment[k] + piece.in_chunk * optimizer_cpu::moment_bytes(codec);
    // A parameter begins with a scale of its own.
    if (chunk.scale[k] != nullptr)
      moment.scale =
          reinterpret_cast<std::uint8_t*>(chunk.scale[k]) + piece.in_chunk / base::kScaleElements;
    optimizer_cpu::decode_moment(moment, piece.elements, values_.data());
    put(2 + k, piece, values_.data(), sizeof(float));
  }
}

void Export::put(std::size_t content, const Piece& piece, const void* values,
                 std::uint64_t element_bytes) {
  const std::uint64_t size = piece.elements * element_bytes;
  file_->write({static_cast<const std::byte*>(values), static_cast<std::size_t>(size)},
               at_[content][piece.parameter] + piece.in_parameter * element_bytes);
  written_ += size;
}

Exported Export::run() {
  agree();
  const std::vector<Tensor> all = tensors();
  const std::string header = place(all);
  std::uint64_t data_bytes = 0;
  for (const Tensor& tensor : all) data_bytes += tensor.size_bytes;
  ExportFile file(o_.path, header.size() + data_bytes);
  file_ = &file;
  file.write(std::as_bytes(std::span(header)), 0);
  for (const auto& part : parts_) {
    for (std::uint32_t t = 0; t < part->tiles(); ++t) write_tile(*part, t);
  }
  if (written_ != data_bytes) {
    refuse(fmt::format("store '{}' has {} bytes of the {} that its parameters have", o_.name,
                       written_, data_bytes));
  }
  file.finish();
  return {parts_[0]->steps(), header.size() + data_bytes, all.size()};
}
}  // namespace

Exported export_store(std::span<const std::unique_ptr<OpenStore>> parts,
                      const ExportOptions& options) {
  return Export(parts, options).run();
}
}  // namespace headrace::tools
