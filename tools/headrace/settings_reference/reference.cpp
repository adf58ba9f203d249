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

Settings are a JSON file in DeepSpeed's format. Keys with the same meaning as in DeepSpeed have the
same names. Headrace's own keys are in the section `headrace`, which DeepSpeed ignores. This is a
complete file:

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

Headrace knows the keys of DeepSpeed 0.19.8 and of earlier versions.
`tests/settings/deepspeed_keys.py` reads the former from DeepSpeed's code.

## How a file is read

- Headrace accepts comments (`// ...`, `/* ... */`), trailing commas and a byte order mark. The text
  is UTF-8, at most 4 MiB, nested at most 64 deep. Other HJSON syntax, which DeepSpeed reads, is an
  error. `hjson -j FILE > NEW`, from the package that DeepSpeed installs, converts it to JSON.
- A key whose name starts with `_` is a note. Headrace ignores it and its value.
- An unknown key is an error that names the nearest known key, or the section where the key belongs.
  A repeated key, a value of the wrong type and a value out of range are errors too. An unknown key
  that resembles no other is only a warning where DeepSpeed ignores it: at the top level and in
  `aio`, `activation_checkpointing`, `checkpoint`, `data_types`, `optimizer`, `scheduler` and
  `timers`. In the `params` of an optimizer or a scheduler that Headrace has, it is an error, and so
  it is everywhere with `ReadOptions::strict` and `headrace settings check --strict`.
- A warning names each DeepSpeed key that has no effect here, with its place, its value and its
  replacement, one line per key, in the order of the text. There is no warning if Headrace does what
  the value says anyway, or if the section is off (`"enabled": false`). If a section is off only
  because it lacks `"enabled"`, a warning names it. A key that would change the result is an error.
- A file that enables neither `bf16` nor `fp16` asks for parameters in f32, as in DeepSpeed.
  `Settings::parameter_dtype()` gives that dtype, and `train_gpt` follows it. An engine warns if its
  trainer registers no parameter of that dtype. "auto" in one of the two leaves the choice to the
  trainer.
- The reader lists all faults at once, or the first hundred, in this form:
  `FILE:LINE:COLUMN: key: what was found; what is allowed`. Columns count characters. Python's
  `headrace.offload(model, "ds.json")` reads the file itself, so its messages have no places; those
  of `headrace settings check` have.
- Whole numbers may be written `5e8`. Sizes are bytes, or text: `"512MiB"`, `"1.5GiB"` (powers of
  1024), `"1GB"` (powers of 1000).
- The trainer supplies the values of keys that are `"auto"`: it passes them to the reader
  (`ReadOptions::for_auto`), as `train_gpt` does. If a key remains "auto", the reader reports an
  error if the key has an effect here, and a warning otherwise. "auto" for one of the three batch
  sizes is the same as leaving it out. For `headrace.host_budget_bytes`, "auto" has its own meaning.
- `headrace settings check FILE...` lists faults, warnings and keys left "auto". `show FILE` lists
  the effective values and their origins. `explain KEY` describes a key. `schema` prints
  `settings.schema.json`, which editors use if a file names it: `"$schema": "FILE"`.
- In paths, a leading `~/` is the home directory, `${NAME}` is an environment variable (an error if
  it is unset or empty), and `$$` is a dollar sign.
- `--set a.b=value` overrides a value of the file. A name or a path needs no quotes: `--set
  headrace.store=123` names a store 123. Any other value is read as JSON or, if it is not JSON, as
  text. Messages about it start with `--set a.b`. If a key is set twice, the last value counts, and
  an object replaces the whole section.

## Invalid combinations

These combinations are errors:

- `device` is `"nvme"`, but neither `nvme_path` nor `headrace.nvme_paths` gives a directory. One
  `nvme_path` is enough for both sections.
- The two sections have different `nvme_path`s, and there is no `headrace.nvme_paths` to replace
  them. Or that list names a directory twice.
- `headrace.durable` is not "none", but there is no `headrace.store` or no directory for it,
  `headrace.checksums` is "off", or `headrace.allow_memory_backed` is true.
- `headrace.store` is given, or `headrace.resume` is not "auto", but `headrace.durable` is "none".
- `fp16.enabled` and `bf16.enabled` are both true.
- A dynamic loss scale is combined with `headrace.non_finite` "stop", or begins below
  `fp16.min_loss_scale`.
- `optimizer.type` is not Adam, AdamW, Adagrad, Lion or SGD, or contradicts `headrace.optimizer`.
- A constant belongs to another rule or scheduler, or a scheduler lacks a key that it needs.
- `train_batch_size` differs from `train_micro_batch_size_per_gpu` x `gradient_accumulation_steps` x
  ranks. The reader checks whether any number of ranks fits, and `Settings::resolve_batch` checks
  the trainer's number.
- `data_types.param_dtype` differs from the dtype that `bf16` and `fp16` ask for.
- `cpu_offload` or `cpu_offload_params` is true, and its section names another device.
- A key appears in both of its spellings.

Keys of `fp16` without `fp16.enabled` cause only a warning. `offload_param` without
`offload_optimizer` is allowed, at any `stage`.

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
      "## Keys with an effect\n\n"
      "The column \"by\" says whether the engine applies a key, or the trainer, which gets the "
      "value "
      "from\nthe library.\n\n"
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
      "If a file leaves out one of these keys and the key has an effect, `headrace settings "
      "check`, "
      "`show`,\n`train_gpt` and the engine's log say which value applies.\n\n"
      "| key | default of DeepSpeed | here |\n|---|---|---|\n";
  for (const Key& key : keys()) {
    if (key.deepspeed_default.empty()) continue;
    append_row(text, {names_text(key), std::string(key.deepspeed_default),
                      key.honoured() ? default_text(key, defaults) : "no effect"});
  }
}

void append_no_effect(std::string& text) {
  text +=
      "\n## DeepSpeed keys without effect\n\n"
      "A warning names the replacement. There is no warning for the value in the column \"no "
      "warning "
      "for\",\nwhich Headrace follows in any case. If the value is an object, only its `enabled` "
      "is "
      "read.\n\n"
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
      "\n## Rejected DeepSpeed keys\n\n"
      "These keys would change the result, and Headrace does not implement them. It accepts only "
      "values that\nask for nothing, and objects that are empty or lack `\"enabled\": true`.\n\n"
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
