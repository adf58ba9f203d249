// SPDX-License-Identifier: Apache-2.0
// mpi_world CASE: one rank's part of a case of mpi_test.cpp, under mpirun. Rank 0 says
// "CASE: passed"; a rank that finds a fault says which, and ends the job.
#include "headrace/mpi.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "collective/transport_conformance.hpp"
#include "headrace/error.hpp"
#include "support/world_training.hpp"

namespace headrace::collective {
namespace {
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::shared_ptr<Transport> make() { return make_mpi_transport(MPI_COMM_WORLD); }

// Every case in a new transport, over what the last one left behind.
void conformance() {
  for (const TransportCase& one : kTransportCases) {
    const auto transport = make();
    require(transport->name() == "mpi", "it has another name");
    try {
      one.run(*transport);
    } catch (const std::exception& error) {
      throw std::runtime_error(std::string(one.name) + ": " + error.what());
    }
  }
}

// Pieces of one chunk and of several, in two lanes at once.
void passes_large_pieces() {
  const auto transport = make();
  for (const std::size_t size : {2048u, 2049u, (4u << 20) + 1, 9'000'000u}) {
    PieceExchange one(*transport, size, [&](std::uint32_t from, std::uint32_t to) {
      return from < to ? size : size / 3;
    });
    PieceExchange beside(*transport, size + 1, [&](auto, auto) { return size; });
    one.start(*transport, Lane::kReduce);
    beside.start(*transport, Lane::kGather);
    one.check();
    beside.check();
  }
}

// Waits until rank 0 has come this far, and posted it.
pid_t process_of_rank_0(Transport& transport) {
  pid_t process = ::getpid();
  if (transport.rank() == 0) transport.post(std::as_bytes(std::span(&process, 1)));
  std::vector<Transport::Post> posts(transport.world_size());
  while (posts[0].number == 0) {
    std::this_thread::sleep_for(milliseconds(5));
    transport.read_posts(posts);
  }
  std::memcpy(&process, posts[0].bytes.data(), sizeof(process));
  return process;
}

// A call that only gives ends when the other takes: none runs ahead of it.
void gives_without_taking() {
  const auto transport = make();
  const auto one_way = [](auto from, auto to) { return from == 0 && to == 1 ? 500u : 0u; };
  PieceExchange first(*transport, 0, one_way);
  if (transport->rank() == 0) {
    first.start(*transport, Lane::kGather);
    require(!first.end().within(milliseconds(50)), "it ended before rank 1 made its call");
  }
  process_of_rank_0(*transport);
  if (transport->rank() != 0) first.start(*transport, Lane::kGather);
  first.check();
  for (std::size_t call = 1; call < 200; ++call) {
    PieceExchange one(*transport, call, one_way);
    one.start(*transport, Lane::kGather);
    one.check();
  }
  meet(*transport);
}

void lets_rank_1_exit() {
  const auto transport = make();
  meet(*transport);
  if (transport->rank() == 1) {
    std::thread([] {
      std::this_thread::sleep_for(milliseconds(100));
      std::_Exit(9);
    }).detach();
  }
  PieceExchange waits(*transport, 1, [](std::uint32_t, std::uint32_t) { return 1'000'000u; });
  if (transport->rank() != 0) waits.start(*transport, Lane::kReduce);
  require(transport->rank() == 0 || transport->world_size() > 1, "a world of one");
  std::this_thread::sleep_for(std::chrono::minutes(1));
}

// Large calls of every lane, which wait for rank 0.
class WaitingCalls {
 public:
  explicit WaitingCalls(Transport& transport) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      calls_[lane].emplace(transport, lane, [](auto, auto) { return 9'000'000u; });
      calls_[lane]->start(transport, static_cast<Lane>(lane));
    }
  }
  void require_error() {
    for (auto& call : calls_) {
      require(call->end().within(milliseconds(0)), "abort() left a call pending");
      require(!call->end().error().empty(), "a call ended although rank 0 never came");
    }
  }

