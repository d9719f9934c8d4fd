// SPDX-License-Identifier: BSD-3-Clause
// The replacement of a running program by its heir: a table of states, without threads, clocks and
// files.
#pragma once

#include <cstdint>
#include <span>

namespace rnbd {

/// The state of the program that is to be replaced.
enum class Stage : std::uint8_t {
  serving,    ///< there is no heir
  preparing,  ///< the heir gets ready, and has nothing that this program needs
  pausing,    ///< requests under way are answered, and no other begins
  offering,   ///< the heir takes over what was let go, and serves nobody yet
  gone,       ///< the heir serves
};

enum class Turn : std::uint8_t {
  asked,     ///< somebody wants an heir
  ready,     ///< the heir could go on
  still,     ///< nothing is under way any more
  accepted,  ///< the heir has everything, and was told to serve
  failed,    ///< the heir has died, refuses or is late, or requests do not end
  stop,      ///< this program must end otherwise
};

enum class Step : std::uint8_t {
  start,      ///< the heir
  pause,      ///< all clients
  offer,      ///< let everything go, and give it to the heir
  leave,      ///< at once, and touch nothing more
  give_up,    ///< end the heir
  resume,     ///< the same, and let the clients go on
  take_back,  ///< the same, and begin anew with what was let go
};

struct SuccessionRow {
  Stage from;
  Turn turn;
  Stage to;
  Step step;
};

/// "serving", "preparing" ...
const char* name_of(Stage stage);

/// The rows of the shipped table.
std::span<const SuccessionRow> succession_rows();

/// The row of a turn in a stage. Null: it has no meaning there.
const SuccessionRow* succession_row(Stage from, Turn turn);

}  // namespace rnbd
