// SPDX-License-Identifier: BSD-3-Clause
// The accounts of all programs that can be asked.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bridge/ctl/dialog.hpp"
#include "bridge/ctl/hidden.hpp"

namespace rnbd {

/// A program's own account.
struct CtlReport {
  CtlProgram program;
  CtlJson status;    ///< the answer to `status`
  CtlJson counters;  ///< the answer to `counters`; null: it has none
};

/// A bridge and a plugin have one session, and a server tells all that clients have with it.
bool is_server(const CtlReport& report);

struct CtlReports {
  std::vector<CtlReport> all;
  std::vector<std::string> silent = {};      ///< a sentence about each that does not answer
  std::vector<HiddenProgram> hidden = {};    ///< those without a socket that is found
  std::vector<CtlProgram> ended = {};        ///< killed ones: their sockets are still there
  std::vector<CtlProgram> hung = {};         ///< those of the silent ones that run, and say nothing
  std::vector<CtlClosedFolder> closed = {};  ///< what is there is not known
  std::vector<HiddenProgram> contained = {};  ///< those in containers, which are asked there
};

/// A sentence for people.
std::string text_about(const CtlClosedFolder& closed);

struct CtlAsking {
  std::chrono::seconds patience{5};  ///< with each program
  bool counters = true;
  bool elsewhere = false;  ///< also servers whose sockets are in no usual place, by their processes
};
/// Asks all programs whose sockets are found below `root`, at the same time: those that hang cost
/// the patience once.
CtlReports ask_all(const std::string& root, const CtlAsking& how = {});

/// One program's answer to a line. Null, and `trouble` tells why, if it is no object or an error;
/// without trouble the program has ended.
CtlJson ask_program(const std::string& socket, const std::string& line, std::string& trouble);

}  // namespace rnbd