 private:
  std::optional<PieceExchange> calls_[kLanes];
};

// Rank 0 lives, and never makes the call. It aborts only when all others have, and posted so.
void aborts_though_a_rank_never_comes() {
  const auto transport = make();
  meet(*transport);
  std::vector<Transport::Post> posts(transport->world_size());
  const auto wait_for_posts = [&](std::size_t first) {
    const Clock::time_point end = Clock::now() + std::chrono::seconds(10);
    const auto posted = [](const Transport::Post& post) { return post.number == 1; };
    while (!std::ranges::all_of(std::span(posts).subspan(first), posted)) {
      require(Clock::now() < end, "a post after abort() did not come");
      std::this_thread::sleep_for(milliseconds(5));
      transport->read_posts(posts);
    }
  };
  std::optional<WaitingCalls> calls;
  if (transport->rank() == 0) {
    wait_for_posts(1);
  } else {
    calls.emplace(*transport);
    std::this_thread::sleep_for(milliseconds(200));
  }
  const Clock::time_point begin = Clock::now();
  transport->abort();
  require(Clock::now() - begin < std::chrono::seconds(2), "abort() took too long");
  if (calls) calls->require_error();
  const char text[] = "why";
  transport->post(std::as_bytes(std::span(text)));
  wait_for_posts(0);
}

void wait_until_stopped(pid_t process) {
  const auto is_stopped = [&] {
    std::string text;
    std::getline(std::ifstream("/proc/" + std::to_string(process) + "/stat"), text);
    return text.find(") T ") != std::string::npos;
  };
  while (!is_stopped()) std::this_thread::sleep_for(milliseconds(5));
}

// Rank 0 is stopped, so that no thread of it can answer; and goes on when the others have aborted.
void aborts_though_a_rank_stands_still() {
  const auto transport = make();
  const pid_t process = process_of_rank_0(*transport);
  meet(*transport);
  if (transport->rank() == 0) {
    std::raise(SIGSTOP);
    return;
  }
  wait_until_stopped(process);
  WaitingCalls calls(*transport);
  std::this_thread::sleep_for(milliseconds(200));
  const Clock::time_point begin = Clock::now();
  transport->abort();
  require(Clock::now() - begin < std::chrono::seconds(5), "abort() took too long");
  calls.require_error();
  ::kill(process, SIGCONT);
}

// Rank 1 aborts in the middle of chunks, and uses its memory again at once: a call that ends well
// elsewhere still has the bytes that were given, and nothing comes into what was to be taken.
void lets_memory_go_when_it_aborts() {
  constexpr std::size_t kBytes = 12'000'000;
  for (int round = 0; round < 8; ++round) {
    const auto transport = make();
    const std::uint32_t rank = transport->rank();
    std::vector<std::byte> give(kBytes, std::byte{0x77}), take(kBytes, std::byte{0xee});
    std::vector<Transport::Piece> gives(transport->world_size()), takes(transport->world_size());
    if (rank < 2) {
      gives[1 - rank] = {give.data(), kBytes};
      takes[1 - rank] = {take.data(), kBytes};
    }
    meet(*transport);
    TransportCallEnd end;
    transport->all_to_all(Lane::kGather, {}, gives, takes, end.done());
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::microseconds(300 * round));
      transport->abort();
      const std::string error = end.error();
      std::ranges::fill(give, std::byte{0xdd});
      if (!error.empty()) std::ranges::fill(take, std::byte{0x11});
      std::this_thread::sleep_for(milliseconds(30));
      const std::byte expected = error.empty() ? std::byte{0x77} : std::byte{0x11};
      require(std::ranges::count(take, expected) == static_cast<std::ptrdiff_t>(kBytes),
              "bytes came after abort()");
    } else {
      const bool ended = end.within(milliseconds(100));
      transport->abort();
      if (ended && rank == 0 && end.error().empty())
        require(std::ranges::count(take, std::byte{0x77}) == static_cast<std::ptrdiff_t>(kBytes),
                "a call ended well with bytes that were never given");
    }
  }
}

