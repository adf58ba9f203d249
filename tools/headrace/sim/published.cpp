// SPDX-License-Identifier: Apache-2.0
#include "sim/published.hpp"

#include <fmt/core.h>

#include <memory>

#include "model/model.hpp"

namespace headrace::tools {
namespace {
constexpr const char* kPerGpu = "Tflop/s per GPU";
// Of the same GPUs with nothing offloaded.
constexpr double kComputeRate = 50e12;
constexpr double kOneLink = 12e9;  // host to one GPU, while the others' links are idle

// A row of ZeRO-Infinity's table 1.
struct Config {
  std::uint32_t nodes = 1;
  const char* model = "";
  std::uint32_t batch = 1;  // of the GPUs that share it
  std::uint32_t tensor_parallel = 1;
  OffloadDevice parameters = OffloadDevice::kCpu, state = OffloadDevice::kCpu;
};

Scenario scenario_of(const Config& c) {
  Scenario s;
  s.machine = *known_machine("dgx-2");
  s.machine.flops = {kComputeRate, "assumed"};
  assume_the_rest(s.machine);
  s.nodes = c.nodes;
  s.model = std::make_shared<PlannedModel>(
      sliced(planned_model(model_of(c.model), {}), c.tensor_parallel));
  s.sequence = 1024;
  s.batch = c.batch;
  s.activations = Activations::kCheckpointedInHostMemory;
  s.settings.offload_parameters = c.parameters;
  s.settings.offload_optimizer = c.state;
  s.settings.host_budget_auto = c.state == OffloadDevice::kCpu;
  s.settings.prefetch_groups = 1;  // a layer of these models is gigabytes
  return s;
}

PublishedPoint point_of(std::string what, double published, std::string relation,
                        const World& world) {
  PublishedPoint point{std::move(what), kPerGpu, published, std::move(relation)};
  if (world.fits()) {
    point.simulated = world.flops_per_second() / 1e12;
  } else {
    point.refusal = short_refusal(world);
  }
  return point;
}

const Config kTrillionOn512{32, "gpt-25600x128", 20, 4};

// The batch of a node is the same on all numbers of nodes.
void add_trillions(Planning& planning, std::vector<PublishedPoint>& points) {
  Config config = kTrillionOn512;
  const World all = world_of(planning, scenario_of(config));
  config.nodes = 4;
  config.parameters = config.state = OffloadDevice::kNvme;
  const World few = world_of(planning, scenario_of(config));
  points.push_back(point_of("1 T parameters on 512 GPUs", 49, "", all));
  points.push_back(point_of("1 T parameters on 64 GPUs", 44, "", few));
  PublishedPoint growth{"512 GPUs over 64, 8 times as many", "times as fast", 8, "at least"};
  if (all.fits() && few.fits())
    growth.simulated = 8 * all.flops_per_second() / few.flops_per_second();
  points.push_back(growth);
}

void add_one_node(Planning& planning, std::vector<PublishedPoint>& points) {
  const auto add = [&](const char* what, const Config& config) {
    points.push_back(point_of(what, 40, "at least", world_of(planning, scenario_of(config))));
  };
  add("10 B on one DGX-2", {1, "gpt-4096x50", 8, 1});
  add("50 B on one DGX-2", {1, "gpt-8192x62", 26, 1, OffloadDevice::kCpu, OffloadDevice::kNvme});
  add("100 B on one DGX-2", {1, "gpt-8192x125", 24, 1, OffloadDevice::kCpu, OffloadDevice::kNvme});
}

void add_larger(Planning& planning, std::vector<PublishedPoint>& points) {
  const auto add = [&](const char* what, double published, const char* relation,
                       const Config& config) {
    points.push_back(point_of(what, published, relation, world_of(planning, scenario_of(config))));
  };
  add("0.5 T on 512 GPUs", 49, "at most", {32, "gpt-18432x124", 28, 4});
  constexpr OffloadDevice kNvme = OffloadDevice::kNvme;
  add("5 T on 512 GPUs", 49, "at most", {32, "gpt-49152x174", 12, 4, kNvme, kNvme});
  add("10 T on 512 GPUs", 34, "at least", {32, "gpt-65536x200", 8, 4, kNvme, kNvme});
  add("20 T on 512 GPUs", 34, "", {32, "gpt-90112x205", 10, 8, kNvme, kNvme});
}

// ZeRO-Offload's owner of a layer takes in all of its gradient by one link, and backward waits. The
// activations of 8 B have room, so they may be kept; the paper's may have been computed again.
void add_gradient_offload(Planning& planning, std::vector<PublishedPoint>& points) {
  for (const bool again : {false, true}) {
    Scenario s = scenario_of({4, "gpt-8192x10", 2, 1});
    s.activations = again ? Activations::kCheckpointed : Activations::kKept;
    s.settings.hierarchical_reduce_ranks = s.ranks_per_node();
    const World world = world_of(planning, s);
    PublishedPoint point{"backward of 8 B on 64 GPUs, over ZeRO-Offload's", "times as fast", 2, ""};
    if (again) point.what = "... with activations computed again";
    if (world.fits()) {
      const double ours = world.outcome.prediction.backward.seconds;
      const double gradients = 2 * static_cast<double>(s.model->parameters);
      point.simulated = (ours + gradients / kOneLink) / ours;
    } else {
      point.refusal = short_refusal(world);
    }
    points.push_back(point);
  }
}

std::vector<std::pair<std::string, std::string>> assumptions() {
  const Scenario s = scenario_of(kTrillionOn512);
  std::vector<std::pair<std::string, std::string>> all{
      {"models",
       "like GPT-2 with 50,257 tokens: widths, layers, batches and tensor parallelism "
       "of the paper's table 1; sequences of 1024"},
      {"operations",
       "2 per token and matrix element in forward, 4 in backward, 2 to compute "
       "forward again; attention's beside them"},
      {"flops",
       "50e12 of a GPU: the same GPUs with nothing offloaded, 0.5 T by 3D parallelism "
       "(figure 5a); 40 % of the peak"},
      {"activations",
       "checkpoints of each layer in host memory, a part at each rank of tensor "
       "parallelism"},
      {"state",
       "in host memory where the paper keeps parameters or state on GPUs, which Headrace "
       "does not"},
      {"growth", "64 GPUs have parameters and state on NVMe, and a node's batch is that of 512"},
      {"backward of 8 B",
       "activations are kept, since they have room; and computed again, in case the paper's were"},
      {"ZeRO-Offload",
       "a layer's gradient leaves by one link of 12 GB/s, and backward waits. Ours are summed "
       "within a node, and then go to their owners (headrace.hierarchical_reduce_ranks)"}};
  for (const FigureName& name : used_figures(s)) {
    const Figure& figure = s.machine.*name.figure;
    if (name.figure != &Machine::flops)
      all.emplace_back(name.name,
                       fmt::format("{:.4g} {}, {}", figure.value, name.unit, figure.source));
  }
  return all;
}
}  // namespace

double PublishedPoint::ratio() const {
  const double exact = simulated / published;
  const bool holds =
      (relation == "at least" && exact >= 1) || (relation == "at most" && exact > 0 && exact <= 1);
  return holds ? 1 : exact;
}

PublishedResult simulate_published(Planning& planning) {
  PublishedResult result{.points = {}, .assumptions = assumptions()};
  add_trillions(planning, result.points);
  add_one_node(planning, result.points);
  add_gradient_offload(planning, result.points);
  add_larger(planning, result.points);
  return result;
}
}  // namespace headrace::tools
