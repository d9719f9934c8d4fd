// SPDX-License-Identifier: BSD-3-Clause
// Source: proc(5).
#include "bridge/backend/rbd_holder.hpp"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace rnbd {
namespace {

/// This boot, and the namespace in which its pids mean something.
std::string world() {
  std::string boot;
  std::ifstream{"/proc/sys/kernel/random/boot_id"} >> boot;
  std::error_code failure;
  const auto space = std::filesystem::read_symlink("/proc/self/ns/pid", failure);
  return boot.empty() || failure ? "" : boot + ' ' + space.string();
}

/// State and time of start, in ticks since the boot. Both empty: there is no such process, or it is
/// not shown.
struct Life {
  std::string state, start;
};
Life life_of(long process) {
  std::string line;
  std::getline(std::ifstream{"/proc/" + std::to_string(process) + "/stat"}, line);
  const auto name_ends = line.rfind(')');  // the name may have spaces
  if (name_ends == std::string::npos) return {};
  constexpr int kFieldsBetween = 18;
  std::istringstream fields{line.substr(name_ends + 1)};
  Life life;
  std::string skipped;
  fields >> life.state;
  for (int n = 0; n < kFieldsBetween; ++n) fields >> skipped;
  fields >> life.start;
  return life;
}

}  // namespace

std::string describe_holder(const std::string& address) {
  const std::string here = world();
  const std::string start = life_of(getpid()).start;
  if (here.empty() || start.empty() || address.empty()) return "";
  return address + ' ' + here + ' ' + std::to_string(getpid()) + ' ' + start;
}

bool is_certainly_dead(const std::string& described, const std::string& address) {
  const std::string begin = address + ' ' + world() + ' ';
  if (begin.back() != ' ' || !described.starts_with(begin)) return false;
  std::istringstream rest{described.substr(begin.size())};
  long process = 0;
  std::string start;
  if (!(rest >> process >> start) || process <= 0) return false;
  if (kill(static_cast<pid_t>(process), 0) < 0) return errno == ESRCH;
  const Life life = life_of(process);
  return !life.start.empty() && (life.start != start || life.state == "Z");
}

}  // namespace rnbd
