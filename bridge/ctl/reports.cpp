// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/reports.hpp"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <utility>

#include "bridge/ctl/dialog.hpp"
#include "bridge/ctl/outcome.hpp"

namespace rnbd {
namespace {

/// One that hangs must not keep the others from being shown for long.
constexpr std::chrono::seconds kPatienceWithEach{5};

}  // namespace

CtlJson ask_program(const std::string& socket, const std::string& line, std::string& trouble) {
  const auto answer = ask_control_socket(socket, line, kPatienceWithEach);
  if (!answer) {
    // Left behind by a program that was killed.
    if (answer.error().error != ECONNREFUSED) trouble = answer.error().text;
    return nullptr;
  }
  CtlJson json = CtlJson::parse(*answer, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && !json.contains("error")) return json;
  trouble = "it does not answer as a program of rnbdkit does";
  return nullptr;
}

CtlReports ask_all(const std::string& root) {
  CtlReports reports;
  const std::vector<CtlProgram> programs = find_programs(root);
  reports.hidden = find_hidden_programs(root, programs);
  for (const CtlProgram& program : programs) {
    std::string trouble, ignored;
    CtlJson status = ask_program(program.socket, "status", trouble);
    if (!trouble.empty()) reports.silent.push_back(program.socket + ": " + trouble);
    if (status.is_null() && trouble.empty()) reports.ended.push_back(program);
    if (status.is_null()) continue;
    // A plugin has none.
    reports.all.push_back(
        {program, std::move(status), ask_program(program.socket, "counters", ignored)});
  }
  return reports;
}

void remark(const std::string& text) {
  std::fflush(stdout);
  std::fprintf(stderr, "rnbd-ctl: %s\n", text.c_str());
}

}  // namespace rnbd
