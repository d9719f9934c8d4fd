// SPDX-License-Identifier: BSD-3-Clause
// Load for NBD servers: as little client as possible, so that the server is what is measured. Reads
// are checked against a stamp (the block's own offset) that `nbdload --stamp` or its writes put
// there.
//
//   nbdload --stamp FILE SIZE              fills a file with stamps
//   nbdload --unix SOCKET [OPTIONS]        runs load and prints one line of JSON
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/nbd_client.hpp"
#include "tests/bench/stamps.hpp"

namespace {

using namespace nbdload;

using Clock = std::chrono::steady_clock;
using std::chrono::duration;

constexpr std::uint16_t kRead = 0;
constexpr std::uint16_t kWrite = 1;
constexpr std::uint16_t kFua = 1;

struct Options {
  std::string unix_path;
  std::string tcp_host;
  std::string tcp_port = "10809";
  std::string export_name;
  std::string mode = "randread";  ///< randread, randwrite, read, write
  bool fua = false;               ///< writes are durable when they are answered
  unsigned mixed = 0;             ///< per cent of the requests that are the other way
  std::size_t block = 4096;       ///< bytes
  unsigned depth = 1;             ///< requests in flight per connection
  unsigned connections = 1;
  double seconds = 3;
  double warm_up = 0.5;             ///< seconds before the measured time
  std::uint64_t span = UINT64_MAX;  ///< bytes of the export that are used
  std::uint64_t seed = 1;
};

/// Runs one connection; one thread each.
class Connection {
 public:
  Connection(const Options& options, unsigned index)
      : options_{options},
        fd_{connect_to(options.unix_path, options.tcp_host, options.tcp_port)},
        size_{std::min(handshake(fd_, options.export_name), options.span)},
        is_write_{options.mode == "write" || options.mode == "randwrite"},
        is_random_{options.mode == "randread" || options.mode == "randwrite"},
        random_{options.seed + index},
        slots_(options.depth),
        data_(options.block) {
    if (size_ < options.block) throw std::runtime_error{"the export is smaller than one block"};
    std::uint64_t blocks = size_ / options.block;
    // Sequential connections start spread over the device.
    next_block_ = blocks * index / options.connections;
    // Of large blocks one reply at a time, as clients do that receive into the place where they
    // want the data: moving the beginning of the next one would be a copy that no client needs.
    const std::size_t whole = sizeof(Reply) + options.block;
    input_.resize(options.block < kLarge ? 256 * 1024 : whole);
  }
  ~Connection() { ::close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Until `stop`; then nothing is in flight. Completions count if it is `measured`.
  void run(bool measured, const std::atomic<bool>& stop) {
    for (unsigned slot = 0; slot < options_.depth; slot++) issue(slot);
    in_flight_ = options_.depth;
    flush();
    while (in_flight_ > 0) {
      receive_replies(measured, stop);
      flush();
    }
  }

  std::vector<std::uint32_t>& latencies() { return latencies_; }
  std::uint64_t bad() const { return bad_; }

 private:
  static constexpr std::size_t kLarge = 64 * 1024;  ///< bytes

  struct Slot {
    std::uint64_t offset = 0;
    Clock::time_point began;
    bool write = false;
  };

  void issue(unsigned slot) {
    std::uint64_t blocks = size_ / options_.block;
    std::uint64_t block = is_random_ ? random_() % blocks : next_block_++ % blocks;
    slots_[slot] = {block * options_.block, Clock::now()};
    const bool write = is_write_ != (options_.mixed > 0 && random_() % 100 < options_.mixed);
    slots_[slot].write = write;
    Request request{htonl(0x25609513),
                    htons(write && options_.fua ? kFua : 0),
                    htons(write ? kWrite : kRead),
                    slot,
                    big(slots_[slot].offset),
                    htonl(static_cast<std::uint32_t>(options_.block))};
    const char* bytes = reinterpret_cast<const char*>(&request);
    output_.insert(output_.end(), bytes, bytes + sizeof request);
    if (write) {
      stamp(data_.data(), slots_[slot].offset, options_.block);
      output_.insert(output_.end(), data_.begin(), data_.end());
    }
  }

  void flush() {
    if (!output_.empty()) send_all(fd_, output_.data(), output_.size());
    output_.clear();
  }

  void receive_replies(bool measured, const std::atomic<bool>& stop) {
    ssize_t got = ::recv(fd_, input_.data() + filled_, input_.size() - filled_, 0);
    if (got < 0) die("recv");
    if (got == 0) throw std::runtime_error{"the server closed the connection"};
    filled_ += static_cast<std::size_t>(got);
    std::size_t at = 0;
    while (filled_ - at >= sizeof(Reply)) {
      Reply reply;
      std::memcpy(&reply, input_.data() + at, sizeof reply);
      if (reply.magic != htonl(0x67446698)) throw std::runtime_error{"that is no simple reply"};
      if (reply.handle >= slots_.size()) throw std::runtime_error{"a reply to no request"};
      bool has_data = !slots_[reply.handle].write && reply.error == 0;
      std::size_t whole = sizeof reply + (has_data ? options_.block : 0);
      if (filled_ - at < whole) break;
      complete(reply, input_.data() + at + sizeof reply, measured, stop);
      at += whole;
    }
    std::memmove(input_.data(), input_.data() + at, filled_ - at);
    filled_ -= at;
  }

  void complete(const Reply& reply, const char* data, bool measured,
                const std::atomic<bool>& stop) {
    auto slot = static_cast<unsigned>(reply.handle);
    const Slot& done = slots_[slot];
    if (reply.error != 0 || (!done.write && !stamped(data, done.offset, options_.block))) bad_++;
    if (measured) {
      auto took = std::chrono::nanoseconds{Clock::now() - done.began}.count();
      latencies_.push_back(static_cast<std::uint32_t>(std::min<std::int64_t>(took, UINT32_MAX)));
    }
    if (stop.load(std::memory_order_relaxed)) {
      in_flight_--;
    } else {
      issue(slot);
    }
  }

  const Options& options_;
  int fd_;
  std::uint64_t size_;
  bool is_write_;
  bool is_random_;
  std::mt19937_64 random_;
  std::uint64_t next_block_ = 0;
  std::vector<Slot> slots_;
  std::vector<char> data_;  ///< one block to write
  std::vector<char> input_;
  std::size_t filled_ = 0;
  std::vector<char> output_;
  unsigned in_flight_ = 0;
  std::vector<std::uint32_t> latencies_;  ///< nanoseconds
  std::uint64_t bad_ = 0;
};

double own_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Tells the caller on standard output where the measured time begins, and waits for its answer.
void rendezvous(const char* word) {
  std::printf("%s\n", word);
  std::fflush(stdout);
  char line[16];
  if (std::fgets(line, sizeof line, stdin) == nullptr) return;
}

using Connections = std::vector<std::unique_ptr<Connection>>;

/// Load on all connections, a thread each; false when one failed.
bool run_for(duration<double> time, bool measured, const Connections& connections) {
  std::atomic<bool> stop{false}, broken{false};
  std::vector<std::jthread> threads;
  for (const auto& connection : connections) {
    threads.emplace_back([&, own = connection.get()] {
      try {
        own->run(measured, stop);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "nbdload: %s\n", error.what());
        broken = true;
      }
    });
  }
  std::this_thread::sleep_for(time);
  stop = true;
  threads.clear();
  return !broken;
}

int run_load(const Options& options) {
  Connections connections;
  for (unsigned i = 0; i < options.connections; i++) {
    connections.push_back(std::make_unique<Connection>(options, i));
  }
  // Nothing is in flight at either end of the measured time, so that others can count exactly.
  if (!run_for(duration<double>{options.warm_up}, false, connections)) return 1;
  rendezvous("begin");
  double cpu = own_cpu_seconds();
  auto began = Clock::now();
  if (!run_for(duration<double>{options.seconds}, true, connections)) return 1;
  double elapsed = duration<double>{Clock::now() - began}.count();
  cpu = own_cpu_seconds() - cpu;
  rendezvous("end");

  std::vector<std::uint32_t> all;
  std::uint64_t bad = 0;
  for (auto& connection : connections) {
    all.insert(all.end(), connection->latencies().begin(), connection->latencies().end());
    bad += connection->bad();
  }
  std::sort(all.begin(), all.end());
  auto percentile = [&all](double p) {
    return all.empty() ? 0.0 : all[static_cast<std::size_t>(p * double(all.size() - 1))] / 1e3;
  };
  nlohmann::json result{{"operations", all.size()},
                        {"seconds", elapsed},
                        {"iops", double(all.size()) / elapsed},
                        {"mb_per_s", double(all.size() * options.block) / elapsed / 1e6},
                        {"p50_us", percentile(0.50)},
                        {"p99_us", percentile(0.99)},
                        {"p999_us", percentile(0.999)},
                        {"client_cpu_s", cpu},
                        {"bad", bad}};
  std::printf("%s\n", result.dump().c_str());
  return bad == 0 && !all.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::vector<std::string> stamp_arguments;
  CLI::App app{"Load for NBD servers, with a check of every block read"};
  app.add_option("--stamp", stamp_arguments, "FILE SIZE: fill a file with stamps")->expected(2);
  app.add_option("--unix", options.unix_path, "Unix socket of the server");
  app.add_option("--host", options.tcp_host, "or its TCP address");
  app.add_option("--port", options.tcp_port, "and port");
  app.add_option("--export", options.export_name, "export name");
  app.add_option("--mode", options.mode, "randread, randwrite, read or write")
      ->check(CLI::IsMember({"randread", "randwrite", "read", "write"}));
  app.add_flag("--fua", options.fua, "writes are durable when they are answered");
  app.add_option("--mixed", options.mixed, "per cent of the requests that are the other way")
      ->check(CLI::Range(0, 100));
  app.add_option("--block", options.block, "bytes per request, a multiple of 4096")
      ->check(CLI::Range(std::size_t{4096}, std::size_t{32} << 20));
  app.add_option("--depth", options.depth, "requests in flight per connection")
      ->check(CLI::Range(1, 1024));
  app.add_option("--connections", options.connections, "one thread each")->check(CLI::Range(1, 64));
  app.add_option("--seconds", options.seconds, "measured time");
  app.add_option("--warm-up", options.warm_up, "seconds before it");
  app.add_option("--span", options.span, "bytes of the export, from its beginning (all)");
  app.add_option("--seed", options.seed, "of the random offsets");
  CLI11_PARSE(app, argc, argv);
  try {
    if (!stamp_arguments.empty()) {
      write_stamps(stamp_arguments[0], std::stoull(stamp_arguments[1]));
      return 0;
    }
    return run_load(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nbdload: %s\n", error.what());
    return 1;
  }
}
