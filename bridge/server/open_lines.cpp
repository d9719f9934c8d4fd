// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/open_lines.hpp"

#include <utility>

namespace rnbd {

bool OpenLines::begin(const std::string& line, Who who, std::function<void()> start) {
  {
    const std::lock_guard lock{mutex_};
    const auto known = lines_.find(line);
    if (known != lines_.end()) {
      if (known->second.hangs) return false;
      known->second.waiting.push_back({who, std::move(start)});
      return true;
    }
    if (hanging_ >= kMostHung) return false;
    lines_.emplace(line, Line{who});
  }
  start();
  return true;
}

bool OpenLines::give_up(const std::string& line, Who who) {
  const std::lock_guard lock{mutex_};
  const auto known = lines_.find(line);
  if (known == lines_.end()) return false;
  Line& here = known->second;
  if (here.first != who) {
    return std::erase_if(here.waiting, [who](const Next& next) { return next.who == who; }) > 0;
  }
  if (!std::exchange(here.hangs, true)) ++hanging_;
  return false;
}

void OpenLines::end(const std::string& line) {
  std::function<void()> start;
  {
    const std::lock_guard lock{mutex_};
    const auto known = lines_.find(line);
    if (std::exchange(known->second.hangs, false)) --hanging_;
    auto& waiting = known->second.waiting;
    if (waiting.empty()) {
      lines_.erase(known);
      return;
    }
    known->second.first = waiting.front().who;
    start = std::move(waiting.front().start);
    waiting.pop_front();
  }
  start();
}

bool OpenLines::hangs(const std::string& line) const {
  const std::lock_guard lock{mutex_};
  const auto known = lines_.find(line);
  return known != lines_.end() && known->second.hangs;
}

}  // namespace rnbd
