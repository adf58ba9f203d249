// SPDX-License-Identifier: Apache-2.0
#include "pickle/unpickler.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "base/error_text.hpp"
#include "checkpoint/safetensors_parse.hpp"
#include "pickle/fault.hpp"

namespace headrace::tools::pickle {
namespace {
constexpr std::size_t kMostUnknown = 100, kLongestName = 1000;
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 48;
constexpr std::uint8_t kProtocol = 2;

constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kStorages = {{
    {"torch FloatStorage", "F32"},
    {"torch BFloat16Storage", "BF16"},
    {"torch HalfStorage", "F16"},
    {"torch DoubleStorage", "F64"},
    {"torch LongStorage", "I64"},
    {"torch IntStorage", "I32"},
    {"torch ShortStorage", "I16"},
    {"torch CharStorage", "I8"},
    {"torch ByteStorage", "U8"},
    {"torch BoolStorage", "BOOL"},
}};
constexpr std::string_view kRebuildTensor = "torch._utils _rebuild_tensor_v2",
                           kRebuildParameter = "torch._utils _rebuild_parameter",
                           kRebuildTyped = "torch._tensor _rebuild_from_type_v2",
                           kSize = "torch Size", kOrderedDict = "collections OrderedDict",
                           kTensorClass = "torch Tensor";

std::string_view dtype_of(const Value& storage) {
  for (const auto& [name, dtype] : kStorages)
    if (storage.is(Kind::kGlobal) && storage.text == name) return dtype;
  return {};
}

bool is_data(std::string_view global) {
  for (const std::string_view known :
       {kRebuildTensor, kRebuildParameter, kRebuildTyped, kSize, kOrderedDict, kTensorClass})
    if (global == known) return true;
  return std::ranges::any_of(kStorages, [&](const auto& one) { return one.first == global; });
}

std::string with_dot(std::string_view global) {
  std::string name(global);
  for (const char between : {' ', '\n'}) std::ranges::replace(name, between, '.');
  return base::one_line(name, 200);
}

// Carries out the instructions of a pickle, each of which is a byte with its operands behind it.
class Machine {
 public:
  Machine(std::string_view bytes, std::deque<Value>& values, std::set<std::string>& unknown)
      : bytes_(bytes), values_(values), unknown_(unknown) {}

  const Value* run() {
    while (result_ == nullptr) {
      here_ = at_;
      const auto code = static_cast<std::uint8_t>(take(1)[0]);
      const Instruction instruction = kInstructions[code];
      if (instruction == nullptr)
        wrong(fmt::format("instruction {:#04x} is not one of protocol 2, as torch.save() has them",
                          code));
      (this->*instruction)();
    }
    return result_;
  }

 private:
  using Instruction = void (Machine::*)();
  static const std::array<Instruction, 256> kInstructions;
  static std::array<Instruction, 256> table();

  [[noreturn]] void wrong(const std::string& what) const {
    throw Fault(fmt::format("byte {} of its pickle: {}", here_, what));
  }

  // ---- operands ----

  std::string_view take(std::size_t count) {
    if (count > bytes_.size() - at_) wrong("it is cut off");
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  std::uint64_t number(std::size_t size) {
    std::uint64_t value = 0;
    const std::string_view bytes = take(size);
    for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<std::uint8_t>(bytes[i]);
    return value;
  }
  std::string_view line() {
    const std::size_t end = bytes_.substr(at_, kLongestName).find('\n');
    if (end == std::string_view::npos) wrong("a name is cut off, or too long");
    return take(end + 1).substr(0, end);
  }

  // ---- stack ----

  Value& make(Kind kind) {
    if (values_.size() >= kMostValues) wrong("it has too many values");
    Value& value = values_.emplace_back();
    value.kind = kind;
    return value;
  }
  void push(Value& value) {
    if (stack_.size() >= kMostValues) wrong("its stack is too high");
    stack_.push_back(&value);
  }
  std::size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }
  Value& top() const {
    if (stack_.size() <= bottom()) wrong("it takes from an empty stack");
    return *stack_.back();
  }
  Value& pop() {
    Value& value = top();
    stack_.pop_back();
    return value;
  }
  // What was pushed since the last mark, which it takes away.
  std::vector<const Value*> pop_to_mark() {
    if (marks_.empty()) wrong("it lacks a mark");
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<const Value*> items(from, stack_.end());
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return items;
  }

  // ---- instructions ----