// Notes come from any rank, so their operation names none: MPI's status does.
void names_the_other_end() {
  using mpi_detail::What;
  MPI_Status from_rank_2 = {}, from_nobody = {};
  from_rank_2.MPI_SOURCE = 2;
  from_nobody.MPI_SOURCE = MPI_ANY_SOURCE;
  const auto text = [](What what, std::uint32_t peer, const MPI_Status& status) {
    return mpi_detail::other_end({.what = what, .peer = peer}, status);
  };
  require(text(What::kHear, 0, from_rank_2) == "from rank 2", "a note's sender");
  require(text(What::kHear, 0, from_nobody) == "from another rank", "a note of nobody");
  require(text(What::kTake, 1, from_nobody) == "from rank 1", "a chunk's sender");
  require(text(What::kGive, 3, from_rank_2) == "to rank 3", "a chunk's receiver");
  require(text(What::kTell, 3, from_rank_2) == "to rank 3", "a note's receiver");
}

// Nothing is pending: what the thread takes of a core.
void idles() {
  const auto transport = make();
  meet(*transport);
  std::this_thread::sleep_for(milliseconds(100));
  const auto seconds_used = [] {
    rusage usage = {};
    ::getrusage(RUSAGE_SELF, &usage);
    const auto of = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return of(usage.ru_utime) + of(usage.ru_stime);
  };
  // On a busy machine each wake-up costs more, so the least of some times counts.
  double share = 1;
  for (int tries = 0; tries < 6 && share >= 0.03; ++tries) {
    const double before = seconds_used();
    std::this_thread::sleep_for(milliseconds(1500));
    share = std::min(share, (seconds_used() - before) / 1.5);
  }
  std::printf("rank %u: idle at %.2f %% of a core\n", transport->rank(), 100 * share);
  require(share < 0.03, "idle, it takes " + std::to_string(100 * share) + " % of a core");
  meet(*transport);
}

// A call whose caller waits is carried out on its thread, also if another rank comes late.
void drives_while_it_waits() {
  const auto transport = make();
  const std::uint32_t world = transport->world_size();
  for (const std::size_t size : {1u, 5000u, 9'000'000u}) {
    for (const auto late : {milliseconds(0), milliseconds(30)}) {
      if (transport->rank() == 0) std::this_thread::sleep_for(late);
      std::vector<std::byte> give(size, std::byte{1}), take(size * world);
      std::vector<Transport::Piece> gives(world, {give.data(), size}), takes;
      for (std::uint32_t r = 0; r < world; ++r) takes.push_back({&take[r * size], size});
      std::thread::id ended_on;
      transport->all_to_all(Lane::kReduce, {}, gives, takes,
                            {[](void* context, const char*) noexcept {
                               *static_cast<std::thread::id*>(context) = std::this_thread::get_id();
                             },
                             &ended_on, true});
      require(ended_on == std::this_thread::get_id(), "another thread carried the call out");
      require(
          std::ranges::count(take, std::byte{1}) == static_cast<std::ptrdiff_t>(size * (world - 1)),
          "other bytes came");
    }
  }
  meet(*transport);
}

void refuses_too_few_threads(int level) {
  int argc = 0;
  char** argv = nullptr;
  int given = 0;
  MPI_Init_thread(&argc, &argv, level, &given);
  require(given == level, "this MPI gives another level of threads");
  try {
    make();
    throw std::runtime_error("a transport was made");
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::string name =
        level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED" : "MPI_THREAD_SERIALIZED";
    require(error.code() == Code::kUnsupported, text);
    require(text.starts_with("MPI was initialised with " + name), text);
  }
}

void serves_serialized() {
  refuses_too_few_threads(MPI_THREAD_SERIALIZED);
  const auto transport = make_mpi_transport(MPI_COMM_WORLD, {.others_call_mpi = false});
  exchanges_pieces_of_any_size(*transport);
  serves_callers_that_wait(*transport);
}

