// SPDX-License-Identifier: BSD-3-Clause
// Interfaces for kinds of disks beyond a device of one server. Each kind has a folder of its own,
// and a line in annexes.cpp.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/ctl/dialog.hpp"
#include "bridge/ctl/output.hpp"
#include "bridge/ctl/words.hpp"

namespace rnbd {

/// A command that a running program answers over its control socket.
struct ProgramWord {
  std::string_view word;
  std::string_view argument;  ///< as the program's own help has it
  CtlSide side;               ///< whose command it is
  std::string_view help;
};

/// A finding of `check` about a disk.
struct CtlConcern {
  CtlHealth health;
  std::string text;
};

/// The contribution of an annex. A null function: nothing of that kind.
struct CtlAnnex {
  std::string_view name;               ///< of its findings
  std::span<const ProgramWord> words;  ///< for the help
  std::string_view question = {};      ///< the command whose answer `check` judges
  /// True: by its answer to `status`, a client has such a disk. Such a client has no paths while
  /// nobody uses it. Pure.
  bool (*has_disk)(const CtlJson& status) = nullptr;
  /// The findings about such a disk, by the answer to `question`. It needs both of the above. Pure.
  std::vector<CtlConcern> (*judge)(const CtlJson& answer) = nullptr;
  /// The command that tells how far another one is, which goes on when it has been answered; "": a
  /// command of these words does not. Pure.
  std::string_view (*progress_of)(const std::vector<std::string>& words) = nullptr;
  /// The exit status of that one, by an answer to such a question; none: it goes on. Pure.
  std::optional<int> (*outcome)(const CtlJson& answer) = nullptr;
};

std::span<const CtlAnnex* const> ctl_annexes();

}  // namespace rnbd
