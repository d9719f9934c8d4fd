// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/bridge/succession.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace rnbd {
namespace {

constexpr std::array kRows{
    SuccessionRow{Stage::serving, Turn::asked, Stage::preparing, Step::start},
    SuccessionRow{Stage::preparing, Turn::ready, Stage::pausing, Step::pause},
    SuccessionRow{Stage::preparing, Turn::failed, Stage::serving, Step::give_up},
    SuccessionRow{Stage::preparing, Turn::stop, Stage::serving, Step::give_up},
    SuccessionRow{Stage::pausing, Turn::still, Stage::offering, Step::offer},
    SuccessionRow{Stage::pausing, Turn::failed, Stage::serving, Step::resume},
    SuccessionRow{Stage::pausing, Turn::stop, Stage::serving, Step::resume},
    SuccessionRow{Stage::offering, Turn::accepted, Stage::gone, Step::leave},
    SuccessionRow{Stage::offering, Turn::failed, Stage::serving, Step::take_back},
    SuccessionRow{Stage::offering, Turn::stop, Stage::serving, Step::take_back},
};

}  // namespace

const char* name_of(Stage stage) {
  constexpr std::array kNames{"serving", "preparing", "pausing", "offering", "gone"};
  return kNames[static_cast<std::size_t>(stage)];
}

std::span<const SuccessionRow> succession_rows() { return kRows; }

const SuccessionRow* succession_row(Stage from, Turn turn) {
  const auto row = std::ranges::find_if(
      kRows, [&](const SuccessionRow& one) { return one.from == from && one.turn == turn; });
  return row != kRows.end() ? &*row : nullptr;
}

}  // namespace rnbd
