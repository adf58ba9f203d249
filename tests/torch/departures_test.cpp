// SPDX-License-Identifier: Apache-2.0
// What a trainer does beside calling its blocks one after the other: each departure gives the
// gradients of plain LibTorch bit for bit, and after some steps the values and the state of an
// engine that was fed those, wherever the bytes live.
//
// Where gradients of one parameter arrive several times before a step, each of them is LibTorch's,
// and their sum is that of f32 additions in the order they arrived, from the first one.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "headrace/torch/offload.hpp"
#include "torch/models.hpp"
#include "torch/swap_folder.hpp"

namespace {
using headrace::Code;
using headrace::Error;
using headrace::Settings;
using headrace::torch::Group;
using headrace::torch::Offload;
using headrace_test::GradientLog;
using headrace_test::same_bits;
using headrace_test::SwapFolder;
using torch::Tensor;

constexpr std::int64_t kWidth = 8;
constexpr int kPieces = 4, kSteps = 3;

// x + down(dropout(gelu(up(norm(x))))) + x base, with a loss of its own on the side; `base` is
// never trained where the piece is made with a frozen one, and read last in backward.
struct PieceImpl : torch::nn::Module {
  PieceImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module("up", torch::nn::Linear(kWidth, 2 * kWidth))),
        down(register_module("down", torch::nn::Linear(2 * kWidth, kWidth))),
        base(register_parameter("base", torch::randn({kWidth, kWidth}) / 8)) {}
  Tensor forward(const Tensor& x) {
    const Tensor straight = x.mm(base);
    const Tensor inner = torch::dropout(torch::gelu(up(norm(x))), dropout, /*train=*/true);
    auxiliary = inner.square().mean() + up->weight.square().sum() * 0.125;
    return x + straight + down(inner);
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
  Tensor base;
  Tensor auxiliary;
  double dropout = 0;
};
TORCH_MODULE(Piece);

// The same for a plain and an offloaded model.
struct Model {
  std::vector<Piece> pieces;
  std::function<Tensor(int piece, const std::function<Tensor()>& code)> run;

  Tensor call(int i, const Tensor& x) {
    return run(i, [&] { return pieces[static_cast<std::size_t>(i)](x); });
  }
  Tensor forward(Tensor x) {
    for (int i = 0; i < kPieces; ++i) x = call(i, x);
    return x;
  }
  Tensor auxiliary() {
    Tensor sum = torch::zeros({});
    for (auto& piece : pieces) sum = sum + piece->auxiliary;
    return sum;
  }
};

std::vector<Piece> make_pieces() {
  torch::manual_seed(7);
  std::vector<Piece> pieces;
  for (int i = 0; i < kPieces; ++i) pieces.emplace_back();
  return pieces;
}
Tensor input(int step) {
  torch::manual_seed(50 + step);
  return torch::randn({3, kWidth});
}
std::string group_name(int i) { return "piece." + std::to_string(i); }

// Takes gradients away as they arrive, as the adapter does: each arrival is one entry.
class Arrivals {
 public:
  void watch(const std::string& name, const Tensor& parameter) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Hook>(log_, name));
  }
  std::vector<Tensor>& of(const std::string& name) { return (*log_)[name]; }
  std::map<std::string, std::vector<Tensor>>& all() { return *log_; }

 private:
  using Log = std::map<std::string, std::vector<Tensor>>;
  struct Hook final : torch::autograd::PostAccumulateGradHook {
    Hook(std::shared_ptr<Log> log, std::string name) : log(std::move(log)), name(std::move(name)) {}
    void operator()(const Tensor& parameter) override {
      (*log)[name].push_back(parameter.grad().detach().clone());
      parameter.mutable_grad().reset();
    }
    std::shared_ptr<Log> log;
    std::string name;
  };
  std::shared_ptr<Log> log_ = std::make_shared<Log>();
};

