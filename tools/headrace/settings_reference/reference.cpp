// SPDX-License-Identifier: Apache-2.0
#include "settings_reference/reference.hpp"

#include <nlohmann/json.hpp>

#include "settings/json_text.hpp"
#include "settings/key_table.hpp"

namespace headrace::settings {
namespace {
constexpr const char* kOpening =
    R"(<!-- Generated from src/settings/keys.txt by tests/settings/write_settings_doc. -->
# Settings

One JSON file, in DeepSpeed's shape: keys that mean what DeepSpeed's mean keep its names, and ours
are in the section `headrace`, which DeepSpeed ignores. This is a whole file:

```json
{
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/mnt/nvme0"},
    "offload_param": {"device": "nvme", "nvme_path": "/mnt/nvme0"}
  },
  "bf16": {"enabled": true},
  "gradient_clipping": 1.0,
  "headrace": {"host_budget_bytes": "8GiB"}
}
```

The keys of DeepSpeed are those of its version 0.19.8, read from its code by
`tests/settings/deepspeed_keys.py` (which says how to run it), and those that earlier versions had.

## How a file is read

- Comments (`// ...`, `/* ... */`), trailing commas and a byte order mark are accepted; the text
  is UTF-8, at most 4 MiB, nested at most 64 deep. The rest of HJSON (DeepSpeed reads it) is an
  error; `hjson -j FILE > NEW`, from the package that DeepSpeed installs, makes JSON of it.
- A key whose name starts with `_` is a note and ignored with all it holds.
- An unknown key is an error that names the nearest known one, or the section where the key would
  belong. So is a key given twice, a value of the wrong type, and one out of range. An unknown key
  that is like no other is a warning where DeepSpeed ignores it: at the top level and in `aio`,
  `activation_checkpointing`, `checkpoint`, `data_types`, `optimizer`, `scheduler` and `timers`.
  `ReadOptions::strict` and `headrace settings check --strict` make an error of it.
- A warning names each key of DeepSpeed's that has no effect here, with its place, its value and the
  replacement: a line per key, in the order of the text. There is no warning where Headrace does
  what the value says anyway, or where the section is off (`"enabled": false`). A section that is
  off for want of `"enabled"` is named. A key that would train something else is refused.
- A file that enables neither `bf16` nor `fp16` asks for parameters in f32, as in DeepSpeed:
  `Settings::parameter_dtype()` gives that dtype, `train_gpt` follows it, and an engine whose
  trainer registers none of that dtype warns. "auto" in one of them leaves the choice to the
  trainer.
- The reader lists all faults at once, of more than a hundred the first in the text:
  `FILE:LINE:COLUMN: key: what was found; what is allowed`. Columns count characters.
- Whole numbers may be written `5e8`. Sizes are bytes, or text: `"512MiB"`, `"1.5GiB"` (powers of
  1024), `"1GB"` (powers of 1000).
- The trainer fills in `"auto"`: it passes its values to the reader (`ReadOptions::for_auto`;
  `train_gpt` does). Where one is left, a key that is honoured here is an error that names it, and
  one that has no effect is a warning like any other value. "auto" for one of the three batch sizes
  counts as left out. `headrace.host_budget_bytes` has an "auto" of its own.
- `headrace settings check FILE...` lists faults, warnings and keys left "auto"; `show FILE` lists
  the values that hold and their origins; `explain KEY` describes a key; `schema` prints
  `settings.schema.json`, which editors follow where a file names it: `"$schema": "FILE"`.
- In paths a leading `~/` is the home directory, `${NAME}` an environment variable (an error if it
  is not set or empty), `$$` a dollar sign.
- `--set a.b=value` lays a value over the file. It is read as JSON or, if it is not JSON, taken as
  text; its messages start with `--set a.b`. A later one wins; an object replaces the whole
  section.

## What does not go together

- `device` `"nvme"` without a directory: neither `nvme_path` nor `headrace.nvme_paths`. One
  `nvme_path` serves both sections.
- Two different `nvme_path`, unless `headrace.nvme_paths` lists the drives and so replaces them. One
  directory twice in that list.
- Keys of `fp16` without `fp16.enabled` are a warning: nothing is fp16 then.
- `fp16.enabled` and `bf16.enabled`, both true. A dynamic loss scale beside
  `headrace.non_finite` "stop"; one that begins below `fp16.min_loss_scale`.
- `optimizer.type` other than Adam, AdamW, Adagrad, Lion and SGD, or another rule than
  `headrace.optimizer`. A constant of another rule or scheduler; a scheduler without a key that it
  needs.
- `train_batch_size` other than `train_micro_batch_size_per_gpu` x `gradient_accumulation_steps` x
  ranks, as soon as the trainer says how many ranks there are (`Settings::resolve_batch`), or that
  no number of ranks can make.
- `data_types.param_dtype` other than what `bf16` and `fp16` ask for.
- `cpu_offload` or `cpu_offload_params` true beside a section that names another device.
- A key in both of its spellings.

`offload_param` without `offload_optimizer` is fine, at any `stage`.

)";

// Defaults stand in Settings alone; here they are read back from its JSON.
std::string default_text(const Key& key, const nlohmann::json& defaults) {
  const nlohmann::json* value = find_in(defaults, key.path);
  return value == nullptr ? "not given" : "`" + value->dump() + "`";
}

std::string names_text(const Key& key) {
  std::string text = "`" + std::string(key.path) + "`";
  if (!key.also.empty()) text += ", also `" + std::string(key.also) + "`";
  return text;
}

std::string allowed_with_unit(const Key& key) {
  std::string text = allowed_text(key);
  const bool sized = key.kind == Kind::kSize || key.kind == Kind::kSizeOrAuto;
  if (!key.unit.empty() && !sized) text += " (" + std::string(key.unit) + ")";
  return text;
}

void append_row(std::string& text, std::initializer_list<std::string> cells) {
  for (const std::string& cell : cells) text += "| " + cell + " ";
  text += "|\n";
}

void append_honoured(std::string& text, const nlohmann::json& defaults) {
  text +=
      "## Keys that are honoured\n\n"
      "The engine follows a key, or the trainer, which gets the value from the library.\n\n"
      "| key | by | values | default | what it does |\n|---|---|---|---|---|\n";
  for (const Key& key : keys()) {
    if (!key.honoured_value()) continue;
    append_row(text, {names_text(key), key.status == Status::kTrainer ? "trainer" : "engine",
                      allowed_with_unit(key), default_text(key, defaults), std::string(key.help)});
  }
}

void append_changed_defaults(std::string& text, const nlohmann::json& defaults) {
  text +=
      "\n## Keys whose default differs between DeepSpeed's versions\n\n"
      "Where a file leaves one out that is honoured, `headrace settings check`, `show` and "
      "`train_gpt` say which\nvalue holds; so does the engine's log.\n\n"
      "| key | default of DeepSpeed | here |\n|---|---|---|\n";
  for (const Key& key : keys()) {
    if (key.deepspeed_default.empty()) continue;
    append_row(text, {names_text(key), std::string(key.deepspeed_default),
                      key.honoured() ? default_text(key, defaults) : "no effect"});
  }
}

void append_no_effect(std::string& text) {
  text +=
      "\n## Keys of DeepSpeed's that have no effect here\n\n"
      "A warning says what is used instead. \"No warning for\" is the value that Headrace follows "
      "in any case. Of an object in this table only `enabled` is read.\n\n"
      "| key | values | no warning for | used instead |\n|---|---|---|---|\n";
  for (const Key& key : keys()) {
    if (key.status != Status::kNoEffect) continue;
    std::string followed(!key.same_as.empty() ? key.same_as : key.in_any_case);
    if (!followed.empty()) followed = "`" + followed + "`";
    const auto in_code = [](std::string_view path) { return "`" + std::string(path) + "`"; };
    append_row(text,
               {names_text(key), allowed_with_unit(key), followed, fill_braces(key.help, in_code)});
  }
}

void append_refused(std::string& text) {
  text +=
      "\n## Keys of DeepSpeed's that are refused\n\n"
      "They ask for something that would be missing from the training. Passes: a value that asks "
      "for nothing; of an\nobject, one without `\"enabled\": true`, or an empty one.\n\n"
      "| key | passes | refused because |\n|---|---|---|\n";
  for (const Key& key : keys()) {
    if (key.status != Status::kRefused) continue;
    std::string passes = key.kind != Kind::kOpenSection ? std::string(key.in_any_case)
                         : key.off_by_default           ? "\"enabled\": false"
                                                        : "{}";
    if (!passes.empty()) passes = "`" + passes + "`";
    append_row(text, {names_text(key), passes, std::string(key.help)});
  }
}
}  // namespace

std::string settings_document() {
  const nlohmann::json defaults = nlohmann::json::parse(Settings{}.to_json());
  std::string text = kOpening;
  append_honoured(text, defaults);
  append_changed_defaults(text, defaults);
  append_no_effect(text);
  append_refused(text);
  return text;
}
}  // namespace headrace::settings
