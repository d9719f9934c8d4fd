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
      here.waiting.push_back({{who, here.ended}, std::move(start)});
      return true;
    }
    if (hanging_ >= kMostHung) return false;
    lines_.emplace(line, Line{turn, {{who, 0}}});
  }
  start();
  return true;
}

bool OpenLines::give_up(const std::string& line, Who who) {
  const std::lock_guard lock{mutex_};
  const auto known = lines_.find(line);
  if (known == lines_.end()) return false;
  Line& here = known->second;
  const auto works = std::ranges::find(here.at_work, who, &Caller::who);
  const auto waits =
      std::ranges::find(here.waiting, who, [](const Next& n) { return n.caller.who; });
  if (works == here.at_work.end() && waits == here.waiting.end()) return false;
  const bool has_left = works == here.at_work.end();
  const std::uint64_t came = has_left ? waits->caller.came : works->came;
  const bool stands = here.turn == Turn::one ? !has_left : here.ended == came;
  if (stands && !std::exchange(here.hangs, true)) ++hanging_;
  if (has_left) {
    here.waiting.erase(waits);
  } else {
    works->late = true;
  }
  return has_left;
}

void OpenLines::end(const std::string& line, Who who) {
  std::list<Next> next;
  {
    const std::lock_guard lock{mutex_};
    const auto known = lines_.find(line);
    Line& here = known->second;
    here.at_work.erase(std::ranges::find(here.at_work, who, &Caller::who));
    ++here.ended;
    if (std::exchange(here.hangs, false)) --hanging_;
    if (!here.at_work.empty()) return;
    if (here.waiting.empty()) {
      lines_.erase(known);
      return;
    }
    const auto first = here.waiting.begin();
    const auto last = here.turn == Turn::all ? here.waiting.end() : std::next(first);
    next.splice(next.begin(), here.waiting, first, last);
    for (const Next& each : next) here.at_work.push_back(each.caller);
  }
  for (const Next& each : next) each.start();
}

bool OpenLines::hangs(const std::string& line) const {
  const std::lock_guard lock{mutex_};
  const auto known = lines_.find(line);
  return known != lines_.end() && known->second.hangs;
}

bool OpenLines::keeps_late(const std::string& line) const {
  const std::lock_guard lock{mutex_};
  const auto known = lines_.find(line);
  return known != lines_.end() && std::ranges::any_of(known->second.at_work, &Caller::late);
}

}  // namespace rnbd