  void protocol() {
    const std::uint64_t version = number(1);
    if (version == kProtocol) return;
    throw Fault(fmt::format("its pickle is of protocol {}", version), Code::kUnsupported,
                "Save it with torch.save()'s own pickle_protocol, 2.");
  }
  void stop() { result_ = &pop(); }
  void none() { push(make(Kind::kNone)); }
  template <bool kValue>
  void boolean() {
    Value& value = make(Kind::kBool);
    value.number = kValue ? 1 : 0;
    push(value);
  }
  void integer(std::int64_t number) {
    Value& value = make(Kind::kInt);
    value.number = number;
    push(value);
  }
  template <std::size_t kSize>
  void small_integer() {
    integer(static_cast<std::int64_t>(number(kSize)));
  }
  void integer4() { integer(static_cast<std::int32_t>(static_cast<std::uint32_t>(number(4)))); }
  template <std::size_t kLength>
  void long_integer() {
    const std::string_view bytes = take(number(kLength));
    if (bytes.size() > sizeof(std::int64_t)) return other("a number of more than 64 bits");
    std::uint64_t value = !bytes.empty() && bytes.back() < 0 ? ~std::uint64_t{0} : 0;
    for (std::size_t i = bytes.size(); i-- > 0;)
      value = value << 8 | static_cast<std::uint8_t>(bytes[i]);
    integer(static_cast<std::int64_t>(value));
  }
  void real() {
    std::uint64_t bits = 0;
    for (const char byte : take(sizeof bits)) bits = bits << 8 | static_cast<std::uint8_t>(byte);
    Value& value = make(Kind::kFloat);
    value.real = std::bit_cast<double>(bits);
    push(value);
  }
  void text() {
    const std::string_view text = take(number(4));
    Value& value = make(Kind::kText);
    value.text = text;
    push(value);
  }
  void other(std::string_view what) {
    Value& value = make(Kind::kOther);
    value.text = what;
    push(value);
  }
  template <Kind kKind>
  void empty() {
    push(make(kKind));
  }
  void mark() {
    if (marks_.size() >= kMostValues) wrong("it has too many marks");
    marks_.push_back(stack_.size());
  }
  void drop() {
    if (!marks_.empty() && marks_.back() == stack_.size())
      marks_.pop_back();
    else
      pop();
  }
  void drop_to_mark() { pop_to_mark(); }
  void repeat() { push(top()); }
  void tuple() {
    std::vector<const Value*> items = pop_to_mark();
    Value& value = make(Kind::kTuple);
    value.items = std::move(items);
    push(value);
  }
  template <std::size_t kCount>
  void short_tuple() {
    std::vector<const Value*> items(kCount);
    for (std::size_t i = kCount; i-- > 0;) items[i] = &pop();
    Value& value = make(Kind::kTuple);
    value.items = std::move(items);
    push(value);
  }
  void append() {
    const Value& item = pop();
    add_to_list({&item});
  }
  void appends() { add_to_list(pop_to_mark()); }
  void set_item() {
    const Value& item = pop();
    const Value& key = pop();
    add_to_dict({&key, &item});
  }
  void set_items() { add_to_dict(pop_to_mark()); }
  void add_to_list(const std::vector<const Value*>& items) {
    Value& list = top();
    if (list.is(Kind::kCall)) return;  // what is not made holds nothing
    if (!list.is(Kind::kList)) wrong("it appends to what is no list");
    list.items.insert(list.items.end(), items.begin(), items.end());
  }
  void add_to_dict(const std::vector<const Value*>& items) {
    Value& dict = top();
    if (items.size() % 2 != 0) wrong("a key has no value");
    if (dict.is(Kind::kCall)) return;
    if (!dict.is(Kind::kDict)) wrong("it sets items of what is no dict");
    dict.items.insert(dict.items.end(), items.begin(), items.end());
  }
  void global() {
    const std::size_t from = at_;
    const std::string_view module = line(), name = line();
    std::string both = std::string(module) + " " + std::string(name);
    if (!is_data(both) && unknown_.size() < kMostUnknown) unknown_.insert(with_dot(both));
    Value& value = make(Kind::kGlobal);
    value.text = bytes_.substr(from, module.size() + 1 + name.size());
    if (const std::string_view data = known(both); !data.empty()) value.text = data;
    push(value);
  }
  // The text of a known name: those of the pickle have a line feed where these have a space.
  static std::string_view known(std::string_view global) {
    for (const std::string_view one :
         {kRebuildTensor, kRebuildParameter, kRebuildTyped, kSize, kOrderedDict, kTensorClass})
      if (global == one) return one;
    for (const auto& [name, dtype] : kStorages)
      if (global == name) return name;
    return {};
  }
  void reduce() {
    const Value& arguments = pop();
    const Value& callee = pop();
    if (!arguments.is(Kind::kTuple)) wrong("the arguments of a call are no tuple");
    push(called(callee, arguments));
  }
  void new_object() {
    const Value& arguments = pop();
    const Value& type = pop();
    push(call(type, arguments));
  }
  // Of data, torch's attributes are not needed.
  void build() {
    const Value& state = pop();
    Value& object = top();
    if (object.is(Kind::kCall) && object.items.size() < kMostDimensions)
      object.items.push_back(&state);
  }
  template <std::size_t kSize>
  void keep() {
    const auto number = static_cast<std::uint32_t>(this->number(kSize));
    if (memo_.size() >= kMostValues) wrong("its memo is too large");
    memo_[number] = &top();
  }
  template <std::size_t kSize>
  void get() {
    const auto found = memo_.find(static_cast<std::uint32_t>(number(kSize)));
    if (found == memo_.end()) wrong("it gets what it has not kept");
    push(*found->second);
  }
  void persistent() { push(storage(pop())); }

