// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/open_numbers.hpp"

#include <algorithm>
#include <cerrno>

namespace rnbd {

void OpenNumbers::settle(std::uint32_t number) {
  settled_ = std::max(settled_, number);
  refused_.erase(refused_.begin(), refused_.lower_bound(settled_));
  std::erase_if(closed_, [this](const auto& closed) { return closed.second < settled_; });
}

int OpenNumbers::verdict(std::uint32_t number, std::string_view name) const {
  if (number == 0) return 0;
  if (number < settled_) return ECANCELED;
  const auto closed = closed_.find(name);
  if (closed != closed_.end() && number <= closed->second) return ECANCELED;
  const auto refused = refused_.find(number);
  return refused != refused_.end() ? refused->second : 0;
}

void OpenNumbers::refuse(std::uint32_t number, int error) {
  if (number >= settled_ && number != 0 && refused_.size() < kMaxRefused) {
    refused_.emplace(number, error);
  }
}

void OpenNumbers::close(const std::string& name, std::uint32_t newest) {
  if (newest >= settled_ && newest != 0 && closed_.size() < kMaxRefused) {
    closed_.insert_or_assign(name, newest);
  }
}

}  // namespace rnbd
