// SPDX-License-Identifier: BSD-3-Clause
// One reader of a server's disk, with no NBD in between: random reads, one at a time, by a client
// in this process.
//
//   diskload URI [--seconds N] [--block BYTES] [--span BYTES]     prints one line of JSON
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "bridge/client/connections.hpp"

namespace {

using Clock = std::chrono::steady_clock;

struct Load {
  std::string uri;
  std::size_t block = 4096;                ///< bytes
  std::uint64_t span = 128 * 1024 * 1024;  ///< bytes of the disk that are read
  double seconds = 3;
  double warm_up = 1;  ///< seconds before the measured time
};

/// Nothing interrupts it.
constexpr rtrs::Interrupt kNever;

template <class T>
T value_of(tl::expected<T, std::string> result) {
  if (!result) throw std::runtime_error{result.error()};
  return *std::move(result);
}

/// Microseconds of each read behind the warm-up.
std::vector<double> read(rnbd::Disk& disk, const Load& load) {
  const std::uint64_t blocks = std::min(load.span, disk.geometry().size) / load.block;
  if (blocks == 0) throw std::runtime_error{"the disk is smaller than a block"};
  std::mt19937_64 random{1};
  std::vector<std::byte> data(load.block);
  std::vector<double> times;
  const auto start = Clock::now();
  const auto measured = start + std::chrono::duration<double>{load.warm_up};
  const auto end = measured + std::chrono::duration<double>{load.seconds};
  for (auto now = start; now < end;) {
    const int error = disk.read(random() % blocks * load.block, data, kNever);
    if (error != 0)
      throw std::runtime_error{std::string{"a read failed: "} + rnbd::describe_error(error)};
    const auto answered = Clock::now();
    if (now >= measured)
      times.push_back(std::chrono::duration<double, std::micro>{answered - now}.count());
    now = answered;
  }
  return times;
}

int run(const Load& load) {
  rnbd::ConfigReader reader;
  if (auto set = reader.set("uri", load.uri); !set) throw std::runtime_error{set.error()};
  const rnbd::ClientConfig config = value_of(reader.complete());
  rnbd::Connections connections{config, {}};
  auto opened = connections.open("", /*readonly=*/true, kNever);
  if (!opened) throw std::runtime_error{opened.error().text};
  rnbd::Disk* const disk = *opened;
  std::vector<double> times = read(*disk, load);
  connections.close(disk);
  connections.leave();
  if (times.empty()) throw std::runtime_error{"no read was measured"};
  std::ranges::nth_element(times, times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2));
  const nlohmann::json said{{"iops", static_cast<double>(times.size()) / load.seconds},
                            {"p50_us", times[times.size() / 2]}};
  std::puts(said.dump().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Load load;
  CLI::App app{"Reads a server's disk without NBD, one block at a time"};
  app.add_option("uri", load.uri, "rnbd+tcp://HOST:PORT/DISK")->required();
  app.add_option("--seconds", load.seconds, "measured time");
  app.add_option("--block", load.block, "bytes of each read")->check(CLI::Range(512, 32 << 20));
  app.add_option("--span", load.span, "bytes of the disk, from its beginning");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(load);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "diskload: %s\n", error.what());
    return 1;
  }
}