  // ---- data ----

  Value& call(const Value& callee, const Value& arguments) {
    Value& value = make(Kind::kCall);
    value.items = {&callee, &arguments};
    return value;
  }
  Value& called(const Value& callee, const Value& arguments) {
    const auto& items = arguments.items;
    const std::string_view name = callee.is(Kind::kGlobal) ? callee.text : std::string_view();
    if (name == kRebuildTensor) return tensor(arguments);
    if (name == kRebuildTyped && items.size() == 4 && items[0]->is(Kind::kGlobal) &&
        items[0]->text == kRebuildTensor && items[2]->is(Kind::kTuple))
      return tensor(*items[2]);
    if (name == kRebuildParameter && !items.empty() && items[0]->is(Kind::kTensor))
      return copy_of_tensor(*items[0]);
    if (name == kOrderedDict && items.empty()) return make(Kind::kDict);
    if (name != kSize || items.size() != 1 || !items[0]->is(Kind::kTuple) ||
        items[0]->items.size() > kMostDimensions)
      return call(callee, arguments);
    Value& size = make(Kind::kTuple);
    size.items = items[0]->items;
    return size;
  }
  Value& copy_of_tensor(const Value& from) {
    Value& value = make(Kind::kTensor);
    value.tensor = std::make_unique<PickledTensor>(*from.tensor);
    return value;
  }

  // ("storage", its class, key, device, elements)
  Value& storage(const Value& id) {
    const auto& items = id.items;
    const bool whole = id.is(Kind::kTuple) && items.size() == 5 && items[0]->is(Kind::kText) &&
                       items[0]->text == "storage" && items[2]->is(Kind::kText) &&
                       items[2]->text.size() <= kLongestName && items[4]->is(Kind::kInt) &&
                       items[4]->number >= 0;
    const std::string_view dtype = whole ? dtype_of(*items[1]) : std::string_view();
    if (dtype.empty()) return call(id, id);
    Value& value = make(Kind::kStorage);
    value.tensor = std::make_unique<PickledTensor>();
    value.tensor->dtype = dtype;
    value.tensor->storage = items[2]->text;
    value.tensor->storage_elements = static_cast<std::uint64_t>(items[4]->number);
    return value;
  }

  // (storage, first element, shape, strides, ...)
  Value& tensor(const Value& arguments) {
    const auto& items = arguments.items;
    if (items.size() < 4) wrong("a tensor lacks its shape");
    if (items[0]->is(Kind::kCall)) return call(*items[0], arguments);
    if (!items[0]->is(Kind::kStorage) || !items[1]->is(Kind::kInt) || items[1]->number < 0)
      wrong("a tensor has no storage, or no place in it");
    Value& value = make(Kind::kTensor);
    value.tensor = std::make_unique<PickledTensor>(*items[0]->tensor);
    value.tensor->first_element = static_cast<std::uint64_t>(items[1]->number);
    value.tensor->shape = sizes(*items[2]);
    value.tensor->strides = sizes(*items[3]);
    check(*value.tensor);
    return value;
  }
  std::vector<std::uint64_t> sizes(const Value& tuple) const {
    if (!tuple.is(Kind::kTuple) || tuple.items.size() > kMostDimensions)
      wrong("the shape of a tensor is no tuple of at most 64 sizes");
    std::vector<std::uint64_t> sizes;
    for (const Value* const size : tuple.items) {
      if (!size->is(Kind::kInt) || size->number < 0 ||
          static_cast<std::uint64_t>(size->number) > kMostElements)
        wrong("a size of a tensor is no number from 0 to 2^48");
      sizes.push_back(static_cast<std::uint64_t>(size->number));
    }
    return sizes;
  }
  void check(const PickledTensor& tensor) const {
    if (tensor.shape.size() != tensor.strides.size())
      wrong("a tensor has other strides than sizes");
    std::uint64_t elements = 1;
    for (const std::uint64_t size : tensor.shape) {
      if (size != 0 && elements > kMostElements / size)
        wrong("a tensor has more than 2^48 elements");
      elements *= size;
    }
    if (!tensor.is_contiguous()) return;  // refused where its values are needed
    if (tensor.storage_elements > kMostElements || tensor.first_element > tensor.storage_elements ||
        elements > tensor.storage_elements - tensor.first_element)
      wrong("a tensor is larger than its storage");
  }