// Plain LibTorch, its gradients summed in f32 and handed to an engine that knows no torch.
struct Plain : Model {
  Plain() : engine(Settings{}) {
    pieces = make_pieces();
    run = [](int, const std::function<Tensor()>& code) { return code(); };
    for (int i = 0; i < kPieces; ++i) {
      std::vector<headrace::ParameterSpec> specs;
      for (const auto& item : pieces[static_cast<std::size_t>(i)]->named_parameters()) {
        specs.push_back({item.key(), headrace::DType::kF32, item.value().sizes().vec(), {}});
        tensors.push_back(item.value());
        arrivals.watch(group_name(i) + "." + item.key(), item.value());
      }
      groups.push_back(engine.add_group(group_name(i), specs));
    }
    engine.freeze();
    for (const auto group : groups) {
      engine.load(group, [&](headrace::ParameterId id, std::span<std::byte> values) {
        std::memcpy(values.data(), tensors[id.index].data_ptr<float>(), values.size());
      });
    }
  }
  void step() {
    for (auto& [name, gradients] : arrivals.all()) {
      if (gradients.empty()) continue;
      Tensor sum = gradients.front().clone();
      for (std::size_t i = 1; i < gradients.size(); ++i) sum += gradients[i];
      const Tensor dense = sum.contiguous();
      engine.add_gradient(engine.parameter(name), dense.data_ptr<float>(), headrace::DType::kF32);
    }
    engine.step({.learning_rate = 0.01f});
    torch::NoGradGuard no_grad;
    for (std::uint32_t id = 0; id < tensors.size(); ++id) {
      Tensor values = torch::empty(tensors[id].sizes());
      engine.store({id}, headrace::Content::kWeight,
                   [&](std::uint64_t first, std::span<const std::byte> bytes) {
                     std::memcpy(values.data_ptr<float>() + first, bytes.data(), bytes.size());
                   });
      tensors[id].copy_(values);
    }
    arrivals.all().clear();
  }
  headrace::Engine engine;
  std::vector<headrace::GroupId> groups;
  std::vector<Tensor> tensors;  // by ParameterId
  Arrivals arrivals;
};

enum class Serve { kOff, kOnDemand };
struct Offloaded : Model {
  Offloaded(const Settings& settings, Serve serve, bool repeated = false) : offload(settings) {
    pieces = make_pieces();
    for (int i = 0; i < kPieces; ++i) {
      Piece& piece = pieces[static_cast<std::size_t>(i)];
      log.watch(group_name(i) + ".", *piece);
      groups.push_back(offload.add_group(group_name(i), piece));
    }
    run = [this](int i, const std::function<Tensor()>& code) {
      return offload.run(groups[static_cast<std::size_t>(i)], code);
    };
    if (serve == Serve::kOnDemand) offload.serve_on_demand();
    if (repeated) offload.expect_repeated_gradients();
    offload.freeze();
  }
  bool all_parked() const {
    for (const auto& piece : pieces) {
      for (const auto& parameter : piece->parameters()) {
        try {
          parameter.data_ptr();
          return false;
        } catch (const c10::Error&) {
        }
      }
    }
    return true;
  }
  Offload offload;
  std::vector<Group<PieceImpl>> groups;
  GradientLog log;
};

struct Departure {
  const char* name;
  std::function<void(Model& model, int step)> pass;  // forward and backward of one step
  bool touches = false;   // uses parameters outside of their group's calls
  bool repeated = false;  // gradients arrive several times before a step
};
void PrintTo(const Departure& departure, std::ostream* out) { *out << departure.name; }

void backward(const Tensor& loss, bool retain = false) { loss.backward({}, retain); }
Tensor loss_of(const Tensor& output) { return output.square().sum(); }

