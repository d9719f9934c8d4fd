// SPDX-License-Identifier: BSD-3-Clause
// The socket of systemd's journal, for log lines with fields.
#pragma once

#include <string>
#include <string_view>

#include "rdma/log_about.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd {

/// One line for each known fact: "RNBD_EVENT=path_lost\nRNBD_SESSION=vm1\n...".
std::string journal_fields(const rtrs::LogFacts& facts);

/// Source: "Native Journal Protocol" of systemd.
///
/// Threads: one at a time.
class Journal {
 public:
  explicit Journal(std::string socket = "/run/systemd/journal/socket");

  /// `priority` is that of syslog(3). `text` is one line; `fields` come from journal_fields().
  /// False: the journal has not accepted it.
  bool send(int priority, std::string_view text, std::string_view fields) const;

 private:
  std::string path_;
  rtrs::OwnedFd socket_;
};

}  // namespace rnbd
