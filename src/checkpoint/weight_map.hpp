// SPDX-License-Identifier: Apache-2.0
// weight_map.hpp: an index in Hugging Face's layout ("model.safetensors.index.json"), parsed: in
// which file each tensor is.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "checkpoint/safetensors_parse.hpp"

namespace headrace::checkpoint {
using FilesByTensor = std::map<std::string, std::string>;

// `text` is untrusted; the names of files stay as it has them. Throws SafetensorsFault for no JSON,
// for what is no weight_map, and for a name that occurs twice: which of the two was meant, nobody
// knows.
FilesByTensor parse_weight_map(std::string_view text);
}  // namespace headrace::checkpoint
