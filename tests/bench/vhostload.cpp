// SPDX-License-Identifier: BSD-3-Clause
// Load for vhost-user-blk devices, as nbdload is for NBD servers: a driver in this process, so that
// the device is what is measured. Reads are checked against stamps.
//
//   vhostload --unix SOCKET [OPTIONS]        runs load and prints one line of JSON
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/bench/stamps.hpp"
#include "tests/bench/vhost_driver.hpp"

namespace {

using namespace vhostload;

using Clock = std::chrono::steady_clock;
using std::chrono::duration;

struct LoadOptions {
  Options driver;
  std::string mode = "randread";  ///< randread, randwrite, read, write
  std::size_t block = 4096;       ///< bytes
  unsigned depth = 1;             ///< requests in flight
  double seconds = 3;
  double warm_up = 0.5;             ///< seconds before the measured time
  std::uint64_t span = UINT64_MAX;  ///< bytes of the disk that are used
  std::uint64_t seed = 1;
  bool check = true;  ///< what was read is what was stamped
};

std::uint16_t ring_for(unsigned depth) {
  std::uint16_t size = 64;
  while (size < 3 * depth) size = static_cast<std::uint16_t>(2 * size);
  return size;
}

Options options_of_driver(const LoadOptions& options) {
  Options driver = options.driver;
  driver.ring = ring_for(options.depth);
  driver.data = options.block * options.depth;
  return driver;
}

/// One queue, and its requests.
class Load {
 public:
  explicit Load(const LoadOptions& options)
      : options_{options},
        driver_{options_of_driver(options)},
        size_{std::min(driver_.bytes(), options.span)},
        is_write_{options.mode == "write" || options.mode == "randwrite"},
        is_random_{options.mode == "randread" || options.mode == "randwrite"},
        random_{options.seed},
        slots_(options.depth) {
    if (size_ < options.block) throw std::runtime_error{"the disk is smaller than one block"};
  }

  void run(double seconds, bool measured) {
    for (unsigned slot = 0; slot < options_.depth; ++slot) issue(slot);
    unsigned in_flight = options_.depth;
    const auto end = Clock::now() + duration<double>{seconds};
    Ring& ring = driver_.ring();
    bool stop = false;
    while (in_flight > 0) {
      if (ring.publish(driver_.event_index())) ring.do_kick();
      if (!ring.wait(driver_.event_index())) throw std::runtime_error{"the device does not answer"};
      const auto now = Clock::now();
      stop = stop || now >= end;
      while (ring.has_used()) {
        const unsigned slot = ring.take_used().id / 3;
        complete(slot, now, measured);
        stop ? void(--in_flight) : issue(slot);
      }
    }
  }

  std::vector<std::uint32_t>& latencies() { return latencies_; }
  std::uint64_t bad() const { return bad_; }

 private:
  struct Slot {
    std::uint64_t offset = 0;
    Clock::time_point began;
  };

  char* buffer(unsigned slot) const {
    return reinterpret_cast<char*>(driver_.data() + slot * options_.block);
  }

  void issue(unsigned slot) {
    const std::uint64_t blocks = size_ / options_.block;
    const std::uint64_t block = is_random_ ? random_() % blocks : next_block_++ % blocks;
    slots_[slot] = {block * options_.block, Clock::now()};
    if (is_write_) nbdload::stamp(buffer(slot), slots_[slot].offset, options_.block);
    driver_.describe(slot, is_write_ ? VIRTIO_BLK_T_OUT : VIRTIO_BLK_T_IN,
                     slots_[slot].offset / 512, reinterpret_cast<std::byte*>(buffer(slot)),
                     static_cast<std::uint32_t>(options_.block), !is_write_);
    driver_.ring().offer(static_cast<std::uint16_t>(3 * slot));
  }

  void complete(unsigned slot, Clock::time_point now, bool measured) {
    const Slot& done = slots_.at(slot);
    const bool right =
        is_write_ || !options_.check || nbdload::stamped(buffer(slot), done.offset, options_.block);
    if (driver_.status(slot) != VIRTIO_BLK_S_OK || !right) ++bad_;
    if (!measured) return;
    const auto took = std::chrono::nanoseconds{now - done.began}.count();
    latencies_.push_back(static_cast<std::uint32_t>(std::min<std::int64_t>(took, UINT32_MAX)));
  }

  const LoadOptions& options_;
  Driver driver_;
  const std::uint64_t size_;
  const bool is_write_;
  const bool is_random_;
  std::mt19937_64 random_;
  std::uint64_t next_block_ = 0;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> latencies_;  ///< nanoseconds
  std::uint64_t bad_ = 0;
};

double own_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Tells the caller on standard output where the measured time begins, and waits for its answer.
void rendezvous(const char* word) {
  std::printf("%s\n", word);
  std::fflush(stdout);
  std::array<char, 16> line{};
  if (std::fgets(line.data(), line.size(), stdin) == nullptr) return;
}

int run_load(const LoadOptions& options) {
  Load load{options};
  load.run(options.warm_up, false);
  rendezvous("begin");
  double cpu = own_cpu_seconds();
  const auto began = Clock::now();
  load.run(options.seconds, true);
  const double elapsed = duration<double>{Clock::now() - began}.count();
  cpu = own_cpu_seconds() - cpu;
  rendezvous("end");

  std::vector<std::uint32_t>& all = load.latencies();
  std::sort(all.begin(), all.end());
  const auto percentile = [&all](double p) {
    return all.empty() ? 0.0 : all[static_cast<std::size_t>(p * double(all.size() - 1))] / 1e3;
  };
  const nlohmann::json result{{"operations", all.size()},
                              {"seconds", elapsed},
                              {"iops", double(all.size()) / elapsed},
                              {"mb_per_s", double(all.size() * options.block) / elapsed / 1e6},
                              {"p50_us", percentile(0.50)},
                              {"p99_us", percentile(0.99)},
                              {"p999_us", percentile(0.999)},
                              {"client_cpu_s", cpu},
                              {"bad", load.bad()}};
  std::printf("%s\n", result.dump().c_str());
  return load.bad() == 0 && !all.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  LoadOptions options;
  bool no_check = false;
  bool no_events = false;
  CLI::App app{"Load for vhost-user-blk devices, with a check of every block read"};
  app.add_option("--unix", options.driver.path, "Unix socket of the device")->required();
  app.add_option("--mode", options.mode, "randread, randwrite, read or write")
      ->check(CLI::IsMember({"randread", "randwrite", "read", "write"}));
  app.add_option("--block", options.block, "bytes per request, a multiple of 4096")
      ->check(CLI::Range(std::size_t{4096}, std::size_t{16} << 20));
  app.add_option("--depth", options.depth, "requests in flight")->check(CLI::Range(1, 1024));
  app.add_option("--seconds", options.seconds, "measured time");
  app.add_option("--warm-up", options.warm_up, "seconds before it");
  app.add_option("--span", options.span, "bytes of the disk, from its beginning (all)");
  app.add_option("--seed", options.seed, "of the random offsets");
  app.add_flag("--no-check", no_check, "the disk has no stamps");
  app.add_flag("--no-events", no_events, "without EVENT_IDX");
  CLI11_PARSE(app, argc, argv);
  options.check = !no_check;
  options.driver.event_index = !no_events;
  try {
    return run_load(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "vhostload: %s\n", error.what());
    return 1;
  }
}
