// SPDX-License-Identifier: Apache-2.0
// pickle_test: pickles of torch.save() as data, and pickles that ask for anything else.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pickle/fault.hpp"
#include "pickle/pickle_writer.hpp"
#include "pickle/tensor_file.hpp"
#include "pickle/tensor_file_writer.hpp"
#include "pickle/unpickler.hpp"
#include "support/temporary_directory.hpp"

namespace headrace::tools::pickle::pickle_test {
namespace {
namespace fs = std::filesystem;
using namespace std::string_literals;

Pickle unpickled(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return Pickle({bytes.begin(), bytes.end()});
}
std::string fault_of(std::string_view text) {
  try {
    (void)unpickled(text);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "none";
}
void expect_fault(std::string_view text, std::string_view part) {
  EXPECT_NE(fault_of(text).find(part), std::string::npos) << part << ": " << fault_of(text);
}

const std::string kBegin = "\x80\x02";
std::string text(const std::string& value) {
  std::string bytes = "X";
  for (std::size_t i = 0; i < 4; ++i) bytes += static_cast<char>(value.size() >> (8 * i));
  return bytes + value;
}
std::string storage_id(const std::string& type, const std::string& elements) {
  return "(" + text("storage") + "ctorch\n" + type + "\n" + text("0") + text("cpu") + elements +
         "tQ";
}
// A tensor of as many elements as its storage should have.
std::string tensor(const std::string& elements, const std::string& place, const std::string& shape,
                   const std::string& strides) {
  return kBegin + "ctorch._utils\n_rebuild_tensor_v2\n(" + storage_id("FloatStorage", elements) +
         place + shape + strides + "\x89" + "ccollections\nOrderedDict\n)RtR.";
}

TEST(Pickle, ReadsWhatTheWriterWrites) {
  PickleWriter out;
  const std::vector<std::int64_t> numbers = {
      0, 1, 255, 256, -1, 65535, 65536, 2147483647, -2147483648, 2147483648, INT64_MIN, INT64_MAX};
  const std::vector<std::int64_t> shape = {3, 0, 70000};
  out.ordered_dict([&] {
    out.text("numbers");
    out.list([&] {
      for (const std::int64_t number : numbers) out.integer(number);
    });
    out.text("size");
    out.size(shape);
    out.text("n\xc3\xa4me");
    out.dict([] {});
    out.text("yes");
    out.boolean(true);
    out.text("none");
    out.none();
  });
  const Pickle read = unpickled(out.finish());
  const Value& root = read.root();
  ASSERT_TRUE(root.is(Kind::kDict));
  const Value& list = *root.find("numbers");
  ASSERT_EQ(list.items.size(), numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(list.items[i]->number, numbers[i]);
  ASSERT_TRUE(root.find("size")->is(Kind::kTuple));
  for (std::size_t i = 0; i < shape.size(); ++i)
    EXPECT_EQ(root.find("size")->items[i]->number, shape[i]);
  EXPECT_TRUE(root.find("n\xc3\xa4me")->is(Kind::kDict));
  EXPECT_EQ(root.find("yes")->number, 1);
  EXPECT_TRUE(root.find("none")->is(Kind::kNone));
  EXPECT_EQ(root.find("other"), nullptr);
  EXPECT_TRUE(read.unknown().empty());
}

TEST(Pickle, ReadsTheFormsThatTorchAndPythonWrite) {
  // {"a": 1.5, "b": (None, 300, -2, 5), "a": "last"}, with a memo, and [1, 2] as one object twice
  const Pickle read = unpickled(
      kBegin + "}q\x00("s + text("a") + "q\x01G\x3f\xf8\x00\x00\x00\x00\x00\x00"s + text("b") +
      "(NM\x2c\x01J\xfe\xff\xff\xff\x8a\x01\x05t"s + "h\x01"s + text("last") + text("c") +
      "]r\x00\x01\x00\x00(K\x01K\x02"s + "e" + text("d") + "j\x00\x01\x00\x00u."s);
  const Value& root = read.root();
  EXPECT_EQ(root.find("a")->text, "last");
  EXPECT_EQ(root.items[1]->real, 1.5);
  const auto& tuple = root.find("b")->items;
  EXPECT_EQ(tuple[1]->number, 300);
  EXPECT_EQ(tuple[2]->number, -2);
  EXPECT_EQ(tuple[3]->number, 5);
  EXPECT_EQ(root.find("c"), root.find("d"));
  EXPECT_EQ(root.find("d")->items.size(), 2u);
  const Pickle longs =
      unpickled(kBegin + "(\x8a\x00\x8a\x01\xff\x8a\x09"s + std::string(9, 'x') + "\x86."s);
  EXPECT_EQ(longs.root().items[0]->number, -1);
  EXPECT_EQ(text_of(*longs.root().items[1]), "a number of more than 64 bits");
}

// Each of these runs a command, or reads a file, in Python's own unpickler.
TEST(Pickle, DoesNothingThatAPickleAsksFor) {
  const testing::TemporaryDirectory directory;
  const std::string mark = directory.string() + "/made";
  const std::string command = text("touch " + mark);
  for (const std::string& module : {"os"s, "posix"s, "subprocess"s, "builtins"s}) {
    const std::string call = "c" + module + "\nsystem\n" + command + "\x85";
    for (const std::string& body :
         {call + "R", "]" + call + "Ra", "}" + text("param") + call + "Rs", call + "\x81",
          call + "R}" + text("x") + "K\x01sb", "c" + module + "\nX\n)\x81" + call + "Rb",
          call + "Rq\x00"s + "0h\x00"s, call + "RQ", call + "R" + call + "R\x86",
          "ccollections\nOrderedDict\n(" + call + "Rt" + "R"}) {
      const Pickle read = unpickled(kBegin + body + ".");
      EXPECT_TRUE(read.unknown().contains(module + ".system")) << module;
      EXPECT_FALSE(text_of(read.root()).empty());
    }
    const Pickle read = unpickled(kBegin + call + "R.");
    EXPECT_TRUE(read.root().is(Kind::kCall));
    EXPECT_EQ(text_of(read.root()), module + ".system(...), which is not made");
  }
  EXPECT_FALSE(fs::exists(mark));
}

TEST(Pickle, WhatIsNotMadeHoldsNothingAndIsNamed) {
  const Pickle read =
      unpickled(kBegin + "}" + text("a") + "ccollections\ndefaultdict\n)R(" + text("x") + "K\x01u" +
                "s" + text("b") + "cdeep.speed\nScaler\n)\x81" + "K\x05" + "as.");
  EXPECT_EQ(text_of(*read.root().find("a")), "collections.defaultdict(...), which is not made");
  EXPECT_EQ(read.root().find("a")->find("x"), nullptr);
  EXPECT_EQ(text_of(*read.root().find("b")), "deep.speed.Scaler(...), which is not made");
  EXPECT_EQ(read.unknown(),
            (std::set<std::string>{"collections.defaultdict", "deep.speed.Scaler"}));
}

TEST(Pickle, ReadsTensors) {
  const Pickle read = unpickled(tensor("K\x18", "K\x02", "K\x02K\x03\x86", "K\x03K\x01\x86"));
  ASSERT_TRUE(read.root().is(Kind::kTensor));
  const PickledTensor& found = *read.root().tensor;
  EXPECT_EQ(found.dtype, "F32");
  EXPECT_EQ(found.storage, "0");
  EXPECT_EQ(found.first_element, 2u);
  EXPECT_EQ(found.size_bytes(), 24u);
  EXPECT_TRUE(found.is_contiguous());
  const Pickle turned = unpickled(tensor("K\x06", "K\x00"s, "K\x02K\x03\x86", "K\x01K\x02\x86"));
  EXPECT_FALSE(turned.root().tensor->is_contiguous());
  const Pickle scalar = unpickled(tensor("K\x01", "K\x00"s, ")", ")"));
  EXPECT_EQ(scalar.root().tensor->elements(), 1u);
  const Pickle parameter =
      unpickled(kBegin + "ctorch._utils\n_rebuild_parameter\n(" +
                "ctorch._utils\n_rebuild_tensor_v2\n(" + storage_id("BFloat16Storage", "K\x01") +
                "K\x00))tR\x88"s + "ccollections\nOrderedDict\n)RtR.");
  EXPECT_EQ(parameter.root().tensor->dtype, "BF16");
  EXPECT_TRUE(parameter.unknown().empty());
}

TEST(Pickle, RefusesTensorsThatCannotBe) {
  const std::string one = "K\x01\x85", zero = "K\x00"s,
                    two_to_48 = "\x8a\x07"s + "\0\0\0\0\0\0\x01"s,
                    two_to_49 = "\x8a\x07"s + "\0\0\0\0\0\0\x02"s;
  expect_fault(tensor("K\x03", zero, "K\x04\x85", one), "larger than its storage");
  expect_fault(tensor("K\x03", "K\x01", "K\x03\x85", one), "larger than its storage");
  expect_fault(tensor("K\x03", zero, "J\xff\xff\xff\xff\x85", one), "no number from 0 to 2^48");
  expect_fault(tensor("K\x03", zero, two_to_49 + "\x85", one), "no number from 0 to 2^48");
  expect_fault(tensor("K\x03", "J\xff\xff\xff\xff", one, one), "no place in it");
  expect_fault(tensor("K\x03", zero, "K\x01K\x01\x86", one), "other strides than sizes");
  expect_fault(tensor("K\x03", zero, two_to_48 + "K\x02\x86", "K\x01K\x01\x86"), "more than 2^48");
  expect_fault(tensor("K\x03", zero, two_to_48 + "\x85", one), "larger than its storage");
  expect_fault(tensor(two_to_49, zero, one, one), "larger than its storage");
  expect_fault(tensor("K\x03", zero, "(" + std::string(65, 'N') + "t", one), "at most 64 sizes");
  expect_fault(tensor("K\x03", zero, "]", one), "no tuple");
  expect_fault(kBegin + "ctorch._utils\n_rebuild_tensor_v2\n)R.", "lacks its shape");
  expect_fault(kBegin + "ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))tR."s, "has no storage");
  EXPECT_TRUE(unpickled(tensor("J\xff\xff\xff\xff", zero, one, one)).root().is(Kind::kCall));
}

TEST(Pickle, AStorageOfAnUnknownTypeIsNotATensor) {
  const Pickle read = unpickled(kBegin + "ctorch._utils\n_rebuild_tensor_v2\n(" +
                                storage_id("Evil", "K\x01") + "K\x00))tR."s);
  EXPECT_TRUE(read.root().is(Kind::kCall));
  EXPECT_TRUE(read.unknown().contains("torch.Evil"));
}

TEST(Pickle, NamesTheByteOfWhatIsNotAPickle) {
  expect_fault("", "byte 0 of its pickle: it is cut off");
  expect_fault(kBegin, "byte 2 of its pickle: it is cut off");
  expect_fault("\x80\x04N.", "is of protocol 4");
  expect_fault(kBegin + "S'x'\n.", "instruction 0x53 is not one of protocol 2");
  expect_fault(kBegin + ".", "takes from an empty stack");
  expect_fault(kBegin + "(.", "takes from an empty stack");
  expect_fault(kBegin + "t.", "lacks a mark");
  expect_fault(kBegin + "h\x07.", "gets what it has not kept");
  expect_fault(kBegin + "q\x07.", "takes from an empty stack");
  expect_fault(kBegin + "NNa.", "appends to what is no list");
  expect_fault(kBegin + "NNNs.", "sets items of what is no dict");
  expect_fault(kBegin + "}(Nu.", "a key has no value");
  expect_fault(kBegin + "cos\nsystem\nNR.", "the arguments of a call are no tuple");
  expect_fault(kBegin + "cos\nsystem", "a name is cut off");
  expect_fault(kBegin + "c" + std::string(2000, 'x') + "\n\n.", "a name is cut off, or too long");
  expect_fault(kBegin + "X\xff\xff\xff\xffx", "it is cut off");
  expect_fault(kBegin + "\x8b\xff\xff\xff\x7fx", "it is cut off");
}

TEST(Pickle, RefusesEveryTruncation) {
  PickleWriter out;
  const std::vector<std::int64_t> shape = {2, 3};
  out.dict([&] {
    out.text("param");
    out.tensor("F32", 0, shape);
    out.text("more");
    out.list([&] { out.integer(1 << 20); });
  });
  const std::string whole = out.finish();
  EXPECT_EQ(fault_of(whole), "none");
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_NE(fault_of(whole.substr(0, size)), "none") << size;
}

// Small pickles that would take all memory, or all of a stack, elsewhere.
TEST(Pickle, BoundsWhatAPickleTakes) {
  expect_fault(kBegin + std::string(kMostValues + 1, 'N') + ".", "too many values");
  expect_fault(kBegin + "N" + std::string(kMostValues, '2') + ".", "its stack is too high");
  expect_fault(kBegin + std::string(kMostValues + 1, '(') + ".", "too many marks");
  const Pickle deep = unpickled(kBegin + "N" + std::string(1'000'000, '\x85') + ".");
  EXPECT_EQ(text_of(deep.root()), "a tuple of 1");
  const Pickle cycle = unpickled(kBegin + "]q\x00h\x00"s + "a.");
  EXPECT_EQ(cycle.root().items[0], &cycle.root());
  std::vector<std::byte> huge(kMostPickleBytes + 1);
  EXPECT_THROW(Pickle(std::move(huge)), Fault);
}

// ---- files ----

class TensorFileTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_.string() + "/" + name; }
  void write(const std::string& name, const std::string& pickle,
             const std::vector<std::vector<float>>& storages) const {
    std::vector<std::uint64_t> sizes;
    for (const auto& storage : storages) sizes.push_back(storage.size() * sizeof(float));
    TensorFileWriter file(path(name), pickle, sizes, checkpoint::kSaving);
    for (std::size_t i = 0; i < storages.size(); ++i)
      file.write(i, std::as_bytes(std::span(storages[i])));
    file.finish();
  }
  std::string error_of(const std::string& name) const {
    try {
      TensorFile file(path(name));
      float value = 0;
      file.read(file.tensor(file.root(), "it"), 0, std::as_writable_bytes(std::span(&value, 1)));
    } catch (const Fault& fault) {
      return fault.what();
    }
    return "none";
  }
  testing::TemporaryDirectory directory_;
};

TEST_F(TensorFileTest, ReadsAnyPartOfATensor) {
  const std::vector<std::vector<float>> storages = {{1, 2, 3}, {4, 5, 6, 7}};
  PickleWriter out;
  const std::vector<std::int64_t> shape = {2, 2};
  out.tensor("F32", 1, shape);
  write("a.pt", out.finish(), storages);
  TensorFile file(path("a.pt"));
  const PickledTensor& tensor = file.tensor(file.root(), "it");
  std::vector<float> two(2);
  file.read(tensor, 8, std::as_writable_bytes(std::span(two)));
  EXPECT_EQ(two, (std::vector<float>{6, 7}));
}

TEST_F(TensorFileTest, NamesTheFileAndTheCause) {
  EXPECT_EQ(error_of("none.pt"), path("none.pt") + " is not there");
  write("a.pt", kBegin + "cos\nsystem\n" + text("true") + "\x85R.", {});
  EXPECT_EQ(error_of("a.pt"),
            path("a.pt") + ": it is no tensor, but os.system(...), which is not made");
  write("b.pt", tensor("K\x06", "K\x00"s, "K\x02K\x03\x86", "K\x01K\x02\x86"),
        {{1, 2, 3, 4, 5, 6}});
  EXPECT_EQ(error_of("b.pt"), path("b.pt") + ": the values of it do not lie one after the other");
  write("c.pt", tensor("K\x06", "K\x00"s, "K\x06\x85", "K\x01\x85"), {{1, 2}});
  EXPECT_EQ(error_of("c.pt"), path("c.pt") + ": the entry of it has 8 bytes, not 24");
  write("d.pt", tensor("K\x06", "K\x00"s, "K\x06\x85", "K\x01\x85"), {});
  EXPECT_EQ(error_of("d.pt"), path("d.pt") + ": it has no entry 'd/data/0'");
  write("e.pt", "cut", {});
  EXPECT_EQ(error_of("e.pt"),
            path("e.pt") + ": byte 0 of its pickle: a name is cut off, or too long");
  std::ofstream(path("f.pt")) << kBegin << "N.";
  EXPECT_NE(error_of("f.pt").find("a pickle without a zip file around it"), std::string::npos);
  std::ofstream(path("g.pt")) << "text";
  EXPECT_NE(error_of("g.pt").find("it is no zip file, or cut off: its 4 bytes"), std::string::npos);
  std::ofstream(path("h.pt")) << "";
  EXPECT_NE(error_of("h.pt").find("it is no zip file"), std::string::npos);
}
}  // namespace
}  // namespace headrace::tools::pickle::pickle_test
