// SPDX-License-Identifier: BSD-3-Clause
// The journal's own socket, for lines that have fields beside their sentence.
#pragma once

#include <string>
#include <string_view>

#include "rdma/log_about.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd {

/// A line for each fact that is known: "RNBD_EVENT=path_lost\nRNBD_SESSION=vm1\n...".
std::string journal_fields(const rtrs::LogFacts& facts);

/// Source: "Native Journal Protocol" of systemd.
///
/// Threads: one at a time.
class Journal {
 public:
  explicit Journal(std::string socket = "/run/systemd/journal/socket");

  /// `priority`: of syslog(3). `text` is one line, `fields` are those of journal_fields(). False:
  /// nobody takes it.
  bool send(int priority, std::string_view text, std::string_view fields) const;

 private:
  std::string path_;
  rtrs::OwnedFd socket_;
};

}  // namespace rnbd
