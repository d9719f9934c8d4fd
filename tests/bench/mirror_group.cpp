// SPDX-License-Identifier: BSD-3-Clause
// The CPU time that the rules of a mirror's client take for an operation, for disks of several
// sizes, and with few and many operations under way. Two members answer each command at once, and
// nothing passes a socket. Operations have 4 KiB each, at random places of the part that is used.
// Prints the medians of 5 rounds, in microseconds of the process, as JSON. `ratio` is to the first
// row of the same kind and comparison.
//
//   bench-mirror-group [OPERATIONS]
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "bridge/client/mirror/group.hpp"
#include "bridge/protocol/mirror_messages.hpp"

namespace {

using namespace rnbd;
using mirror::Group;

constexpr unsigned kMembers = 2;
constexpr unsigned kRounds = 5;
constexpr unsigned kOperations = 50000;    ///< of a round
constexpr unsigned kBetweenCools = 50000;  ///< 5 s at 10,000 operations a second
constexpr std::uint64_t kSectors = 8;      ///< of an operation

struct Load {
  const char* compares;
  std::uint64_t mib;       ///< of the disk
  std::uint64_t used_kib;  ///< from the beginning
  unsigned depth;          ///< operations under way
};
constexpr std::array kLoads{
    Load{"size", 64, 64 << 10, 32},
    Load{"size", 100 << 10, 100 << 20, 32},
    Load{"size", 1 << 20, 1 << 30, 32},
    Load{"depth", 1 << 10, 1 << 20, 16},
    Load{"depth", 1 << 10, 1 << 20, 4096},
    Load{"depth, 64 MiB", 1 << 10, 64 << 10, 16},
    Load{"depth, 64 MiB", 1 << 10, 64 << 10, 4096},
    Load{"depth, one block", 1 << 10, 4, 16},
    Load{"depth, one block", 1 << 10, 4, 4096},
};
constexpr std::array kKinds{Group::Kind::write, Group::Kind::read};

/// Members that answer in the order of the commands.
struct Members final : mirror::GroupHost {
  void send(const mirror::Command& command) override { sent.push_back(command); }
  void drop(unsigned /*member*/) override { std::abort(); }
  void attached() override {}
  void done(std::uint64_t /*operation*/) override { ++ended; }
  void failed(std::uint64_t /*operation*/, int /*error*/) override { std::abort(); }
  mirror::MemberSet same(std::uint64_t /*operation*/, mirror::MemberSet members,
                         unsigned /*source*/) override {
    return members;
  }
  void differs(const mirror::Difference& /*found*/) override {}
  void grown() override {}
  void not_grown(unsigned /*member*/, int /*error*/) override {}
  void dissolved(int /*error*/) override {}
  bool may_copy(unsigned /*under_way*/) override { return true; }
  bool has_requests() override { return true; }
  mirror::MemberSet leased() override { return mirror::MemberSet{(1U << kMembers) - 1}; }
  bool leases_ended() override { return true; }
  void over() override { std::abort(); }
  void superseded() override { std::abort(); }

  std::deque<mirror::Command> sent;
  std::uint64_t ended = 0;
};

/// A group of which all members are in step.
class Bench {
 public:
  explicit Bench(const Load& load)
      : options_{options_of(load.mib << 20)},
        group_{options_, members_},
        random_{load.mib},
        depth_{load.depth},
        place_{0, load.used_kib * 1024 / wire::kSectorSize / kSectors - 1} {
    for (unsigned i = 0; i < kMembers; ++i) group_.link_up(i, false);
    while (!members_.sent.empty()) answer();
  }

  /// Microseconds for each operation.
  double run(Group::Kind kind, unsigned operations) {
    const std::clock_t began = std::clock();
    for (const std::uint64_t last = next_ + operations; members_.ended + 1 < last;) {
      for (; next_ < last && next_ - 1 - members_.ended < depth_; ++next_) {
        const std::uint64_t begin = place_(random_) * kSectors;
        group_.submit(kind, next_, {begin, begin + kSectors});
        if (next_ % kBetweenCools == 0) group_.cool();
      }
      answer();
    }
    while (!members_.sent.empty()) answer();
    const double took = double(std::clock() - began) / CLOCKS_PER_SEC;
    return took * 1e6 / operations;
  }

 private:
  static mirror::GroupOptions options_of(std::uint64_t bytes) {
    const unsigned shift = wire::region_shift_of(bytes);
    return {.members = kMembers,
            .region_sectors = (std::uint64_t{1} << shift) / wire::kSectorSize,
            .size = bytes};
  }

  void answer() {
    const mirror::Command command = std::move(members_.sent.front());
    members_.sent.pop_front();
    mirror::Answer answer{.tag = command.tag};
    if (command.order == mirror::Order::claim) {
      const mirror::View view{{1, 1}, mirror::with(mirror::bit(0), 1)};
      answer.claimed = {.promised = 1, .view = view, .confirmed = view};
      const std::uint64_t region_bytes = options_.region_sectors * wire::kSectorSize;
      const mirror::RegionMap none{
          static_cast<std::uint32_t>((options_.size + region_bytes - 1) / region_bytes)};
      answer.claimed.maps.active = none;
      answer.claimed.maps.dirty.assign(kMembers, none);
    }
    group_.answer(answer);
  }

  const mirror::GroupOptions options_;
  Members members_;
  Group group_;
  std::mt19937_64 random_;
  unsigned depth_;
  std::uniform_int_distribution<std::uint64_t> place_;
  std::uint64_t next_ = 1;
};

double median_of(std::vector<double>& rounds) {
  std::nth_element(rounds.begin(), rounds.begin() + kRounds / 2, rounds.end());
  return rounds[kRounds / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned operations = argc > 1 ? unsigned(std::atoi(argv[1])) : kOperations;
  if (argc > 2 || operations == 0) {
    std::fprintf(stderr, "usage: bench-mirror-group [OPERATIONS]\n");
    return 2;
  }
  std::deque<Bench> benches;  // each stays where it is
  for (const Load& load : kLoads) benches.emplace_back(load);
  std::array<std::array<std::vector<double>, kLoads.size()>, kKinds.size()> took;
  for (unsigned round = 0; round < kRounds; ++round)
    for (std::size_t kind = 0; kind < kKinds.size(); ++kind)
      for (std::size_t load = 0; load < kLoads.size(); ++load)
        took[kind][load].push_back(benches[load].run(kKinds[kind], operations));
  const char* separator = "[\n";
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
    double first = 0;
    std::string_view compares;
    for (std::size_t i = 0; i < kLoads.size(); ++i) {
      const Load& load = kLoads[i];
      const double median = median_of(took[kind][i]);
      if (std::exchange(compares, load.compares) != load.compares) first = median;
      std::printf(
          "%s  {\"kind\": \"%s\", \"compares\": \"%s\", \"MiB\": %llu, \"depth\": %u, "
          "\"microseconds\": %.2f, \"ratio\": %.2f}",
          std::exchange(separator, ",\n"), kKinds[kind] == Group::Kind::write ? "write" : "read",
          load.compares, static_cast<unsigned long long>(load.mib), load.depth, median,
          median / first);
    }
  }
  std::printf("\n]\n");
}
