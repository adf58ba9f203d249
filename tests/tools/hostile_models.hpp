// SPDX-License-Identifier: Apache-2.0
// hostile_models.hpp: model files that want all memory, all time, or a crash.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

namespace headrace::tools {
// Each call writes another one below `folder` and returns its path; of one seed always the same.
class HostileModels {
 public:
  HostileModels(std::string folder, std::uint64_t seed)
      : folder_(std::move(folder)), random_(seed) {}

  std::string next() {
    constexpr std::array kKinds{
        &HostileModels::shapes,       &HostileModels::few_huge_groups, &HostileModels::mutated,
        &HostileModels::config,       &HostileModels::config,          &HostileModels::tensors,
        &HostileModels::odd_headers,  &HostileModels::index,           &HostileModels::nested,
        &HostileModels::many_groups,  &HostileModels::many_values,     &HostileModels::bytes,
        &HostileModels::many_tensors, &HostileModels::shapes,          &HostileModels::mutated};
    return (this->*kKinds[made_++ % kKinds.size()])();
  }

 private:
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  template <class List>
  auto one_of(const List& list) {
    return list[below(list.size())];
  }
  std::string new_folder() const {
    const std::string path = folder_ + "/" + std::to_string(made_);
    std::filesystem::create_directory(path);
    return path;
  }
  std::string write(const std::string& text, const std::string& path = "") const {
    const std::string to = path.empty() ? folder_ + "/" + std::to_string(made_) + ".json" : path;
    std::ofstream(to, std::ios::binary) << text;
    return to;
  }
  std::string write_header(const std::string& header, const std::string& path) const {
    std::string length(8, '\0');
    for (std::size_t i = 0; i < 8; ++i)
      length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
    return write(length + header, path);
  }

  std::string size() {
    static const std::array<std::string, 20> kSizes{"1",
                                                    "2",
                                                    "4096",
                                                    "65537",
                                                    "4294967296",
                                                    "1125899906842624",
                                                    "1125899906842625",
                                                    "9223372036854775807",
                                                    "9223372036854775808",
                                                    "18446744073709551615",
                                                    "1e30",
                                                    "1e400",
                                                    "0",
                                                    "-1",
                                                    "1.5",
                                                    "null",
                                                    "\"9\"",
                                                    "[2]",
                                                    "{}",
                                                    "true"};
    return below(3) == 0 ? one_of(kSizes) : std::to_string(std::uint64_t{1} << below(26));
  }
  std::string name() {
    static const std::array<std::string, 10> kNames{"w",
                                                    "wte.weight",
                                                    "h.0.attn.c_attn.weight",
                                                    "9",
                                                    "9999999999999999999999.w",
                                                    "a..b.",
                                                    ".",
                                                    "\\u0000",
                                                    "\\ud83d\\ude00",
                                                    "q_proj.weight"};
    if (below(20) == 0) return std::string(1 << below(20), 'n');
    if (below(20) == 0) {
      std::string dots;
      for (std::uint64_t i = 0; i < 400; ++i) dots += "p.";
      return dots;
    }
    return one_of(kNames) + (below(2) == 0 ? std::to_string(below(1000)) : "");
  }
  std::string shape() {
    std::string text;
    const std::uint64_t most = below(15) == 0 ? 5000 : 4;
    for (std::uint64_t i = below(most); i-- > 0;) text += (text.empty() ? "" : ",") + size();
    return "[" + text + "]";
  }
  std::string parameter() { return R"({"name":")" + name() + R"(","shape":)" + shape() + "}"; }

  std::string shapes_text() {
    std::string groups;
    for (std::uint64_t g = 1 + below(4); g-- > 0;) {
      std::string parameters;
      for (std::uint64_t p = below(5); p-- > 0;)
        parameters += (parameters.empty() ? "" : ",") + parameter();
      groups += groups.empty() ? "" : ",";
      groups += R"({"name":")" + name() + R"(","parameters":[)" + parameters + "]}";
    }
    return R"({"groups":[)" + groups + "]}";
  }
  std::string shapes() { return write(shapes_text()); }

