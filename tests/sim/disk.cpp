// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/disk.hpp"

#include <algorithm>

namespace sim {

const char* to_string(Action action) {
  switch (action) {
    case Action::read:
      return "read";
    case Action::write:
      return "write";
    case Action::zero_data:
      return "write of zeroes";
    case Action::flush:
      return "flush";
    case Action::discard:
      return "discard";
    case Action::zero:
      return "write zeroes";
    case Action::crash:
      return "crash";
  }
  return "?";
}

bool Disk::Sector::lost(std::uint32_t position) const {
  return std::any_of(losses.begin(), losses.end(), [&](const auto& loss) {
    return loss.first < position && position < loss.second;
  });
}

Disk::Disk(unsigned number, unsigned slot, const DiskKnobs& knobs)
    : number_{number},
      slot_{slot},
      name_{"disk" + std::to_string(slot)},
      knobs_{knobs},
      sectors_((knobs.size + kSector - 1) / kSector) {}

std::size_t Disk::valid_bytes(std::uint64_t i) const {
  return static_cast<std::size_t>(std::min<std::uint64_t>(kSector, knobs_.size - i * kSector));
}

std::uint32_t Disk::apply(std::uint64_t sector, Stamp value, Action action) {
  Sector& state = sectors_[sector];
  state.history.push_back({value, action});
  return state.last();
}

std::uint64_t Disk::crash(Rng& rng) {
  std::uint64_t lost = sectors();
  for (std::uint64_t i = 0; i < sectors(); ++i) {
    Sector& sector = sectors_[i];
    const auto survivor = static_cast<std::uint32_t>(rng.between(sector.durable, sector.last()));
    if (survivor < sector.promised) lost = i;
    if (survivor == sector.last()) {
      sector.durable = sector.completed = survivor;
      continue;
    }
    const std::uint32_t now = apply(i, sector.history[survivor].value, Action::crash);
    sector.losses.emplace_back(survivor, now);
    sector.completed = sector.durable = sector.acknowledged = sector.promised = now;
  }
  return lost;
}

}  // namespace sim
