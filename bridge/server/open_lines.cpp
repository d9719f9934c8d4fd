// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/open_lines.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace rnbd {

bool OpenLines::begin(const std::string& line, Who who, std::function<void()> start, Turn turn) {
  {
    const std::lock_guard lock{mutex_};
    const auto known = lines_.find(line);
    if (known != lines_.end()) {
      Line& here = known->second;
      if (here.hangs) return false;
      here.at_work.reserve(here.waiting.size() + 1);
      here.waiting.push_back({who, std::move(start)});
      return true;
    }
    if (hanging_ >= kMostHung) return false;
    lines_.emplace(line, Line{turn, {who}});
  }
  start();
  return true;
}

bool OpenLines::give_up(const std::string& line, Who who) {
  const std::lock_guard lock{mutex_};
  const auto known = lines_.find(line);
  if (known == lines_.end()) return false;
  Line& here = known->second;
  if (std::ranges::find(here.at_work, who) == here.at_work.end()) {
    return std::erase_if(here.waiting, [who](const Next& next) { return next.who == who; }) > 0;
  }
  if (!std::exchange(here.hangs, true)) ++hanging_;
  return false;
}

void OpenLines::end(const std::string& line, Who who) {
  std::list<Next> next;
  {
    const std::lock_guard lock{mutex_};
    const auto known = lines_.find(line);
    Line& here = known->second;
    here.at_work.erase(std::ranges::find(here.at_work, who));
    if (!here.at_work.empty()) return;
    if (std::exchange(here.hangs, false)) --hanging_;
    if (here.waiting.empty()) {
      lines_.erase(known);
      return;
    }
    const auto first = here.waiting.begin();
    const auto last = here.turn == Turn::all ? here.waiting.end() : std::next(first);
    next.splice(next.begin(), here.waiting, first, last);
    for (const Next& each : next) here.at_work.push_back(each.who);
  }
  for (const Next& each : next) each.start();
}

bool OpenLines::hangs(const std::string& line) const {
  const std::lock_guard lock{mutex_};
  const auto known = lines_.find(line);
  return known != lines_.end() && known->second.hangs;
}

}  // namespace rnbd