  std::string few_huge_groups() {
    const std::uint64_t groups = std::uint64_t{1} << below(9);
    std::string text;
    for (std::uint64_t g = 0; g < groups; ++g) {
      text += (g == 0 ? "" : ",") + (R"({"name":"h.)" + std::to_string(g)) +
              R"(","parameters":[{"name":"attn.c_attn.weight","shape":[)" +
              std::to_string((std::uint64_t{1} << (25 + below(26))) / groups) + ",1]}]}";
    }
    return write(R"({"groups":[)" + text + "]}");
  }

  std::string mutated() {
    std::string text = below(2) == 0 ? shapes_text() : R"({"groups":[{"parameters":[]}]})";
    for (std::uint64_t i = 1 + below(6); i-- > 0 && !text.empty();) {
      const std::size_t at = below(text.size());
      switch (below(4)) {
        case 0:
          text.resize(at);
          break;
        case 1:
          text[at] = static_cast<char>(below(256));
          break;
        case 2:
          text.erase(at, 1);
          break;
        default:
          text.insert(at, std::string(1 + below(3), "{}[],:\"\\"[below(8)]));
      }
    }
    return write(text);
  }

  std::string config() {
    static const std::array<std::string, 5> kTypes{"gpt2", "llama", "t5", "qwen2", "mamba"};
    static const std::array<std::string, 18> kSizes{
        "1",        "7",        "12",   "64",    "128",
        "1024",     "4096",     "4097", "65536", "1048576",
        "16777216", "16777217", "0",    "-5",    "9223372036854775808",
        "1e9",      "\"x\"",    "null"};
    std::string text = R"({"model_type":")" + one_of(kTypes) + "\"";
    for (const char* key :
         {"n_embd", "n_layer", "vocab_size", "n_positions", "hidden_size", "intermediate_size",
          "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "d_model",
          "d_ff", "d_kv", "num_layers", "num_decoder_layers", "num_heads"}) {
      if (below(12) == 0) continue;
      const std::uint64_t range = below(10) == 0 ? kSizes.size() : 11;
      text += std::string(",\"") + key + "\":" + kSizes[below(range)];
    }
    const std::string path = new_folder();
    write(text + "}", path + "/config.json");
    return path;
  }

  std::string tensor(const std::string& of) {
    static const std::array<std::string, 6> kTypes{"BF16", "F32", "F8_E4M3", "U8", "Q9", ""};
    return "\"" + of + R"(":{"dtype":")" + kTypes[below(below(9) == 0 ? 6 : 4)] + R"(","shape":)" +
           (below(4) == 0 ? shape() : "[2,3]") + R"(,"data_offsets":[0,8]})";
  }
  std::string tensors() {
    const std::string path = new_folder();
    for (std::uint64_t file = 1 + below(3); file-- > 0;) {
      std::string header;
      for (std::uint64_t t = below(30); t-- > 0;)
        header += (header.empty() ? "" : ",") + tensor(name() + "." + std::to_string(below(99)));
      write_header("{" + header + "}", path + "/m" + std::to_string(file) + ".safetensors");
    }
    return path;
  }

  std::string odd_headers() {
    const std::string path = new_folder(), file = path + "/model.safetensors";
    static const std::array<std::string, 6> kHeaders{"[]", "{", "null", "{\"a\":{}}", "", "\xff"};
    switch (below(4)) {
      case 0:
        write_header(one_of(kHeaders), file);
        break;
      case 1:
        write(std::string(below(9), '\xff'), file);
        break;
      default:  // as long as it says, and nothing there
        write(std::string("\0\0\0\0\2\0\0\0", 8), file);
        std::filesystem::resize_file(file, std::uint64_t{1} << (10 + below(30)));
    }
    return path;
  }

  std::string index() {
    const std::string path = new_folder();
    static const std::array<std::string, 6> kFiles{"m.safetensors",  "..", "/dev/zero",
                                                   "/proc/self/mem", ".",  "none.safetensors"};
    std::string map;
    const std::uint64_t most = below(4) == 0 ? 150'000 : 50;
    const std::string file = one_of(kFiles);
    for (std::uint64_t i = below(most); i-- > 0;) {
      map += (map.empty() ? "\"" : ",\"") + ("layers." + std::to_string(i)) + R"(.w":")" +
             (most > 50 ? file : one_of(kFiles)) + "\"";
    }
    write(R"({"weight_map":{)" + map + "}}", path + "/model.safetensors.index.json");
    write_header("{" + tensor("layers.0.w") + "}", path + "/m.safetensors");
    return path;
  }

  std::string nested() {
    const std::size_t depth = std::size_t{1} << below(23);
    const bool lists = below(2) == 0, closed = below(2) == 0;
    std::string text;
    for (std::size_t i = 0; i < depth; ++i) text += lists ? "[" : "{\"groups\":";
    if (closed) text += "1" + std::string(depth, lists ? ']' : '}');
    return write(below(2) == 0 ? text : R"({"groups":[{"name":"h","parameters":)" + text + "}]}");
  }

  std::string many_groups() {
    const std::uint64_t count = std::uint64_t{1} << below(19);
    const bool one_group = below(2) == 0;
    const std::string shape = below(2) == 0 ? "[1]" : "[3000,3000]";
    std::string text = R"({"groups":[)";
    if (one_group) text += R"({"name":"h","parameters":[)";
    for (std::uint64_t i = 0; i < count; ++i) {
      if (i > 0) text += ",";
      const std::string number = std::to_string(i);
      const std::string one = R"({"name":"w)" + number + R"(","shape":)" + shape + "}";
      text += one_group ? one : R"({"name":"g)" + number + R"(","parameters":[)" + one + "]}";
    }
    return write(text + (one_group ? "]}]}" : "]}"));
  }

  std::string many_values() {
    static const std::array<std::string, 6> kValues{
        "0", "{}", "[]", "{\"a\":0}", "\"a text that is longer than a short one\"", "[[],[]]"};
    const std::string value = one_of(kValues);
    const std::uint64_t count = (std::uint64_t{1} << below(22)) + below(99);
    std::string text = below(2) == 0 ? R"({"groups":[)" : R"({"a":[)";
    for (std::uint64_t i = 0; i < count; ++i) {
      if (i > 0) text += ",";
      text += value;
    }
    return write(text + "]}");
  }

  std::string bytes() {
    static const std::array<std::string, 5> kTexts{"", "null", "\xef\xbb\xbf{}", "\xff\xfe{",
                                                   "'''"};
    switch (below(4)) {
      case 0:
        return write(one_of(kTexts));
      case 1: {
        std::string noise(below(1 << 16), '\0');
        for (char& c : noise) c = static_cast<char>(below(256));
        return write(noise);
      }
      case 2:  // one text of many bytes
        return write(R"({"groups":[{"name":")" + std::string(1 << below(25), 'x') +
                     R"(","parameters":[{"name":"w","shape":[1]}]}]})");
      default: {
        const std::string path = write("{");
        std::filesystem::resize_file(path, std::uint64_t{1} << below(41));
        return path;
      }
    }
  }

  // Numbered blocks in as many places as there are names outside of all of them.
  std::string many_tensors() {
    const std::string path = new_folder();
    const std::uint64_t count = std::uint64_t{1} << below(18);
    const std::uint64_t kind = below(3);
    std::string header;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::string number = std::to_string(i);
      const std::string of = kind == 0   ? "layers." + number + ".experts.7.w"
                             : kind == 1 ? (i % 2 == 0 ? "s" + number + ".0.w" : "embed.s" + number)
                                         : "x" + number;
      header += (i == 0 ? "\"" : ",\"") + of + R"(":{"dtype":"BF16","shape":[2,3]})";
    }
    write_header("{" + header + "}", path + "/model.safetensors");
    return path;
  }

  std::string folder_;
  std::mt19937_64 random_;
  std::uint64_t made_ = 0;
};
}  // namespace headrace::tools