  const std::string_view bytes_;
  std::deque<Value>& values_;
  std::set<std::string>& unknown_;
  std::size_t at_ = 0, here_ = 0;  // the next byte; the first of this instruction
  std::vector<Value*> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint32_t, Value*> memo_;
  const Value* result_ = nullptr;
};

std::array<Machine::Instruction, 256> Machine::table() {
  std::array<Instruction, 256> all{};
  const auto set = [&](std::initializer_list<std::pair<int, Instruction>> some) {
    for (const auto& [code, instruction] : some) all[static_cast<std::size_t>(code)] = instruction;
  };
  set({{0x80, &Machine::protocol}, {'.', &Machine::stop}, {'N', &Machine::none}});
  set({{0x88, &Machine::boolean<true>}, {0x89, &Machine::boolean<false>}});
  set({{'K', &Machine::small_integer<1>}, {'M', &Machine::small_integer<2>}});
  set({{'J', &Machine::integer4}, {0x8a, &Machine::long_integer<1>}});
  set({{0x8b, &Machine::long_integer<4>}, {'G', &Machine::real}, {'X', &Machine::text}});
  set({{']', &Machine::empty<Kind::kList>}, {'}', &Machine::empty<Kind::kDict>}});
  set({{')', &Machine::empty<Kind::kTuple>}, {'(', &Machine::mark}, {'t', &Machine::tuple}});
  set({{0x85, &Machine::short_tuple<1>}, {0x86, &Machine::short_tuple<2>}});
  set({{0x87, &Machine::short_tuple<3>}, {'a', &Machine::append}, {'e', &Machine::appends}});
  set({{'s', &Machine::set_item}, {'u', &Machine::set_items}, {'c', &Machine::global}});
  set({{'R', &Machine::reduce}, {0x81, &Machine::new_object}, {'b', &Machine::build}});
  set({{'q', &Machine::keep<1>}, {'r', &Machine::keep<4>}, {'h', &Machine::get<1>}});
  set({{'j', &Machine::get<4>}, {'Q', &Machine::persistent}, {'0', &Machine::drop}});
  set({{'1', &Machine::drop_to_mark}, {'2', &Machine::repeat}});
  return all;
}
const std::array<Machine::Instruction, 256> Machine::kInstructions = Machine::table();
}  // namespace

std::uint64_t PickledTensor::elements() const noexcept {
  std::uint64_t elements = 1;
  for (const std::uint64_t size : shape) elements *= size;
  return elements;
}

std::uint64_t PickledTensor::element_bytes() const noexcept {
  return checkpoint::dtype_size_bytes(dtype);
}

bool PickledTensor::is_contiguous() const noexcept {
  if (elements() == 0) return true;
  std::uint64_t expected = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

const Value* Value::find(std::string_view key) const noexcept {
  if (!is(Kind::kDict)) return nullptr;
  for (std::size_t i = items.size(); i >= 2; i -= 2)
    if (items[i - 2]->is(Kind::kText) && items[i - 2]->text == key) return items[i - 1];
  return nullptr;
}

std::string text_of(const Value& value) {
  switch (value.kind) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return value.number != 0 ? "True" : "False";
    case Kind::kInt:
      return fmt::format("the number {}", value.number);
    case Kind::kFloat:
      return fmt::format("the number {}", value.real);
    case Kind::kText:
      return "the text '" + base::one_line(value.text) + "'";
    case Kind::kTuple:
      return fmt::format("a tuple of {}", value.items.size());
    case Kind::kList:
      return fmt::format("a list of {}", value.items.size());
    case Kind::kDict:
      return fmt::format("a dict of {}", value.items.size() / 2);
    case Kind::kGlobal:
      return "the name " + with_dot(value.text);
    case Kind::kStorage:
      return "a storage";
    case Kind::kTensor:
      return fmt::format("a tensor of {} {} values", value.tensor->elements(), value.tensor->dtype);
    case Kind::kCall:
      return (value.items[0]->is(Kind::kGlobal) ? with_dot(value.items[0]->text)
                                                : std::string("an object")) +
             "(...), which is not made";
    case Kind::kOther:
      return std::string(value.text);
  }
  return {};
}

Pickle::Pickle(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {
  if (bytes_.size() > kMostPickleBytes)
    throw Fault(fmt::format("its pickle has {} bytes, more than 64 MiB", bytes_.size()));
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()), bytes_.size());
  root_ = Machine(text, values_, unknown_).run();
}
}  // namespace headrace::tools::pickle