const Departure kDepartures[] = {
    {"NoDeparture", [](Model& m, int step) { backward(loss_of(m.forward(input(step)))); }},
    {"AuxiliaryLossWithTheOutput",
     [](Model& m, int step) {
       const Tensor output = m.forward(input(step));
       backward(loss_of(output) + m.auxiliary());
     }},  // its nodes run between those of the output, where the group is bound
    {"AuxiliaryLossBeforeTheOutput",
     [](Model& m, int step) {
       const Tensor output = m.forward(input(step));
       backward(m.auxiliary(), true);
       backward(loss_of(output));
     },
     true, true},
    {"AuxiliaryLossAfterTheOutput",
     [](Model& m, int step) {
       const Tensor output = m.forward(input(step));
       backward(loss_of(output), true);
       backward(m.auxiliary());
     },
     true, true},
    {"AuxiliaryLossWithoutTheOutput",
     [](Model& m, int step) {
       m.forward(input(step));
       backward(m.auxiliary());
     },
     true},
    {"WeightCapturedByAnotherBlock",
     [](Model& m, int step) {
       Tensor x = m.call(0, input(step));
       for (int i = 1; i < kPieces; ++i) {
         x = m.run(i,
                   [&] { return m.pieces[static_cast<std::size_t>(i)](x.mm(m.pieces[0]->base)); });
       }
       backward(loss_of(x));
     },
     true},
    {"WeightUsedOutsideOfEveryCall",
     [](Model& m, int step) {
       const Tensor x = m.forward(input(step));
       backward(loss_of(torch::linear(x, m.pieces[1]->up->weight, m.pieces[2]->up->bias)));
     },
     true},
    {"ParameterReturnedAsAView",
     [](Model& m, int step) {
       const Tensor view = m.run(0, [&] { return m.pieces[0]->up->weight.t(); });
       const Tensor x = m.forward(input(step));
       backward(loss_of(x.mm(view)));
     },
     true},
    {"ParameterReturnedItself",
     [](Model& m, int step) {
       const Tensor weight = m.run(0, [&]() -> Tensor { return m.pieces[0]->base; });
       backward(loss_of(m.forward(input(step)).mm(weight)));
     },
     true},
    {"DoubleBackward",
     [](Model& m, int step) {
       const Tensor x = input(step).requires_grad_();
       const Tensor loss = loss_of(m.forward(x));
       const auto slope = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true,
                                                /*create_graph=*/true);
       backward(loss + slope[0].square().sum());
     },
     true},
    {"ParameterReadWithoutItsGradient",
     [](Model& m, int step) {
       Tensor x = input(step).requires_grad_();
       for (int i = 0; i < kPieces; ++i) {
         x = m.run(i, [&] {
           const Tensor read_last = x.mm(m.pieces[static_cast<std::size_t>(i)]->base.detach());
           return read_last + m.pieces[static_cast<std::size_t>(i)](x * 0.5);
         });
       }
       backward(loss_of(x));
     },
     true},
    {"RetainedGraph",
     [](Model& m, int step) {
       const Tensor loss = loss_of(m.forward(input(step)));
       backward(loss, true);
       backward(loss);
     },
     false, true},
    {"BlocksCalledTwice",
     [](Model& m, int step) { backward(loss_of(m.forward(m.forward(input(step)) * 0.125))); }},
    {"BlocksSkipped",
     [](Model& m, int step) {
       Tensor x = input(step);
       for (int i = 0; i < kPieces; ++i) {
         if (i != step) x = m.call(i, x);
       }
       backward(loss_of(x));
     }},
    {"BlocksReordered",
     [](Model& m, int step) {
       Tensor x = input(step);
       for (int i = 0; i < kPieces; ++i) x = m.call((i * (step == 1 ? 3 : 1) + step) % kPieces, x);
       backward(loss_of(x));
     }},
    {"ParametersUnused",
     [](Model& m, int step) {
       Tensor x = input(step);
       for (int i = 0; i < kPieces; ++i) {
         x = m.run(i, [&] { return x.mm(m.pieces[static_cast<std::size_t>(i)]->base); });
       }
       backward(loss_of(x));
     }},
    {"Dropout",
     [](Model& m, int step) {
       for (auto& piece : m.pieces) piece->dropout = 0.25;
       backward(loss_of(m.forward(input(step))));
     }},
    {"FrozenParameterReadAfterTheLastGradient",
     [](Model& m, int step) {
       for (auto& piece : m.pieces) piece->base.set_requires_grad(false);
       backward(loss_of(m.forward(input(step).requires_grad_())));
     }},
    {"FrozenAndUnfrozenBetweenSteps",
     [](Model& m, int step) {
       m.pieces[1]->up->weight.set_requires_grad(step != 1);
       for (const auto& parameter : m.pieces[2]->parameters())
         parameter.set_requires_grad(step != 1);
       backward(loss_of(m.forward(input(step))));
     }},
};

enum class Place { kMemory, kNvme, kNvmeTwoBuffers };
std::string name_of(Place place) {
  if (place == Place::kMemory) return "Memory";
  return place == Place::kNvme ? "Nvme" : "NvmeTwoBuffers";
}
Settings settings_of(Place place, const std::string& folder) {
  if (place == Place::kMemory) return {};
  Settings settings = headrace_test::all_on_nvme(folder);
  if (place == Place::kNvmeTwoBuffers) settings.prefetch_groups = 1;
  return settings;
}

class Departures : public testing::TestWithParam<std::tuple<Departure, Place>> {
 protected:
  const Departure& departure() const { return std::get<0>(GetParam()); }
  Settings settings() const { return settings_of(std::get<1>(GetParam()), folder_.path()); }

