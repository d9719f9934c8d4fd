#include "bridge/server/surroundings.hpp"

#include <utility>

namespace rnbd {

namespace {

using Work = std::function<void()>;

void run(const std::function<void(rtrs::Reactor*, Work, Work)>& elsewhere, rtrs::Reactor* reactor,
         Work work, Work then) {
  if (elsewhere) return elsewhere(reactor, std::move(work), std::move(then));
  if (work) work();
  if (then) then();
}

}  // namespace

void Surroundings::run_blocking(rtrs::Reactor* reactor, Work work, Work then) const {
  run(offload, reactor, std::move(work), std::move(then));
}

void Surroundings::run_recording(rtrs::Reactor* reactor, Work work, Work then) const {
  run(record, reactor, std::move(work), std::move(then));
}

void Surroundings::say(rtrs::LogLevel level, const std::string& peer,
                       const std::string& line) const {
  if (log) log(level, peer, line);
}

std::string quoted(std::string_view name) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string text = "'";
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F || c == '\'' || c == '\\') {
      text += "\\x";
      text += kHex[byte >> 4];
      text += kHex[byte & 15];
    } else {
      text += c;
    }
  }
  return text += "'";
}

}  // namespace rnbd
