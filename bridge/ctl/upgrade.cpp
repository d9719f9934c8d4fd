// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/upgrade.hpp"

#include <cerrno>
#include <nlohmann/json.hpp>
#include <thread>

namespace rnbd {
namespace {

using std::chrono::steady_clock;

/// Longer than all limits of the program.
constexpr std::chrono::seconds kPatience{30};
/// For the new program to open the control socket; it tries every second.
constexpr std::chrono::seconds kTimeToOpen{5};
constexpr std::chrono::milliseconds kLookAgain{20};

}  // namespace

tl::expected<CtlJson, CtlTrouble> upgrade_program(const std::string& socket,
                                                  void (*tell)(const std::string& line)) {
  const auto answer_to = [&](const std::string& line) -> tl::expected<CtlJson, CtlTrouble> {
    auto answer = ask_control_socket(socket, line);
    if (!answer) return tl::unexpected(answer.error());
    CtlJson told = parse_answer(*answer);
    if (told.is_null())
      return tl::unexpected(CtlTrouble{EPROTO, "it does not answer as a control socket does"});
    if (told.contains("error")) return tl::unexpected(CtlTrouble{EIO, message_of(told)});
    return told;
  };
  const auto begun = answer_to("upgrade");
  if (!begun) return begun;
  const std::uint64_t old = said_number(*begun, "pid");
  std::string stage;
  auto seen = steady_clock::now();
  for (const auto until = seen + kPatience; steady_clock::now() < until;
       std::this_thread::sleep_for(kLookAgain)) {
    const auto now = answer_to("upgrade state");
    if (!now && steady_clock::now() - seen > kTimeToOpen)
      return tl::unexpected(CtlTrouble{
          now.error().error,
          "nobody answers any more (" + now.error().text + "); see the log of the program"});
    if (!now) continue;
    seen = steady_clock::now();
    if (said_number(*now, "pid") != old) return now;
    const std::string state = said_text(*now, "state");
    if (state == "serving")
      return tl::unexpected(CtlTrouble{EIO, "it goes on as before: " + said_text(*now, "trouble")});
    if (state != stage) tell(state);
    stage = state;
  }
  return tl::unexpected(
      CtlTrouble{ETIMEDOUT, "it has not ended within " + std::to_string(kPatience.count()) + " s"});
}

}  // namespace rnbd
