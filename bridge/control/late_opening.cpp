// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/control/late_opening.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

namespace rnbd {
namespace {

constexpr std::chrono::seconds kAgain{1};  ///< between two attempts

}  // namespace

LateOpening::~LateOpening() {
  {
    const std::lock_guard lock{mutex_};
    over_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void LateOpening::start() {
  if (attempt()) return;
  try {
    thread_ = std::thread{[this] { run(); }};
  } catch (const std::system_error& error) {
    log_(rtrs::LogLevel::error, std::string{"it is not tried again: "} + error.what());
  }
}

std::string LateOpening::trouble() const {
  const std::lock_guard lock{mutex_};
  return trouble_;
}

bool LateOpening::attempt() {
  std::string trouble;
  try {
    if (const auto opened = open_(); !opened) trouble = opened.error();
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  std::unique_lock lock{mutex_};
  const bool is_news = std::exchange(trouble_, trouble) != trouble;
  lock.unlock();
  if (is_news && !trouble.empty())
    log_(rtrs::LogLevel::warning, trouble + "; it is tried again every second");
  return trouble.empty();
}

void LateOpening::run() {
  for (;;) {
    {
      std::unique_lock lock{mutex_};
      if (changed_.wait_for(lock, kAgain, [this] { return over_; })) return;
    }
    if (attempt()) return;
  }
}

std::vector<ControlCommand> with_late(std::vector<ControlCommand> commands, std::string what,
                                      const LateOpening& late) {
  const auto status = std::ranges::find(commands, "status", &ControlCommand::name);
  status->run = [&late, what = std::move(what), others = status->run](const std::string& argument) {
    auto answer = others(argument);
    const std::string trouble = late.trouble();
    if (answer && !trouble.empty()) {
      (*answer)["listeners"].push_back(
          {{"listener", what}, {"state", "waiting"}, {"trouble", trouble}});
    }
    return answer;
  };
  return commands;
}

}  // namespace rnbd
