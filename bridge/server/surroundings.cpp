#include "bridge/server/surroundings.hpp"

#include <utility>

namespace rnbd {

void Surroundings::run_blocking(rtrs::Reactor* reactor, std::function<void()> work,
                                std::function<void()> then) const {
  if (offload) {
    offload(reactor, std::move(work), std::move(then));
    return;
  }
  if (work) work();
  if (then) then();
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
