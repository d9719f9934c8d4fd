// SPDX-License-Identifier: BSD-3-Clause
// rnbd-sim: runs seeds through the simulator.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "tests/plants/plants.hpp"
#include "tests/sim/simulation.hpp"

namespace {

struct Options {
  std::uint64_t first = 1;
  std::uint64_t seeds = 0;
  std::uint64_t seed = 0;
  bool long_run = false;
  bool trace = false;
  bool hashes = false;
  bool quiet = false;
  std::string plant;
  bool list_plants = false;
};

constexpr std::span<const plants::Plant> kPlants = PLANTS_OF_PROGRAM(plants::kCore);

std::string program;
char crash_text[512];

/// An invariant of the shipped code is broken, or memory was misused: says by which seed.
void on_crash(int) {
  // Only what a signal handler may do.
  const auto written = ::write(STDOUT_FILENO, crash_text, std::strlen(crash_text));
  std::_Exit(written > 0 ? 1 : 2);
}

std::string replay(const Options& options, std::uint64_t seed) {
  std::string command = program + " --seed " + std::to_string(seed) + " --trace";
  if (options.long_run) command += " --long";
  if (!options.plant.empty()) command += " --plant " + options.plant;
  return command;
}

void prepare_crash_text(const Options& options, std::uint64_t seed) {
  std::snprintf(crash_text, sizeof(crash_text),
                "seed %llu: the program stopped here (a broken invariant is told above)\n"
                "replay: %s\n",
                static_cast<unsigned long long>(seed), replay(options, seed).c_str());
}

sim::Verdict run(const Options& options, std::uint64_t seed, bool trace) {
  prepare_crash_text(options, seed);
  return sim::run_seed(seed, trace, options.long_run);
}

int run_one(const Options& options) {
  const sim::Verdict verdict = run(options, options.seed, options.trace);
  std::printf("seed %llu: %llu operations, %llu events, trace hash %016llx\n",
              static_cast<unsigned long long>(options.seed),
              static_cast<unsigned long long>(verdict.operations),
              static_cast<unsigned long long>(verdict.events),
              static_cast<unsigned long long>(verdict.trace_hash));
  if (verdict.violation.empty()) return 0;
  std::printf("broken rule: %s\n", verdict.violation.c_str());
  return 1;
}

int run_many(const Options& options) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  std::uint64_t operations = 0;
  std::uint64_t events = 0;
  double next_report = 5.0;
  for (std::uint64_t i = 0; i < options.seeds; ++i) {
    const std::uint64_t seed = options.first + i;
    const sim::Verdict verdict = run(options, seed, false);
    operations += verdict.operations;
    events += verdict.events;
    if (options.hashes) {
      std::printf("%llu %016llx\n", static_cast<unsigned long long>(seed),
                  static_cast<unsigned long long>(verdict.trace_hash));
    }
    if (!verdict.violation.empty()) {
      std::printf("seed %llu, the %llu. of this run, breaks a rule:\n  %s\nreplay: %s\n",
                  static_cast<unsigned long long>(seed), static_cast<unsigned long long>(i + 1),
                  verdict.violation.c_str(), replay(options, seed).c_str());
      return 1;
    }
    if (!options.quiet && seconds() > next_report) {
      std::printf("seeds %llu to %llu kept every rule; the last will be %llu\n",
                  static_cast<unsigned long long>(options.first),
                  static_cast<unsigned long long>(seed),
                  static_cast<unsigned long long>(options.first + options.seeds - 1));
      std::fflush(stdout);
      // A run of hours needs no line every five seconds.
      next_report = seconds() + std::clamp(seconds() / 10, 5.0, 60.0);
    }
  }
  if (!options.hashes) {
    std::printf("%llu seeds kept every rule: %llu operations, %llu events, %.1f s, %.0f seeds/s\n",
                static_cast<unsigned long long>(options.seeds),
                static_cast<unsigned long long>(operations),
                static_cast<unsigned long long>(events), seconds(),
                static_cast<double>(options.seeds) / seconds());
  }
  return 0;
}

int list_plants() {
  for (const plants::Plant& plant : kPlants) {
    std::printf("%-28s %s\n", plant.name, plant.text);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  program = argv[0];
  Options options;
  CLI::App app{"Runs both ends of the block protocol in a simulated world, from a seed."};
  auto* seed = app.add_option("--seed", options.seed, "run this seed");
  app.add_flag("--trace", options.trace, "print everything that happens")->needs(seed);
  app.add_option("--seeds", options.seeds, "run so many seeds")->excludes(seed);
  app.add_option("--first", options.first, "the first of them (default 1)");
  app.add_flag("--long", options.long_run, "with 25 times the operations per seed");
  app.add_flag("--hashes", options.hashes, "print the trace hash of each seed");
  app.add_flag("--quiet", options.quiet, "no progress");
  app.add_option("--plant", options.plant, "with this bug (rnbd-sim-planted)");
  app.add_flag("--list-plants", options.list_plants, "the bugs that can be planted");
  CLI11_PARSE(app, argc, argv);
  if (options.list_plants) return list_plants();
  if (!options.plant.empty() && !plants::select(kPlants, options.plant)) {
    std::fprintf(stderr, "no bug '%s' can be planted here; see --list-plants of rnbd-sim-planted\n",
                 options.plant.c_str());
    return 2;
  }
  for (const int signal_number : {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGFPE})
    std::signal(signal_number, on_crash);
  if (*seed) return run_one(options);
  if (options.seeds == 0) {
    std::fprintf(stderr, "nothing to do: give --seed N or --seeds N (--help tells more)\n");
    return 2;
  }
  return run_many(options);
}