// Rank 0 is stopped in a call in which it gives. It goes on when the others have aborted, and may
// begin to give before it hears so: its abort() ends all the same.
void aborts_after_it_stood_still() {
  const auto transport = make();
  const pid_t process = process_of_rank_0(*transport);
  const bool gives = transport->rank() == 0;
  PieceExchange call(*transport, 1, [](auto from, auto) { return from == 0 ? 9'000'000u : 0u; });
  if (!gives) wait_until_stopped(process);
  call.start(*transport, Lane::kReduce);
  std::this_thread::sleep_for(milliseconds(200));
  if (gives) std::raise(SIGSTOP);
  if (gives) std::this_thread::sleep_for(milliseconds(300));
  const Clock::time_point begin = Clock::now();
  transport->abort();
  require(Clock::now() - begin < std::chrono::seconds(5), "abort() took too long");
  require(gives || !call.end().error().empty(), "bytes came from a rank that was stopped");
  if (transport->rank() == 1) ::kill(process, SIGCONT);
  if (!gives) std::this_thread::sleep_for(std::chrono::seconds(1));
}

// Rank 0 makes room and is stopped, so it reads nothing of rank 1: which gives no chunk then.
void gives_nothing_to_a_rank_that_stands_still() {
  const auto transport = make();
  const pid_t process = process_of_rank_0(*transport);
  if (transport->rank() == 1) wait_until_stopped(process);
  WaitingCalls calls(*transport);
  std::this_thread::sleep_for(milliseconds(200));
  if (transport->rank() == 0) std::raise(SIGSTOP);
  transport->abort();
  calls.require_error();
  if (transport->rank() == 1) ::kill(process, SIGCONT);
}

std::vector<pid_t> processes_of_all(Transport& transport) {
  const pid_t own = ::getpid();
  transport.post(std::as_bytes(std::span(&own, 1)));
  std::vector<Transport::Post> posts(transport.world_size());
  const auto posted = [](const Transport::Post& post) { return post.number > 0; };
  while (!std::ranges::all_of(posts, posted)) {
    std::this_thread::sleep_for(milliseconds(5));
    transport.read_posts(posts);
  }
  std::vector<pid_t> processes(posts.size());
  for (std::size_t r = 0; r < posts.size(); ++r)
    std::memcpy(&processes[r], posts[r].bytes.data(), sizeof(pid_t));
  return processes;
}

// Rank 1 has made room, and is stopped. Rank 0 has heard so, makes room, and is stopped too. Then
// rank 2 lets rank 1 go on: the chunks that it gives stay under way, and it cannot let their memory
// go.
void ends_when_a_chunk_stands_still() {
  const auto transport = make_mpi_transport(MPI_COMM_WORLD, {.stand_still = milliseconds(500)});
  const std::vector<pid_t> processes = processes_of_all(*transport);
  meet(*transport);
  if (transport->rank() == 2) {
    wait_until_stopped(processes[0]);
    ::kill(processes[1], SIGCONT);
    std::this_thread::sleep_for(std::chrono::minutes(1));
  }
  if (transport->rank() == 0) wait_until_stopped(processes[1]);
  WaitingCalls calls(*transport);
  std::this_thread::sleep_for(milliseconds(200));
  std::raise(SIGSTOP);
  std::this_thread::sleep_for(milliseconds(200));
  transport->abort();
  throw std::runtime_error("abort() returned although chunks are under way");
}

// Prints a line per model, which the test compares with one rank's.
void trains() {
  const auto collective = make_collective({.transport = make()});
  testing::train_every_model(collective, std::getenv("HEADRACE_WORLD_FOLDER"),
                             [](const std::string& line) {
                               std::fwrite(line.data(), 1, line.size(), stdout);
                               std::fflush(stdout);
                             });
}

