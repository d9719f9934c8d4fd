// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/journal.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "bridge/protocol/printable.hpp"

namespace rnbd {

std::string journal_fields(const rtrs::LogFacts& facts) {
  const std::pair<std::string_view, std::string_view> known[] = {{"RNBD_EVENT", facts.event},
                                                                 {"RNBD_SESSION", facts.session},
                                                                 {"RNBD_PATH", facts.path},
                                                                 {"RNBD_DEVICE", facts.device}};
  std::string fields;
  for (const auto& [name, value] : known) {
    if (value.empty()) continue;
    fields += name;
    fields += '=';
    fields += on_one_line(value);
    fields += '\n';
  }
  if (facts.error != 0) fields += "ERRNO=" + std::to_string(facts.error) + "\n";
  return fields;
}

Journal::Journal(std::string socket)
    : path_{std::move(socket)}, socket_{::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)} {}

/// By address each time: the journal may have been started anew since.
bool Journal::send(int priority, std::string_view text, std::string_view fields) const {
  constexpr int kDaemon = 3;  // syslog(3), LOG_DAEMON
  sockaddr_un address{};
  if (path_.size() >= sizeof(address.sun_path)) return false;
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.data(), path_.size());
  std::string message = "MESSAGE=";
  message += text;
  message += "\nPRIORITY=" + std::to_string(priority) +
             "\nSYSLOG_FACILITY=" + std::to_string(kDaemon) +
             "\nSYSLOG_IDENTIFIER=" + program_invocation_short_name + "\n";
  message += fields;
  ssize_t sent = -1;
  do {
    sent = ::sendto(socket_.get(), message.data(), message.size(), MSG_NOSIGNAL,
                    reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(message.size());
}

}  // namespace rnbd