 private:
  SwapFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Each, Departures,
                         testing::Combine(testing::ValuesIn(kDepartures),
                                          testing::Values(Place::kMemory, Place::kNvme,
                                                          Place::kNvmeTwoBuffers)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + std::string("In") +
                                  name_of(std::get<1>(info.param));
                         });

void expect_same_arrivals(Plain& plain, Offloaded& offloaded,
                          std::map<std::string, std::size_t>& seen) {
  for (const auto& [name, theirs] : plain.arrivals.all()) {
    const auto& ours = offloaded.log.of(name);
    std::size_t& first = seen[name];
    ASSERT_EQ(ours.size() - first, theirs.size()) << name;
    for (std::size_t i = 0; i < theirs.size(); ++i)
      EXPECT_TRUE(same_bits(ours[first + i], theirs[i])) << name << ", arrival " << i;
    first = ours.size();
  }
}

TEST_P(Departures, GiveTheGradientsOfPlainLibTorchAndTheSameStateAfterSomeSteps) {
  Plain plain;
  Offloaded offloaded(settings(), Serve::kOnDemand, departure().repeated);
  std::map<std::string, std::size_t> seen;
  for (int step = 0; step < kSteps; ++step) {
    departure().pass(plain, step);
    departure().pass(offloaded, step);
    expect_same_arrivals(plain, offloaded, seen);
    plain.step();
    offloaded.offload.step({.learning_rate = 0.01f});
    EXPECT_TRUE(offloaded.all_parked()) << "step " << step;
  }
  EXPECT_EQ(offloaded.offload.engine().hash_parameters(), plain.engine.hash_parameters());
  EXPECT_EQ(offloaded.offload.engine().hash_optimizer_state(), plain.engine.hash_optimizer_state());
  EXPECT_EQ(!offloaded.offload.served_on_demand().empty(), departure().touches);
}

// Refused by name, or served just the same where nothing is touched.
TEST_P(Departures, WithoutServiceOnDemandAreRefusedByNameWhereTheyTouch) {
  Plain plain;
  Offloaded offloaded(settings(), Serve::kOff, departure().repeated);
  std::map<std::string, std::size_t> seen;
  for (int step = 0; step < (departure().touches ? 1 : kSteps); ++step) {
    if (departure().touches) {
      try {
        departure().pass(offloaded, step);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const c10::Error& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("group 'piece."), std::string::npos) << text;
        EXPECT_NE(text.find("offload.serve_on_demand()"), std::string::npos) << text;
        EXPECT_NE(text.find("offload.gathered("), std::string::npos) << text;
      }
      offloaded.offload.discard_gradients();
      EXPECT_TRUE(offloaded.all_parked());
      continue;
    }
    departure().pass(plain, step);
    departure().pass(offloaded, step);
    expect_same_arrivals(plain, offloaded, seen);
    EXPECT_TRUE(offloaded.all_parked()) << "step " << step;
    plain.step();
    offloaded.offload.step({.learning_rate = 0.01f});
  }
  EXPECT_TRUE(offloaded.offload.served_on_demand().empty());
  if (departure().touches) return;
  EXPECT_EQ(offloaded.offload.engine().hash_parameters(), plain.engine.hash_parameters());
  EXPECT_EQ(offloaded.offload.engine().hash_optimizer_state(), plain.engine.hash_optimizer_state());
}

TEST(DeparturesThatTouchNothing, NeedMemoryForNoMoreThanOneGroup) {
  for (const Departure& departure : kDepartures) {
    if (departure.touches) continue;
    SCOPED_TRACE(departure.name);
    const SwapFolder folder;
    Settings settings = headrace_test::all_on_nvme(folder.path());
    settings.prefetch_groups = 0;
    Plain plain;
    Offloaded offloaded(settings, Serve::kOff, departure.repeated);
    std::map<std::string, std::size_t> seen;
    departure.pass(plain, 0);
    departure.pass(offloaded, 0);
    expect_same_arrivals(plain, offloaded, seen);
    EXPECT_TRUE(offloaded.all_parked());
  }
}

// ---- gradients that arrive twice ----