// Two engines of two ranks each, at once, as with tensor or pipeline parallelism around them.
void trains_in_halves() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
  const testing::WorldModel& model = testing::world_models()[static_cast<std::size_t>(rank % 2)];
  const std::string alone = testing::train_as_rank(model, {}, {}).text();
  auto collective = make_collective({.transport = make_mpi_transport(half)});
  require(collective->world_size() == 2, "half of four ranks are two");
  const std::string together = testing::train_as_rank(model, {}, {.collective = collective}).text();
  require(together == alone, "two ranks: " + together + "\none rank: " + alone);
  collective.reset();
  MPI_Comm_free(&half);
}

void serves() {
  const auto transport = make();
  meet(*transport);
}

// Two calls that wait for each other's rank.
void fails() {
  const auto transport = make();
  PieceExchange waits(*transport, 1, [](auto, auto) { return 10u; });
  waits.start(*transport, transport->rank() == 0 ? Lane::kTalk : Lane::kReduce);
  transport->abort();
  require(!waits.end().error().empty(), "no error");
}

void finalize() {
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
}

int rank_of_world() {
  int initialised = 0, rank = 0;
  MPI_Initialized(&initialised);
  if (initialised != 0) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

struct WorldCase {
  const char* name;
  void (*run)();
  enum class Mpi { kOwn, kInitialised, kSession } mpi;
};
constexpr WorldCase kCases[] = {
    {"conformance", conformance, WorldCase::Mpi::kInitialised},
    {"large", passes_large_pieces, WorldCase::Mpi::kSession},
    {"gives", gives_without_taking, WorldCase::Mpi::kSession},
    {"exit", lets_rank_1_exit, WorldCase::Mpi::kSession},
    {"never", aborts_though_a_rank_never_comes, WorldCase::Mpi::kInitialised},
    {"stopped", aborts_though_a_rank_stands_still, WorldCase::Mpi::kInitialised},
    {"resumed", aborts_after_it_stood_still, WorldCase::Mpi::kInitialised},
    {"memory", lets_memory_go_when_it_aborts, WorldCase::Mpi::kInitialised},
    {"drives", drives_while_it_waits, WorldCase::Mpi::kSession},
    {"idle", idles, WorldCase::Mpi::kSession},
    {"names", names_the_other_end, WorldCase::Mpi::kSession},
    {"funneled", [] { refuses_too_few_threads(MPI_THREAD_FUNNELED); }, WorldCase::Mpi::kOwn},
    {"serialized", serves_serialized, WorldCase::Mpi::kOwn},
    {"room", gives_nothing_to_a_rank_that_stands_still, WorldCase::Mpi::kInitialised},
    {"stuck", ends_when_a_chunk_stands_still, WorldCase::Mpi::kSession},
    {"trains", trains, WorldCase::Mpi::kSession},
    {"halves", trains_in_halves, WorldCase::Mpi::kSession},
    {"serves", serves, WorldCase::Mpi::kSession},
    {"fails", fails, WorldCase::Mpi::kSession},
};

void run(const WorldCase& one) {
  std::optional<MpiSession> session;
  if (one.mpi == WorldCase::Mpi::kSession) session.emplace();
  if (one.mpi == WorldCase::Mpi::kInitialised) {
    int given = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &given);
  }
  one.run();
  if (rank_of_world() == 0) std::printf("%s: passed\n", one.name);
  std::fflush(stdout);
  if (one.mpi != WorldCase::Mpi::kSession) return finalize();
  session.reset();
  int finalised = 0;
  MPI_Finalized(&finalised);
  std::printf("MPI: %s\n", finalised != 0 ? "finalised" : "left as it is");
}

int main_of(const std::string& name) {
  for (const WorldCase& one : kCases) {
    if (name != one.name) continue;
    try {
      run(one);
      return 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s: %s\n", rank_of_world(), one.name, error.what());
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  std::fprintf(stderr, "there is no case '%s'\n", name.c_str());
  return 2;
}
}  // namespace
}  // namespace headrace::collective

int main(int argc, char** argv) { return headrace::collective::main_of(argc > 1 ? argv[1] : ""); }
