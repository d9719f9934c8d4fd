// SPDX-License-Identifier: BSD-3-Clause
#include "tests/hostile/victim.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "tests/hostile/raw_session.hpp"

namespace rtrs::hostile {
namespace {

constexpr std::size_t kBlock = 4096;
constexpr std::uint32_t kBlocks = 256;  ///< of the disk that the honest session uses

/// An OPEN that was answered with an errno is none: the session goes on.
bool is_complaint(const std::string& line) {
  if (line.find("refused to open") != std::string::npos) return false;
  // The same refusal again is for debugging only.
  const bool again =
      line.find(": debug: ") != std::string::npos && line.find(": refused: ") != std::string::npos;
  return again || line.find(": warning: ") != std::string::npos ||
         line.find(": error: ") != std::string::npos;
}

std::vector<std::byte> pattern(std::uint32_t round) {
  std::vector<std::byte> block(kBlock);
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>(i / 7 + round);
  return block;
}

}  // namespace

std::shared_ptr<rnbd::Session> honest_session(const std::string& name) {
  ClientOptions options;
  options.session_name = name;
  options.paths = {{TransportKind::rdma, "", target().host, target().port}};
  options.lanes = 2;
  options.features = wire::kFeatureUserMessages;
  // As long as Linux's, because the guest may stand still for a while.
  options.heartbeat_interval = std::chrono::seconds{5};
  auto session = rnbd::Session::connect(options, {});
  if (!session) throw std::runtime_error{session.error().text};
  return *session;
}

Victim& Victim::get() {
  static Victim victim;
  return victim;
}

Victim::Victim() {
  const char* log = std::getenv("RNBD_SERVER_LOG");
  if (log == nullptr) throw std::runtime_error{"RNBD_SERVER_LOG=FILE is not set"};
  log_ = log;
  session_ = honest_session("honest");
  auto device = session_->open("disk0", {}, {});
  if (!device) throw std::runtime_error{device.error().text};
  device_ = std::move(*device);
  check_honest();
}

Victim::~Victim() = default;

void Victim::check_honest() {
  // The data of the round before are still there, and those of this one can be read.
  std::vector<std::byte> found(kBlock);
  if (round_ > 0) {
    const std::uint64_t before = (round_ - 1) % kBlocks * kBlock;
    CHECK(device_->read(before, found, {}) == 0);
    CHECK(found == pattern(round_ - 1));
  }
  const std::uint64_t offset = round_ % kBlocks * kBlock;
  CHECK(device_->write(offset, pattern(round_), false, {}) == 0);
  CHECK(device_->read(offset, found, {}) == 0);
  CHECK(found == pattern(round_));
  ++round_;
  CHECK_MESSAGE(session_->alive(), session_->failure());
}

std::vector<std::string> Victim::new_lines() {
  std::ifstream file{log_};
  file.seekg(static_cast<std::streamoff>(seen_));
  std::vector<std::string> lines;
  std::string line;
  while (std::getline(file, line) && !file.eof()) {
    seen_ += line.size() + 1;
    lines.push_back(line);
  }
  return lines;
}

void Victim::forget_log() {
  new_lines();
  lines_.clear();
}

/// How many complaints there are until so many lines have the text in them (or the deadline has
/// passed).
std::size_t Victim::wait_for(const std::string& text, std::size_t times) {
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  for (;;) {
    for (auto& line : new_lines()) lines_.push_back(std::move(line));
    const auto said = std::count_if(lines_.begin(), lines_.end(), [&](const std::string& line) {
      return line.find(text) != std::string::npos;
    });
    const bool there = static_cast<std::size_t>(said) >= times;
    const auto complaints =
        static_cast<std::size_t>(std::count_if(lines_.begin(), lines_.end(), is_complaint));
    if (there || complaints >= times || std::chrono::steady_clock::now() > deadline) {
      std::string all;
      for (const auto& line : lines_) all += "\n  " + line;
      CHECK_MESSAGE(there, "the log does not say '" << text << "', " << times << " times:" << all);
      return complaints;
    }
    std::this_thread::yield();
  }
}

void Victim::complains(const std::string& text, std::size_t most) {
  wait_for(text);
  check_honest();
  const std::size_t complaints = wait_for(text);
  CHECK_MESSAGE((complaints >= 1 && complaints <= most),
                "one complaint is enough for '" << text << "'");
  lines_.clear();
}

void Victim::complains_of_each(std::size_t count, const std::string& text) {
  wait_for(text, count);
  check_honest();
  CHECK(wait_for(text, count) == count);
  lines_.clear();
}

void Victim::is_content(const std::string& text) {
  std::size_t complaints = wait_for(text);
  check_honest();
  complaints += wait_for(text);
  CHECK(complaints == 0);
  lines_.clear();
}

}  // namespace rtrs::hostile