TEST(RepeatedGradients, ThatWereNotDeclaredAreRefusedByName) {
  Offloaded offloaded({}, Serve::kOnDemand);
  try {
    kDepartures[2].pass(offloaded, 0);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kWrongState);
    const std::string text = error.what();
    EXPECT_NE(text.find("'piece."), std::string::npos) << text;
    EXPECT_NE(text.find("expect_repeated_gradients()"), std::string::npos) << text;
  }
}

TEST(RepeatedGradients, CanBeDeclaredForOneGroup) {
  Piece a, b;
  Offload offload((Settings()));
  const auto first = offload.add_group("a", a);
  const auto second = offload.add_group("b", b);
  offload.expect_repeated_gradients(first);
  offload.freeze();
  const Tensor loss = offload(first, input(0)).sum();
  backward(loss, true);
  backward(loss);
  const Tensor other = offload(second, input(0)).sum();
  backward(other, true);
  EXPECT_THROW(backward(other), Error);
}

// ---- exceptions, after which the next step is as if nothing had been ----

struct Interrupted : testing::TestWithParam<Place> {
  // `fail` on the offloaded model, then as many good steps as plain LibTorch takes.
  void expect_unharmed(const std::function<void(Offloaded&)>& fail) {
    const SwapFolder folder;
    Plain plain;
    Offloaded offloaded(settings_of(GetParam(), folder.path()), Serve::kOnDemand);
    for (int step = 0; step < kSteps; ++step) {
      fail(offloaded);
      offloaded.offload.discard_gradients();
      EXPECT_TRUE(offloaded.all_parked());
      kDepartures[5].pass(plain, step);
      kDepartures[5].pass(offloaded, step);
      plain.step();
      offloaded.offload.step({.learning_rate = 0.01f});
    }
    EXPECT_EQ(offloaded.offload.engine().hash_parameters(), plain.engine.hash_parameters());
    EXPECT_EQ(offloaded.offload.engine().hash_optimizer_state(),
              plain.engine.hash_optimizer_state());
  }
};
INSTANTIATE_TEST_SUITE_P(Places, Interrupted,
                         testing::Values(Place::kMemory, Place::kNvme, Place::kNvmeTwoBuffers),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(Interrupted, ByAnExceptionInForward) {
  expect_unharmed([](Offloaded& m) {
    EXPECT_THROW(m.run(1,
                       [&]() -> Tensor {
                         m.pieces[0]->base.sum();  // on demand
                         throw std::runtime_error("in forward");
                       }),
                 std::runtime_error);
    EXPECT_THROW(m.run(1, [&] { return m.pieces[0](torch::ones({3, kWidth + 1})); }), c10::Error);
  });
}

TEST_P(Interrupted, ByAnExceptionInBackward) {
  expect_unharmed([](Offloaded& m) {
    Tensor x = m.call(0, input(9));
    x.register_hook([](const Tensor&) { throw std::runtime_error("in backward"); });
    x = m.run(1, [&] { return m.pieces[1](x).mm(m.pieces[2]->base); });
    EXPECT_THROW(backward(loss_of(x)), std::runtime_error);
  });
}

TEST_P(Interrupted, ByAnUpdateWhoseGradientIsNotFinite) {
  expect_unharmed([](Offloaded& m) {
    backward(loss_of(m.forward(input(9))) * std::numeric_limits<float>::infinity());
    try {
      m.offload.step({.learning_rate = 0.01f});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kNotFinite);
      EXPECT_NE(std::string(error.what()).find("'piece."), std::string::npos) << error.what();
    }
  });
}

TEST(InterruptedForGood, ByADriveThatFailsInTheUpdateEveryLaterUseNamesTheCause) {
  const SwapFolder folder;
  Settings settings = headrace_test::all_on_nvme(folder.path());
  settings.offload_parameters = headrace::OffloadDevice::kCpu;
  Offloaded offloaded(settings, Serve::kOnDemand);
  kDepartures[5].pass(offloaded, 0);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (entry.path().extension() == ".swap") std::filesystem::resize_file(entry.path(), 4096);
  }
  std::string cause;
  try {
    offloaded.offload.step({.learning_rate = 0.01f});
    offloaded.offload.engine().finish_step();  // where the update was deferred
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    cause = error.what();
    EXPECT_NE(cause.find(".swap"), std::string::npos) << cause;
  }
  EXPECT_THROW(offloaded.offload.step({.learning_rate = 0.01f}), Error);
  EXPECT_TRUE(offloaded.all_parked());
  offloaded.offload.close();
}
}  // namespace
